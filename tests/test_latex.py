"""Tables in LaTeX: they fit a page of `article` at one and at two columns, with their notes and a
figure, by a real TeX. And the paper's tables without scores."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.common.render import render, table_files
from rulerkit.report.leaderboard import boards
from tests.test_paper import SIX, scores_at

DOCS = Path(__file__).parents[1] / "docs"


def written(folder):
    """Tables by name, with those of texts last; each in its two files."""
    scores = scores_at({"m": dict.fromkeys(SIX, 0.9), "n": dict.fromkeys(SIX, 0.2)}, n=4)
    summary = rk.summarize(scores)
    scored = {f"table {board.number}": board.text("latex") for board in boards(scores)}
    scored["models"] = rk.tables.table_text(summary, "latex")
    scored["tasks"] = rk.tables.task_table_text(summary, "m", format="latex")
    texts = {f"table {number}": rk.tables.paper_table(number) for number in (2, 4, 5)}
    texts["published"] = rk.paper.published_table("latex")
    claims = rk.claims(rk.paper.score_rows(), section="4, main results")
    notes = ["500 examples per task and length."]
    texts["claims"] = render(claims.drop(columns="section"), "latex", notes)
    for name, text in (scored | texts).items():
        for file, content in table_files(folder / f"{name.replace(' ', '-')}.tex", text).items():
            file.write_text(content, encoding="utf-8")
    return list(scored), list(texts)


def floats(names, kind):
    for name in names:
        file = name.replace(" ", "-")
        notes = rf"\input{{{file}-notes}}"
        # Its list of sources is longer than a page has room for below the table.
        inside, below = ("", notes) if name == "published" else (notes, "")
        table = rf"\centering\caption{{{name}}}\input{{{file}}}{inside}"
        yield rf"\begin{{{kind}}}[p]{table}\end{{{kind}}}{below}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no TeX here: pdflatex is not found")
@pytest.mark.parametrize("columns", ["onecolumn", "twocolumn"])
def test_tables_fit_an_article(columns, tmp_path):
    """At two columns the tables of scores fit a column, and those of texts a page."""
    scored, texts = written(tmp_path)
    shutil.copy(DOCS / "figure_4.pdf", tmp_path)
    wide = "table*" if columns == "twocolumn" else "table"
    lines = [
        rf"\documentclass[{columns}]{{article}}\usepackage{{booktabs,array,graphicx}}",
        r"\begin{document}A paper.",
        *floats(scored, "table"),
        *floats(texts, wide),
        r"\begin{figure}[p]\includegraphics[width=\linewidth]{figure_4}\end{figure}",
        r"\end{document}",
    ]
    (tmp_path / "paper.tex").write_text("\n".join(lines), encoding="utf-8")
    call = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True)
    log = (tmp_path / "paper.log").read_text(encoding="latin-1")
    assert done.returncode == 0, log[-1500:]
    assert not re.findall(r"^(?:Overfull.*|.*Float too large.*)", log, re.MULTILINE)

    if shutil.which("pdffonts"):
        listed = subprocess.getoutput(f"pdffonts {tmp_path / 'paper.pdf'}").splitlines()
        head = listed[0].index("emb")
        assert len(listed) > 4
        assert {line[head : head + 3] for line in listed[2:]} == {"yes"}, "fonts that are not there"


def test_the_paper_has_37_models_and_our_tasks_have_its_settings():
    models = rk.tables.paper_table(4, "json")
    assert models.count('"model"') == 37

    printed = rk.paper.printed_tasks()
    names = {"freq_cw", "freq_ucw", "num_cw", "alpha", "num_chains", "num_hops"}
    names |= {"num_keys", "num_values"}
    ours = [rk.task(name) for name in rk.THIRTEEN]
    for row, task in zip(printed.to_dict("records"), ours, strict=True):
        for name in names & {*task.setting_names()}:
            if row[name] and row[name] != "full haystack":
                assert float(row[name]) == getattr(task, name), (task.name, name)
    text = rk.tables.paper_table(5, "markdown")
    assert all(f" {name} |" in text.replace("\\_", "_") for name in rk.THIRTEEN)


def test_an_example_of_table_2_shows_what_answers_its_question(monkeypatch, tmp_path):
    """Without the paper's texts, as in a fresh clone."""
    monkeypatch.setenv("RULERKIT_DATA", str(tmp_path))
    rows = json.loads(rk.tables.paper_table(2, "json"))
    for row in rows[:5]:
        assert all(answer in row["example"] for answer in row["answer"].split(", ")), row
    tasks = ["S-NIAH", "MK-NIAH", "MV-NIAH", "MQ-NIAH", "VT", "CWE", "FWE", "QA"]
    assert [row["task"] for row in rows] == tasks
