"""Where the texts come from: essays, question answering and word lists, and stand-ins that need no
download.

The originals (Appendix B of the paper: Paul Graham's essays, SQuAD, HotpotQA) are read from
$RULERKIT_DATA, a folder that already holds them, or from the cache that `rulerkit fetch` fills; a
file whose content is not known is named a substitute. The stand-ins are data of this package, made
by scripts/make_corpora.py. Each corpus carries a `Source`, which every result repeats.
"""

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rulerkit.corpora import downloads
from rulerkit.corpora.downloads import fetch
from rulerkit.corpora.fictional import answer_fictional
from rulerkit.errors import UserError, first_line, unknown
from rulerkit.paths import cache_dir

T = TypeVar("T")

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
    "prose": "400,000 words of readable prose, invented; no download, no licence",
}
QA_SETS = {
    "squad": "SQuAD 2.0 dev, its 5,928 answerable questions; CC BY-SA 4.0, downloaded",
    "hotpotqa": "HotpotQA dev (distractor), 7,405 two-hop questions; CC BY-SA 4.0, downloaded",
    "fictional": "questions about invented people, places and dates in SQuAD's shape; no download, no licence",
    "fictional_two_hop": "two-hop questions about invented people and places in HotpotQA's shape; no download",
}
STAND_INS = {"paul_graham": "prose", "squad": "fictional", "hotpotqa": "fictional_two_hop"}

# Length of the first essay (addiction.txt) in the joined text; it ends without a blank, so one word
# spans the border.
_FIRST_ESSAY = 7436
_ABBREVIATIONS = (
    " mr. mrs. ms. dr. st. jr. sr. prof. gen. col. sen. rep. rev. hon. e.g. i.e. etc. vs. v. cf. "
    "al. ca. approx. est. "
    " inc. ltd. co. corp. vol. p. pp. fig. ed. eds. jan. feb. mar. apr. jun. jul. aug. sep. sept. "
    "oct. nov. dec. u.s. "
    " u.k. a.m. p.m. "
)
_OPENING = "\"'“‘([{*_«"
_CLOSING = "\"'”’)]}*_»"
_INITIAL = re.compile(r"(?:[A-Za-z]\.)+")
_NUMERAL = re.compile(r"\W*\d+\W*")


@dataclass(frozen=True)
class Source:
    """Which corpus was used. `fingerprint`: 16 hex digits of a sha256 over its content; `stand_in`:
    not the paper's, a built-in corpus or a substitute; `note`: what a reader of the results must
    know, for example a subset."""

    name: str
    fingerprint: str
    stand_in: bool
    note: str = ""


@dataclass(frozen=True)
class Haystack:
    """Running text. `words`: in order, without white space; `sentence_starts`: (n,) increasing word
    indices, the first 0; `restart`: the word index where a second pass begins (the second essay),
    always among the sentence starts."""

    source: Source
    words: list[str]
    sentence_starts: np.ndarray
    restart: int


@dataclass(frozen=True)
class Question:
    """A question, its distinct answers in order of appearance, the indices of the documents that
    hold the answer (`gold`) and of the question's own other documents (`related`; empty in SQuAD's
    shape)."""

    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    related: tuple[int, ...]


@dataclass(frozen=True)
class QASet:
    """`documents`: distinct, stripped at both ends; `groups`: the article number of each
    document."""

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
    """The haystack of one of `HAYSTACKS`. Errors: UserError for an unknown name or an original that
    is not there."""
    if name not in HAYSTACKS:
        raise unknown("haystack", name, HAYSTACKS)
    if name == "prose":
        content = _builtin(name)
        return _haystack(name, content["text"].split(), content["restart"])
    file = _OriginalFile.find(name, "the essays", downloads.ESSAYS)
    with file.parsing():
        text, essays, wanted = (
            file.content["text"],
            file.content.get("essays", 218),
            file.content.get("of", 218),
        )
        words = text.split()
        if not words:
            raise ValueError("it holds no text")
        restart = min(len(text[:_FIRST_ESSAY].split()), len(words) - 1)
        known = text.encode()[: downloads.REPOSITORY_BYTES]
        if file.note is None and hashlib.sha256(known).hexdigest() == downloads.REPOSITORY_SHA256:
            file.note = (
                f"essays: 49 from their repository, {essays - 49} as fetched from the author's site"
            )
        return _haystack(
            name, words, restart, file, "" if essays == wanted else f"essays: {essays} of {wanted}"
        )


def _haystack(
    name: str, words: list[str], restart: int, file: "_OriginalFile | None" = None, note: str = ""
) -> Haystack:
    starts = np.union1d(sentence_starts(words), [restart]).astype(np.int64)
    return Haystack(_source(name, [" ".join(words)], file, note), words, starts, restart)


def sentence_starts(words: list[str]) -> np.ndarray:
    """Word indices where a sentence starts, by a rule without a model: behind a word that ends in .
    ! or ? (closing quotes and brackets may follow), unless the next word begins in lower case or
    the word is an abbreviation or an initial. Shape (n,), increasing, the first is 0."""
    starts = [0]
    for i, word in enumerate(words[:-1]):
        if word[-1].isalnum() or word[-1] in ",;:-":
            continue
        core = word.rstrip(_CLOSING)
        if core[-1:] not in (".", "!", "?"):
            continue
        if core[-1] == "." and (
            _is_abbreviation(core) or (starts[-1] == i and _NUMERAL.fullmatch(core))
        ):
            continue  # the last: the number of a list's entry
        if not words[i + 1].lstrip(_OPENING)[:1].islower():
            starts.append(i + 1)
    return np.array(starts, dtype=np.int64)


def _is_abbreviation(word: str) -> bool:
    word = word.lstrip(_OPENING)
    return f" {word.lower()} " in _ABBREVIATIONS or (
        word != "I." and _INITIAL.fullmatch(word) is not None
    )


@cache
def load_qa(name: str) -> QASet:
    """The question answering set of one of `QA_SETS`.

    Questions and documents are stripped at both ends (upstream strips neither: five SQuAD
    paragraphs and 257 of its questions carry blanks there). Errors: UserError for an unknown name
    or an original that is not there.
    """
    if name not in QA_SETS:
        raise unknown("question answering set", name, QA_SETS)
    if name == "squad":
        file = _OriginalFile.find(
            name, "SQuAD 2.0 dev", "squad/dev-v2.0.rebuilt.json", downloads.SQUAD
        )
        with file.parsing():
            return _squad(file)
    if name == "hotpotqa":
        subset = downloads.HOTPOTQA.replace(".json", ".subset.json")
        file = _OriginalFile.find(name, "HotpotQA dev (distractor)", downloads.HOTPOTQA, subset)
        with file.parsing():
            return _hotpotqa(file)
    content = _builtin(name)
    rows = [Question(text, *map(tuple, indices)) for text, *indices in content["questions"]]
    return _qa_set(name, content["documents"], content["groups"], rows)


def _squad(file: "_OriginalFile") -> QASet:
    documents = _Documents()
    questions = []
    for group, article in enumerate(file.content["data"]):
        for paragraph in article["paragraphs"]:
            gold = documents.add(paragraph["context"], group)
            for qa in paragraph["qas"]:
                if not qa.get("is_impossible", False):
                    answers = [answer["text"] for answer in qa["answers"]]
                    questions.append(_question(qa["question"], answers, [gold], []))
    return _qa_set("squad", documents.texts, documents.groups, questions, file)


def _hotpotqa(file: "_OriginalFile") -> QASet:
    documents = _Documents()
    titles: dict[str, int] = {}
    questions = []
    for row in file.content:
        supporting = {title for title, _ in row["supporting_facts"]}
        gold: list[int] = []
        related: list[int] = []
        for title, sentences in row["context"]:
            index = documents.add(
                f"{title}\n{''.join(sentences)}", titles.setdefault(title, len(titles))
            )
            (gold if title in supporting else related).append(index)
        questions.append(_question(row["question"], [row["answer"]], gold, related))
    note = "" if len(questions) >= 7405 else f"HotpotQA: {len(questions)} of 7405 questions"
    return _qa_set("hotpotqa", documents.texts, documents.groups, questions, file, note)


class _Documents:
    """Distinct documents by their stripped text, each with the group under which it was first
    seen."""

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


def _question(text: str, answers: list[str], gold: list[int], related: list[int]) -> Question:
    """A question of an original, stripped, without answers or documents that stand twice;
    `ValueError` without answers."""
    if (
        not gold
        or not answers
        or not all(isinstance(answer, str) and answer.strip() for answer in answers)
    ):
        raise ValueError(f"the question {text!r} has no answer or no document")
    return Question(text.strip(), _distinct(answers), _distinct(gold), _distinct(related))


def _distinct(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def _qa_set(
    name: str,
    documents: list[str],
    groups: list[int],
    questions: list[Question],
    file: "_OriginalFile | None" = None,
    note: str = "",
) -> QASet:
    if not questions:
        raise ValueError("it holds no questions")
    lines = [f"{q.text}\t{q.answers}\t{q.gold}\t{q.related}" for q in questions]
    return QASet(_source(name, [*documents, *lines], file, note), documents, groups, questions)


def _source(name: str, parts: Iterable[str], file: "_OriginalFile | None", note: str) -> Source:
    """What results say of a corpus: where it is an original, whether its file is known."""
    fingerprint = hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()[:16]
    if file is None:
        return Source(name, fingerprint, stand_in=True)
    unknown_file = f"{name} is a substitute: {file.path.name} with the content {fingerprint} is not known as the original"
    notes = [unknown_file if file.note is None else file.note, note]
    return Source(name, fingerprint, file.note is None, "; ".join(filter(None, notes)))


def _builtin(name: str) -> Any:
    """The content of a built-in corpus."""
    return json.loads(
        gzip.decompress((resources.files("rulerkit") / f"data/{name}.json.gz").read_bytes())
    )


@cache
def load_words() -> Words:
    """Key words and list words: the lists of the wonderwords package (MIT), read without importing
    it."""
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


@dataclass
class _OriginalFile:
    """A file of an original corpus. `note` says what is known of its content; None: nothing, so
    that it is a substitute."""

    corpus: str
    path: Path
    content: Any = None
    note: str | None = None

    @classmethod
    def find(cls, corpus: str, what: str, *paths: str) -> "_OriginalFile":
        """The first of the paths that exists, plain or gzipped, in $RULERKIT_DATA, then in the
        cache."""
        data = os.environ.get("RULERKIT_DATA")
        folders = [Path(data).expanduser()] if data else []
        for folder in [*folders, cache_dir()]:
            for path in paths:
                for file in (folder / path, folder / f"{path}.gz"):
                    if file.is_file():
                        return cls(corpus, file)._read()
        where = f"RULERKIT_DATA={data}" if data else "RULERKIT_DATA (not set)"
        raise UserError(
            f"corpus {corpus!r}: {what} found neither in {where} nor in the cache {cache_dir()}: "
            "run `rulerkit fetch`, "
            f"set RULERKIT_DATA to a folder with {paths[0]}, or use `corpora: builtin`"
        )

    def _read(self) -> "_OriginalFile":
        with self.parsing():
            data = self.path.read_bytes()
            data = gzip.decompress(data) if self.path.suffix == ".gz" else data
            self.note = downloads.KNOWN_FILES.get(hashlib.sha256(data).hexdigest())
            self.content = json.loads(data)
        return self

    @contextmanager
    def parsing(self) -> Iterator[None]:
        """Turns the errors of a file that does not hold this corpus into one line."""
        try:
            yield
        except (
            OSError,
            EOFError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
            zlib.error,
        ) as error:
            raise UserError(
                f"corpus file {self.path} cannot be read as {self.corpus} ({first_line(error)}): "
                "delete it and run `rulerkit "
                "fetch`, or use `corpora: builtin`"
            ) from error
