"""Where the texts come from: essays, question answering and word lists, and stand-ins that need no download.

The originals (Appendix B of the paper: Paul Graham's essays, SQuAD, HotpotQA) are read from $RULERKIT_DATA, a folder
that already holds them, or from the cache that `rulerkit fetch` fills. The stand-ins are written by this package. Each
corpus carries a `Source`, which every result repeats.
"""

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from rulerkit.corpora import downloads, fictional, stand_ins
from rulerkit.corpora.downloads import fetch
from rulerkit.corpora.fictional import answer_fictional
from rulerkit.errors import UserError, unknown
from rulerkit.paths import cache_dir

__all__ = [
    "HAYSTACKS",
    "QA_SETS",
    "STAND_INS",
    "Haystack",
    "QASet",
    "Question",
    "Source",
    "Words",
    "answer_fictional",
    "fetch",
    "load_haystack",
    "load_qa",
    "load_words",
]

HAYSTACKS = {
    "paul_graham": "Paul Graham's essays, as in the paper; all rights reserved, downloaded and never redistributed",
    "prose": "readable prose written by a generator, without end; no download, no licence",
}
QA_SETS = {
    "squad": "SQuAD 2.0 dev, its 5,928 answerable questions; CC BY-SA 4.0, downloaded",
    "hotpotqa": "HotpotQA dev (distractor), 7,405 two-hop questions; CC BY-SA 4.0, downloaded",
    "fictional": "questions about invented people, places and dates in SQuAD's shape; no download, no licence",
    "fictional_two_hop": "two-hop questions about invented people and places in HotpotQA's shape; no download",
}
STAND_INS = {"paul_graham": "prose", "squad": "fictional", "hotpotqa": "fictional_two_hop"}

# Length of the first essay (addiction.txt) in the joined text; it ends without a blank, so one word spans the border.
_FIRST_ESSAY = 7436
_PROSE_WORDS = 400_000
_ABBREVIATIONS = (
    " mr. mrs. ms. dr. st. jr. sr. prof. gen. col. sen. rep. rev. hon. e.g. i.e. etc. vs. v. cf. al. ca. approx. est. "
    " inc. ltd. co. corp. vol. p. pp. fig. ed. eds. jan. feb. mar. apr. jun. jul. aug. sep. sept. oct. nov. dec. u.s. "
    " u.k. a.m. p.m. "
)
_OPENING = "\"'“‘([{*_«"
_CLOSING = "\"'”’)]}*_»"
_INITIAL = re.compile(r"(?:[A-Za-z]\.)+")
_NUMERAL = re.compile(r"\W*\d+\W*")


@dataclass(frozen=True)
class Source:
    """Which corpus was used. `fingerprint`: 16 hex digits of a sha256 over its content; `stand_in`: not the paper's;
    `note`: what a reader of the results must know, for example a subset."""

    name: str
    fingerprint: str
    stand_in: bool
    note: str = ""


@dataclass(frozen=True)
class Haystack:
    """Running text. `words`: in order, without white space; `sentence_starts`: (n,) increasing word indices, the first
    0; `restart`: the word index where a second pass begins (the second essay), always among the sentence starts."""

    source: Source
    words: list[str]
    sentence_starts: np.ndarray
    restart: int


@dataclass(frozen=True)
class Question:
    """A question, its distinct answers in order of appearance, the indices of the documents that hold the answer
    (`gold`) and of the question's own other documents (`related`; empty in SQuAD's shape)."""

    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    related: tuple[int, ...]


@dataclass(frozen=True)
class QASet:
    """`documents`: distinct, stripped at both ends; `groups`: the article number of each document."""

    source: Source
    documents: list[str]
    groups: list[int]
    questions: list[Question]


@dataclass(frozen=True)
class Words:
    """wonderwords' lists in their order; `everything` is their sorted union."""

    nouns: list[str]
    adjectives: list[str]
    verbs: list[str]
    everything: list[str]


@cache
def load_haystack(name: str) -> Haystack:
    """The haystack of one of `HAYSTACKS`. Errors: UserError for an unknown name or an original that is not there."""
    if name not in HAYSTACKS:
        raise unknown("haystack", name, HAYSTACKS)
    if name == "prose":
        words, restart = stand_ins.prose_words(_PROSE_WORDS)
        return _haystack(name, words, restart)
    content = _read_json(_find("paul_graham", "the essays", downloads.ESSAYS))
    text, essays, wanted = content["text"], content.get("essays", 218), content.get("of", 218)
    note = "" if essays == wanted else f"essays: {essays} of {wanted}"
    words = text.split()
    restart = min(len(text[:_FIRST_ESSAY].split()), len(words) - 1)
    return _haystack(name, words, restart, note)


def _haystack(name: str, words: list[str], restart: int, note: str = "") -> Haystack:
    source = Source(name, _fingerprint([" ".join(words)]), name in STAND_INS.values(), note)
    starts = np.union1d(sentence_starts(words), [restart]).astype(np.int64)
    return Haystack(source, words, starts, restart)


def sentence_starts(words: list[str]) -> np.ndarray:
    """Word indices where a sentence starts, by a rule without a model: behind a word that ends in . ! or ? (closing
    quotes and brackets may follow), unless the next word begins in lower case or the word is an abbreviation or an
    initial. Shape (n,), increasing, the first is 0."""
    starts = [0]
    for i, word in enumerate(words[:-1]):
        if word[-1].isalnum() or word[-1] in ",;:-":
            continue
        core = word.rstrip(_CLOSING)
        if core[-1:] not in (".", "!", "?"):
            continue
        if core[-1] == "." and (_is_abbreviation(core) or (starts[-1] == i and _NUMERAL.fullmatch(core))):
            continue  # the last: the number of a list's entry
        if not words[i + 1].lstrip(_OPENING)[:1].islower():
            starts.append(i + 1)
    return np.array(starts, dtype=np.int64)


def _is_abbreviation(word: str) -> bool:
    word = word.lstrip(_OPENING)
    return f" {word.lower()} " in _ABBREVIATIONS or (word != "I." and _INITIAL.fullmatch(word) is not None)


@cache
def load_qa(name: str) -> QASet:
    """The question answering set of one of `QA_SETS`.

    Questions and documents are stripped at both ends (upstream strips neither: five SQuAD paragraphs and 257 of its
    questions carry blanks there). Errors: UserError for an unknown name or an original that is not there.
    """
    if name not in QA_SETS:
        raise unknown("question answering set", name, QA_SETS)
    if name == "squad":
        return _squad(_read_json(_find(name, "SQuAD 2.0 dev", "squad/dev-v2.0.rebuilt.json", downloads.SQUAD)))
    if name == "hotpotqa":
        subset = downloads.HOTPOTQA.replace(".json", ".subset.json")
        return _hotpotqa(_read_json(_find(name, "HotpotQA dev (distractor)", downloads.HOTPOTQA, subset)))
    documents, groups, rows = fictional.fictional() if name == "fictional" else fictional.fictional_two_hop()
    return _qa_set(name, documents, groups, [Question(*row) for row in rows])


def _squad(content: dict[str, Any]) -> QASet:
    documents = _Documents()
    questions = []
    for group, article in enumerate(content["data"]):
        for paragraph in article["paragraphs"]:
            gold = documents.add(paragraph["context"], group)
            for qa in paragraph["qas"]:
                if not qa.get("is_impossible", False):
                    answers = tuple(dict.fromkeys(answer["text"] for answer in qa["answers"]))
                    questions.append(Question(qa["question"].strip(), answers, (gold,), ()))
    return _qa_set("squad", documents.texts, documents.groups, questions)


def _hotpotqa(content: list[dict[str, Any]]) -> QASet:
    documents = _Documents()
    titles: dict[str, int] = {}
    questions = []
    for row in content:
        supporting = {title for title, _ in row["supporting_facts"]}
        gold: list[int] = []
        related: list[int] = []
        for title, sentences in row["context"]:
            index = documents.add(f"{title}\n{''.join(sentences)}", titles.setdefault(title, len(titles)))
            (gold if title in supporting else related).append(index)
        questions.append(Question(row["question"].strip(), (row["answer"],), _distinct(gold), _distinct(related)))
    note = "" if len(questions) >= 7405 else f"HotpotQA: {len(questions)} of 7405 questions"
    return _qa_set("hotpotqa", documents.texts, documents.groups, questions, note)


class _Documents:
    """Distinct documents by their stripped text, each with the group under which it was first seen."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.groups: list[int] = []
        self._index: dict[str, int] = {}

    def add(self, text: str, group: int) -> int:
        text = text.strip()
        if text not in self._index:
            self._index[text] = len(self.texts)
            self.texts.append(text)
            self.groups.append(group)
        return self._index[text]


def _distinct(indices: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(indices))


def _qa_set(name: str, documents: list[str], groups: list[int], questions: list[Question], note: str = "") -> QASet:
    lines = [f"{q.text}\t{q.answers}\t{q.gold}\t{q.related}" for q in questions]
    source = Source(name, _fingerprint([*documents, *lines]), name in STAND_INS.values(), note)
    return QASet(source, documents, groups, questions)


@cache
def load_words() -> Words:
    """Key words and list words: the lists of the wonderwords package (MIT), read without importing it."""
    assets = resources.files("wonderwords") / "assets"
    nouns, adjectives, verbs = (
        [
            word
            for line in (assets / f"{kind}list.txt").read_text(encoding="utf-8").splitlines()
            if (word := line.strip())
        ]
        for kind in ("noun", "adjective", "verb")
    )
    return Words(nouns, adjectives, verbs, sorted({*nouns, *adjectives, *verbs}))


def _fingerprint(parts: Iterable[str]) -> str:
    digest = hashlib.sha256("\n".join(parts).encode("utf-8"))
    return digest.hexdigest()[:16]


def _find(corpus: str, what: str, *paths: str) -> Path:
    """The first of the paths that exists, plain or gzipped, in $RULERKIT_DATA, then in the cache."""
    data = os.environ.get("RULERKIT_DATA")
    folders = [Path(data).expanduser()] if data else []
    for folder in [*folders, cache_dir()]:
        for path in paths:
            for file in (folder / path, folder / f"{path}.gz"):
                if file.is_file():
                    return file
    where = f"RULERKIT_DATA={data}" if data else "RULERKIT_DATA (not set)"
    raise UserError(
        f"corpus {corpus!r}: {what} found neither in {where} nor in the cache {cache_dir()}: run `rulerkit fetch`, "
        f"set RULERKIT_DATA to a folder with {paths[0]}, or use `corpora: builtin`"
    )


def _read_json(path: Path) -> Any:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            return json.load(file)
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(
            f"corpus file {path} cannot be read ({error}): delete it and run `rulerkit fetch`, "
            "or use `corpora: builtin`"
        ) from error
