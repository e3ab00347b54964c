"""Downloads of the original corpora: the essays, SQuAD and HotpotQA, from their authors' places.

`fetch` is what `rulerkit fetch` calls. Files are kept in the cache, where `corpora` finds them.
"""

import json
import logging
import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path

from rulerkit.common.errors import UserError
from rulerkit.common.paths import cache_dir, completed, package_text
from rulerkit.generation.corpora import ESSAYS


def originals() -> list[tuple[str, str, str | None]]:
    """All files of the paper's corpora in upstream's order, 49 essays of the repository, 169 pages
    of the author's site, SQuAD 2.0 dev, HotpotQA dev (distractor): the path in the cache, the
    address, and the sha256 (None: a web page, which may change)."""
    lines = [line.split() for line in package_text("originals.txt").splitlines() if line[0] != "#"]
    return [(path, address, digest.strip("-") or None) for path, address, digest in lines]


def fetch() -> list[Path]:
    """Downloads what is not yet in the cache, and joins the essays.

    A file that is there with the right checksum is not fetched again, so an interrupted call
    resumes. Returns the paths of the corpus files, the joined essays first. A web page that no
    longer exists is left out (the joined file counts the essays).

    Raises:
        UserError: an address cannot be reached or its file has another checksum.
    """
    from tqdm import tqdm

    # The progress bar says what is fetched; pooch would say it once more.
    logging.getLogger("pooch").setLevel(logging.WARNING)
    essays, others = list[Path](), list[Path]()
    for path, address, digest in tqdm(originals(), unit="file"):
        file = cache_dir() / path
        _fetch_one(file, address, digest)
        (essays if path.startswith("essays/") else others).append(file)
    return [_join_essays(essays), *others]


def _fetch_one(file: Path, address: str, digest: str | None) -> None:
    """Downloads one file whole or not at all."""
    import pooch

    try:
        pooch.retrieve(address, digest, file.name, file.parent)
    # requests' errors are of the first kind; pooch raises the second for another checksum.
    except (OSError, ValueError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if digest is None and status in (404, 410):
            return  # the page is gone for good: the corpus says how many essays it has
        raise UserError(
            f"fetch: {address}: {' '.join(str(error).split())}. Run `rulerkit fetch` again, put "
            f"the file at {file}, or use `corpora: builtin`"
        ) from error


def _join_essays(files: Sequence[Path]) -> Path:
    """Writes the essays one behind the other without a separator, as upstream does: {"text",
    "essays", "of"}."""
    # A page that is gone is left out; the joined file says how many there are.
    contents = [(file.suffix, file.read_bytes()) for file in files if file.is_file()]
    texts = [page_text(page) if suffix == ".html" else page.decode() for suffix, page in contents]
    content = {"text": "".join(texts), "essays": len(texts), "of": len(files)}
    with completed(cache_dir() / ESSAYS) as part:
        part.write_text(json.dumps(content), encoding="utf-8")
    return cache_dir() / ESSAYS


_BREAKS = "br|p|div|tr|li|table|h1|h2|h3"


def page_text(page: bytes) -> str:
    """The text of an essay's web page, from its first table to its last, a line for each break; of
    a page without tables all of it."""
    try:
        html = page.decode("utf-8")
    except UnicodeDecodeError:  # the older pages
        html = page.decode("cp1252", errors="replace")

    # Neither scripts nor comments are text, and a page's own line ends mean nothing.
    hidden = r"(?is)<!--.*?-->|<(script|style|title|noscript)\b.*?</\1\s*>"
    html = re.sub(hidden, "", html).replace("\n", " ")

    # The essays stand in tables; what is around them is navigation.
    tables = re.search(r"(?i)<table.*</table[^>]*>", html)
    lined = re.sub(rf"(?i)</?({_BREAKS})\b[^>]*>", "\n", tables[0] if tables else html)

    # Tags become nothing, line breaks stay, and runs of empty lines become one.
    text = unescape(re.sub(r"<[!?/]?[a-zA-Z][^>]*>", "", lined))
    lines = (re.sub(r"[^\S\n]+", " ", line).strip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
