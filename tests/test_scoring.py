"""The two string matches on hard cases, and files of ours and of others."""

import json
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.generation.tasks import category_of
from rulerkit.generation.tasks.base import string_match_all, string_match_part
from rulerkit.scoring.scores import COLUMNS, answer_of, clean, score
from rulerkit.store.cells import Cell
from rulerkit.store.other_formats import read_predictions, task_name
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
    with pytest.raises(UserError, match="references"):
        rk.judge(name, answer, [])


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


def test_an_empty_reference_is_refused_at_every_door(tmp_path):
    """It is in every answer, and so it would score 100."""
    file = tmp_path / "m/synthetic/4096/pred/vt.jsonl"
    write(file, [upstream_row(0, "a", ["a"]), upstream_row(1, "b", ["a", ""])])
    with pytest.raises(UserError, match="line 2: outputs: no references, or an"):
        read_predictions(file)
    for references in ([""], ["a", "\n"], []):
        with pytest.raises(UserError, match="none of them empty"):
            rk.task("vt").score("b", references)


def test_one_example_has_one_answer(tmp_path):
    """Files of upstream repeat the index of other examples."""
    file = tmp_path / "m/synthetic/4096/pred/vt.jsonl"
    upstream = [upstream_row(0, "a", ["a"]), upstream_row(0, "b", ["b"])]
    write(file, upstream)
    assert score(read_predictions(file))["score"].tolist() == [1.0, 1.0]
    write(file, [*upstream, upstream_row(0, "c", ["a"])])
    with pytest.raises(UserError, match="line 3: another answer to the example of line 1"):
        read_predictions(file)


def test_a_cell_counts_once():
    with pytest.raises(UserError, match="counted once"):
        score([cell([row("a", ["a"])]), cell([row("b", ["a"])])])


def test_task_names():
    names = ["ruler_vt", "ruler_qa_squad", "ruler_qa_hotpot"]
    assert [task_name(name) for name in names] == ["vt", "qa_1", "qa_2"]
    assert category_of("vt-num_hops=8") == "vt"
    with pytest.raises(UserError, match="unknown task"):
        task_name("vtt")


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def upstream_row(index, pred, outputs):
    others = {"others": {}, "truncation": -1, "length": 4000}
    return {"index": index, "pred": pred, "input": "...", "outputs": outputs, **others}


def test_upstream_tree(tmp_path):
    """Rows whose `index` repeats, and answers of a task in several files."""
    pred = tmp_path / "my-model/synthetic/4096/pred"
    preds = zip(["1", "2", "x"], "123", strict=True)
    rows = [upstream_row(0, said, [reference]) for said, reference in preds]
    write(pred / "niah_single_1.jsonl", rows)
    for part, city in enumerate(("Rome", "Oslo")):
        write(pred / f"qa_1-{part}.jsonl", [upstream_row(0, f"in {city}", ["rome", "Roma"])])
    found = score(read_predictions(tmp_path))
    means = found.groupby(["model", "task", "length"])["score"].agg(["mean", "size"])
    assert means.to_dict("index") == {
        ("my-model", "niah_single_1", 4096): {"mean": pytest.approx(2 / 3), "size": 3},
        ("my-model", "qa_1", 4096): {"mean": 0.5, "size": 2},
    }
    assert found["index"].tolist() == [0, 1, 2, 0, 1]


def test_lines_end_with_newlines_only(tmp_path):
    file = tmp_path / "4096/pred/vt.jsonl"
    file.parent.mkdir(parents=True)
    line = json.dumps(upstream_row(0, "a\u2028b\u0085c", ["c"]), ensure_ascii=False)
    file.write_text(line + "\n\n" + line, encoding="utf-8")
    assert score(read_predictions(file))["score"].tolist() == [1.0, 1.0]
