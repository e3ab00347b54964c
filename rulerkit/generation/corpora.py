"""Where the texts come from: essays, question answering and word lists, synthetic texts that need
no download, and files of one's own.

The originals (Appendix B of the paper: Paul Graham's essays, SQuAD, HotpotQA) are read from
$RULERKIT_DATA, a folder that already holds them, or from the cache that `rulerkit fetch` fills, of
the same layout; a file whose content is not known is named a substitute. Nothing is redistributed:
the package carries addresses and checksums. The synthetic texts are data of this package, made by
scripts/make_corpora.py. A name that is none of these is the path of a file or folder of the user's.
Each corpus carries a `Source`, which every result repeats.
"""

import gzip
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from importlib.metadata import distribution
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from rulerkit.common.errors import UserError, check_known, first_line, shortened
from rulerkit.common.json_text import digest
from rulerkit.common.paths import cache_dir, resolve

ESSAYS = "essays/PaulGrahamEssays.json"
SQUAD = "squad/dev-v2.0.json"
HOTPOTQA = "hotpotqa/hotpot_dev_distractor_v1.json"

_FILES = {
    "paul_graham": [ESSAYS],
    "squad": ["squad/dev-v2.0.rebuilt.json", SQUAD],
    "hotpotqa": [HOTPOTQA, HOTPOTQA.replace(".json", ".subset.json")],
}
"""An original -> the files that may hold it, in $RULERKIT_DATA or the cache."""
BASES = {
    "builtin": {"paul_graham": "prose", "squad": "fictional", "hotpotqa": "fictional_two_hop"},
    "original": {"prose": "paul_graham", "fictional": "squad", "fictional_two_hop": "hotpotqa"},
}
"""What `corpora:` names -> what it takes in the place of which corpus."""
KINDS = {
    "essay": {
        # Paul Graham's essays, as in the paper; all rights reserved, downloaded, not redistributed.
        "paul_graham": "corpora:essays",
        # 400,000 words of readable prose, invented; no download, no licence.
        "prose": "corpora:essays",
    },
    "qa": {
        # SQuAD 2.0 dev, its 5,928 answerable questions; CC BY-SA 4.0, downloaded
        "squad": "questions:squad",
        # HotpotQA dev (distractor), 7,405 two-hop questions; CC BY-SA 4.0, downloaded
        "hotpotqa": "questions:hotpotqa",
        # Questions about invented people, places and dates in the shape of either; no download
        "fictional": "questions:invented",
        "fictional_two_hop": "questions:invented",
    },
    "words": {"wonderwords": "corpora:wonderwords"},
}
"""Key of `corpora:` -> the corpora that need no path, with the function in this folder that makes
one of a name and the content of its file; it is imported when the corpus is read."""
_OWN = {
    "essay": ("corpora:own_essays", "texts in UTF-8 (a folder: *.txt, *.md)"),
    "qa": (
        "questions:own_questions",
        "JSON lines of question, answers, gold_documents, other_documents",
    ),
    "words": ("corpora:own_words", "a list, one word a line"),
}
"""Key of `corpora:` -> the function for a file of the user's, and what such a file holds."""

KNOWN_FILES = {
    "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8": "",
    "e2cbe2b7a5a028b149685b14194f2996b7389519249cf108d2164978be34a68c": (
        "SQuAD 2.0 dev rebuilt from its authors' pages"
    ),
    "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea": "",
    "e3da074df24e8369009918aa5cdbdd254dadcde4c63f7569d36afd6f2268caa8": "",
    # A subset, as its number of questions says
    "9999b9bee2fecca9e3857ad400e2d34cc4683d120077aab4408c9c3eff05f867": "",
    # The essays as upstream's script joins them
    "1af094ff36d47893ea3c09cc570038053b711a9ba728c9d2dca036dbb231fa41": "",
}
"""The sha256 of an original's JSON file, not compressed -> what results must say of it."""
REPOSITORY_BYTES = 644_051
REPOSITORY_SHA256 = "b3a70ebc054f2eab5057baf3c4b7e857711472be8086240a516fd29b648ad857"
"""The 49 essays of the repository, joined in their order: with them the joined essays begin."""

_FIRST_ESSAY = 7436
"""Letters of the first essay in the joined text; it ends without a blank, so one word spans the
border."""
_ABBREVIATIONS = (
    " mr. mrs. ms. dr. st. jr. sr. prof. gen. col. sen. rep. rev. hon. e.g. i.e. etc. vs. v. cf. "
    "al. ca. approx. est. inc. ltd. co. corp. vol. p. pp. fig. ed. eds. jan. feb. mar. apr. jun. "
    "jul. aug. sep. sept. oct. nov. dec. u.s. u.k. a.m. p.m. "
)
_OPENING = "\"'“‘([{*_«"
_CLOSING = "\"'”’)]}*_»」』）】》〉〕"
_STOPS = "։؝؞؟۔܀߹।॥။።፧፨។៕།。！？｡"  # behind which no blank need follow
_UNIT = re.compile(rf"\S*?[{_STOPS}][{_STOPS}.!?{re.escape(_CLOSING[2:])}]*|\S+")
_INITIAL = re.compile(r"(?:[A-Za-z]\.)+")
_NUMERAL = re.compile(r"\W*\d+\W*")


@dataclass(frozen=True)
class Source:
    """Which corpus was used. `fingerprint`: 16 hex digits over its content; `stand_in`: a built-in
    corpus, or a file that is not known as one of the paper's; `note`: what a reader of the results
    must know, for example a subset."""

    name: str
    fingerprint: str
    stand_in: bool = True
    note: str = ""


OWN_TEXTS = "own texts"
"""What notes call files of the user's."""


@dataclass(frozen=True, eq=False)
class Haystack:
    """Running text. `words`: in order, without white space (of a script without blanks, its
    sentences); `sentence_starts`: (n,) increasing word indices, the first 0; `restart`: the word
    index where a second pass begins (the second essay), always among the sentence starts."""

    source: Source
    words: list[str]
    sentence_starts: np.ndarray
    restart: int


@dataclass(frozen=True, eq=False)
class Words:
    """wonderwords' lists, each sorted; `everything` is the union of nouns, adjectives and verbs. A
    list of one's own is all three, and has a source."""

    nouns: list[str]
    adjectives: list[str]
    everything: list[str]
    source: Source | None = None


# --- loading --------------------------------------------------------------------------------------


def choices(corpora: str | Mapping[str, Any]) -> dict[str, Any]:
    """What `corpora:` says, checked: `base` (`builtin` or `original`), and the files of some of
    KINDS."""
    # One word for all corpora, or a mapping for each kind.
    given = corpora if isinstance(corpora, Mapping) else {"base": corpora}
    chosen = {"base": "builtin", **given}
    for key in chosen:
        check_known("key of corpora", key, ("base", *KINDS))
    hint = "A mapping such as {essay: texts} names files"
    check_known("value of corpora", str(chosen["base"]), BASES, hint)
    return chosen


LOADED: dict[tuple[str, str | Path], Any] = {}
"""Kind and name or path -> the corpus, which a process reads once."""


def load(kind: str, name: str) -> Any:
    """The corpus of one of KINDS: a `Haystack`, a `QASet` or `Words`. What is no known name is the
    path of a file, or of a folder of essays. Raises UserError where it cannot be read as its kind.
    """
    has_name = name in KINDS[kind]
    key = (kind, name if has_name else resolve(name))
    if key in LOADED:
        return LOADED[key]

    if not has_name:
        corpus = _own(kind, resolve(name))
    else:
        read = resolve_name(f"rulerkit.generation.{KINDS[kind][name]}")
        if name in _FILES:
            corpus = _original(name, read)
        elif name == "wonderwords":
            corpus = read()
        else:
            packed = (resources.files("rulerkit") / f"data/{name}.json.gz").read_bytes()
            corpus = read(name, json.loads(gzip.decompress(packed)))
    LOADED[key] = corpus
    return corpus


def _original(name: str, read: Callable[[str, Any], Any]) -> Any:
    """An original, from the first of its files that exists, plain or gzipped, in $RULERKIT_DATA,
    then in the cache."""
    # A folder of one's own comes before the cache, so that a cluster can share one copy.
    data = os.environ.get("RULERKIT_DATA")
    folders = [Path(data).expanduser(), cache_dir()] if data else [cache_dir()]
    names = [name for path in _FILES[name] for name in (path, f"{path}.gz")]
    places = [folder / name for folder in folders for name in names]
    file = next((place for place in places if place.is_file()), None)

    # Without its corpus a task is refused: synthetic texts must never be taken silently.
    if file is None:
        where = f"RULERKIT_DATA={data}" if data else "RULERKIT_DATA (not set)"
        raise UserError(
            f"corpus {name!r} is neither in {where} nor in the cache {cache_dir()}: run `rulerkit "
            f"fetch`, set RULERKIT_DATA to a folder with {_FILES[name][0]}, or use `corpora: "
            "builtin`"
        )
    try:
        raw = file.read_bytes()
        raw = gzip.decompress(raw) if file.suffix == ".gz" else raw
        content = json.loads(raw)
        corpus = read(name, content)
    except Exception as error:  # a damaged file raises anything
        raise UserError(
            f"corpus file {file} cannot be read as {name} ({first_line(error)}): delete it and run "
            "`rulerkit fetch`, or use `corpora: builtin`"
        ) from error

    # The content decides what a corpus is, not the name of its file. The author's pages change;
    # the 49 essays of the repository do not, and a file that begins with them is named by them.
    source: Source = corpus.source
    known = KNOWN_FILES.get(hashlib.sha256(raw).hexdigest())
    if known is None and name == "paul_graham":
        beginning = content["text"].encode()[:REPOSITORY_BYTES]
        if hashlib.sha256(beginning).hexdigest() == REPOSITORY_SHA256:
            fetched = content.get("essays", 218) - 49
            known = f"essays: 49 from their repository, {fetched} as fetched from the author's site"

    # A file of which nothing is known may be used, and every table says so.
    substitute = (
        f"{name} is a substitute: {file.name} with the content {source.fingerprint} is not known "
        "as the original"
    )
    notes = [substitute if known is None else known, source.note]
    note = "; ".join(filter(None, notes))
    return replace(corpus, source=replace(source, stand_in=known is None, note=note))


def _own(kind: str, path: Path) -> Any:
    """The corpus in a file or folder of the user's."""
    file = path
    read, takes = _OWN[kind]
    try:
        files = [path]
        if kind == "essay" and path.is_dir():
            files = sorted(f for f in path.rglob("*") if f.suffix.lower() in (".txt", ".md"))

        # `file` is the one that is being read: the message names it.
        texts = []
        for file in files:
            texts.append(file.read_bytes().decode("utf-8-sig"))
        corpus = resolve_name(f"rulerkit.generation.{read}")(path.name, "\n\n".join(texts))
    except (OSError, ValueError) as error:
        raise UserError(
            f"corpora: {kind}: {file} cannot be used ({first_line(error)}): it takes one of "
            f"{', '.join(KINDS[kind])}, or the path of {takes}"
        ) from error
    note = f"{OWN_TEXTS}: {kind} from {path.name}"
    return replace(corpus, source=replace(corpus.source, note=note))


# --- essays ---------------------------------------------------------------------------------------


def essays(name: str, content: Any) -> Haystack:
    """Paul Graham's essays, or the built-in prose, which says itself where a second pass begins."""
    # Upstream splits essays at any white space and joins the words by single blanks.
    text = content["text"]
    words, restart, note = text.split(), content.get("restart"), ""

    # A haystack that is longer than the corpus goes round again from the second essay on, so that
    # the opening of the first stands only once.
    if restart is None:
        restart = min(len(text[:_FIRST_ESSAY].split()), len(words) - 1)
        essays, num_essays = content.get("essays", 218), content.get("of", 218)
        note = "" if essays == num_essays else f"essays: {essays} of {num_essays}"

    # The second pass begins at a sentence, whatever the rule says of that place.
    starts = np.union1d(sentence_starts(words), [restart]).astype(np.int64)
    return Haystack(Source(name, digest(" ".join(words)), note=note), words, starts, restart)


def own_essays(name: str, text: str) -> Haystack:
    """A sentence starts with every paragraph, and by the rule of `sentence_starts`."""
    words, starts, paragraphs = list[str](), list[int](), list[str]()
    for paragraph in re.split(r"\n\s*\n", text):
        if units := _UNIT.findall(paragraph):
            starts += (sentence_starts(units) + len(words)).tolist()
            words += units
            paragraphs.append(" ".join(units))
    if not words:
        raise ValueError("it holds no text")
    source = Source(name, digest("\n".join(paragraphs)))
    return Haystack(source, words, np.array(starts, dtype=np.int64), 0)


def sentence_starts(words: list[str]) -> np.ndarray:
    """Word indices where a sentence starts: behind a word that ends in . ! ? or what ends sentences
    in other scripts (closing quotes and brackets may follow), unless the next word begins in lower
    case or the word is an abbreviation or an initial. Shape (n,), increasing, the first is 0."""
    # Upstream uses nltk's trained model, which would be one more download.
    starts = [0]
    for i, word in enumerate(words[:-1]):
        # Most words end in a letter: the test that leaves them out comes first.
        if word[-1].isalnum() or word[-1] in ",;:-":
            continue

        # Quotes and brackets may close behind the end of a sentence.
        core = word.rstrip(_CLOSING)
        if core[-1:] not in (".", "!", "?", *_STOPS):
            continue
        if core[-1] == ".":
            bare = core.lstrip(_OPENING)
            is_abbreviation = f" {bare.lower()} " in _ABBREVIATIONS
            is_initial = bare != "I." and _INITIAL.fullmatch(bare)
            starts_entry = starts[-1] == i and _NUMERAL.fullmatch(core)  # of a numbered list
            if is_abbreviation or is_initial or starts_entry:
                continue
        if not words[i + 1].lstrip(_OPENING)[:1].islower():
            starts.append(i + 1)
    return np.array(starts, dtype=np.int64)


# --- words ----------------------------------------------------------------------------------------


def wonderwords() -> Words:
    """The lists of the wonderwords package (MIT), which itself reads them in the encoding of the
    locale."""
    folder = Path(str(distribution("wonderwords").locate_file("wonderwords/assets")))
    lists = []
    for kind in ("noun", "adjective", "verb"):
        text = (folder / f"{kind}list.txt").read_text(encoding="utf-8")
        lists.append(sorted({line.strip() for line in text.split("\n")} - {""}))
    nouns, adjectives, verbs = lists
    return Words(nouns, adjectives, sorted({*nouns, *adjectives, *verbs}))


_LONGEST_WORD = 100  # letters


def own_words(name: str, text: str) -> Words:
    """A list of one's own, one word a line: nouns, adjectives and everything alike."""
    # A word with a blank or a comma in it could not be told from two answers; prompts of words of
    # thousands of letters are fitted for minutes.
    words = sorted({line.strip() for line in text.split("\n")} - {""})
    wrong = [word for word in words if re.search(r"[\s,;.]", word) or len(word) > _LONGEST_WORD]
    if wrong or not words:
        raise ValueError(f"it is no list of words: {shortened(wrong[0]) if wrong else 'empty'}")
    return Words(words, words, words, Source(name, digest("\n".join(words))))
