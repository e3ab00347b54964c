"""Predictions survive what kills a job, and are never mixed with others. Also a program: see
`main`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rulerkit as rk
from rulerkit.common.errors import ModelError, TooLong, UserError
from rulerkit.generation import generate
from rulerkit.generation.example import ExampleStream
from rulerkit.generation.generate import Examples
from rulerkit.inference.model import Answer, Failure, Model
from rulerkit.store.cells import read_cells
from rulerkit.store.files import Lock, Log
from rulerkit.store.records import row_line
from tests.batches import wait_until
from tests.records import lines_of, predict


class Questions(Examples):
    """Examples of variable tracking that remember which of them were made."""

    def __init__(self, count=10, seed=42, length=1024):
        task = rk.task("vt").with_corpora("builtin")
        super().__init__(task, length, count, seed, rk.PromptFormat())
        self.__dict__["made"] = []

    def __getitem__(self, index):
        self.made.append(index)
        return super().__getitem__(index)


class Parrot(Model):
    """A model that answers each question by its number."""

    aligned = "base"
    prompt_format: Any = None

    def __init__(self, pause=0.0, fails_at=None, text=None, **identity):
        spec = {"name": "parrot", "engine": "parrot", "label": "Parrot", "claimed_length": 4096}
        super().__init__(spec)
        self.pause, self.fails_at, self.text, self.more = (pause, fails_at, text, identity)
        self.surroundings = {"gpu": "none", "packages": {"parrots": "1"}}
        self.answered = []

    def identity(self):
        return {"engine": self.engine, **self.more}

    def environment(self):
        return self.surroundings

    def answer(self, examples):
        for example in examples:
            time.sleep(self.pause)
            if example.index == self.fails_at:
                raise ConnectionError("the engine died")
            self.answered.append(example.index)
            text = f"answer {example.index} Ω" if self.text is None else self.text(example)
            yield example, Answer(text, "stop", 5)

    def close(self): ...


class Silent(Parrot):
    """A model that must not be touched."""

    def environment(self):
        raise AssertionError("asked for its environment")

    def answer(self, examples):
        raise AssertionError("asked to answer")


def go(model, questions, folder):
    return predict(model, questions, folder, progress=False)


def lines(path):
    """A prediction file's lines by index, as text."""
    return sorted(path.read_text().splitlines(), key=lambda line: int(json.loads(line)["index"]))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "predictions" / "main"


@pytest.fixture
def undisturbed(tmp_path):
    return lines(go(Parrot(), Questions(40), tmp_path / "other" / "main").path)


def main():
    """What the tests kill: forty answers into the folder named, with a pause before each."""
    predict(Parrot(pause=float(sys.argv[2])), Questions(40), Path(sys.argv[1]), progress=False)


def start(folder, pause):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    call = [sys.executable, __file__, str(folder), str(pause)]
    return subprocess.Popen(call, env=environment)


def test_a_cell_is_rows_and_a_record(folder):
    model = Parrot()
    cell = go(model, Questions(3), folder)
    assert cell.path == folder / "parrot" / "vt" / "1024.jsonl"
    example = Questions()[1]
    row = {"index": 1, "pred": "answer 1 Ω", "outputs": list(example.references), "task": "vt"}
    row |= {"length": example.num_tokens + example.max_new_tokens, "digest": example.digest}
    row |= {"num_prompt_tokens": example.num_tokens, "finish_reason": "stop"}
    assert cell.rows[1] == row | {"depths": list(example.depths)}
    record = json.loads(cell.path.with_suffix(".json").read_text())
    assert record == cell.record
    assert record["result"]["model"] == {"name": "parrot", "engine": "parrot"}
    assert record["result"]["seed"] == 42
    about = {"format": 4, "num_examples": 3, "label": "Parrot", "claimed_length": 4096}
    assert about.items() <= record.items()
    assert not cell.coverage.missing


def test_a_complete_cell_asks_nothing_and_locks_nothing(folder):
    first = go(Parrot(), Questions(10), folder)
    before = first.path.with_suffix(".json").stat().st_mtime_ns
    questions = Questions(10)
    with Lock(first.path.with_suffix(".lock")):
        assert go(Silent(), questions, folder).rows == first.rows
    assert questions.made == []
    assert first.path.with_suffix(".json").stat().st_mtime_ns == before


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_at_any_time_no_row_is_lost_or_doubled(folder, undisturbed, kills):
    """At moments spread over the writing of the rows; half a line is in the file, too."""
    path = folder / "parrot" / "vt" / "1024.jsonl"
    for number in range(kills):
        shutil.rmtree(folder, ignore_errors=True)
        process = start(folder, 0.01)
        wait_until("a row is there", lambda: path.exists() and b"\n" in path.read_bytes())
        time.sleep(0.4 * number / kills)
        process.send_signal(signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL)
        kept = path.read_bytes().count(b"\n")
        if kept < 40:
            with open(path, "ab") as file:
                file.write(b'{"index": 39, "pred": "half a li')

        started = time.monotonic()
        model = Parrot()
        cell = go(model, Questions(40), folder)
        assert time.monotonic() - started < 5
        assert len(model.answered) == 40 - kept
        assert lines(path) == undisturbed
        assert not cell.coverage.missing
        assert sorted(file.name for file in path.parent.iterdir()) == ["1024.json", "1024.jsonl"]


def test_who_lost_the_lock_writes_no_more(folder, monkeypatch):
    """As after a long sleep: another host took the cell over."""

    class Sleeper(Parrot):
        def answer(self, examples):
            for pair in super().answer(examples):
                if pair[0].index == 3:
                    lock_file.unlink()
                    lock_file.write_text("another's")
                    time.sleep(0.3)
                yield pair

    lock_file = folder / "parrot" / "vt" / "1024.lock"
    monkeypatch.setattr("rulerkit.store.files.LIFETIME", 0.3)
    with pytest.raises(UserError, match="taken over"):
        go(Sleeper(), Questions(10), folder)
    assert read_cells(folder)[0].coverage.missing == list(range(3, 10))
    assert lock_file.read_text() == "another's"


def test_a_model_that_fails_loses_nothing_and_its_error_passes_on(folder):
    questions = Questions(10)
    with pytest.raises(ModelError, match="ConnectionError: the engine died"):
        go(Parrot(fails_at=6), questions, folder)
    assert max(questions.made) == 6, "examples are made one by one"
    (cell,) = read_cells(folder)
    assert cell.coverage.missing == list(range(6, 10))
    assert not cell.path.with_suffix(".lock").exists()
    again = Parrot()
    assert not go(again, Questions(10), folder).coverage.missing
    assert again.answered == cell.coverage.missing


def test_failures_stand_in_a_ledger_and_only_they_are_asked_again(folder, capsys):
    class Partly(Parrot):
        def answer(self, examples):
            for example, answer in super().answer(examples):
                failure = Failure(f"HTTP 400 for {example.index}", example.index == 3)
                yield example, failure if example.index in (3, 7) else answer

    cell = go(Partly(), Questions(10), folder)
    assert cell.coverage.missing == [3, 7]
    assert str(cell.coverage) == "8 of 10 examples, 1 refused by the service, 1 failed"
    assert set(rk.score([cell])["failed_refused"]) == {1}
    said = capsys.readouterr().err
    assert "parrot: 2 of 10 examples of vt at 1024 have no answer (HTTP 400 for 3): " in said
    again = Partly()
    assert go(again, Questions(10), folder).coverage.missing == [3, 7]
    assert again.answered == [3, 7]
    ledger = cell.path.with_name("1024.failures.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in ledger] == [3, 7] * 2
    assert not go(Parrot(), Questions(10), folder).coverage.missing


def test_quoting_the_prompt_is_an_answer(folder):
    """A base model repeats the question, and a long thought quotes it."""

    def quote(example):
        return example.prompt[-300:] if example.index else "hm " * 900 + example.prompt[:400]

    assert not go(Parrot(text=quote), Questions(3), folder).coverage.missing


def test_an_engine_that_returns_the_prompt_is_stopped(folder):
    with pytest.raises(ModelError, match="only the new text"):
        go(Parrot(text=lambda example: example.prompt + " yes"), Questions(3), folder)
    pipeline = rk.model(lambda prompts: [f"{p} yes" for p in prompts], tokenizer="builtin")
    with pytest.raises(ModelError, match="return_full_text=False"):  # also where answers are short
        rk.evaluate(rk.study(model=pipeline, tasks=["vt"], lengths=[1024], outputs=folder))


def test_two_rows_of_one_example_are_damage(folder):
    cell = go(Parrot(), Questions(4), folder)
    with closing(Log(cell.path)) as log:
        log.append(row_line({**cell.rows[1], "pred": "another"}, cell.result))
    (read,) = read_cells(folder)
    with pytest.raises(UserError, match="line 5: a second row for example 1"):
        rk.score([read])
    left_out = []
    assert rk.score([read], left_out.append).empty
    assert "line 5" in left_out[0]


def test_what_decides_the_result_may_not_change(folder):
    path = go(Parrot(), Questions(4), folder).path
    before = path.read_bytes(), path.with_suffix(".json").read_bytes()
    for count in (4, 9):  # a complete cell, and one to go on with
        with pytest.raises(UserError, match=r"with seed 42, now it is 43: .*run: NAME.*--fresh"):
            go(Parrot(), Questions(count, 43), folder)
        with pytest.raises(UserError, match=r"with model\.dtype absent, now it is \"bfloat16\": "):
            go(Parrot(dtype="bfloat16"), Questions(count), folder)
    assert before == (path.read_bytes(), path.with_suffix(".json").read_bytes())


def test_surroundings_are_recorded_and_never_block(folder):
    go(Parrot(), Questions(2), folder)
    model = Parrot()
    assert "environments" not in go(model, Questions(4), folder).record
    model.surroundings = {"gpu": "another"}
    record = go(model, Questions(6), folder).record
    assert record["environment"]["gpu"] == "another"
    assert [known["gpu"] for known in record["environments"]] == ["none", "another"]
    assert len(go(Parrot(), Questions(8), folder).record["environments"]) == 2


def test_prompts_that_changed_without_saying_so_stop_the_run(folder):
    cell = go(Parrot(), Questions(6), folder)
    rows = [{**row, "digest": "0" * 16} if row["index"] == 5 else row for row in cell.rows]
    cell.path.write_bytes(lines_of(cell.record, rows))
    questions = Questions(9)
    with pytest.raises(UserError, match=r"prompt of example 5 .*digest 0{16}, now \w{16}.*--fresh"):
        go(Silent(), questions, folder)
    assert set(questions.made) <= {0, 5, 6}


def test_a_full_disk_keeps_what_was_written(small_disk):
    folder = small_disk / "main"
    model = Parrot(text=lambda example: "x" * 2000)
    said = "No space left on device; make room or choose another folder"
    with pytest.raises(UserError, match=said) as error:
        go(model, Questions(100), folder)
    assert "\n" not in str(error.value)
    (cell,) = read_cells(folder)
    assert len(cell.rows) == len(model.answered) - 1 > 5
    assert not cell.path.with_suffix(".lock").exists()
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    assert not go(Parrot(text=lambda example: "x" * 2000), Questions(100), folder).coverage.missing


def test_cells_are_found_in_files_and_folders(folder):
    for length in (2048, 1024):
        for run in ("main", "second"):
            go(Parrot(), Questions(2, length=length), folder.parent / run)
    for stray in (".ipynb_checkpoints/1024-checkpoint.jsonl", "._1024.jsonl", "notes.json"):
        file = folder / "parrot" / "vt" / stray
        file.parent.mkdir(exist_ok=True)
        file.write_text("no row")
    found = [(cell.run, cell.length) for cell in read_cells(folder.parent)]
    assert found == [("main", 1024), ("main", 2048), ("second", 1024), ("second", 2048)]


class Short(Parrot):
    """A model that finds out only when it is asked that a length does not fit."""

    fits = 0

    def answer(self, examples):
        yield from super().answer(list(examples)[: self.fits])
        raise TooLong("its keys and values have no room")


@pytest.mark.parametrize("fits", [0, 3])
def test_a_length_that_turns_out_too_long_leaves_no_empty_cell_and_loses_no_row(tmp_path, fits):
    model = Short()
    model.fits = fits
    with pytest.raises(TooLong):
        go(model, Questions(), tmp_path)
    assert [len(cell.rows) for cell in read_cells(tmp_path)] == ([fits] if fits else [])
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == (2 if fits else 0)


def test_each_example_is_made_once(tmp_path, monkeypatch):
    made = Counter()

    def counted(seed, index, random):
        made[random.getstate()] += 1
        return ExampleStream(seed, index, random)

    monkeypatch.setattr(generate, "ExampleStream", counted)
    asked = {"tasks": ["vt", "cwe"], "lengths": ["2K", "4K"], "num_examples": 5}
    for _ in range(2):  # nothing is left to ask in the end
        rk.evaluate("reader-4096", **asked, outputs=tmp_path, progress=False)
        assert set(made.values()) == {2}  # one at each length
        assert made.total() == 20


if __name__ == "__main__":
    main()
