"""Tables hold only what was made alike, say why where it was not, and name what differs around
it."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from test_cli import Caller
from test_cli import rulerkit as rulerkit

import rulerkit as rk
from rulerkit.cli.batches import print_leaderboard
from rulerkit.errors import UserError
from rulerkit.evaluation import check_same, describe_first, differences, footnotes, predict
from rulerkit.models import load_model
from rulerkit.other_formats import read_predictions
from rulerkit.paper import boards, everything
from rulerkit.store import Cell, read_cells
from rulerkit.studies import study

MODELS = ("perfect", "reader-1024")
TASKS = ("vt", "niah_single_2")
LENGTHS = (1024, 2048)

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models on two tasks at two lengths, in runs `main` and `other`."""
    root = tmp_path_factory.mktemp("sameness")
    for run, models in (("main", MODELS), ("other", MODELS[:1])):
        for model in map(load_model, models):
            for task in TASKS:
                for length in LENGTHS:
                    asked = rk.task(task).with_corpora("builtin")
                    examples = rk.generate(asked, length, 2, 42, model.prompt_format)
                    predict(model, examples, root / "predictions" / run, progress=False)
    return root


@pytest.fixture
def outputs(made: Path, tmp_path: Path) -> Path:
    """A copy of it for each test."""
    return Path(shutil.copytree(made, tmp_path / "outputs"))


def change(outputs: Path, where: str, how: Change) -> None:
    """Write other things into the records of the cells that a pattern names, as another job would
    have."""
    found = sorted((outputs / "predictions").glob(f"{where}.json"))
    assert found, where
    for path in found:
        record = json.loads(path.read_text())
        how(record)
        path.write_text(json.dumps(record))


def cells(outputs: Path, run: str = "main") -> list[Cell]:
    return read_cells(outputs / "predictions" / run)


def result(field: str, value: Any) -> Change:
    """A change of one field of what defines the result, named as messages name it."""

    def how(record: dict[str, Any]) -> None:
        *above, last = field.split(".")
        place = record["result"]
        for name in above:
            place = place[name]
        assert last in place, field
        place[last] = value

    return how


def environment(*each: dict[str, Any]) -> Change:
    """Other surroundings: the last of them, and all of them where there are several."""

    def how(record: dict[str, Any]) -> None:
        all_of_them = [
            {
                **record["environment"],
                **some,
                "packages": {**record["environment"]["packages"], **some.get("packages", {})},
            }
            for some in each
        ]
        record["environment"] = all_of_them[-1]
        if len(each) > 1:
            record["environments"] = all_of_them

    return how


def refused(found: Iterable[Cell]) -> str:
    with pytest.raises(UserError) as error:
        check_same(found)
    message = str(error.value)
    assert "\n" not in message
    return message


# --- what is not mixed ----------------------------------------------------------------------------


def test_what_was_made_alike_stands_in_one_table(outputs: Path) -> None:
    """Lengths, tasks, models and runs differ, and so may the numbers of examples."""
    change(outputs, "main/reader-1024/vt/*", lambda record: record.update(num_examples=5))
    check_same(read_cells(outputs / "predictions"))


@pytest.mark.parametrize(
    ("field", "value", "values"),
    [
        ("seed", 43, "seed 42, perfect vt 2048 with 43"),
        ("prompt_version", 2, "prompt_version 1, perfect vt 2048 with 2"),
        (
            "prompt_format.template",
            "llama3",
            'prompt_format.template "auto", perfect vt 2048 with "llama3"',
        ),
        (
            "prompt_format.thinking_tokens",
            100,
            "prompt_format.thinking_tokens 0, perfect vt 2048 with 100",
        ),
        ("tokenizer.fingerprint", "f00", 'perfect vt 2048 with "f00"'),
        ("model.window", 7, "model.window null, perfect vt 2048 with 7"),
        ("task.max_new_tokens", 7, "task.max_new_tokens 30, perfect vt 2048 with 7"),
        ("sources", {"essays": {"fingerprint": "f00"}}, "perfect vt 2048 with "),
    ],
)
def test_one_model_was_asked_in_one_way(outputs: Path, field: str, value: Any, values: str) -> None:
    change(outputs, "main/perfect/vt/2048", result(field, value))
    message = refused(cell for cell in cells(outputs) if cell.model == "perfect")
    assert values in message
    assert field in message


def test_it_is_said_what_to_do(outputs: Path) -> None:
    change(outputs, "main/perfect/vt/2048", result("task.num_hops", 9))
    place = outputs / "predictions/main/perfect/vt"
    assert refused(cells(outputs)) == (
        "perfect vt 1024 was made with task.num_hops 4, perfect vt 2048 with 9, and one table "
        "cannot hold both: report "
        f"{place}/1024.jsonl or {place}/2048.jsonl alone, give one of them a place of its own with "
        "run: NAME, or answer "
        "it anew with --fresh, which moves the old files aside"
    )


def test_tasks_of_one_model_share_seed_and_frame_but_not_corpora(outputs: Path) -> None:
    check_same(cells(outputs))  # vt reads none
    change(outputs, "main/perfect/vt/*", result("seed", 43))
    message = refused(cell for cell in cells(outputs) if cell.model == "perfect")
    assert "perfect niah_single_2 1024 was made with seed 42, perfect vt 1024 with 43" in message
    assert (
        f"report {outputs}/predictions/main/perfect/niah_single_2 or "
        f"{outputs}/predictions/main/perfect/vt " in message
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 43),
        ("prompt_version", 2),
        ("task.haystack", "noise"),
        ("task.max_new_tokens", 256),
        ("sources.essays.fingerprint", "f00"),
    ],
)
@pytest.mark.parametrize("where", ["main/reader-1024", "other/perfect"])
def test_models_and_runs_were_asked_the_same(
    outputs: Path, where: str, field: str, value: Any
) -> None:
    tasks = "niah_single_2" if "." in field else "*"
    change(outputs, f"{where}/{tasks}/*", result(field, value))
    found = read_cells(outputs / "predictions")
    message = refused(found)
    assert field in message
    folders = (
        ("main/perfect", "main/reader-1024") if where.startswith("main") else ("main", "other")
    )
    ours, theirs = (outputs / "predictions" / folder for folder in folders)
    assert f"report {ours} or {theirs} alone" in message
    assert ("niah_single_2 1024 of run other with" in message) == where.startswith("other")
    for folder in (ours, theirs):
        check_same(read_cells(folder))  # what the message advises


def test_a_model_that_differs_from_itself_is_named_first(outputs: Path) -> None:
    """Beside another model it would be told to report it alone, in vain."""
    change(outputs, "main/reader-1024/vt/2048", result("task.num_hops", 9))
    assert (
        "reader-1024 vt 1024 was made with task.num_hops 4, reader-1024 vt 2048 with 9"
        in refused(cells(outputs))
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_format.template", "llama3"),
        ("prompt_format.thinking_tokens", 100),
        ("tokenizer.fingerprint", "f00"),
        ("model.reader_version", 9),
    ],
)
def test_models_differ_by_nature(outputs: Path, field: str, value: Any) -> None:
    change(outputs, "main/reader-1024/*/*", result(field, value))
    change(outputs, "other/*/*/*", result(field, value))
    check_same(read_cells(outputs / "predictions"))


def test_names_and_notes_decide_nothing(outputs: Path) -> None:
    change(outputs, "main/perfect/niah_single_2/2048", result("sources.essays.note", "moved"))
    change(outputs, "main/perfect/niah_single_2/2048", result("tokenizer.name", "a copy"))
    check_same(cells(outputs))


def test_cells_without_answers_bind_nobody(outputs: Path) -> None:
    change(outputs, "main/perfect/vt/2048", result("seed", 43))
    (outputs / "predictions/main/perfect/vt/2048.jsonl").unlink()
    check_same(cells(outputs))


def test_files_of_others_decide_nothing_and_hide_nothing(outputs: Path) -> None:
    place = outputs / "upstream/theirs/synthetic/1024/pred"
    place.mkdir(parents=True)
    (place / "vt.jsonl").write_text(json.dumps({"index": 0, "pred": "A", "outputs": ["A"]}) + "\n")
    theirs = read_predictions(place.parents[3])
    check_same([*theirs, *cells(outputs)])
    assert footnotes([*theirs, *cells(outputs)]) == footnotes(cells(outputs)) == []
    change(outputs, "main/reader-1024/vt/*", result("task.num_hops", 9))
    assert "task.num_hops" in refused([*theirs, *cells(outputs)])


def test_of_long_values_the_difference_is_shown() -> None:
    start = "x" * 100
    assert describe_first([("f", start + "abc", start + "abd" + "y" * 100), ("g", 1, 2)]) == (
        "f", f'...{"x" * 18}abc"', f"...{'x' * 18}abd{'y' * 33}...", " (and 1 more differences)",
    )  # fmt: skip
    assert describe_first([("f", "short", [1, "a"])]) == ("f", '"short"', '[1, "a"]', "")
    assert describe_first([("f", start, start[:-1])])[1:3] == (f'...{"x" * 21}"', f'...{"x" * 20}"')


# --- footnotes ------------------------------------------------------------------------------------


def test_one_environment_needs_no_footnote(outputs: Path) -> None:
    change(
        outputs,
        "main/perfect/*/*",
        environment({"host": "elsewhere", "platform": "another", "path": "/moved"}),
    )
    assert footnotes(cells(outputs)) == []


def test_arguments_of_vllm_that_leave_answers_alone_are_no_difference() -> None:
    """Early records hold all of them."""

    def model(**arguments: Any) -> dict[str, Any]:
        return {"model": {"engine": "vllm", **({"engine_args": arguments} if arguments else {})}}

    assert differences(model(kv_cache_memory_bytes=1, max_num_seqs=3), model()) == []
    assert differences(model(), model(limit_mm_per_prompt={"image": 0})) == []
    assert differences(model(block_size=32, max_num_seqs=3), model(block_size=32)) == []
    assert differences(model(block_size=32), model()) != []
    assert differences(model(block_size=32), model(block_size=64)) == [
        ("model.engine_args.block_size", 32, 64)
    ]


def test_differences_of_environment_are_named_with_who_had_them(outputs: Path) -> None:
    one = {
        "gpu": "NVIDIA H100",
        "tensor_parallel_size": 1,
        "git": "abc1234" + "0" * 33,
        "packages": {"vllm": "0.31.0"},
    }
    two = {
        "gpu": "NVIDIA A100",
        "tensor_parallel_size": 2,
        "git": "def5678" + "0" * 33 + "-dirty",
        "packages": {"vllm": "0.32.0"},
    }
    change(outputs, "main/perfect/*/*", environment(one))
    change(outputs, "main/reader-1024/*/*", environment(two))
    change(
        outputs,
        "main/reader-1024/vt/1024",
        environment({**two, "packages": {"vllm": "0.31.0"}}, two),
    )
    check_same(cells(outputs))
    small = "reader (1K window)"
    assert footnotes(cells(outputs)) == [
        f"Environments differ: gpu NVIDIA H100 (perfect reader), NVIDIA A100 ({small}); "
        "tensor_parallel_size 1 (perfect "
        f"reader), 2 ({small}); commit abc1234 (perfect reader), def5678-dirty ({small}); vllm "
        "0.31.0 (perfect reader, "
        f"{small}), 0.32.0 ({small})."
    ]


def test_one_model_needs_no_name_and_a_lost_gpu_is_told(outputs: Path) -> None:
    change(outputs, "other/*/vt/*", environment({"gpu": "NVIDIA H100", "device": "cuda:1"}))
    change(outputs, "other/*/niah_single_2/*", environment({"device": "cuda:0"}, {"device": "cpu"}))
    assert footnotes(cells(outputs, "other")) == [
        "Environments differ: gpu none, NVIDIA H100; device cuda, cpu."
    ]


def test_what_a_model_never_has_is_no_difference(outputs: Path) -> None:
    change(
        outputs, "main/perfect/*/*", environment({"gpu": "NVIDIA H100", "tensor_parallel_size": 2})
    )
    assert footnotes(cells(outputs)) == []


def test_many_models_and_values_are_counted(outputs: Path) -> None:
    main = outputs / "predictions/main"
    for number in range(5):
        shutil.copytree(main / "perfect", main / f"copy-{number}")
        change(outputs, f"main/copy-{number}/*/*", result("model.name", f"copy-{number}"))
        change(
            outputs,
            f"main/copy-{number}/*/*",
            environment({"python": f"3.{number}", "gpu": "A" if number else "B"}),
        )
    assert footnotes(cells(outputs)) == [
        "Environments differ: gpu B (copy-0), A (4 models); 6 values of python."
    ]


def test_models_have_the_names_of_the_table(outputs: Path) -> None:
    change(outputs, "other/*/*/*", environment({"git": None, "packages": {"torch": "9"}}))
    (line,) = footnotes(read_cells(outputs / "predictions"))
    assert line.startswith("Environments differ: torch ")
    assert line.endswith(" (perfect [main], reader (1K window)), 9 (perfect [other]).")


# --- where tables are made ------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["table", "markdown", "latex", "csv"])
def test_report_refuses_to_mix_and_footnotes_the_rest(
    outputs: Path, rulerkit: Caller, format: str
) -> None:
    change(outputs, "main/perfect/*/*", environment({"python": "3.99_x"}))
    ended = rulerkit("report", outputs / "predictions/main", "--format", format)
    assert ended.status == 0
    told = {
        "table": "\nEnvironments differ: python ",
        "markdown": "\n- Environments differ: python ",
    }
    assert ended.out.count(told.get(format, "\nEnvironments differ: python ")) == (format != "csv")
    assert (r"3.99\_x" in ended.out) == (format == "latex")
    change(outputs, "main/perfect/*/*", result("seed", 43))
    ended = rulerkit("report", outputs / "predictions/main", "--format", format)
    assert (ended.status, ended.out, len(ended.lines)) == (2, "", 1)
    assert (
        "perfect niah_single_2 1024 was made with seed 43, reader-1024 niah_single_2 1024 with 42"
        in ended.err
    )
    assert rulerkit("report", outputs / "predictions/main/perfect", "--format", format).status == 0


def test_report_of_a_category_asks_only_its_cells(outputs: Path, rulerkit: Caller) -> None:
    change(outputs, "main/perfect/niah_single_2/*", result("seed", 43))
    change(outputs, "main/perfect/niah_single_2/*", environment({"python": "3.99"}))
    main = outputs / "predictions/main"
    assert "seed" in rulerkit("report", main).err
    ended = rulerkit("report", main, "--category", "vt")
    assert ended.status == 0
    assert "Environments" not in ended.out
    assert rulerkit("report", main, "--category", "niah").status == 2
    assert rulerkit("report", main, "--category", "vt", "--format", "csv").status == 2


def test_score_holds_each_model_to_itself(outputs: Path, rulerkit: Caller) -> None:
    main = outputs / "predictions/main"
    change(outputs, "main/perfect/*/*", result("seed", 43))
    change(outputs, "main/perfect/vt/1024", environment({"gpu": "A"}, {"gpu": "B"}))
    ended = rulerkit("score", main)
    assert ended.status == 0
    before, after = ended.out.split("reader-1024 (main)")
    assert "Environments differ: gpu none, A, B." in before
    assert "Environments" not in after
    change(outputs, "main/perfect/vt/1024", result("seed", 44))
    ended = rulerkit("score", main)
    assert (ended.status, ended.out) == (2, "")
    assert "perfect vt 1024 with 44" in ended.err


def test_the_leaderboard_of_a_batch_does_the_same(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = study(
        {
            "models": list(MODELS),
            "tasks": list(TASKS),
            "lengths": list(LENGTHS),
            "outputs": str(outputs),
            "run": "main",
        }
    )
    change(outputs, "main/perfect/*/*", environment({"python": "3.99"}))
    print_leaderboard(asked)
    out, err = capsys.readouterr()
    assert "\nEnvironments differ: python 3.99 (perfect reader), " in out
    assert err == ""
    change(outputs, "main/perfect/*/*", result("seed", 43))
    print_leaderboard(asked)
    out, err = capsys.readouterr()
    assert "no leaderboard: perfect niah_single_2 1024 was made with seed 43" in err
    assert "100.0" not in out
    assert f"figures:   {outputs}/figures/main" in out


def test_the_tables_of_the_paper_do_the_same(outputs: Path) -> None:
    asked = study(
        {"models": None, "model": None, "outputs": str(outputs), "run": "main"},
        notebook="leaderboard",
    )
    change(outputs, "main/perfect/*/*", environment({"python": "3.99"}))
    found = boards(everything(asked), lengths=LENGTHS)
    notes = {
        board.number: [
            note for note in board.notes if note.startswith("Environments differ: python ")
        ]
        for board in found
    }
    assert len(notes["3"]) == len(notes["14"]) == 1
    assert notes["16"] == [], "nothing of ours stands there"
    assert not any("Environments" in note for board in boards() for note in board.notes)
    change(outputs, "main/perfect/*/*", result("seed", 43))
    with pytest.raises(UserError, match="was made with seed 43"):
        everything(asked)
