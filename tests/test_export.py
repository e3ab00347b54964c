"""Examples as upstream's files: what a line holds, grids, and files that do not depend on the
number of processes."""

import json
from pathlib import Path

import pytest

from rulerkit.errors import UserError
from rulerkit.other_formats import Order, to_json, write_grid
from rulerkit.tasks import task


def order(name: str, length: int = 1024, num_examples: int = 3) -> Order:
    return Order(task(name).with_corpora("builtin"), length, num_examples, 42, "builtin", "base")


def test_upstreams_lines(tmp_path: Path) -> None:
    path = tmp_path / "new" / "vt.jsonl"
    examples = order("vt").examples()
    write_grid([order("vt")], [path], progress=False)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2]
    for row, example in zip(rows, examples, strict=True):
        assert row == to_json(example)
        assert row["input"] + row["answer_prefix"] == example.prompt
        assert row["outputs"] == list(example.references)
        assert row["length"] == example.num_tokens + 30
        assert row["context"] in row["input"]
        assert row["question"] in row["input"]
        assert (row["task"], row["max_new_tokens"]) == ("vt", 30)
    assert list(tmp_path.rglob("*.part")) == []


def test_files_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    orders = [order(name, length, 40) for name in ("fwe", "qa_2") for length in (1024,)]
    for workers in (1, 2):
        paths = [tmp_path / str(workers) / f"{o.task.name}-{o.length}.jsonl" for o in orders]
        write_grid(orders, paths, workers, progress=False)
    one, two = (sorted((tmp_path / workers).iterdir()) for workers in ("1", "2"))
    assert len(one) == 2
    for a, b in zip(one, two, strict=True):
        assert a.read_bytes() == b.read_bytes()
        assert len(a.read_text(encoding="utf-8").splitlines()) == 40


def test_what_does_not_fit_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="longer length"):
        write_grid(
            [order("vt"), order("cwe", 256)],
            [tmp_path / "a.jsonl", tmp_path / "b.jsonl"],
            progress=False,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        write_grid([order("niah_single_1")], [tmp_path / "file" / "out.jsonl"], progress=False)
