"""Where the texts come from: essays, question answering and word lists, and stand-ins that need no
download.

The originals (Appendix B of the paper: Paul Graham's essays, SQuAD, HotpotQA) are read from
$RULERKIT_DATA, a folder that already holds them, or from the cache that `rulerkit fetch` fills; a
file whose content is not known is named a substitute. The stand-ins are data of this package, made
by scripts/make_corpora.py. Each corpus carries a `Source`, which every result repeats.

Nothing is redistributed: the essays are Paul Graham's, SQuAD and HotpotQA their authors' (CC BY-SA
4.0). The package carries addresses and checksums. The cache has the layout of a data folder
(RULERKIT_DATA), so either can stand in for the other.
"""

import gzip
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html import unescape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rulerkit.errors import UserError, first_line, unknown
from rulerkit.paths import cache_dir, completed

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
    """wonderwords' lists, each sorted; `everything` is the union of nouns, adjectives and verbs."""

    nouns: list[str]
    adjectives: list[str]
    everything: list[str]


class _File(NamedTuple):
    """A corpus file that was read; `known` is what results must say of its content, None where the
    content is not that of an original."""

    content: Any
    path: Path | None = None
    known: str | None = None

    def source(self, name: str, parts: Iterable[str], note: str = "") -> Source:
        """The source of a corpus with these parts."""
        fingerprint = hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()[:16]
        known = self.known
        if self.path and known is None:
            known = (
                f"{name} is a substitute: {self.path.name} with the content {fingerprint} is not "
                "known as the original"
            )
        return Source(name, fingerprint, self.known is None, "; ".join(filter(None, [known, note])))


@cache
def load_haystack(name: str) -> Haystack:
    """The haystack of one of `HAYSTACKS`. Errors: UserError for an unknown name or an original that
    is not there."""
    if name not in HAYSTACKS:
        raise unknown("haystack", name, HAYSTACKS)
    with _opened(name) as file:
        text = file.content["text"]
        words, restart, note = text.split(), file.content.get("restart"), ""
        if not words:
            raise ValueError("it holds no text")
        if restart is None:  # the essays
            restart = min(len(text[:_FIRST_ESSAY].split()), len(words) - 1)
            essays, num_essays = file.content.get("essays", 218), file.content.get("of", 218)
            note = "" if essays == num_essays else f"essays: {essays} of {num_essays}"
            beginning = hashlib.sha256(text.encode()[:REPOSITORY_BYTES]).hexdigest()
            if file.known is None and beginning == REPOSITORY_SHA256:
                fetched = f"{essays - 49} as fetched from the author's site"
                file = file._replace(known=f"essays: 49 from their repository, {fetched}")
        starts = np.union1d(sentence_starts(words), [restart]).astype(np.int64)
        return Haystack(file.source(name, [" ".join(words)], note), words, starts, restart)


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
    with _opened(name) as file:
        documents, rows = _QA_READERS.get(name, _invented)(file.content)
        numbers = {document: number for number, document in enumerate(documents)}
        questions = []
        for text, answers, gold, related in rows:
            if not gold or not answers or not all(a.strip() for a in answers):
                raise ValueError(f"the question {text!r} has no answer or no document")
            gold_and_related = (
                tuple(dict.fromkeys(numbers[document] for document in texts))
                for texts in (gold, related)
            )
            answers = tuple(dict.fromkeys(answers))
            questions.append(Question(text.strip(), answers, *gold_and_related))
        if not questions:
            raise ValueError("it holds no questions")
        lines = [f"{q.text}\t{q.answers}\t{q.gold}\t{q.related}" for q in questions]
        part = name == "hotpotqa" and len(questions) < 7405
        note = f"HotpotQA: {len(questions)} of 7405 questions" if part else ""
        source = file.source(name, [*documents, *lines], note)
        return QASet(source, list(documents), list(documents.values()), questions)


_Rows = list[tuple[str, Sequence[str], list[str], list[str]]]
_Content = tuple[dict[str, int], _Rows]
"""Document -> its group; and of each question the text, its answers, the documents that hold the
answer, and its own other documents."""


def _squad(content: Any) -> _Content:
    documents, rows = dict[str, int](), _Rows()
    for group, article in enumerate(content["data"]):
        for paragraph in article["paragraphs"]:
            text = paragraph["context"].strip()
            documents.setdefault(text, group)
            for qa in paragraph["qas"]:
                if not qa.get("is_impossible", False):
                    answers = [answer["text"] for answer in qa["answers"]]
                    rows.append((qa["question"], answers, [text], []))
    return documents, rows


def _hotpotqa(content: Any) -> _Content:
    documents, titles, rows = dict[str, int](), dict[str, int](), _Rows()
    for row in content:
        supporting = {title for title, _ in row["supporting_facts"]}
        gold, related = list[str](), list[str]()
        for title, sentences in row["context"]:
            text = f"{title}\n{''.join(sentences)}".strip()
            documents.setdefault(text, titles.setdefault(title, len(titles)))
            (gold if title in supporting else related).append(text)
        rows.append((row["question"], [row["answer"]], gold, related))
    return documents, rows


def _invented(content: Any) -> _Content:
    documents = content["documents"]
    rows = [
        (text, answers, [documents[i] for i in gold], [documents[i] for i in related])
        for text, answers, gold, related in content["questions"]
    ]
    return dict(zip(documents, content["groups"], strict=True)), rows


_QA_READERS = {"squad": _squad, "hotpotqa": _hotpotqa}


@cache
def load_words() -> Words:
    """Key words and list words: the lists of the wonderwords package (MIT), read without importing
    it."""
    assets = resources.files("wonderwords") / "assets"
    nouns, adjectives, verbs = (
        sorted(
            {line.strip() for line in (assets / f"{kind}list.txt").read_text("utf-8").splitlines()}
            - {""}
        )
        for kind in ("noun", "adjective", "verb")
    )
    return Words(nouns, adjectives, sorted({*nouns, *adjectives, *verbs}))


@contextmanager
def _opened(name: str) -> Iterator[_File]:
    """A corpus: built in, or the first file of an original that exists, plain or gzipped, in
    $RULERKIT_DATA, then in the cache. What is wrong with its content becomes a `UserError`."""
    if name not in _ORIGINALS:
        packed = (resources.files("rulerkit") / f"data/{name}.json.gz").read_bytes()
        yield _File(json.loads(gzip.decompress(packed)))
        return
    title, paths = _ORIGINALS[name]
    data = os.environ.get("RULERKIT_DATA")
    folders = [*([Path(data).expanduser()] if data else []), cache_dir()]
    places = (
        folder / f"{path}{suffix}" for folder in folders for path in paths for suffix in ("", ".gz")
    )
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        where = f"RULERKIT_DATA={data}" if data else "RULERKIT_DATA (not set)"
        raise UserError(
            f"corpus {name!r}: {title} found neither in {where} nor in the cache {cache_dir()}: "
            f"run `rulerkit fetch`, set RULERKIT_DATA to a folder with {paths[0]}, or use "
            "`corpora: builtin`"
        )
    try:
        raw = file.read_bytes()
        raw = gzip.decompress(raw) if file.suffix == ".gz" else raw
        yield _File(json.loads(raw), file, KNOWN_FILES.get(hashlib.sha256(raw).hexdigest()))
    except Exception as error:  # a damaged file raises anything
        raise UserError(
            f"corpus file {file} cannot be read as {name} ({first_line(error)}): delete it and run "
            "`rulerkit fetch`, or use `corpora: builtin`"
        ) from error


# --- downloads -----------------------------------------------------------------------------------

ESSAYS = "essays/PaulGrahamEssays.json"
SQUAD = "squad/dev-v2.0.json"
HOTPOTQA = "hotpotqa/hotpot_dev_distractor_v1.json"
PAGES = "essays/pages"

REPOSITORY_BYTES = 644_051
REPOSITORY_SHA256 = "b3a70ebc054f2eab5057baf3c4b7e857711472be8086240a516fd29b648ad857"
"""The 49 essays of the repository, joined in their order: with them the joined essays begin."""

KNOWN_FILES = {
    "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8": "",
    "e2cbe2b7a5a028b149685b14194f2996b7389519249cf108d2164978be34a68c": "SQuAD 2.0 dev rebuilt from its authors' pages",
    "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea": "",
    "e3da074df24e8369009918aa5cdbdd254dadcde4c63f7569d36afd6f2268caa8": "",
    "9999b9bee2fecca9e3857ad400e2d34cc4683d120077aab4408c9c3eff05f867": "",  # a subset, as its number of questions says
    "1af094ff36d47893ea3c09cc570038053b711a9ba728c9d2dca036dbb231fa41": "",  # the essays as upstream's script joins them
}
"""The sha256 of an original's JSON file, not compressed -> what results must say of it."""


_ORIGINALS = {
    "paul_graham": ("the essays", (ESSAYS,)),
    "squad": ("SQuAD 2.0 dev", ("squad/dev-v2.0.rebuilt.json", SQUAD)),
    "hotpotqa": (
        "HotpotQA dev (distractor)",
        (HOTPOTQA, HOTPOTQA.replace(".json", ".subset.json")),
    ),
}
"""Name of an original -> its title, and the files that may hold it."""


@dataclass(frozen=True)
class Download:
    """One file of the cache: its path there and the addresses to try in turn, each with the sha256
    expected from it (None: a web page, which may change)."""

    path: str
    addresses: tuple[tuple[str, str | None], ...]


def originals() -> list[Download]:
    """All files of the paper's corpora in upstream's order: 49 essays of the repository, 169 pages
    of the author's site, SQuAD 2.0 dev, HotpotQA dev (distractor)."""
    text = (resources.files("rulerkit") / "data/originals.txt").read_text(encoding="utf-8")
    addresses: dict[str, list[tuple[str, str | None]]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            path, address, digest = line.split()
            addresses.setdefault(path, []).append((address, None if digest == "-" else digest))
    return [Download(path, tuple(tried)) for path, tried in addresses.items()]


def fetch(progress: bool = True, downloads: Sequence[Download] | None = None) -> list[Path]:
    """Downloads what is not yet in the cache (all `originals()` by default) and joins the essays.

    A file that is there with the right checksum is not fetched again, so an interrupted call
    resumes. Returns the paths of the corpus files, the joined essays first. A web page that no
    longer exists is left out (the joined file counts the essays).

    Raises:
        UserError: an address cannot be reached or its file has another checksum.
    """
    from tqdm import tqdm

    logging.getLogger("pooch").setLevel(logging.WARNING)
    folder = cache_dir()
    downloads = originals() if downloads is None else downloads
    for download in tqdm(downloads, unit="file", disable=not progress):
        _fetch_one(download, folder / download.path, progress)
    essays = [d.path for d in downloads if d.path.startswith("essays/")]
    joined = [_join_essays(folder, essays)] if essays else []
    return [*joined, *(folder / d.path for d in downloads if d.path not in essays)]


def _fetch_one(download: Download, target: Path, progress: bool) -> None:
    """Downloads one file whole or not at all."""
    import pooch
    import requests

    digests = {digest for _, digest in download.addresses}
    if target.is_file() and (None in digests or pooch.file_hash(str(target)) in digests):
        return
    failures = []
    bar = progress and not download.path.startswith("essays/")
    for address, digest in download.addresses:
        known_hash = digest and f"sha256:{digest}"
        try:
            pooch.retrieve(address, known_hash, target.name, target.parent, progressbar=bar)
            return
        except requests.HTTPError as error:
            status = getattr(error.response, "status_code", "an error")
            if digest is None and status in (404, 410):
                return  # the page is gone for good: the corpus says how many essays it has
            failures.append(f"{address} answered {status}")
        except requests.RequestException as error:
            failures.append(f"{address} cannot be reached ({type(error).__name__})")
        except ValueError:  # what pooch raises for another checksum
            failures.append(f"{address} is not the file expected: its sha256 is not {digest}")
        except OSError as error:
            raise UserError(
                f"fetch: cannot write {target}: {error.strerror}. Point RULERKIT_CACHE at a folder"
            ) from error
    raise UserError(
        f"fetch: {'; '.join(failures)}. Run `rulerkit fetch` again, put the file at {target}, or "
        "use `corpora: builtin`"
    )


def _join_essays(folder: Path, paths: Sequence[str]) -> Path:
    """Writes the essays one behind the other without a separator, as upstream does: {"text",
    "essays", "of"}."""
    files = [folder / path for path in paths if (folder / path).is_file()]
    pages = folder / PAGES
    texts = [
        page_text(file.read_bytes()) if file.parent == pages else file.read_bytes().decode()
        for file in files
    ]
    content = {"text": "".join(texts), "essays": len(texts), "of": len(paths)}
    with completed(folder / ESSAYS) as part:
        part.write_text(json.dumps(content), encoding="utf-8")
    return folder / ESSAYS


_BREAKS = ("br", "p", "div", "tr", "li", "table", "h1", "h2", "h3")


def page_text(page: bytes) -> str:
    """The text of an essay's web page: what stands in its tables, else in its body, a line for each
    break."""
    try:
        html = page.decode("utf-8")
    except UnicodeDecodeError:  # the older pages
        html = page.decode("cp1252", errors="replace")
    hidden = r"(?is)<!--.*?-->|<(script|style|title|noscript)\b.*?</\1\s*>"
    depth, inside, outside = 0, "", ""
    for part in re.split(r"(<[!?/]?[a-zA-Z][^>]*>)", re.sub(hidden, "", html).replace("\n", " ")):
        text = unescape(part)
        if tag := re.match(r"<([!?/]?)(\w+)", part):
            name = tag[2].lower()
            text = "\n" if name in _BREAKS else ""
            if name == "table":
                depth = max(0, depth + (-1 if tag[1] else 1))
        if depth:
            inside += text
        else:
            outside += text
    lines = (
        re.sub(r"[^\S\n]+", " ", line).strip()
        for line in (inside if inside.strip() else outside).split("\n")
    )
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
