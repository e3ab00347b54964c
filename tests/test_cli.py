"""The command line: what it teaches, what it writes, and what it says to those who type something
else."""

import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import rulerkit as rk
from rulerkit.cli import app, main
from rulerkit.studies import study
from rulerkit.tasks import TASKS, Task

REPOSITORY = Path(__file__).parents[1]
COMMANDS = (
    *(
        "tasks",
        "show",
        "generate",
        "evaluate",
        "score",
        "report",
        "batch",
        "run",
        "status",
        "fetch",
    ),
    *("serve", "check", "plan", "compare"),
)
HEAVY = (
    "numpy",
    "pandas",
    "scipy",
    "torch",
    "vllm",
    "transformers",
    "tokenizers",
    "matplotlib",
    "papermill",
    "yaml",
)
ASKED: dict[str, Any] = {
    "models": ["reader-1024", "perfect"],
    "tasks": ["niah_multikey_1", "vt", "qa_1"],
    "lengths": [1024, 2048],
    "num_examples": 6,
    "seed": 3,
}


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What stands on stderr, without the states of a progress bar."""
        return [
            line
            for line in re.split(r"[\r\n]", self.err)
            if line.strip() and "tokens/s" not in line
        ]


def program(*arguments: object, cwd: Path | None = None, **environment: str | None) -> Ended:
    """`rulerkit` as a process of its own; None takes a variable away."""
    changed = {**os.environ, **environment}
    env = {name: value for name, value in changed.items() if value is not None}
    call = [sys.executable, "-c", "from rulerkit.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(
        call, capture_output=True, text=True, timeout=300, cwd=cwd, env=env, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


class Caller:
    """`rulerkit` in this process, which is faster: what main() prints, and the status with which it
    would exit."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: object) -> Ended:
        self.monkeypatch.setattr(sys, "argv", ["rulerkit", *map(str, arguments)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, out, err)


@pytest.fixture
def rulerkit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Caller:
    return Caller(capsys, monkeypatch)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project root with the repository's params/ and notebooks/, and the predictions of ASKED."""
    root = tmp_path_factory.mktemp("project")
    for name in ("params", "notebooks"):
        shutil.copytree(REPOSITORY / name, root / name)
    (root / "params/asked.yaml").write_text(json.dumps(ASKED))
    ended = program(
        "evaluate", "-f", "params/asked.yaml", RULERKIT_HOME=str(root), RULERKIT_DATA=None
    )
    assert ended.status == 0, ended.err
    return root


@pytest.fixture
def project(evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it for each test; the working directory is another, without original corpora."""
    root = tmp_path / "project"
    shutil.copytree(evaluated, root)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("RULERKIT_HOME", str(root))
    monkeypatch.setenv("RULERKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RULERKIT_DATA", raising=False)
    return root


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def builtin(name: str) -> Task:
    asked: Task = rk.task(name)
    return asked.with_corpora("builtin")


def table(text: str) -> dict[str, list[str]]:
    """Task -> its scores, of the tables that evaluate and score print."""
    found = (re.match(r"([\w.-]+) +(-|\d+\.\d\d .*)", line) for line in text.splitlines())
    return {line[1]: re.findall(r"(\d+\.\d\d) \[", line[2]) for line in found if line}


# --- help -----------------------------------------------------------------------------------------


def test_help_names_every_command(rulerkit: Caller) -> None:
    ended = rulerkit("--help")
    assert ended.status == 0
    assert all(command in ended.out for command in COMMANDS)
    assert {
        command.name or command.callback.__name__
        for command in app.registered_commands
        if command.callback
    } == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_teaches(command: str) -> None:
    ended = program(command, "--help", TERMINAL_WIDTH="200")
    assert ended.status == 0
    (about,) = (
        c.callback.__doc__ or ""
        for c in app.registered_commands
        if c.callback and (c.name or c.callback.__name__) == command
    )
    assert about.split("\n")[0] in " ".join(ended.out.split())
    for line in ended.out.splitlines():  # no option without a word on it
        if option := re.match(r"│ [* ] +(--[\w-]+)(.*)│", line):
            assert len(re.sub(r"\[.*?\]|[A-Z]{4,}|-\w\b", "", option[2]).split()) >= 2, line


def test_help_starts_light(tmp_path: Path) -> None:
    """Under half a second is a matter of what is imported; a clock would fail on busy machines."""
    call = [
        sys.executable,
        "-X",
        "importtime",
        "-c",
        "from rulerkit.cli import main; main()",
        "--help",
    ]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=tmp_path)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & set(HEAVY)


def test_the_installed_program() -> None:
    script = Path(sys.executable).with_name("rulerkit")
    if not script.is_file():
        pytest.skip("the package is not installed beside this Python")
    done = subprocess.run([script, "show", "nothing"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rulerkit: unknown task 'nothing'")


# --- tasks, show, generate ------------------------------------------------------------------------


def test_tasks_lists_all_with_their_knobs(rulerkit: Caller) -> None:
    ended = rulerkit("tasks")
    assert ended.status == 0
    listed = [
        line.split()[0] if line[0] == " " else line.split()[1]
        for line in ended.out.split("\n\n")[0].splitlines()
    ]
    assert listed == list(TASKS)
    assert "niah_multikey_1    niah         num_keys=4" in ended.out
    assert "num_hops=4" in ended.out


def test_show_is_plain_text_when_piped(project: Path) -> None:
    ended = program("show", "niah_multikey_1", "--length", "600", "--index", "2", "--seed", "5")
    assert (ended.status, ended.err) == (0, "")
    assert "\x1b" not in ended.out
    example = rk.generate(builtin("niah_multikey_1"), 600, 3, 5)[2]
    assert f"{example.num_tokens} of 600 tokens" in ended.out
    assert example.references[0] in ended.out
    for role in ("instruction", "haystack", "needle", "distractor", "question", "answer_prefix"):
        assert f"[{role}]" in ended.out


def test_show_takes_a_mapping(rulerkit: Caller) -> None:
    ended = rulerkit("show", "{base: vt, num_hops: 2, num_chains: 3}", "--length", "1K")
    assert ended.status == 0
    assert ended.out.startswith("vt-num_chains_3-num_hops_2: example 0, ")


def test_generate_writes_upstreams_lines(rulerkit: Caller, tmp_path: Path) -> None:
    file = tmp_path / "new" / "qa_2.jsonl"
    ended = rulerkit(
        "generate", "qa_2", "--output", file, "--length", "2K", "--num-examples", 5, "--seed", 9
    )
    assert ended.status == 0
    assert ended.out.endswith(f"5 examples: {file}\n")
    text = file.read_bytes().decode("utf-8")
    assert text.endswith("\n")
    assert text.count("\n") == 5
    assert not list(file.parent.glob("*.part"))
    for line, example in zip(
        text.splitlines(), rk.generate(builtin("qa_2"), 2048, 5, 9), strict=True
    ):
        row = json.loads(line)
        assert list(row) == [
            *(
                "index",
                "input",
                "outputs",
                "length",
                "answer_prefix",
                "context",
                "question",
                "task",
                "max_new_tokens",
            )
        ]
        assert row["index"] == example.index
        assert row["outputs"] == list(example.references)
        assert row["input"] + row["answer_prefix"] == example.prompt
        assert row["context"] in row["input"]
        assert row["question"] in row["input"]
        assert row["length"] == example.num_tokens + example.max_new_tokens <= 2048
        assert (row["task"], row["max_new_tokens"]) == ("qa_2", 32)


def test_generate_writes_a_grid_as_upstream_lays_it_out(rulerkit: Caller, tmp_path: Path) -> None:
    lengths = ("--length", "1K", "--length", "2K")
    ended = rulerkit(
        "generate",
        "vt",
        "niah_single_1",
        *lengths,
        "--num-examples",
        2,
        "--output",
        tmp_path / "grid",
    )
    assert ended.status == 0
    one = tmp_path / "one.jsonl"
    assert (
        rulerkit("generate", "vt", "--length", "2K", "--num-examples", 2, "--output", one).status
        == 0
    )
    made = tree(tmp_path / "grid")
    names = [
        f"{length}/data/{task}/validation.jsonl"
        for length in (1024, 2048)
        for task in ("niah_single_1", "vt")
    ]
    assert list(made) == names
    assert made["2048/data/vt/validation.jsonl"] == one.read_bytes()


def test_generate_leaves_nothing_where_it_fails(rulerkit: Caller, tmp_path: Path) -> None:
    (tmp_path / "kept.jsonl").write_text("kept")
    refused(
        rulerkit("generate", "vt", "--output", tmp_path / "kept.jsonl", "--length", 100),
        "does not fit",
    )
    refused(
        rulerkit("generate", "vt", "niah_single_1", "--output", tmp_path / "new", "--length", 400),
        "vt does not",
    )
    assert tree(tmp_path) == {"kept.jsonl": b"kept"}


# --- evaluate -------------------------------------------------------------------------------------


def test_evaluate_prints_a_table_per_model_and_keeps_the_rows(
    project: Path, rulerkit: Caller
) -> None:
    ended = rulerkit("evaluate", "-f", "params/asked.yaml", "-y", "run: again")
    assert ended.status == 0
    first, second = re.split(r"\n(?=perfect \()", ended.out)
    assert first.strip().startswith("reader-1024 (again)")
    assert list(table(second).items()) == [(task, ["100.00", "100.00"]) for task in ASKED["tasks"]]
    assert [scores[0] for scores in table(first).values()] == ["100.00"] * 3
    assert all(float(scores[1]) < 100 for scores in table(first).values())
    assert ended.out.endswith(f"predictions: {project}/outputs/predictions/again\n")
    made = tree(project / "outputs/predictions/again")
    assert len([name for name in made if name.endswith(".jsonl")]) == 2 * 3 * 2
    kept = tree(project / "outputs/predictions/main")
    assert {name: text for name, text in made.items() if name.endswith(".jsonl")} == {
        name: text for name, text in kept.items() if name.endswith(".jsonl")
    }


def test_a_second_call_answers_nothing(project: Path, rulerkit: Caller) -> None:
    before = tree(project / "outputs")
    times = {path: path.stat().st_mtime_ns for path in (project / "outputs").rglob("*.json*")}
    ended = rulerkit("evaluate", "-f", "params/asked.yaml")
    assert ended.status == 0
    assert list(table(ended.out)) == ASKED["tasks"]
    assert tree(project / "outputs") == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_more_examples_are_added_and_fewer_are_shown(project: Path, rulerkit: Caller) -> None:
    before = tree(project / "outputs/predictions/main/perfect")
    ended = rulerkit(
        "evaluate", "-f", "params/asked.yaml", "-y", "{num_examples: 8, models: [perfect]}"
    )
    assert "n = 8 examples" in ended.out
    after = tree(project / "outputs/predictions/main/perfect")
    assert all(
        after[name].startswith(text) for name, text in before.items() if name.endswith(".jsonl")
    )
    assert len(rows(project / "outputs/predictions/main/perfect/vt/2048.jsonl")) == 8
    ended = rulerkit(
        "evaluate", "-f", "params/asked.yaml", "-y", "num_examples: 2", "-y", "models: [perfect]"
    )
    assert "n = 2 examples" in ended.out
    assert tree(project / "outputs/predictions/main/perfect") == after


def test_fresh_moves_aside(project: Path, rulerkit: Caller) -> None:
    asked = (
        "evaluate",
        "-f",
        "params/asked.yaml",
        "-y",
        "{seed: 4, models: [perfect], tasks: [vt], lengths: [1K]}",
    )
    before = tree(project / "outputs/predictions/main/perfect/vt")
    refused = rulerkit(*asked)
    assert refused.status == 2
    assert "was made with seed 3, now it is 4" in refused.lines[-1]
    assert tree(project / "outputs/predictions/main/perfect/vt") == before
    assert rulerkit(*asked, "--fresh").status == 0
    after = tree(project / "outputs/predictions/main/perfect/vt")
    assert set(before.values()) <= set(after.values())
    assert after["1024.jsonl"] != before["1024.jsonl"]


def test_interrupted_it_says_how_to_go_on(project: Path) -> None:
    call = [sys.executable, "-c", "from rulerkit.cli import main; main()", "evaluate", "-y"]
    with subprocess.Popen(
        [*call, "{model: perfect, lengths: [32K], num_examples: 500, run: long}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell would have it ignored
    ) as process:  # fmt: skip
        until = time.monotonic() + 60
        while (
            not list((project / "outputs/predictions").glob("long/*/*/*.jsonl"))
            and time.monotonic() < until
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("rulerkit: stopped; the same command goes on from here\n")
    assert "Traceback" not in err
    assert not list((project / "outputs/predictions").rglob("*.lock"))


# --- score ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_memory(evaluated: Path) -> dict[tuple[str, int], str]:
    """Task and length -> score of reader-1024, never written to a file."""
    model, found = rk.load_model("reader-1024"), {}
    for task in study(tasks=ASKED["tasks"]).tasks:
        for length in ASKED["lengths"]:
            examples = rk.generate(task, length, 6, 3, model.prompt_format)
            right = []
            for example, answer in model.answer(examples):
                hits = [
                    reference.lower() in answer.text.lower() for reference in example.references
                ]
                right.append(any(hits) if task.category == "qa" else sum(hits) / len(hits))
            found[task.name, length] = f"{100 * sum(right) / len(right):.2f}"
    assert len(set(found.values())) > 2
    return found


def answered(project: Path, task: str, length: int, folder: Path) -> list[dict[str, Any]]:
    """Upstream's rows: what generate wrote, with what reader-1024 answered to the very same
    prompts."""
    file = folder / f"{task}-{length}.jsonl"
    arguments = ("--length", length, "--num-examples", 6, "--seed", 3, "--output", file)
    assert program("generate", task, *arguments).status == 0
    ours = {
        row["index"]: row
        for row in rows(project / f"outputs/predictions/main/reader-1024/{task}/{length}.jsonl")
    }
    made = rows(file)
    for row in made:
        prompt = row["input"] + row["answer_prefix"]
        assert hashlib.sha256(prompt.encode()).hexdigest()[:16] == ours[row["index"]]["digest"]
    return [{**row, "pred": ours[row["index"]]["pred"]} for row in made]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def test_score_of_ours(
    project: Path, rulerkit: Caller, in_memory: dict[tuple[str, int], str]
) -> None:
    folder = project / "outputs/predictions/main/reader-1024"
    scores = table(rulerkit("score", folder).out)
    assert scores == {
        task: [in_memory[task, length] for length in (1024, 2048)] for task in ASKED["tasks"]
    }
    one = table(rulerkit("score", folder / "vt/2048.jsonl", folder / "qa_1/2048.jsonl").out)
    assert one == {task: [in_memory[task, 2048]] for task in ("vt", "qa_1")}
    assert table(rulerkit("score", project / "outputs").out.split("reader-1024 (")[1]) == scores


def test_score_of_upstreams_and_the_harness_files(
    project: Path, rulerkit: Caller, tmp_path: Path, in_memory: dict[tuple[str, int], str]
) -> None:
    """One and the same answers in three people's files score as in memory."""
    theirs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for task, length in in_memory:
        theirs[task, length] = answered(project, task, length, tmp_path)
    single = write(tmp_path / "mine.jsonl", theirs["vt", 2048])
    assert table(rulerkit("score", single, "--task", "vt", "--length", "2K").out) == {
        "vt": [in_memory["vt", 2048]]
    }

    upstream = tmp_path / "llama/synthetic"
    for (task, length), lines in theirs.items():
        kept = [
            {key: row[key] for key in ("index", "pred", "input", "outputs", "length")}
            for row in lines
        ]
        write(
            upstream / str(length) / "pred" / f"{task}.jsonl",
            [{**row, "others": {}} for row in kept],
        )
    wanted = {task: [in_memory[task, length] for length in (1024, 2048)] for task in ASKED["tasks"]}
    for place in (tmp_path / "llama", upstream):
        ended = rulerkit("score", place)
        assert "llama (" in ended.out
        assert table(ended.out) == wanted

    harness = tmp_path / "harness/my__model"
    for task, name in (
        ("niah_multikey_1", "niah_multikey_1"),
        ("vt", "ruler_vt"),
        ("qa_1", "ruler_qa_squad"),
    ):
        lines = []
        for length in (1024, 2048):
            for row in theirs[task, length]:
                doc = {"input": row["input"], "outputs": row["outputs"], "max_length": length}
                answer = {
                    "resps": [[row["pred"]]],
                    "filtered_resps": [row["pred"]],
                    "filter": "none",
                }
                lines.append({"doc_id": len(lines), "doc": doc, "target": "x", **answer})
        write(harness / f"samples_{name}_2025-11-20T10-00-00.123456.jsonl", lines)
    assert table(rulerkit("score", tmp_path / "harness").out) == wanted


# --- report ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "shows"),
    [
        ("table", r"perfect .*100\.0"),
        ("markdown", r"\| perfect .*\| +\**100\.0"),
        ("latex", r"perfect .*& .*100\.0.*\\\\"),
    ],
)
def test_report_in_each_format(project: Path, rulerkit: Caller, format: str, shows: str) -> None:
    ended = rulerkit(
        "report", project / "outputs/predictions", "--category", "vt", "--format", format
    )
    assert ended.status == 0
    assert re.search(shows, ended.out)
    assert "reader (1K window)" in ended.out


def test_report_never_averages_over_missing_tasks(project: Path, rulerkit: Caller) -> None:
    out = rulerkit("report", project / "outputs/predictions").out
    assert "3/13 tasks" in out
    assert "100.0" not in out


def test_csv_is_tidy(
    project: Path, rulerkit: Caller, in_memory: dict[tuple[str, int], str]
) -> None:
    ended = rulerkit("report", project / "outputs", "--format", "csv")
    found = list(csv.DictReader(io.StringIO(ended.out)))
    assert len(found) == 2 * 3 * 2
    assert {"run", "model", "task", "length", "score", "low", "high", "n", "stand_in"} <= set(
        found[0]
    )
    assert {"engine", "seed", "prompt_version", "tokenizer", "template"} <= set(found[0])
    for row in found:
        score, low, high = (float(row[name]) for name in ("score", "low", "high"))
        assert low <= score <= high
        assert low < high
        assert (row["n"], row["seed"], row["engine"], row["tokenizer"]) == (
            "6",
            "3",
            "reader",
            "builtin",
        )
        assert (row["stand_in"] == "True") == (row["task"] != "vt")
        if row["model"] == "reader-1024":
            assert f"{score:.2f}" == in_memory[row["task"], int(row["length"])]


def test_report_of_a_copy_needs_nothing_else(project: Path, tmp_path: Path) -> None:
    shutil.move(project / "outputs/predictions/main", tmp_path / "copied")
    shutil.rmtree(project)
    ended = program("report", "copied", "--format", "csv", cwd=tmp_path, RULERKIT_HOME=None)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("\n") == 1 + 12


# --- bad input ------------------------------------------------------------------------------------


def refused(ended: Ended, *says: str) -> None:
    assert ended.status == 2, ended
    assert "Traceback" not in ended.err
    (line,) = ended.lines
    assert line.startswith("rulerkit: ")
    for each in says:
        assert each in line


SMALL = "{model: perfect, tasks: [vt], lengths: [1024], num_examples: 1}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["show", "niah_sinlge_1"],
            ["unknown task", "did you mean 'niah_single_1'", "`rulerkit tasks`"],
        ),
        (["show", "{base: vt"], ["the task '{base: vt' is not YAML", "line 1"]),
        (["show", "{base: vt, num_hopz: 3}"], ["unknown knob of vt", "did you mean 'num_hops'"]),
        (["show", "{num_hops: 3}"], ["a task is a name or a mapping with `base: NAME`"]),
        (["show", "{base: vt, num_hops: x}"], ["'x'", "it must be a whole number"]),
        (["show", "vt", "--length", "300"], ["does not fit into 300 tokens", "longer length"]),
        (["show", "cwe", "--length", "300"], ["does not fit into 300 tokens"]),
        (["show", "vt", "--length", "4X"], ["'4X' is no length: give tokens, e.g. 4096, 4K or 1M"]),
        (["show", "vt", "--length", "0"], ["'0' is no length"]),
        (["show", "vt", "--seed", "-1"], ["a whole number from 0 on"]),
        (["show", "vt", "--corpora", "orginal"], ["did you mean 'original'", "builtin"]),
        (["show", "vt", "--template", "lama2"], ["unknown template", "did you mean 'llama2'"]),
        (["show", "vt", "--tokenizer", "nothere.json"], ["nothere.json"]),
        (["generate", "vt", "--output", "."], ["--output . is a folder: give the name of a file"]),
        (["generate", "vt", "--output", "../here"], ["is a folder"]),
        (["generate", "vt", "--output", "../file/vt.jsonl"], ["cannot write", "vt.jsonl"]),
        (["evaluate", "-f", "nothere.yaml"], ["cannot read", "parameter files lie in"]),
        (["evaluate", "-f", "../broken.yaml"], ["is not YAML"]),
        (["evaluate", "-f", "../empty.yaml"], ["holds nothing", "`name: value` lines"]),
        (["evaluate", "-f", "../list.yaml"], ["holds a list", "`name: value` lines"]),
        (
            ["evaluate", "-f", "../unknown.yaml"],
            ["unknown.yaml", "did you mean 'num_examples'", "allowed: model"],
        ),
        (["evaluate", "-y", "vt"], ["says no `name: value`", "-y 'num_examples: 5'"]),
        (["evaluate", "-y", "{a: b"], ["-y '{a: b' is not YAML"]),
        (["evaluate", "-y", "1: 2"], ["unknown parameter '1'", "allowed: model"]),
        (
            ["evaluate", "-y", "tasks: vt"],
            ["it takes a list", "with papermill: -y 'tasks: [niah_single_1, vt]'"],
        ),
        (["evaluate", "-y", "tasks: [vtt]"], ["did you mean 'vt'"]),
        (
            ["evaluate", "-y", "models: [perfect, {base: perfect}]"],
            ["perfect stands there twice", "`name:`"],
        ),
        (
            ["evaluate", "-y", "models: perfect"],
            ["with papermill: -y 'models: [reader-4096, reader-8192]'"],
        ),
        (
            ["evaluate", "-y", "model: perfekt"],
            ["unknown model", "did you mean 'perfect'", "hub id"],
        ),
        (
            ["evaluate", "-y", "model: [perfect]"],
            ["a model is a name", "several stand in `models`"],
        ),
        (["evaluate", "-y", "model: null"], ["nobody answers", "-y 'model: reader-8192'"]),
        (["evaluate", "-y", "model: {base: perfect, windw: 1}"], ["did you mean 'window'"]),
        (["evaluate", "-y", SMALL, "-y", "model: ../here"], ["here", "no config.json"]),
        (
            ["evaluate", "-y", SMALL, "-y", "model: {path: nothere}"],
            ["no folder", "hub id (org/name)"],
        ),
        (
            ["evaluate", "-y", SMALL, "-y", "{lengths: [200], run: other}"],
            ["does not fit into 200 tokens", "longer"],
        ),
        (
            ["evaluate", "-y", SMALL, "-y", "outputs: ../file"],
            ["cannot write", "Not a directory", "choose a folder"],
        ),
        (
            ["evaluate", "-y", SMALL, "-y", "seed: 9"],
            ["was made with seed 3, now it is 9", "run: NAME", "--fresh"],
        ),
        (
            ["show", "vt", "--tokenizer", "./nothere"],
            ["tokenizer './nothere'", "no such file or folder"],
        ),
        (
            ["generate", "vt", "--output", "x", "--tokenizer", "a/b/c"],
            ["tokenizer 'a/b/c'", "no such file or folder"],
        ),
        (
            ["check", "../list.yaml", "--tokenizer", "/nothere"],
            ["tokenizer '/nothere'", "no such file or folder"],
        ),
        (
            ["evaluate", "-y", "model: {base: perfect, tokenizer: ./x}"],
            ["tokenizer './x'", "no such file or folder"],
        ),
        (["report", "."], ["no predictions in .", "<model>/<task>/<length>.jsonl"]),
        (["report", "nothere"], ["no predictions at nothere"]),
        (
            ["report", "../project/outputs", "--format", "xls"],
            ["allowed: table, csv, markdown, latex"],
        ),
        (["report", "../project/outputs", "--category", "vtt"], ["did you mean 'vt'"]),
        (["score", "nothere"], ["no predictions at nothere: no such file or folder"]),
        (["score", "."], ["no predictions in ."]),
        (["score", "../unknown.yaml"], ["unknown task 'unknown'", "--task names it"]),
        (["score", "../vt.jsonl"], ["vt.jsonl", "give --length"]),
        (
            ["score", "../vt.jsonl", "--length", "4K"],
            ["vt.jsonl, line 2: not JSON", "repair or remove the line"],
        ),
        (["score", "../vt.jsonl", "--length", "4X"], ["'4X' is no length"]),
        (
            ["score", "../qa_1.jsonl", "--length", "4K"],
            ["qa_1.jsonl, line 1: pred: Field required"],
        ),
        (
            ["score", "../cwe.jsonl", "--length", "4K"],
            ["cwe.jsonl holds no predictions: it is empty"],
        ),
        (["score", "../cwe.jsonl", "--task", "cwx"], ["unknown task 'cwx'", "did you mean 'cwe'"]),
    ],
    ids=lambda value: " ".join(value)[:60] if value[0] in COMMANDS else "",
)
def test_bad_input_is_one_line(
    project: Path, tmp_path: Path, rulerkit: Caller, arguments: list[str], says: list[str]
) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    (tmp_path / "broken.yaml").write_text("lengths: [4096")
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "list.yaml").write_text("- 1")
    (tmp_path / "unknown.yaml").write_text("num_exampels: 3")
    (tmp_path / "vt.jsonl").write_text('{"pred": "a", "outputs": ["a"]}\ngarbage\n')
    (tmp_path / "qa_1.jsonl").write_text('{"prediction": "a", "outputs": ["a"]}\n')
    (tmp_path / "cwe.jsonl").write_text("")
    before = tree(tmp_path)
    refused(rulerkit(*arguments), *says)
    after = tree(tmp_path)
    assert {name: text for name, text in after.items() if name in before} == before
    assert not [
        name for name in after.keys() - before.keys() if name.endswith((".jsonl", ".part", ".lock"))
    ]


@pytest.mark.parametrize(
    "arguments", [["show"], ["evaluate", "-f"], ["shwo"], ["show", "vt", "--index", "-1"], []]
)
def test_wrong_usage_is_no_success(rulerkit: Caller, arguments: list[str]) -> None:
    ended = rulerkit(*arguments)
    assert ended.status == 2
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("task", ["niah_single_2", "qa_1", "qa_2"])
def test_missing_original_corpora_offline(project: Path, task: str) -> None:
    """In a process of its own, since corpora are remembered once they were read."""
    asked = (
        "evaluate",
        "-y",
        f"{{corpora: original, lengths: [4096], tasks: [{task}], num_examples: 1}}",
    )
    refused(
        program(*asked),
        "RULERKIT_DATA (not set)",
        "run `rulerkit fetch`",
        "or use `corpora: builtin`",
    )
    refused(
        program("show", task, "--corpora", "original", RULERKIT_DATA=str(project)),
        f"RULERKIT_DATA={project}",
    )


def test_outputs_that_cannot_be_written(project: Path, read_only: Path, rulerkit: Caller) -> None:
    ended = rulerkit("evaluate", "-y", SMALL, "-y", f"outputs: {read_only}")
    refused(
        ended,
        f"cannot write {read_only}/predictions/main/perfect/vt/1024.jsonl: Read-only file system",
        "choose",
    )
    refused(rulerkit("generate", "vt", "--output", read_only / "vt.jsonl"), "Read-only file system")
    assert not list(read_only.iterdir())


def test_the_exit_status_of_the_program_is_two(project: Path) -> None:
    refused(program("evaluate", "-y", "tasks: [vtt]"), "did you mean 'vt'")
    refused(program("show", "{base: vt"), "is not YAML")


WITHOUT_POSIX = """
import builtins, os, pkgutil, signal, sys
real = builtins.__import__
def checked(name, globals=None, *rest, **named):
    ours = (globals or {}).get("__name__", "").startswith("rulerkit")
    if ours and name in {"fcntl", "grp", "pwd", "resource", "termios", "pty", "tty", "syslog"}:
        raise ModuleNotFoundError(name)
    return real(name, globals, *rest, **named)
builtins.__import__ = checked
for name in ("getuid", "geteuid", "killpg", "getpgid", "setsid", "fork", "sched_getaffinity", "O_NOFOLLOW", "O_DIRECTORY"):
    delattr(os, name)
del signal.SIGHUP
import rulerkit
for module in pkgutil.walk_packages(rulerkit.__path__, "rulerkit."):
    if module.name != "rulerkit.__main__":
        real(module.name)
from rulerkit.cli import main
main()
"""


def test_what_needs_no_batch_runs_without_posix(tmp_path: Path) -> None:
    """As on Windows: every module is imported and a model is evaluated without modules and
    functions of POSIX."""
    asked = (
        f"{{model: perfect, tasks: [vt], lengths: [1024], num_examples: 1, outputs: {tmp_path}}}"
    )
    call = [sys.executable, "-c", WITHOUT_POSIX, "evaluate", "-y", asked]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "100.00" in done.stdout


@pytest.mark.parametrize("command", [["batch", "b.yaml"], ["run", "j.job.yaml"]])
def test_batches_are_refused_on_windows(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rulerkit.cli.batches.os", SimpleNamespace(name="nt"))
    monkeypatch.setattr("sys.argv", ["rulerkit", *command])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "run this command in WSL" in capsys.readouterr().err
