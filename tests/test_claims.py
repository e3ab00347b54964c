"""The claims of the notebooks, held against scores that are made up: each holds, fails, and cannot
be judged somewhere."""

import json
from math import inf

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rulerkit as rk
from rulerkit.analysis import claims, correlation, failures
from rulerkit.analysis.claims import FAILS, HOLDS, NOT_APPLICABLE, UNKNOWN, Verdict
from rulerkit.common.errors import UserError
from rulerkit.common.paths import home
from rulerkit.report.plots import series_by_length
from rulerkit.scoring import scores as scoring
from rulerkit.scoring.statistics import Estimate

K = 1024
LETTERS = {"H": HOLDS, "F": FAILS, "U": UNKNOWN, "-": NOT_APPLICABLE}


def rows(means, task="vt", n=100, model="m", seed=1):
    """Right or wrong answers with these means (percent) by length; an example has the same luck at
    every length."""
    luck = (np.random.default_rng(seed).permutation(n) + 0.5) / n
    frames = []
    for length, mean in means.items():
        about = {
            "index": range(n),
            "score": (luck < mean / 100).astype(float),
            "task": task,
            "category": scoring.category(task),
            "length": length,
            "wanted": n,
            "run": "r",
            "model": model,
            "label": model,
            "claimed_length": 32.0 * K,
        }
        frames.append(pd.DataFrame(about))
    return pd.concat(frames, ignore_index=True)


def lines(table):
    """The fields of the lines of a table, between bars."""
    for line in table.strip().splitlines():
        yield [field.strip() for field in line.split("|")]


def test_what_is_left_of_a_fall_has_the_interval_of_a_difference():
    scores = rows({4 * K: 95, 8 * K: 80, 16 * K: 70})
    rest = claims.lower("", rows({16 * K: 70}), rows({8 * K: 80}))
    found = claims.falls("", scores, "length", steadily=True)
    assert found.seen.endswith(f"without 4K to 8K {rest.seen}")


# --- the notebooks' claims ------------------------------------------------------------------------

SETTINGS = {
    "": {},
    "main two": {
        "names": ["a", "b"],
        "lengths": [4 * K, 8 * K, 16 * K, 32 * K],
        "num_examples": 100,
    },
    "main": {"lengths": [4 * K, 8 * K, 16 * K, 32 * K], "num_examples": 100},
    "named": {
        "names": ["gemini-1.5-pro", "gpt-4-1106", "lwm-7b-chat-1m", "mistral-7b-v0.2"],
        "num_examples": 100,
    },
    "lwm at 4K": {"names": ["lwm-7b-chat-1m", "mistral-7b-v0.2"], "lengths": [4 * K]},
    "one task": {"tasks": ["vt"]},
    "one length": {"lengths": [4 * K]},
    "one number": {"values": [4], "queries": []},
    "passkey": {"needles": ["passkey"]},
    "keys down": {"keys": ["full", "full uuid-uuid", 8, 1, 4]},
    "yi at 256K": {"names": ["yi-34b"], "lengths": [256 * K]},
    "to 32K": {"lengths": [4 * K, 8 * K, 16 * K, 32 * K]},
    "trained": {
        "names": ["a", "b"],
        "tasks": ["vt", "cwe"],
        "lengths": [4 * K, 8 * K, 16 * K, 32 * K],
        "training_lengths": {"a": "16K", "b": "32K"},
    },
    "lwm at 256K": {
        "names": ["lwm-7b-chat-512k", "lwm-7b-chat-1m"],
        "tasks": ["vt", "cwe"],
        "lengths": [256 * K],
        "training_lengths": {"lwm-7b-chat-512k": "512K", "lwm-7b-chat-1m": "1M"},
    },
    "untrained": {"names": ["a", "b"], "tasks": ["vt"], "claimed": float("nan")},
    "two": {"names": ["a", "b"], "tasks": ["vt", "cwe"], "reference": "b", "edge": "4K"},
    "one": {"tasks": ["vt", "cwe"]},
    "two at 4K": {"names": ["a", "b"], "tasks": ["vt", "cwe"], "lengths": [4 * K]},
}
CASES = """
01_main_results        | FFFH--- | main two    | a: 99 99 90 60, b: 99 99 95 95
01_main_results        | FHHF--- | main        | *: 90 90 90 40
01_main_results        | HFFF--- | main        | *: 99
01_main_results        | FH--HHH | named       | gemini-1.5-pro: 96 80, gpt-4-1106: 94 76, lwm-7b-chat-1m: 60 45, *: 80 20
01_main_results        | FF--FFF | named       | gpt-4-1106: 60 50, *: 95 94
01_main_results        | F-----H | lwm at 4K   | lwm-7b-chat-1m: 50, *: 90
01_main_results        | ------- | one task    | *: 50
02_needle_types        | HHH     |             | ~single_1: 99, ~single_2: 99, ~single_3: 30, *: 70
02_needle_types        | HHF     |             | ~single_1: 99, ~single_2: 99, ~single_words: 30, *: 80
02_needle_types        | FFF     |             | ~single_2: 60, *: 90
02_needle_types        | ---     | passkey     | *: 99
03_distractors         | H-      |             | ~single_2: 99, ~multikey_2: 40, *: 70
03_distractors         | F-      |             | ~multikey_1: 40, *: 99
03_distractors         | H-      | keys down   | ~single_2: 99, ~multikey_2: 40, *: 70
03_distractors         | FH      | yi at 256K  | ~multikey_2: 60, *: 100
03_distractors         | FF      | yi at 256K  | ~multikey_2: 20, *: 100
04_multiple_needles    | HH-     |             | ~num_: 60, *: 99
04_multiple_needles    | FF-     |             | ~single_2: 60, *: 99
04_multiple_needles    | ---     | one number  | *: 99
04_multiple_needles    | HHH     | yi at 256K  | ~num_: 85, *: 100
04_multiple_needles    | HHF     | yi at 256K  | ~num_: 60, *: 100
05_variable_tracking   | H       | to 32K      | *: 99 80 60 5
05_variable_tracking   | F       |             | *: 60 99
05_variable_tracking   | F       | to 32K      | *: 99 60 60
06_frequent_words      | H       |             | ~fwe-alpha_1.2: 30, *: 99
06_frequent_words      | F       |             | ~fwe_3.5: 30, *: 99
07_question_answering  | H       |             | ~none: 30, *: 95 50
07_question_answering  | F       |             | ~none: 80, *: 95 5
07_question_answering  | F       |             | ~none: 30, *: 95
07_question_answering  | -       | one length  | ~none: 30, *: 95
08_training_length     | HF-     | trained     | a: 90 80 70 20, b: 99 90 82 73
08_training_length     | HF-     | trained     | a: 90 50 50 49, b: 99 60 60 60
08_training_length     | FH-     | trained     | a: 95 90 85 60, b: 75 65 55 45
08_training_length     | FHH     | lwm at 256K | lwm-7b-chat-1m: 50, *: 70
08_training_length     | HFF     | lwm at 256K | lwm-7b-chat-1m: 70, *: 50
08_training_length     | ---     | untrained   | a: 90, b: 99
09_model_size          | HH      | two         | a: 60 20, b: 95 90
09_model_size          | FF      | two         | a: 95 90, b: 60 20
09_model_size          | F-      | two at 4K   | *: 90
09_model_size          | --      | one         | *: 90
10_architectures       | HH      | two         | a: 60 20, b: 95 60
10_architectures       | FF      | two         | a: 90, b: 95
"""
"""Notebook, verdicts in its order, setting, and mean scores by length (the last one also for all
longer ones) of the first of these models, or parts of a task's name (~), that applies."""


def verdicts_of(notebook, parameters, score, label):
    """What the notebook's own cells say of made-up scores or labels; cells that draw or save are
    left out."""
    cells = json.loads((home() / f"notebooks/{notebook}.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    names = {"In": [], "get_ipython": None, "__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rk, "evaluate", lambda study: study if isinstance(study, list) else [study])
        patch.setattr(rk, "score", score)
        patch.setattr(failures, "label", label)
        for cell in cells:
            if cell["id"] in ("parameters", "study", "evaluate", "verdicts", "label"):
                exec("".join(cell["source"]), names)
            if cell["id"] == "parameters":
                names |= parameters
    verdicts = names["verdicts"]
    return verdicts


def judged(notebook, setting, means, answered=300, **parameters):
    """The verdicts as letters, where the first `answered` examples of each cell have an answer."""
    given = {"num_examples": 300, "lengths": [4 * K, 8 * K], "names": ["m"]}
    given |= SETTINGS[setting] | parameters
    specs = [spec.split(": ") for spec in means.split(", ")]

    def cell(model, task, length, seed):
        numbers = next(
            ns for key, ns in specs if key in (model, "*") or (key[0] == "~" and key[1:] in task)
        ).split()
        mean = float(numbers[min(int(np.log2(length / (4 * K))), len(numbers) - 1)])
        return rows({length: mean}, task, given["num_examples"], model, seed)

    def score(studies):
        frames = [
            cell(model["name"], task.name, length, seed)
            for study in studies
            for model in study.models
            if isinstance(model, dict)
            for seed, task in enumerate(study.tasks)
            for length in study.lengths
        ]
        frame = pd.concat(frames, ignore_index=True)
        blank = {name: 0 for name in scoring.COLUMNS if name not in frame}
        frame["claimed_length"] = given.get("claimed", 32.0 * K)
        return frame[frame["index"] < answered].assign(
            **blank | {"aligned": "chat", "suite": "ruler", "own_threshold": np.nan}
        )

    found = given.pop("labels", pd.DataFrame(columns=failures.COLUMNS))
    given["models"] = [{"base": "perfect", "name": name} for name in given.pop("names")]
    letters = {text: letter for letter, text in LETTERS.items()}
    verdicts = verdicts_of(notebook, given, score, lambda _: found)
    return "".join(letters[verdict.verdict] for verdict in verdicts)


@pytest.mark.parametrize("notebook", sorted({case[0] for case in lines(CASES)}))
def test_claims_of_a_notebook(notebook):
    """Each claim holds in one case, fails in another, and cannot be judged without all answers."""
    cases = [case[1:] for case in lines(CASES) if case[0] == notebook]
    for letters, setting, means in cases:
        assert judged(notebook, setting, means) == letters, means
    letters, setting, means = cases[0]
    judgable = zip(*(case[0] for case in cases), strict=True)
    for seen in judgable:
        assert {"H", "F"} <= set(seen)
    unknown = letters.translate(str.maketrans("HF", "UU"))
    assert judged(notebook, setting, means, answered=99) == unknown


# --- labels and correlations ----------------------------------------------------------------------

ERRORS = """
0 | H | m      | niah_multikey_2@8192: 9 near distractor, 1 other key, 5 complete
0 | F | m      | niah_multikey_2@1024: 1 near distractor, 60 other key
0 | U | m      | niah_multikey_2@1024: 1 near distractor, 1 other key
0 | - | m      | niah_multikey_2@8192: 50 complete
1 | H | m      | vt@8192: 10 empty, 10 wrong chain, 3 complete
1 | F | m      | vt@8192: 20 partial, 1 empty
1 | U | m      | vt@8192: 10 partial, 10 empty
2 | H | m      | cwe@4096: 60 complete; cwe@8192: 18 copied demonstration, 2 empty
2 | H | m      | cwe@4096: 1 copied demonstration, 99 complete; cwe@8192: 20 copied demonstration
2 | F | m      | cwe@4096: 9 copied demonstration, 20 complete; cwe@8192: 20 copied demonstration
2 | F | m      | cwe@4096: 60 complete; cwe@8192: 2 copied demonstration, 18 empty
2 | - | m      | cwe@4096: 60 complete
2 | U | m      | cwe@4096: 9 complete; cwe@8192: 20 copied demonstration
3 | H | yi-34b | cwe@131072: 95 copied demonstration, 5 empty
3 | F | yi-34b | cwe@131072: 65 copied demonstration, 35 empty
3 | U | yi-34b | cwe@131072: 8 copied demonstration, 2 empty
3 | - | m      | cwe@131072: 20 copied demonstration
"""
"""Number of the claim in notebook 12, verdict, model, and what was seen in its answers."""


def labels(answers, model="m"):
    """Labels of answers, such as `vt@8192: 20 partial, 1 empty`."""
    frames = []
    for place, kinds in (part.split(": ") for part in answers.split("; ")):
        task, length = place.split("@")
        counts = [kind.split(" ", 1) for kind in kinds.split(", ")]
        texts = [label for count, label in counts for _ in range(int(count))]
        frame = pd.DataFrame({"index": range(len(texts)), "label": texts})
        about = {"run": "r", "model": model, "name": "M", "category": scoring.category(task)}
        frames.append(frame.assign(task=task, length=int(length), score=0.0, **about))
    return pd.concat(frames, ignore_index=True).reindex(columns=failures.COLUMNS)


def test_claims_about_errors():
    given = {"model": "perfect", "num_examples": 200}
    for number, letter, model, answers in lines(ERRORS):
        frame = labels(answers, model)
        found = verdicts_of("12_failures", given, pd.DataFrame, lambda _, f=frame: f)
        assert len(found) == 4
        assert found[int(number)].verdict == LETTERS[letter], answers


def correlated(noise, causes=(0, 0, 1, 1, 2, 3)):
    """Scores of six tasks; those with the same cause go together."""
    random = np.random.default_rng(0)
    names = ["niah_single_1", "niah_single_words", "vt", "vt_2_chains", "cwe", "qa_1"]
    hidden = random.normal(size=(24, 4))[:, list(causes)]
    return pd.DataFrame(60 + 10 * hidden + noise * random.normal(size=(24, 6)), columns=names)


CORRELATED = """
1  | 001123 | HHH
6  | 001123 | HUH
30 | 001123 | UFH
1  | 010000 | FFH
1  | 000000 | UHF
5  | 000000 | UUU
"""


def test_claims_about_correlations(monkeypatch):
    monkeypatch.setattr(rk, "THIRTEEN", ["niah_single_1", "vt", "cwe", "qa_1"])
    for noise, causes, letters in lines(CORRELATED):
        vectors = correlated(float(noise), list(map(int, causes)))
        monkeypatch.setattr(correlation, "task_vectors", lambda cells, v=vectors: v)
        tasks = list(vectors)
        assert judged("11_task_correlation", "", "*: 99", tasks=tasks, num_examples=20) == letters
    monkeypatch.undo()
    with pytest.raises(UserError, match="give at least two tasks"):
        judged("11_task_correlation", "one task", "*: 99")
    columns = ["run", "model", "length", "task", "score"]
    cells = pd.DataFrame(
        [["main", "m", 4096, "vt", 50.0], ["main", "m", 4096, "cwe", float("nan")]], columns=columns
    )
    with pytest.raises(UserError, match=r"0 complete rows of scores .* run the evaluation again"):
        correlation.task_vectors(cells)


def test_intervals_of_correlations_cover_the_truth():
    random, truth, inside = np.random.default_rng(4), 0.7, 0
    for _ in range(300):
        pair = random.multivariate_normal([0, 0], [[1, truth], [truth, 1]], size=24)
        _, low, high = correlation.fisher(float(np.corrcoef(pair, rowvar=False)[0, 1]), 24)
        inside += low <= truth <= high
    assert 0.91 < inside / 300 < 0.99


# --- judging --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "least", "most", "verdict"),
    [
        (0.1, 9, 0, inf, HOLDS),
        (0.0, 9, 0, inf, UNKNOWN),
        (-5, -0.1, 0, inf, FAILS),
        (-5, 0.0, 0, inf, UNKNOWN),
        (30.1, 49.9, 30, 50, HOLDS),
        (30.0, 49.9, 30, 50, UNKNOWN),
        (30.1, 50.0, 30, 50, UNKNOWN),
        (20, 29.9, 30, 50, FAILS),
        (20, 30.0, 30, 50, UNKNOWN),
        (50.1, 60, 30, 50, FAILS),
        (50.0, 60, 30, 50, UNKNOWN),
        (float("nan"), float("nan"), 0, inf, UNKNOWN),
    ],
)
def test_limits_on_both_sides(low, high, least, most, verdict):
    assert claims.judge("c", ((low + high) / 2, low, high), least, most).verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 1, HOLDS), (0, 1.9, FAILS), (-9, 1.9, FAILS), (-9, 2, UNKNOWN), (0, 5, UNKNOWN)],
)
def test_a_negligible_difference_refutes_lower(low, high, verdict, monkeypatch):
    monkeypatch.setattr(claims, "estimate", lambda *_: Estimate((low + high) / 2, low, high))
    found = claims.lower("c", rows({4 * K: 50}), rows({4 * K: 50}))
    assert found.verdict == verdict
    assert found.seen.startswith("higher by " if low + high < 0 else "lower by ")
    assert "-" not in found.seen.partition("[")[0]


@given(st.text("HFU-", max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_a_share_of_parts_is_judged_by_what_could_still_come_of_them(letters, least, most):
    parts = [Verdict("c", LETTERS[letter], "") for letter in letters]
    found = claims.among("c", parts, least, most).verdict
    counted = [letter for letter in letters if letter != "-"]
    shares = [
        (counted.count("H") + more) / len(counted)
        for more in range(counted.count("U") + 1)
        if counted
    ]
    possible = {least <= share <= most for share in (shares[0], shares[-1])} if shares else set()
    if not counted:
        assert found == NOT_APPLICABLE
    elif found == HOLDS:
        assert possible == {True}
    elif found == FAILS:
        assert possible == {False}
    assert claims.every("c", parts).verdict == claims.among("c", parts, 1).verdict
    assert (claims.some("c", parts).verdict == HOLDS) == ("H" in letters)


def test_a_share_that_can_just_be_reached_does_not_fail():
    parts = [Verdict("p", verdict, "") for verdict in (UNKNOWN, FAILS)]
    assert claims.among("c", parts, at_least=0.5).verdict == UNKNOWN
    assert claims.among("c", parts, at_least=0.51).verdict == FAILS
    parts = [Verdict("p", verdict, "") for verdict in (HOLDS, UNKNOWN)]
    assert claims.among("c", parts, at_most=0.5).verdict == UNKNOWN
    assert claims.among("c", parts, at_most=0.49).verdict == FAILS
    parts = [Verdict("p", verdict, "") for verdict in (HOLDS, FAILS)]
    assert claims.among("c", parts, at_least=0.5, at_most=0.5).verdict == HOLDS


# --- figures --------------------------------------------------------------------------------------


def test_lines_are_dashed_past_the_training_length_and_flat_where_asked():
    means = {"a": {4 * K: 90, 8 * K: 80, 16 * K: 40}, "b": {4 * K: 30}}
    about = {"panel": "p", "label": "M", "have": ""}
    frame = pd.DataFrame(
        [
            {**about, "series": name, "length": n, "score": s, "low": s - 5, "high": s + 5}
            for name, by_length in means.items()
            for n, s in by_length.items()
        ]
    )
    (axes,) = series_by_length(frame, dashed_beyond={"a": 8 * K}, flat=["b"])
    dashed, solid, flat = axes.get_lines()
    np.testing.assert_array_equal(solid.get_ydata(), [90, 80, np.nan])
    np.testing.assert_array_equal(dashed.get_ydata(), [90, 80, 40])
    assert [line.get_linestyle() for line in (solid, dashed)] == ["-", "--"]
    assert list(np.asarray(flat.get_ydata(), dtype=float)) == [30, 30, 30]
