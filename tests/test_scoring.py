"""The two string matches on hard cases, and cells."""

from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.generation.tasks import category_of
from rulerkit.generation.tasks.base import string_match_all, string_match_part
from rulerkit.scoring.scores import COLUMNS, answer_of, clean, score
from rulerkit.store.cells import Cell
from tests.records import record_of


def cell(rows, task="vt", length=4096, model="m", **record):
    kind = {"name": task, "family": "", "category": category_of(task), "match": "all"}
    about = {"num_examples": 2, "label": "M", "claimed_length": 8192, "aligned": "base"} | record
    about["task"] = kind
    return Cell(Path(f"{task}/{length}.jsonl"), record_of(model, length=length, **about), rows)


def row(pred, outputs, index=0, reason="stop"):
    row = {"index": index, "pred": pred, "outputs": outputs, "finish_reason": reason}
    return row | {"num_prompt_tokens": 4000, "digest": "d"}


@pytest.mark.parametrize(
    ("name", "answer", "references", "score_of_it"),
    [
        ("niah_multivalue", " 123, 456\n", ["123", "789"], 0.5),
        ("niah_multivalue", "<think>789, 123</think>456", ["123", "789"], 0),
        ("qa_1", "in Paris.", ["London", "Paris"], 1),
        ({"base": "vt", "num_hops": 2}, "a\x00b VAR", ["b var", "c"], 0.5),
    ],
)
def test_one_answer_is_judged_as_a_row_is(name, answer, references, score_of_it):
    assert rk.judge(name, answer, references) == score_of_it
    for wrong in ([], "".join(references)):
        with pytest.raises(UserError, match="references"):
            rk.judge(name, answer, wrong)


def test_blanks_and_controls_are_cleaned_and_nothing_else():
    assert clean("  a\x00b\tc\x1fd \n") == "a\nb\nc\nd"
    for kept in ("\x7f\x9f", "", "<think>1</think>2"):
        assert clean(kept) == kept


HARMONY = "<|channel|>analysis<|message|>ab?<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("pred", "after", "judged"),
    [
        ("is it 1</think>\n\n2", "<think>\n", "2"),
        ("<think>1</think>2</think> 3", "", "3"),
        ("<think>is it 1 or", "", None),
        ("is it 1 or", "assistant\n<think>\n", None),
        ("2", "assistant\n<think>\n\n</think>\n\n", "2"),
        ("2", "assistant\n", "2"),  # it did not think
        ("1</think>", "", ""),
        ("1</think>2 <think>3", "", "2"),  # it begins to think once more
        ("1</think> <think>3", "", None),
        ("[THINK]1[/THINK]2", "", "2"),
        ("<seed:think>1</seed:think>2", "", "2"),
        ("<|START_THINKING|>1<|END_THINKING|>2", "", "2"),
        ("<|channel>thought\n1<channel|>2", "", "2"),
        (f"{HARMONY}<|channel|>final<|message|>cd", "<|start|>assistant", "cd"),
        (HARMONY, "<|start|>assistant", None),
    ],
)
def test_only_what_follows_a_thought_is_judged(pred, after, judged):
    form = {"thinking_tokens": 9, "after": after}
    record = {"result": {"prompt_format": form}}
    assert answer_of(pred, record) == (judged or "", judged is None)

    # Nobody asked for a thought: only what begins or ends with a mark is one.
    form["thinking_tokens"] = 0
    if pred.startswith(("<think", "<|", "[THINK]", "<seed:")) or "</think>" in pred:
        assert answer_of(pred, record) == (judged or "", judged is None)
    else:
        assert answer_of(pred, record) == (clean(pred), False)


def test_thinking_models_answer_after_their_thought():
    rows = [row("is it ab?</think>cd", ["ab"]), row("<think>ab", ["ab"], 1)]
    found = score([cell(rows)])
    assert found["score"].tolist() == [0.0, 0.0]
    assert found["empty"].tolist() == [False, False]
    assert found["cut_thought"].tolist() == found["cut_off"].tolist() == [False, True]


def test_a_thought_in_plain_words_that_nobody_asked_for_is_no_answer():
    record = {"result": {"prompt_format": {"thinking_tokens": 0, "after": ""}}}
    assert answer_of("analysisWe see 1. assistantfinal2", record) == ("2", False)
    assert answer_of("analysis We see 1. assistant final 2", record) == ("2", False)
    for kept in ("analysis of the text: 1", "An assistant final coach says 1", "1 <think>"):
        assert answer_of(kept, record) == (kept, False)


@pytest.mark.parametrize(
    ("pred", "references", "all_", "part"),
    [
        ("I do not know", ["no"], 1.0, 1.0),  # a substring is enough, as upstream counts
        ("abcde", ["abcde", "fghij", "klmno", "pqrst"], 0.25, 1.0),
        ("", ["abcde"], 0.0, 0.0),
        ("123", ["1234"], 0.0, 0.0),
        ("Der Fluß in ZÜRICH", ["zürich", "fluß"], 1.0, 1.0),
        ("STRASSE", ["straße"], 0.0, 0.0),  # lower(), not casefold()
        ("東京 and \U0001f600", ["東京", "\U0001f600"], 1.0, 1.0),
    ],
)
def test_string_match(pred, references, all_, part):
    assert string_match_all(clean(pred), references) == all_
    assert string_match_part(clean(pred), references) == part


def test_score_gives_a_row_per_example():
    answers = [("AB, CD", "stop"), ("", "stop"), ("AB, X", "length")]
    rows = [row(pred, ["ab", "cd"], i, reason) for i, (pred, reason) in enumerate(answers)]
    found = score([cell(rows, num_examples=5)])
    assert list(found.columns) == list(COLUMNS)
    assert found["score"].tolist() == [1.0, 0.0, 0.5]
    assert found["empty"].tolist() == [False, True, False]
    assert found["cut_off"].tolist() == [False, False, True]
    first = found.iloc[0].to_dict()
    about = {"run": "main", "model": "m", "aligned": "base", "claimed_length": 8192, "task": "vt"}
    about |= {"category": "vt", "length": 4096, "wanted": 5, "stand_in": True, "seed": 42}
    assert {key: first[key] for key in about} == about


@pytest.mark.parametrize(
    ("pred", "outputs", "word"),
    [
        (None, ["a"], "no prediction"),
        ("a", [], "no references"),
        ("a", ["b", " "], "no references, or an empty one"),
    ],
)
def test_what_cannot_be_judged_has_no_score(pred, outputs, word):
    with pytest.raises(UserError, match=f"example 7 has {word}"):
        score([cell([row(pred, outputs, 7)])])


def test_an_empty_reference_is_refused():
    """It is in every answer, and so it would score 100."""
    for references in ([""], ["a", "\n"], []):
        with pytest.raises(UserError, match="none of them empty"):
            rk.task("vt").score("b", references)


def test_a_cell_counts_once():
    with pytest.raises(UserError, match="counted once"):
        score([cell([row("a", ["a"])]), cell([row("b", ["a"])])])


def test_a_variant_belongs_to_its_family():
    assert category_of("vt-num_hops=8") == "vt"
