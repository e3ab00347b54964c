"""Corpora: the originals where they are at hand, synthetic texts always, downloads from a server on
this machine."""

import json

import numpy as np
import pytest

import rulerkit as rk
from rulerkit.generation import corpora
from rulerkit.report.tables import task_table_text


def test_the_built_in_corpora_never_change():
    for kind, name, digest in (
        ("essay", "prose", "d49d2ef2c54c5822"),
        ("qa", "fictional", "988069f2cebe8a9c"),
        ("qa", "fictional_two_hop", "2d497409e3aa16c2"),
    ):
        assert corpora.load(kind, name).source == corpora.Source(name, digest)


def test_paul_graham(data):
    haystack = corpora.load("essay", "paul_graham")
    assert haystack.source == corpora.Source("paul_graham", "bbebcf5a2e7e74c5", stand_in=False)
    assert len(haystack.words) == 525_449
    first = (data / "essays/gkamradt/addiction.txt").read_text(encoding="utf-8").split()
    second = (data / "essays/gkamradt/aord.txt").read_text(encoding="utf-8").split()
    # The first essay ends without a blank: its last word and the next one's first are one word.
    assert haystack.words[: haystack.restart - 1] == first[:-1]
    assert haystack.words[haystack.restart : haystack.restart + 50] == second[1:51]
    assert 14 < np.diff(haystack.sentence_starts).mean() < 20


def test_squad(data):
    qa = corpora.load("qa", "squad")
    assert (len(qa.questions), len(qa.documents), max(qa.groups) + 1) == (5928, 1204, 35)
    assert qa.source.note == "SQuAD 2.0 dev rebuilt from its authors' pages"
    assert not qa.source.stand_in
    for question in qa.questions:
        assert question.related == ()
        assert question.text == question.text.strip()
        (gold,) = question.gold
        assert all(answer.strip() in qa.documents[gold] for answer in question.answers)


def test_hotpotqa(data):
    if (data / corpora.HOTPOTQA).exists():
        pytest.skip("the folder holds the whole of HotpotQA: nothing to say about a subset")
    qa = corpora.load("qa", "hotpotqa")
    assert (len(qa.questions), len(qa.documents)) == (1578, 15_378)
    assert qa.source.note == "HotpotQA: 1578 of 7405 questions"
    assert sum(len(question.related) == 8 for question in qa.questions) == 1569
    assert all(len(q.gold) == 2 and not {*q.gold} & {*q.related} for q in qa.questions)


def test_what_is_not_the_original_is_named_a_substitute(data, empty, monkeypatch):
    monkeypatch.setenv("RULERKIT_DATA", str(empty))
    file = empty / corpora.ESSAYS
    file.parent.mkdir(parents=True)
    original = json.loads((data / corpora.ESSAYS).read_text())["text"]
    substitute = "paul_graham is a substitute: PaulGrahamEssays.json with the content "
    known = "essays: 49 from their repository, 169 as fetched from the author's"
    for text, stand_in, note in (
        ("The first sentence. The second.", True, substitute),
        (original + " more", False, known),
        (original[1:], True, substitute),
    ):
        file.write_text(json.dumps({"text": text}))
        corpora.LOADED.clear()
        source = corpora.load("essay", "paul_graham").source
        assert source.stand_in == stand_in
        assert source.note.startswith(note)
    corpora.LOADED.clear()
    asked = {"tasks": ["niah_single_2"], "lengths": [1024], "num_examples": 1}
    asked |= {"corpora": "original", "outputs": empty / "outputs"}
    scores = rk.score(rk.evaluate("perfect", **asked, progress=False))
    table = " ".join(task_table_text(rk.summarize(scores), "perfect", "main").split())
    assert "Not comparable with the paper: reference readers, synthetic texts" in table
    assert "aul_graham is a substitute" in table
