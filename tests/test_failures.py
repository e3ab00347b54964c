"""What went wrong: labels on answers written by hand, and planted effects found again by their
labels."""

import json
from collections import Counter
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.analysis.failures import label_answers, no_context_answers
from rulerkit.scoring.statistics import wilson
from rulerkit.store.cells import Cell
from tests.records import predict, record_of

LENGTH = 2048


def cell_of(examples, texts, reason="stop", name="hand"):
    """A cell as predictions of a model `name` would leave it."""
    rows = []
    for index, text in texts.items():
        example = examples[index]
        row = {"index": index, "pred": text, "outputs": list(example.references)}
        row |= {"length": example.length, "task": example.task, "digest": example.digest}
        row |= {"num_prompt_tokens": example.num_tokens, "depths": example.depths}
        rows.append(row | {"finish_reason": reason})
    result = {**examples.record(), "model": {"name": name, "engine": "function"}}
    record = record_of(name, **result, num_examples=len(examples))
    return Cell(Path(f"{name}.jsonl"), json.loads(json.dumps(record)), rows)


def asked(spec, length=LENGTH, num_examples=3, **form):
    made = rk.task(spec).with_corpora("builtin")
    return rk.generate(made, length, num_examples, prompt_format=rk.PromptFormat(**form))


def labelled(spec, write, reason="stop", **more):
    examples = asked(spec, **more)
    return label_answers(cell_of(examples, {1: write(examples[1])}, reason), {}, {})[1]


def labels_of(cells, no_context=None):
    known = no_context_answers(cells) if no_context is None else no_context
    return [label for cell in cells for label, _ in label_answers(cell, known, {}).values()]


def distractors(example, key=False):
    """Values (or keys) of what could be taken for the needles, the nearest first."""
    pieces = [piece for piece in example.pieces if piece.value]
    wanted = next(i for i, piece in enumerate(pieces) if piece.role == "needle")
    order = sorted(range(len(pieces)), key=lambda i: abs(i - wanted))
    nearest = [pieces[i] for i in order if pieces[i].role == "distractor"]
    return [str(piece.key if key else piece.value) for piece in nearest]


def shown_answer(example):
    return example.text_of("demonstration").rpartition(":")[2].strip()


def first_words(example, count=12):
    return " ".join(example.context_text.split()[:count])


def other_document(example):
    blocks = example.blocks[slice(*example.context)]
    return next(" ".join(b.text.split()[5:10]) for b in reversed(blocks) if b.role != "needle")


HAND = [
    ("complete", "niah_single_2", lambda e: f"It is {e.references[0]}.", ""),
    ("empty", "vt", lambda e: " \n\x00 ", ""),
    ("refused", "niah_single_2", lambda e: "It is not mentioned in the text.", "not mentioned"),
    ("copied demonstration", "cwe", shown_answer, ""),
    ("copied demonstration", {"base": "cwe", "num_cw": 1}, shown_answer, ""),
    ("copied beginning", "cwe", lambda e: first_words(e) + " 1. 2. 3.", ""),
    ("function words", "cwe", lambda e: "1. the 2. an 3. a 4. of", "the an a of"),
    ("duplicated values", "niah_multivalue", lambda e: ", ".join([e.references[0]] * 4), ""),
    ("near distractor", "niah_multikey_2", lambda e: distractors(e)[0], "tokens away"),
    ("other key", "niah_multikey_2", lambda e: distractors(e)[-1], "tokens away"),
    ("wrong chain", "vt_2_chains", lambda e: f"{distractors(e, key=True)[0]}", ""),
    ("less frequent word", "cwe", lambda e: f"1. {e.references[0]} 2. {uncommon(e)}", ""),
    ("other document", "qa_1", other_document, "Document"),
    ("incomplete uuid", "niah_multikey_3", lambda e: e.references[0][:-1], ""),
    ("partial", "niah_multivalue", lambda e: ", ".join(e.references[1:]), "3 of 4"),
    ("nothing recognised", "qa_2", lambda e: "Rumpelstiltskin", ""),
]


def uncommon(example):
    others = [piece.text.split() for piece in example.pieces if piece.role != "needle"]
    context = {words[-1] for words in others if words}
    return min(word for word in context if word.isalpha() and word in example.context_text)


@pytest.mark.parametrize(("kind", "spec", "write", "detail"), HAND, ids=[h[0] for h in HAND])
def test_answers_by_hand(kind, spec, write, detail):
    label, seen = labelled(spec, write)
    assert label == kind, seen
    assert detail in seen


def test_cut_off_where_nothing_else_fits():
    for label, spec, write in (
        ("cut off", "niah_single_2", lambda e: "The special magic number for"),
        ("near distractor", "niah_multikey_2", lambda e: distractors(e)[0]),
        ("complete", "niah_single_2", lambda e: e.references[0]),
    ):
        assert labelled(spec, write, "length")[0] == label
    for label, text in (
        ("cut in its thought", "<think> the chain"),
        ("function words", "<think> hm </think> the"),
    ):
        assert labelled("vt", lambda e, text=text: text, thinking_tokens=200)[0] == label


def test_the_answer_that_is_given_without_context():
    alone = asked({"base": "qa_1", "context": "none"}, num_examples=4)
    among = asked("qa_1", num_examples=4)
    right = among[2].references[0]
    guesses = cell_of(alone, {1: "In Timbuktu.", 2: right})
    cells = [guesses, cell_of(among, {0: "Elsewhere", 1: "in the Timbuktu", 2: right})]
    assert no_context_answers(cells) == {
        ("hand", "fictional", 42, 1): "In Timbuktu.",
        ("hand", "fictional", 42, 2): right,
    }
    labels = ["nothing recognised", "complete"]
    labels += ["nothing recognised", "no-context answer", "complete"]
    assert labels_of(cells) == labels
    assert "no-context answer" not in labels_of(cells, no_context={})
    other = cell_of(among, {1: "in Timbuktu"}, name="another model")
    assert labels_of([guesses, other])[-1] == "nothing recognised"


def test_examples_that_cannot_be_generated_again():
    cell = cell_of(asked("qa_1"), {0: "wrong"})
    result = cell.record["result"]
    for changed, words in (
        ({"seed": 43}, "the prompt of example 0 comes out differently"),
        ({"tokenizer": result["tokenizer"] | {"name": "no/such"}}, "no/such"),
    ):
        cell.record["result"] = result | changed
        with pytest.raises(rk.UserError, match=words) as raised:
            label_answers(cell, {}, {})
        assert "\n" not in str(raised.value)
    cell.rows[0]["pred"] = cell.rows[0]["outputs"][0]
    assert labels_of([cell]) == ["complete"], "what is right needs no example"


RATES = [
    ({"confuse": 0.4}, "niah_multikey_2", "near distractor", 0.4),
    ({"confuse": 0.4}, "vt_2_chains", "wrong chain", 1 - 0.6**3),
    ({"drop": 0.2}, "vt", "partial", 1 - 0.8**5 - 0.2**5),
    ({"copies": 0.5}, "cwe", "copied demonstration", 0.5),
]


@pytest.mark.parametrize(("effects", "spec", "kind", "planted"), RATES)
def test_planted_rates_are_found_again(effects, spec, kind, planted, tmp_path):
    model = rk.load_model({"engine": "planted", "name": "planted", **effects})
    cell = predict(model, asked(spec, num_examples=80), tmp_path / "run", progress=False)
    labels = Counter(labels_of([cell]))
    share = labels[kind] / 80
    low, high = wilson(share, 80, 0.999)
    assert low <= planted <= high, labels
