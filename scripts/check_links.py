"""Checks a built site: every link within it leads to a file and a place in it, and no page loads
anything from the network.

    python scripts/check_links.py outputs/site/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"img", "script", "link", "iframe", "source"}


class Page(HTMLParser):
    """The places of a page, its links, and what it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values.get("id", ""), values.get("name", "")}
        link = values.get("src") or values.get("href")
        # what search engines are told is not loaded
        if link and values.get("rel") not in ("canonical", "next", "prev"):
            self.links.append(link)
            if tag in LOADS:
                self.loads.append(link)


def problems(site: Path) -> list[str]:
    """Dead links and resources from the network, a line each."""
    pages = {file.resolve(): Page(file) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        where = file.relative_to(site.resolve())
        for link in dict.fromkeys(page.loads):
            if urlsplit(link).scheme in ("http", "https") or link.startswith("//"):
                found.append(f"{where}: loads {link}")
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = unquote(parts.path)
            target = (file.parent / path).resolve() if path else file
            if not target.exists():
                found.append(f"{where}: {link} does not exist")
                continue
            # the places of a page of answers are made by its script
            places = pages[target].places if target in pages else {"data"}
            is_made = "data" in places or not parts.fragment
            if not is_made and unquote(parts.fragment) not in places:
                found.append(f"{where}: {link} has no such place")
    return found


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]))
    print("\n".join(lines) or "every link leads somewhere")
    sys.exit(bool(lines))
