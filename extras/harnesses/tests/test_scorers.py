"""Other harnesses' scorers: the table of cases, upstream's functions on random texts, lm-eval's own
functions where the package is installed, and the command."""

import csv
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.store.predictions import read_predictions
from rulerkit_harnesses import score_as
from rulerkit_harnesses.rules import NAMES, score_answer

CASES = Path(__file__).parent / "scorers.csv"
MATCH = {"qa_1": "part", "qa_2": "part"}


def cases():
    """The rows of the table of cases: task, references and answer, and the score by each scorer as
    the harness' own function gave it."""
    with CASES.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["case"])
def test_each_case_scores_as_the_harness_own_function_gave(case):
    answer, references = (json.loads(case["answer"]), json.loads(case["references"]))
    match = MATCH.get(case["task"], "all")
    recorded = {name: float(case[name]) for name in NAMES}
    scored = {name: score_answer(name, match, answer, references) for name in NAMES}
    assert scored == pytest.approx(recorded, abs=0.005)


def upstream_all(preds, refs):
    """RULER's formula, scripts/eval/synthetic/constants.py, for one answer."""
    found = [1.0 if r.lower() in preds.lower() else 0.0 for r in refs]
    return sum(found) / len(refs)


def upstream_part(preds, refs):
    """The same, for question answering."""
    return max(1.0 if r.lower() in preds.lower() else 0.0 for r in refs)


TEXTS = st.text(alphabet="aAbB1 \t\n\x00\u200bİß</think>", max_size=30)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
def test_upstream_is_upstream_on_any_text(answer, references):
    judged = re.sub(r"[\x00-\x1f]", "\n", answer.strip()).strip()
    assert score_answer("upstream", "all", answer, references) == upstream_all(judged, references)
    assert score_answer("upstream", "part", answer, references) == upstream_part(judged, references)


def harness_file(tmp_path, score):
    """A samples file of lm-eval for qa_1 with two answers; `score` is what it says of the first."""
    outputs = ["in the 10th century", "10th", "in the 10th"]
    common = {"doc": {"outputs": outputs, "input": "?", "max_length": 4096}, "filter": "none"}
    rows = []
    for index, (answer, said) in enumerate([("10th", score), ("in the 10th", 2 / 3)]):
        row = {"doc_id": index, "metrics": ["4096"], "prompt_hash": f"{index}" * 64, "4096": said}
        rows.append(common | row | {"resps": [[answer]], "filtered_resps": [answer]})
    file = tmp_path / "my__model" / "samples_ruler_qa_squad_2026-01-31T10-00-00.jsonl"
    file.parent.mkdir()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_score_as_says_how_many_points_are_the_scorer(tmp_path, rulerkit):
    file = harness_file(tmp_path, 1 / 3)
    ended = rulerkit("report", file, "--as", "lm-eval", "--as", "nemo-skills:think")
    assert ended.status == 0
    (row,) = [line for line in ended.out.splitlines() if line.startswith("qa_1")]
    assert row.split() == [*("qa_1,", "4K", "100.0"), *("50.0", "(-50.0)"), *("0.0", "(-100.0)")]


def test_a_file_of_lm_eval_with_another_score_than_its_rule_gives_is_refused(tmp_path, rulerkit):
    file = harness_file(tmp_path, 1.0)
    ended = rulerkit("report", file, "--as", "upstream")
    assert ended.status == 2
    (line,) = ended.lines
    assert re.search(r"example 0 \(10th\).*0\.333", line)


def test_two_runs_of_lm_eval_pair_by_the_hash_of_the_prompt(tmp_path):
    (cell,) = read_predictions(harness_file(tmp_path, 1 / 3))
    assert [row["digest"] for row in cell.rows] == ["0" * 16, "1" * 16]


def test_tasks_that_other_harnesses_do_not_have_are_refused(tmp_path):
    asked = {"tasks": ["niah_single_1", "count_64"], "lengths": [4096], "num_examples": 1}
    cells = rk.evaluate(rk.study(model="perfect", outputs=str(tmp_path), **asked))
    with pytest.raises(UserError, match="no rule for count_64"):
        score_as(cells, ["lm-eval"])
    judged = score_as(cells[:1], NAMES)
    assert len(score_as(rk.load(cells[0]), "lm-eval")) == 1
    assert (score_as(str(cells[0].path)).filter(like=":think").count() == 1).all()
    others = judged.drop(columns=["nemo-skills:think"])
    assert (others[["score", *NAMES[: NAMES.index("rulerkit:think")]]] == 1).all(axis=None)
