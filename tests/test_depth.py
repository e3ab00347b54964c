"""Recall by depth: a blind band is seen where it lies, and depths are those of the needles."""

import re

import numpy as np
import pytest

import rulerkit as rk
from rulerkit.analysis.depth import by_bin, places, recall_by_depth
from rulerkit.generation.tasks import all_families


def items_of(prompt):
    """The items of the answer that a prompt gives."""
    read = [family.read(prompt) for family in all_families()]
    return next((items for items in read if items is not None), [])


def without_middle(prompts):
    """The answers of a reader that is blind from 40 to 60 % of the characters of a prompt. Of words
    that stand in many places it misses those with a quarter of their copies there."""
    answers = []
    for prompt in prompts:
        first, last = int(0.4 * len(prompt)), int(0.6 * len(prompt))
        items = items_of(prompt[:first] + prompt[last:])
        if "appear most often" in prompt or "frequently appeared" in prompt:
            items = []
            for word in items_of(prompt):
                starts = [match.start() for match in re.finditer(rf"\b{word}\b", prompt)]
                if np.mean([first <= start < last for start in starts]) < 0.25:
                    items.append(word)
        answers.append(" ".join(items))
    return answers


@pytest.fixture(scope="module")
def recall(tmp_path_factory):
    models = [rk.model(without_middle, name="blind", tokenizer="builtin"), "perfect"]
    asked = {"lengths": [2048], "num_examples": 10, "outputs": tmp_path_factory.mktemp("depth")}
    cells = rk.evaluate(models, **asked, tasks=rk.THIRTEEN, progress=False)
    return recall_by_depth(rk.answers_of(rk.score(cells), cells=cells))


def test_a_blind_band_is_seen_in_the_bins_where_it_lies(recall):
    bins = by_bin(recall, 5)
    blind = bins[bins["model"] == "blind"]
    assert set(blind["task"]) == set(rk.THIRTEEN)
    lowest = blind.loc[blind.groupby("task")["score"].idxmin()]
    assert lowest["depth_from"].between(20, 60).all()
    perfect = bins[bins["model"] == "perfect"]
    assert (perfect["score"] == 100).all()

    # Bins add up and have intervals.
    keys = ["model", "task", "length"]
    assert (bins.groupby(keys)["n"].sum() == recall.groupby(keys).size()).all()
    assert bins["score"].between(bins["low"], bins["high"]).all()
    assert (bins["low"] < bins["high"]).all()


def test_depths_are_those_of_the_needles(recall):
    example = rk.generate(rk.task("niah_multivalue").with_corpora("builtin"), 2048, 1)[0]
    needles = [place for place in places(example) if place.piece.role == "needle"]
    assert [place.depth for place in needles] == pytest.approx(example.depths, abs=0.02)
    for place in needles:
        assert example.prompt[place.start : place.end].strip()
    items = recall[(recall["task"] == "vt") & (recall["model"] == "perfect")]
    assert (items.groupby(["length", "index"]).size() == 5).all()  # the links of a chain
    assert items["depth"].between(0, 100).all()
    steps = items.groupby(["length", "index"])["depth"].diff()
    assert (steps.dropna() > 0).all()


def test_a_fixed_depth_is_that_of_every_needle_asked_for():
    for depth in (0, 37.5, 100):
        spec = {"base": "niah_multivalue", "depth": depth, "num_keys": 2}
        example = rk.generate(rk.task(spec).with_corpora("builtin"), 2048, 1)[0]
        assert example.depths == pytest.approx([depth] * 4, abs=6)  # sentences, side by side
    with pytest.raises(rk.UserError, match=r"depth of the task.* is 101: it must be less than"):
        rk.task({"base": "niah_single_1", "depth": 101})


def test_nothing_to_show_is_an_error(tmp_path):
    asked = {"tasks": ["niah_single_1"], "lengths": [1024], "num_examples": 1}
    rk.evaluate("perfect", **asked, outputs=tmp_path, progress=False)
    results = rk.load(tmp_path)
    with pytest.raises(rk.UserError, match="no depths to show"):
        recall_by_depth(results[:0])
    with pytest.raises(rk.UserError, match="bins is 0: it must be a whole number"):
        by_bin(recall_by_depth(results), 0)


def test_what_a_thought_names_is_not_recalled(tmp_path):
    """The answer holds the first item alone, the thought before it all of them."""

    def thinks(prompts):
        answers = []
        for prompt in prompts:
            items = items_of(prompt)
            answers.append(f"<think>{' '.join(items)}</think>{items[0]}")
        return answers

    about = {"template": "{{ messages[0].content }}<think>", "thinking_tokens": 500}
    model = rk.model(thinks, name="thinks", tokenizer="builtin", **about)
    asked = {"tasks": ["niah_multivalue"], "lengths": [2048], "num_examples": 5}
    cells = rk.evaluate(model, **asked, outputs=tmp_path, progress=False)
    recall = recall_by_depth(rk.answers_of(rk.score(cells), cells=cells))
    assert list(recall.groupby("index")["recalled"].sum()) == [1.0] * 5
