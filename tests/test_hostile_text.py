"""Hostile text as label, task, prediction, reference, file name and verdict, through every output:
nothing in it runs, nothing of it is lost."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from urllib.parse import unquote

import pandas as pd
import pytest
from nbconvert.filters import markdown2html
from test_summary import scores_of

import rulerkit as rk
from rulerkit.common import escape
from rulerkit.report.leaderboard import boards
from rulerkit.report.view import to_terminal

HTML = """</td></script><script>window.ran = 1</script><img src=x onerror="window.ran = 1">' &lt; <b>"""
LATEX = (
    r"""[$\href{javascript:window.ran=1}{x}$ \(y\) \input{/etc/passwd} \end{tabular} 50% a_b^c~#1 & -- """
    """"`'| *z* [u](javascript:window.ran=1)"""
)
TERMINAL = "=1+cmd|'/C calc'!A0 \x1b]0;ran\x07\x1b[2J\x9b31m\u202eabc\x7f\tq\rr\ns"
HOSTILE = TERMINAL + LATEX + HTML
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
MATHEMATICS = re.compile(r"\$.*\$|\\[(\[]|\\begin")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


class Outputs:
    """Everything that is made of results whose texts are all hostile."""

    def __init__(self, folder):
        text = HOSTILE
        model = rk.model(lambda prompts: [text] * len(prompts), name="hostile", label="l")
        asked = {"tasks": ["niah_single_1"], "lengths": [1024], "num_examples": 2}
        study = rk.study(models=[model], **asked, outputs=folder)
        labels = rk.answers_of(rk.evaluate(study, progress=False), labels=True)
        scores = scores_of({("m", 4096): 1.0, ("n", 4096): 0.5}, n=2).assign(wanted=2)
        scores["label"] = scores["model"].map({"m": text, "n": "n"})
        summary = rk.summarize(scores.assign(task=scores["task"].replace("vt", text), note=text))
        claim = {"section": text, "claim": text, "kind": "above", "limit": 50}
        verdicts = rk.claims(scores[scores["task"] == "vt"].assign(task=text), listed=[claim])
        example = rk.generate("niah_single_1", 1024, 1)[0]
        blocks = [replace(block, text=text, key=text, value=text) for block in example.blocks]
        example = replace(example, blocks=tuple(blocks), task=text, references=(text,))
        board = next(board for board in boards(scores) if board.number == "3")
        samples = labels[["failure", "task", "prediction"]].assign(detail=text)
        samples = samples.rename(columns={"detail": text})
        tidy = pd.DataFrame({text: [text], "n": [-1.5], "digits": ["-5"]})
        self.frames = {"samples": samples, "tidy": tidy}
        self.html = {
            "example": rk.show(example).text,
            "verdicts": rk.tables.show(verdicts).to_html(),
            "samples": rk.tables.show(samples, index=True).to_html(),
        }
        self.markdown, self.latex = {}, {}
        for form, tables in (("markdown", self.markdown), ("latex", self.latex)):
            tables["leaderboard"] = rk.tables.table_text(summary, form)
            tables["tasks"] = rk.tables.task_table_text(summary, "m", format=form)
            tables["board"] = board.text(form)
        self.plain = {
            "leaderboard": rk.tables.table_text(summary),
            "tasks": rk.tables.task_table_text(summary, "m"),
            "example": to_terminal(example, color=False),
        }
        self.saved = {name: study.save_table(frame, name) for name, frame in self.frames.items()}
        for name, path in self.saved.items():
            self.latex[f"saved {name}"] = path.with_suffix(".tex").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return Outputs(tmp_path_factory.mktemp("hostile"))


def browse(parts, folder):
    """A page of these parts, opened in a browser: whether a script of theirs ran; and of each part
    its text, its links and images, and the stretches of text that MathJax would read."""
    report = """<script>addEventListener("load", () => {
      const parts = {};
      for (const part of document.querySelectorAll("[data-part]")) {
        const read = part.cloneNode(true), runs = [];
        read.querySelectorAll(".mathjax_ignore, script, style").forEach(node => node.remove());
        const walk = document.createTreeWalker(read, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) runs.push(walk.currentNode.data);
        const links = [...part.querySelectorAll("a, img")].map(node => node.outerHTML);
        parts[part.dataset.part] = {text: part.textContent, runs, links};
      }
      document.body.textContent = "";
      document.title = encodeURIComponent(JSON.stringify([!!window.ran, parts]));
    })</script>"""
    file = folder / "page.html"
    body = "".join(f'<div data-part="{name}">{part}</div>' for name, part in parts.items())
    file.write_text(f"<meta charset=utf-8><title></title>{body}{report}", encoding="utf-8")
    call = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    call += [f"--user-data-dir={folder / 'user'}", "--virtual-time-budget=3000", file.as_uri()]
    dump = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True).stdout
    return json.loads(unquote(re.search(r"<title>(.*?)</title>", dump)[1]))


def letters(text):
    """A text without blanks and line breaks, visible or not: HTML sets them otherwise."""
    return re.sub(r"[\s␊␉]", "", escape.terminal(text))


@pytest.mark.skipif(BROWSER is None, reason="no chromium here: pages are opened in a real browser")
def test_nothing_runs_in_a_browser(outputs, tmp_path):
    assert browse({"html": HTML}, tmp_path)[0], "the browser runs what is not escaped"
    made = dict(outputs.html)
    for name, part in outputs.markdown.items():
        made[f"markdown {name}"] = markdown2html(part)
    ran, parts = browse(made, tmp_path)
    assert not ran
    assert parts.keys() == made.keys()
    for name, seen in parts.items():
        assert seen["links"] == [], name
        assert not [run for run in seen["runs"] if MATHEMATICS.search(run)], name
        assert letters(HOSTILE) in letters(seen["text"]), name


def test_latex_compiles_and_prints_it(outputs, tmp_path):
    """Compiled where a TeX is installed; always, every special letter is escaped or our own."""
    for name, table in outputs.latex.items():
        assert not CONTROLS.search(table), name
        ours = re.sub(r"\$([-<>]|\\pm|\\le|\\ge|\\alpha)\$|^% |%$", "", table, flags=re.MULTILINE)
        assert not re.search(r"(?<!\\)[$%#]", ours), name
        commands = set(re.findall(r"\\([A-Za-z]+)", table))
        assert not commands & {"href", "input", "immediate", "write"}, name
        assert table.count(r"\end{tabular}") == 1
    if shutil.which("pdflatex") is None:
        return
    body = "\n\n".join(outputs.latex.values())
    head = r"\documentclass{article}\usepackage{booktabs,array,graphicx}\begin{document}\tiny"
    (tmp_path / "t.tex").write_text(f"{head}\n{body}\n\\end{{document}}\n")
    call = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode("latin-1")[-1500:]


def test_csv_reads_back_and_holds_no_formula(outputs):
    for name, frame in outputs.frames.items():
        back = pd.read_csv(outputs.saved[name], keep_default_na=False)
        texts = [*back.columns, *(v for v in back.to_numpy().ravel() if isinstance(v, str))]
        formulas = [text for text in texts if re.match(r"[=+\-@\t\r]", text)]
        assert all(re.fullmatch(r"-?\d+", text) for text in formulas)
        plain = back.rename(columns=unquoted).map(unquoted)
        # Controls are written as the signs that stand for them.
        assert list(plain.columns) == list(map(escape.terminal, frame.columns))
        shown = escape.terminal(HOSTILE)
        assert plain[shown].tolist() == [shown] * len(frame), name
    assert back["n"].tolist() == [-1.5]


def unquoted(value):
    return re.sub(r"^'(?='*[=+\-@\t\r\n])", "", value) if isinstance(value, str) else value


def test_plain_text_has_no_controls(outputs):
    for name, shown in outputs.plain.items():
        assert not CONTROLS.search(shown), name
        assert escape.one_line(HOSTILE) in shown or escape.terminal(HOSTILE) in shown, name


@pytest.mark.parametrize("hostile", [HTML, LATEX, TERMINAL], ids=["html", "latex", "terminal"])
def test_the_command_line_shows_names_and_errors_harmlessly(hostile, tmp_path, rulerkit):
    name = hostile.replace("/", "∕")
    folder = tmp_path / name / "niah_single_1"
    folder.mkdir(parents=True)
    row = {"index": 0, "pred": hostile, "outputs": [hostile], "task": "niah_single_1"}
    row |= {"length": 4096}
    (folder / "4096.jsonl").write_text(json.dumps(row) + "\n")
    for arguments in (
        ["report", str(folder / "4096.jsonl")],
        ["status", str(tmp_path / name)],
        ["report", str(tmp_path / name)],
        ["show", "--tasks", hostile],
        ["show", hostile],
        ["evaluate", "-y", f"model: {json.dumps(hostile)}"],
    ):
        status, out, err = rulerkit(*arguments)
        assert not CONTROLS.search(out + err), arguments
        assert status in (0, 2), err
        assert "Traceback" not in err
        shown = err.replace("\\\\", "\\")
        assert out or any(escape.one_line(text)[:8] in shown for text in (name, hostile))
