"""Adaptive runs: what is certified is right, whatever stops them, and what they say."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rulerkit as rk
from rulerkit.scoring.adaptive import StoppingRule, replay
from rulerkit.scoring.statistics import critical_value, look_confidences
from rulerkit.store.cells import read_cells

LENGTHS = (1024, 2048, 4096)
NOISY = {"base": "reader-2048", "engine": "planted", "drop": 0.06, "name": "noisy"}


def planted(random, *means, n=500):
    """The full grid of a model on one task, right or wrong, with exactly these means in percent."""
    return {
        ("vt", length): random.permutation(np.arange(n) < n * mean / 100) * 1.0
        for length, mean in zip(LENGTHS, means, strict=True)
    }


@given(st.integers(0, 10**6), st.permutations([96, 92.4, 70]))
@settings(max_examples=4, deadline=None)
def test_a_stopped_run_ends_as_any_other(seed, means):
    """Also of a model that is better at a longer length than at a shorter one."""
    random = np.random.default_rng(seed)
    grid = planted(random, *means)
    whole = replay(StoppingRule(), grid)
    seen = {key: rows[:0] for key, rows in grid.items()}
    for _ in range(10**4):
        state = replay(StoppingRule(), seen)
        if state.settled is not None:
            break
        key = random.choice([k for k, n in state.counts.items() if len(seen[tuple(k)]) < n])
        missing = state.counts[key := (key[0], int(key[1]))] - len(seen[key])
        # some of what is asked, or also what another run left there
        seen[key] = grid[key][: len(seen[key]) + random.integers(1, 2 * missing + 1)]
    assert state == whole


def test_what_is_certain_is_right_at_the_threshold_too():
    """One task right at its threshold, 89.7: 89.6 fails and 89.8 passes."""
    random, wrong, share = np.random.default_rng(1), 0, []
    for _ in range(15):
        for mean, answer in ((89.8, "2K"), (89.6, "1K"), (80, "1K"), (99, "2K")):
            state = replay(StoppingRule(), planted(random, 99, mean, 50))
            assert state.settled
            wrong += state.answer != answer
            share.append(sum(state.counts.values()) / 1500)
    assert wrong <= 3  # 5 % of 60
    assert np.mean(share) < 0.4


def test_the_longest_length_that_passes_counts():
    random = np.random.default_rng(2)
    assert replay(StoppingRule(), planted(random, 70, 60, 99)).answer == ">4K"
    assert replay(StoppingRule(), planted(random, 99, 60, 99), claimed=4096).answer == "4K"
    state = replay(StoppingRule(), planted(random, 70, 60, 50))
    assert (state.answer, state.settled) == ("<1K", True)


def test_too_few_examples_leave_a_set_and_say_what_it_takes():
    rule = StoppingRule(max_examples=90)
    state = replay(rule, planted(np.random.default_rng(3), 100, 91, 50))
    assert (state.settled, state.answer) == (False, "1K..2K")
    assert "1K..2K cannot be told apart with 90 examples a cell" in rule.describe(state)
    assert state.counts["vt", 2048] == 90


def test_requests_that_failed():
    grid = planted(np.random.default_rng(4), 99, 97, 50)
    grid["vt", 4096][1] = np.nan
    assert replay(StoppingRule(), grid).settled is None
    assert replay(StoppingRule(), grid, max_failures=1).answer == "2K"


@pytest.mark.parametrize("looks", [1, 5, 15])
def test_the_error_is_spent_over_all_looks(looks):
    shares = np.geomspace(0.01, 0.9, looks)
    random = np.random.default_rng(7)
    steps = np.diff(np.concatenate([[0], shares / (1 - shares)])) ** 0.5
    sums = np.cumsum(random.standard_normal((40_000, looks)) * steps, axis=1)
    limits = [critical_value(each) for each in look_confidences(tuple(shares), 0.9)]
    outside = (abs(sums / (shares / (1 - shares)) ** 0.5) > limits).any(axis=1).mean()
    assert 0.09 < outside < 0.105


def evaluate(outputs, model=NOISY, **parameters):
    given = {"tasks": ["vt"], "lengths": list(LENGTHS), "num_examples": "adaptive"} | parameters
    study = rk.study(model=model, outputs=str(outputs), **given)
    return rk.evaluate(study, progress=False)


def count_rows(outputs):
    return sum(path.read_bytes().count(b"\n") for path in outputs.glob("**/*.jsonl"))


def rows_of(cells):
    return {(c.length, c.record["num_examples"]): [row["index"] for row in c.rows] for c in cells}


@pytest.mark.slow
def test_a_killed_run_ends_as_any_other(tmp_path):
    asked = {"model": NOISY, "plugins": ["tests.planted_readers"], "tasks": ["vt"]}
    asked |= {"lengths": LENGTHS, "num_examples": "adaptive", "outputs": str(tmp_path / "killed")}
    command = [sys.executable, "-m", "rulerkit", "evaluate", "-y", json.dumps(asked)]
    whole = rows_of(evaluate(tmp_path / "whole"))
    kills = 0
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        before = count_rows(tmp_path / "killed")
        while process.poll() is None and count_rows(tmp_path / "killed") < before + 90:
            time.sleep(0.001)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills
    assert process.returncode == 0
    assert rows_of(read_cells(tmp_path / "killed/predictions/main")) == whole


@pytest.mark.slow
def test_rows_beyond_do_not_change_the_end(tmp_path):
    """A run of a fixed number beside an adaptive one shares rows with it."""
    alone = evaluate(tmp_path / "alone", max_examples=60)
    evaluate(tmp_path / "both", num_examples=30, lengths=[4096])
    both = evaluate(tmp_path / "both", max_examples=60)
    summaries = [rk.summarize(rk.score(cells), ["vt"]) for cells in (alone, both)]
    assert summaries[0].models["adaptive"].iloc[0] == summaries[1].models["adaptive"].iloc[0]
    fixed = rk.summarize(rk.score(alone), ["vt"], num_examples=500)
    assert not fixed.cells["complete"].all()
    assert fixed.lengths["score"].isna().any()


def test_lengths_that_cannot_be_given(tmp_path, capsys):
    model = rk.load_model(NOISY)
    model.too_long = lambda length: "4K is its limit" if length > 2048 else ""
    cells = evaluate(tmp_path, model=model, lengths=[*LENGTHS, 8192, 16384])
    assert "not run: noisy at 16K: 4K is its limit" in capsys.readouterr().err
    counts = {cell.length: len(cell.rows) for cell in cells}
    assert len(counts) == 2
    assert counts[2048] > 4
    summary = rk.summarize(rk.score(cells), ["vt"])
    assert summary.models["adaptive"].str.contains(": 2K, certain").all()


def test_other_tasks_and_other_notebooks_get_complete_cells(capsys):
    study = rk.study(tasks=["vt", "cwe"], num_examples="adaptive")
    assert (study.adaptive, study.num_examples) == (None, 20)
    assert "these tasks have no common threshold" in capsys.readouterr().err
    assert rk.study(num_examples="adaptive", notebook="08_training_length").adaptive is None
    assert "08_training_length compares complete cells" in capsys.readouterr().err
    with pytest.raises(rk.UserError, match="a whole number from 1 to 1000000, or adaptive"):
        rk.study(num_examples="some")
    with pytest.raises(rk.UserError, match="a whole number from 1"):
        rk.study(num_examples="adaptive", max_examples=0)


def test_a_table_says_what_an_adaptive_run_found(tmp_path, capsys):
    """A reader that drops 6 % of its items is 94 % right within its window."""
    scores = rk.score(evaluate(tmp_path))
    assert "5 %" in capsys.readouterr().err
    row = rk.summarize(scores, ["vt"]).models.set_index("category").loc["vt"]
    assert "adaptive (effective length): 2K, certain" in row["adaptive"]
    assert (row["effective_length"], np.isnan(row["rank_inc"])) == ("2K", True)
