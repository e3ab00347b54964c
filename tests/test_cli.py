"""The command line: what it teaches, what it writes, and what it says to those who type something
else."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import Ended

import rulerkit as rk
from tests.batches import wait_until
from tests.conftest import needs_extras
from tests.processes import hear_signals

COMMANDS = ["evaluate", "check", "compare", "models", "tasks", "show", "report", "browse"]
COMMANDS += ["batch", "status", "fetch", "notebooks", "generate"]
ASKED = {
    "models": ["reader-1024", "perfect"],
    "tasks": ["niah_multikey_1", "vt", "qa_1"],
    "lengths": [1024, 2048],
    "num_examples": 6,
    "seed": 3,
}
PROGRAM = [sys.executable, "-m", "rulerkit"]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """An empty project with the predictions of ASKED."""
    root = tmp_path_factory.mktemp("project")
    (root / "asked.yaml").write_text(json.dumps(ASKED))
    environment = {**os.environ, "RULERKIT_HOME": str(root), "RULERKIT_DATA": ""}
    subprocess.run([*PROGRAM, "evaluate", "-f", "asked.yaml"], env=environment, check=True)
    return root


@pytest.fixture
def project(evaluated, tmp_path, monkeypatch):
    """A copy of it for each test; the working directory is another, without original corpora."""
    root = tmp_path / "project"
    shutil.copytree(evaluated, root)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("RULERKIT_HOME", str(root))
    monkeypatch.setenv("RULERKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RULERKIT_DATA", raising=False)
    return root


def tree(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def builtin(name):
    return rk.task(name).with_corpora("builtin")


def table(text):
    """Task -> its scores, of the tables that evaluate and score print."""
    lines = (re.match(r"([\w.-]+) +(-|\d+\.\d .*)", line) for line in text.splitlines())
    return {line[1]: re.findall(r"(\d+\.\d) \(", line[2]) for line in lines if line}


def test_help_of_each_command_teaches(rulerkit, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    shown = rulerkit("--help").out
    for command in COMMANDS:
        assert command in shown
        ended = rulerkit(command, "--help")
        assert ended.status == 0
        for line in ended.out.splitlines():  # no option without a word on it
            if option := re.match(r"│ [* ] +(--[\w-]+)(.*)│", line):
                words = re.sub(r"\[.*?\]|[A-Z]{4,}|-\w\b", "", option[2]).split()
                assert len(words) >= 2, line
    assert re.fullmatch(r"rulerkit \d+\.\d+\.\d+\n", rulerkit("--version").out)


def test_tasks_lists_all_with_their_settings(rulerkit):
    lines = rulerkit("tasks").out.split("\n\n")[0].splitlines()
    names = [line.removeprefix("+").split()[0] for line in lines]
    assert names[: len(rk.TASKS)] == list(rk.TASKS), "those of plug-ins come behind"
    assert "  niah_multikey_1    niah         num_keys=4" in lines
    assert "num_hops=4" in rulerkit("tasks").out


def test_show_is_plain_text_when_piped(project, rulerkit):
    asked = ("--tasks", "niah_multikey_1", "--lengths", "600")
    ended = rulerkit("show", *asked, "--index", "2", "-y", "seed: 5")
    assert (ended.status, ended.err) == (0, "")
    assert "\x1b" not in ended.out
    example = rk.generate(builtin("niah_multikey_1"), 600, 3, 5)[2]
    assert f"{example.num_tokens} of 600 tokens" in ended.out
    assert example.references[0] in ended.out
    for role in ("instruction", "haystack", "needle", "distractor", "question", "answer_prefix"):
        assert f"[{role}]" in ended.out
    variant = "{base: vt, num_hops: 2, num_chains: 3}"
    ended = rulerkit("show", "--tasks", variant, "--lengths", "1K,2K", "-n", 2)
    head = r"^vt-num_chains_3-num_hops_2: example (.), .* of ([\d,]+) tokens"
    heads = re.findall(head, ended.out, re.MULTILINE)
    assert heads == [(index, size) for size in ("1,024", "2,048") for index in "01"]


def test_generate_writes_upstreams_lines(rulerkit, tmp_path):
    """One file, or a grid as upstream lays it out."""
    file = tmp_path / "new" / "qa_2.jsonl"
    same = ("-n", 3, "-y", "seed: 9")
    one = ("--tasks", "qa_2", "--lengths", "2K", "--output", file)
    assert rulerkit("generate", *one, *same).out.endswith(f": {file}\n")
    examples = rk.generate(builtin("qa_2"), 2048, 3, 9)
    for row, example in zip(rows(file), examples, strict=True):
        fields = "index input outputs length answer_prefix context question task max_new_tokens"
        assert list(row) == [*fields.split(), "protocol"]
        assert (row["index"], row["outputs"]) == (example.index, list(example.references))
        assert row["input"] + row["answer_prefix"] == example.prompt
        assert row["context"] in row["input"]
        assert row["question"] in row["input"]
        assert row["length"] == example.num_tokens + example.max_new_tokens <= 2048
    grid = tmp_path / "grid"
    cells = ("--tasks", "qa_2,vt", "--tasks", "qa_2", "--lengths", "2K,1K,1024")
    many = rulerkit("generate", "perfect", *cells, *same, "--output", grid)
    assert "4 x 3 examples" in many.out
    names = [f"{n}/data/{t}/validation.jsonl" for n in (1024, 2048) for t in ("qa_2", "vt")]
    assert list(tree(grid)) == names
    assert (grid / names[2]).read_bytes() == file.read_bytes()


def test_evaluate_prints_a_table_per_model_and_keeps_the_rows(project, rulerkit):
    ended = rulerkit("evaluate", "-f", "asked.yaml", "-y", "run: again")
    assert ended.out.startswith(f"project root: {project} (RULERKIT_HOME)\n")
    first, second = ended.out.split("perfect (again)")
    assert table(second) == {task: ["100.0", "100.0"] for task in ASKED["tasks"]}
    assert [at_1k for at_1k, _ in table(first).values()] == ["100.0"] * 3
    assert all(float(at_2k) < 100 for _, at_2k in table(first).values())
    assert ended.out.endswith(f"predictions: {project}/outputs/predictions/again\n")
    again, before = (tree(project / "outputs/predictions" / run) for run in ("again", "main"))
    answers = [name for name in again if name.endswith(".jsonl")]
    assert len(answers) == 2 * 3 * 2
    assert all(again[name] == before[name] for name in answers)


def test_evaluate_takes_a_model_as_an_argument_or_a_parameter(project, rulerkit):
    own = "{base: qa_1, name: finnish}"  # a name that tells no family
    small = ("-y", f"{{tasks: [{own}], lengths: [1024], num_examples: 1, run: new}}")
    for arguments in (["mute"], ["{base: perfect, label: all}"], ["-y", "model: reader-2048"]):
        assert rulerkit("evaluate", *arguments, *small).status == 0
    folder = project / "outputs/predictions/new"
    assert {path.name for path in folder.iterdir()} >= {"mute", "perfect", "reader-2048"}
    ended = rulerkit("report", "--by", "task", folder / "perfect/finnish/1024.jsonl")
    assert (ended.status, "finnish" in ended.out) == (0, True)


def test_a_model_alone_gets_a_first_look_that_says_how_to_go_on(project, rulerkit):
    ended = rulerkit("evaluate", "perfect", "-y", "run: first")
    assert list(table(ended.out)) == ["niah_multikey_1", "vt", "fwe"]
    assert "n = 10 examples" in ended.out
    assert "rulerkit evaluate perfect -f params/sizes/paper.yaml" in ended.out


def test_a_dry_run_lists_cells_and_tokens_of_a_model_that_is_not_here(project, rulerkit):
    ended = rulerkit("evaluate", "llama-3.1-8b", "--dry-run", "-y", "lengths: [4K, 128K]")
    assert (ended.status, ended.err) == (0, "")
    tokens = 13 * 20 * (4096 + 131072)
    assert f"together: 520 examples, {tokens:,} tokens; {tokens:,} tokens left" in ended.out
    assert re.search(r"llama-3.1-8b +128K +260 +0 ", ended.out)
    ended = rulerkit("evaluate", "-f", "asked.yaml", "--dry-run")
    assert re.search(r"perfect +2K +18 +18 ", ended.out)
    assert "; 0 tokens left" in ended.out


def test_a_second_call_answers_nothing_and_more_examples_are_added(project, rulerkit):
    folder = project / "outputs/predictions/main/perfect"
    before = tree(folder)
    asked = ("evaluate", "perfect", "-f", "asked.yaml", "-y", "models: null", "-y")
    assert "n = 8 examples" in rulerkit(*asked, "num_examples: 8").out
    after = tree(folder)
    assert all(after[name].startswith(text) for name, text in before.items() if name[-1] == "l")
    assert "n = 2 examples" in rulerkit(*asked, "num_examples: 2").out
    assert tree(folder) == after


def test_fresh_moves_aside(project, rulerkit):
    folder = project / "outputs/predictions/main/perfect/vt"
    asked = ("evaluate", "perfect", "-y", "{seed: 4, tasks: [vt], lengths: [1K], num_examples: 2}")
    before = tree(folder)
    refused(rulerkit(*asked), "was made with seed 3, now it is 4", "run: NAME", "--fresh")
    assert tree(folder) == before
    assert rulerkit(*asked, "--fresh").status == 0
    after = tree(folder)
    assert set(before.values()) <= set(after.values())
    assert after["1024.jsonl"] != before["1024.jsonl"]


def test_interrupted_it_says_how_to_resume(project):
    asked = "{model: perfect, tasks: [fwe], lengths: [32K], num_examples: 5000, run: long}"
    call = [*PROGRAM, "evaluate", "-y", asked]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, preexec_fn=hear_signals, **pipes) as process:
        folder = project / "outputs/predictions"
        wait_until("it answers", lambda: list(folder.glob("long/*/*/*.jsonl")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("rulerkit: stopped; run the same command again to resume\n")
    assert "Traceback" not in err
    assert not list(folder.rglob("*.lock"))


@pytest.fixture(scope="module")
def in_memory(evaluated):
    """Task -> score of reader-1024 at each length, never written to a file."""
    model = rk.load_model("reader-1024")
    scores = {}
    for task in rk.study(tasks=ASKED["tasks"]).tasks:
        for length in ASKED["lengths"]:
            right, examples = [], rk.generate(task, length, 6, 3, model.prompt_format)
            for example, answer in model.answer(examples):
                hits = [ref.lower() in answer.text.lower() for ref in example.references]
                right.append(any(hits) if task.category == "qa" else sum(hits) / len(hits))
            scores.setdefault(task.name, []).append(f"{100 * sum(right) / len(right):.1f}")
    return scores


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@needs_extras
def test_score_of_ours_upstreams_and_the_harness_files(project, rulerkit, tmp_path, in_memory):
    """One and the same answers in three people's files score as in memory."""
    folder = project / "outputs/predictions/main/reader-1024"
    assert table(rulerkit("report", "--by", "task", folder).out) == in_memory
    harness = {"niah_multikey_1": "niah_multikey_1", "vt": "ruler_vt", "qa_1": "ruler_qa_squad"}
    for task, name in harness.items():
        lines = []
        for length in ASKED["lengths"]:
            file = tmp_path / f"{task}-{length}.jsonl"
            asked = ("--tasks", task, "--lengths", length, "-n", 6)
            rulerkit("generate", *asked, "-y", "seed: 3", "--output", file)
            ours = {row["index"]: row for row in rows(folder / task / f"{length}.jsonl")}
            theirs = []
            for row in rows(file):
                pred, doc = ours[row["index"]]["pred"], {"outputs": row["outputs"]}
                theirs.append({**doc, "index": row["index"], "pred": pred, "length": length})
                doc["max_length"] = length
                answer = {"resps": [[pred]], "filtered_resps": [pred], "target": "x"}
                about = {"doc_id": len(lines), "doc": doc, **answer}
                lines += [about | {"filter": kind} for kind in ("none", "strict")]
            write(tmp_path / f"llama/synthetic/{length}/pred/{task}.jsonl", theirs)
        write(tmp_path / f"harness/my__model/samples_{name}_2025-11-20T10-00-00.1.jsonl", lines)
    upstream = rulerkit("report", "--by", "task", tmp_path / "llama")
    assert "llama (" in upstream.out
    assert table(upstream.out) == in_memory
    assert table(rulerkit("report", "--by", "task", tmp_path / "harness").out) == in_memory


def test_report_in_each_format(project, rulerkit, in_memory, tmp_path):
    shows = {
        "text": r"perfect .*100\.0",
        "markdown": r"\| perfect .*\| +\**100\.0",
        "latex": r"perfect .*& .*100\.0.*\\\\",
    }
    folder = project / "outputs/predictions"
    for format, pattern in shows.items():
        out = rulerkit("report", folder, "--format", format).out
        assert re.search(pattern, out)
        assert "reader (1K window)" in out
    shutil.move(folder / "main", tmp_path / "copied")  # which needs nothing else
    shutil.rmtree(project)
    ended = rulerkit("report", tmp_path / "copied", "--format", "csv")
    assert ended.err == ""
    tidy = list(csv.DictReader(io.StringIO(ended.out)))
    assert len(tidy) == 2 * 3 * 2
    for row in tidy:
        score = float(row["score"])
        assert float(row["low"]) <= score <= float(row["high"])
        assert (row["n"], row["seed"], row["engine"]) == ("6", "3", "reader")
        assert (row["stand_in"] == "True") == (row["task"] != "vt")
        if row["model"] == "reader-1024":
            assert f"{score:.1f}" == in_memory[row["task"]][row["length"] == "2048"]


def refused(ended, *says):
    assert ended.status == 2, ended
    assert "Traceback" not in ended.err
    (line,) = ended.lines
    assert line.startswith("rulerkit: ")
    for each in says:
        assert each in line


VT_4K = ("--tasks", "vt", "--lengths", "4K")
SMALL = "{model: perfect, tasks: [vt], lengths: [1024], num_examples: 1}"
BAD_INPUT = {
    ("generate", "--tasks", "vt", "--output", "../many.jsonl"): (
        "one file, and 4 cells are asked",
    ),
    ("generate", *VT_4K, "--output", "../file/vt.jsonl"): ("cannot write", "vt.jsonl"),
    ("evaluate", "-y", SMALL, "-y", "outputs: ../file"): ("cannot write", "Not a directory"),
    ("report", "../project/outputs", "--format", "xls"): ("allowed: text, markdown, latex, csv",),
    ("report", "../vt.jsonl"): ("vt.jsonl", "no folder above it is named by a length"),
    ("report", "../4096"): ("vt.jsonl, line 2: ", "JSON lines", "take the line out"),
    ("notebooks", "../file"): ("cannot write ../file", "choose another folder"),
}


def test_bad_input_is_one_line(project, tmp_path, rulerkit):
    (tmp_path / "file").write_text("a file where a folder should be")
    (tmp_path / "vt.jsonl").write_text('{"pred": "a", "outputs": ["a"]}\ngarbage\n')
    (tmp_path / "4096").mkdir()
    shutil.copy(tmp_path / "vt.jsonl", tmp_path / "4096/vt.jsonl")
    before = tree(tmp_path)
    for arguments, says in BAD_INPUT.items():
        refused(rulerkit(*arguments), *says)
    after = tree(tmp_path)
    assert before.items() <= after.items()
    assert not [name for name in after.keys() - before.keys() if name.endswith((".jsonl", ".part"))]
    assert rulerkit().status == 2


@needs_extras
def test_missing_original_corpora_offline(project):
    """In a process of its own, since corpora are remembered once they were read."""
    asked = "{model: perfect, corpora: original, lengths: [4096], tasks: [qa_1], num_examples: 1}"
    call = [*PROGRAM, "evaluate", "-y", asked]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    says = ("RULERKIT_DATA (not set)", "run `rulerkit fetch`", "or use `corpora: builtin`")
    refused(Ended(done.returncode, done.stdout, done.stderr), *says)
