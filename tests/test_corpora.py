"""Corpora: the originals where they are at hand, the stand-ins always, downloads from a server on this machine."""

import gzip
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from rulerkit import corpora
from rulerkit.corpora import downloads, stand_ins
from rulerkit.errors import UserError

FICTIONAL = ["fictional", "fictional_two_hop"]


@pytest.fixture
def real_data() -> Path:
    folder = os.environ.get("RULERKIT_DATA")
    if not folder:
        pytest.skip("RULERKIT_DATA is not set: no originals to read")
    return Path(folder)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No data folder, an empty cache, and nothing remembered from other tests."""
    monkeypatch.delenv("RULERKIT_DATA", raising=False)
    monkeypatch.setenv("RULERKIT_CACHE", str(tmp_path / "cache"))
    corpora.load_haystack.cache_clear()
    corpora.load_qa.cache_clear()
    yield tmp_path / "cache"
    corpora.load_haystack.cache_clear()
    corpora.load_qa.cache_clear()


def sentences(haystack: corpora.Haystack) -> list[str]:
    borders = [*haystack.sentence_starts.tolist(), len(haystack.words)]
    return [" ".join(haystack.words[a:b]) for a, b in pairwise(borders)]


# The prose


def test_prose_is_the_same_everywhere() -> None:
    source = corpora.load_haystack("prose").source
    assert source == corpora.Source("prose", "d49d2ef2c54c5822", stand_in=True, note="")


def test_prose_is_long_varied_and_holds_nothing_like_a_needle() -> None:
    haystack = corpora.load_haystack("prose")
    words = haystack.words
    text = " ".join(words)
    assert len(words) >= 400_000
    assert text.split() == words
    assert len({word.strip(".,;?").lower() for word in words}) > 2000
    assert text.isascii()
    assert not any(c.isdigit() or c in "{}%" for c in text)
    assert "magic" not in text.lower()
    assert "special" not in text.lower()


def test_no_sentence_of_the_prose_comes_twice_and_all_have_a_sensible_length() -> None:
    haystack = corpora.load_haystack("prose")
    found = sentences(haystack)
    assert Counter(found).most_common(1)[0][1] == 1
    lengths = [sentence.count(" ") + 1 for sentence in found]
    assert min(lengths) >= 6
    assert max(lengths) <= 30
    assert np.std(lengths) > 3
    assert all(sentence[0].isupper() and sentence[-1] == "." for sentence in found)


def test_prose_restarts_where_the_second_essay_begins() -> None:
    haystack = corpora.load_haystack("prose")
    first, second = islice(stand_ins.prose_essays(), 2)
    assert haystack.restart == len(" ".join(first).split())
    assert haystack.restart in haystack.sentence_starts
    assert " ".join(haystack.words[haystack.restart :]).startswith(second[0])


def test_prose_is_written_in_less_than_a_second() -> None:
    start = time.process_time()
    corpora.load_haystack.__wrapped__("prose")
    assert time.process_time() - start < 2  # a second, doubled for a busy machine


def test_prose_has_no_end() -> None:
    sentence_count = sum(len(essay) for essay in islice(stand_ins.prose_essays(), 1500))
    assert sentence_count > stand_ins._MEMORY


# Sentences and words


def test_sentence_starts() -> None:
    text = (
        'Mr. Smith met J. K. Jones, i.e. the Dr. of law. "Was it late?" he asked. (It was.) Really! Yes... and no. '
        "1. Begin here. So do I. Then stop... Now they went at 5 p.m. to sleep. e.g. this stays. **Bold** ends"
    )
    words = text.split()
    starts = corpora.sentence_starts(words)
    assert starts[0] == 0
    assert [" ".join(words[a:b]) for a, b in pairwise([*starts.tolist(), len(words)])] == [
        "Mr. Smith met J. K. Jones, i.e. the Dr. of law.",
        '"Was it late?" he asked.',
        "(It was.)",
        "Really!",
        "Yes... and no.",
        "1. Begin here.",
        "So do I.",
        "Then stop...",
        "Now they went at 5 p.m. to sleep. e.g. this stays.",
        "**Bold** ends",
    ]


def test_words_are_wonderwords_lists() -> None:
    words = corpora.load_words()
    assert [len(x) for x in (words.nouns, words.adjectives, words.verbs)] == [6782, 912, 1042]
    assert len(words.everything) == 8166
    assert words.everything == sorted(words.everything)
    assert all(word and word == word.strip() for word in words.everything)


# Originals, read where RULERKIT_DATA holds them


def test_paul_graham(real_data: Path) -> None:
    haystack = corpora.load_haystack("paul_graham")
    assert haystack.source == corpora.Source("paul_graham", "bbebcf5a2e7e74c5", stand_in=False, note="")
    assert len(haystack.words) == 525_449
    first = (real_data / "essays/gkamradt/addiction.txt").read_text(encoding="utf-8").split()
    second = (real_data / "essays/gkamradt/aord.txt").read_text(encoding="utf-8").split()
    # The first essay ends without a blank: its last word and the next one's first are one word.
    assert haystack.words[: haystack.restart - 1] == first[:-1]
    assert haystack.words[haystack.restart : haystack.restart + 50] == second[1:51]
    starts = haystack.sentence_starts
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    assert starts[-1] < len(haystack.words)
    assert haystack.restart in starts
    assert 14 < np.diff(starts).mean() < 20


def test_squad(real_data: Path) -> None:
    qa = corpora.load_qa("squad")
    assert (len(qa.questions), len(qa.documents), max(qa.groups) + 1) == (5928, 1204, 35)
    assert qa.source.note == ""
    assert not qa.source.stand_in
    assert len(set(qa.documents)) == 1204
    for question in qa.questions:
        assert question.related == ()
        assert len(set(question.answers)) == len(question.answers) > 0
        assert question.text == question.text.strip()
        (gold,) = question.gold
        assert all(answer.strip() in qa.documents[gold] for answer in question.answers)


def test_hotpotqa(real_data: Path) -> None:
    if (real_data / downloads.HOTPOTQA).exists():
        pytest.skip("the folder holds the whole of HotpotQA: nothing to say about a subset")
    qa = corpora.load_qa("hotpotqa")
    assert (len(qa.questions), len(qa.documents)) == (1578, 15_378)
    assert qa.source.note == "HotpotQA: 1578 of 7405 questions"
    assert len(set(qa.documents)) == 15_378
    assert sum(len(question.related) == 8 for question in qa.questions) == 1569
    for question in qa.questions:
        assert len(question.gold) == 2
        assert not set(question.gold) & set(question.related)
        assert question.answers[0] in ("yes", "no") or any(
            question.answers[0] in qa.documents[index] for index in question.gold
        )


# What is missing or broken


@pytest.mark.parametrize("name", ["paul_graham", "squad", "hotpotqa"])
def test_a_missing_original_says_what_to_do(name: str, empty: Path) -> None:
    load = corpora.load_haystack if name == "paul_graham" else corpora.load_qa
    with pytest.raises(UserError) as error:
        load(name)
    message = str(error.value)
    assert "\n" not in message
    for part in (repr(name), "rulerkit fetch", "RULERKIT_DATA", "corpora: builtin", str(empty)):
        assert part in message


@pytest.mark.parametrize("load", [corpora.load_haystack, corpora.load_qa])
def test_an_unknown_name_lists_those_allowed(load: object) -> None:
    with pytest.raises(UserError, match=r"unknown .* 'sqad'.*allowed: "):
        load("sqad")  # type: ignore[operator]


_BROKEN = {"not gzip": b"not gzip", "cut": gzip.compress(b'{"data": [')[:-6], "not JSON": gzip.compress(b"{}}")}


@pytest.mark.parametrize("content", _BROKEN.values(), ids=_BROKEN)
def test_a_broken_file_is_named(content: bytes, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = empty / "squad/dev-v2.0.json.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    monkeypatch.setenv("RULERKIT_DATA", str(empty))
    with pytest.raises(UserError, match=r"^corpus file .*dev-v2\.0\.json\.gz cannot be read .*rulerkit fetch"):
        corpora.load_qa("squad")


def test_the_recorded_checksums_are_those_of_the_essays(real_data: Path) -> None:
    for file in downloads.originals():
        if file.path.startswith("essays/gkamradt/"):
            assert hashlib.sha256((real_data / file.path).read_bytes()).hexdigest() == file.addresses[0][1]
