"""Downloads, from a server on this machine that serves small files in the place of the
originals."""

import hashlib
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rulerkit.cli import downloads
from rulerkit.common.errors import UserError
from rulerkit.generation import corpora
from rulerkit.generation.questions import Question


class Server(ThreadingHTTPServer):
    """Serves a table of files on this machine and counts what was asked for."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.asked = Counter()
        self.address = f"http://127.0.0.1:{self.server_port}"

    def add(self, path, content):
        self.files[path] = content
        return self.address + path, hashlib.sha256(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked[self.path] += 1
        content = self.server.files.get(self.path)
        self.send_response(200 if content is not None else 404)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


ANSWERED = {"question": "What is tin? ", "answers": [{"text": "a metal"}] * 2}
IMPOSSIBLE = {"question": "What is gold?", "answers": [], "is_impossible": True}
ASKED = [ANSWERED | {"is_impossible": False}, IMPOSSIBLE]
PARAGRAPH = {"context": " Tin is a metal. ", "qas": ASKED}
SQUAD = {"data": [{"title": "A", "paragraphs": [PARAGRAPH]}]}
PAGE = (
    b"<html><head><title>Cities</title><script>var x = 'no';</script></head><body>menu<table><tr><td>"
    b"<font>Great\n cities  attract<br><br>ambitious people\x92s cats.</font></td></tr></table></body></html>"
)


@pytest.fixture
def small(server, monkeypatch):
    """Small files in the place of the originals."""
    files = [
        ("essays/gkamradt/a.txt", *server.add("/a.txt", b"First essay. It ends.")),
        ("essays/gkamradt/b.txt", *server.add("/b.txt", b"Second essay.\n")),
        ("essays/pages/cities.html", server.add("/cities.html", PAGE)[0], None),
        ("essays/pages/gone.html", f"{server.address}/gone.html", None),
        (corpora.SQUAD, *server.add("/dev.json", json.dumps(SQUAD).encode())),
        (corpora.HOTPOTQA, *server.add("/hotpot.json", b"[]")),
    ]
    monkeypatch.setattr(downloads, "originals", lambda: files)


def test_fetch_fills_the_cache_and_goes_on_where_it_stopped(empty, server, small):
    paths = downloads.fetch()
    assert paths == [empty / path for path in (corpora.ESSAYS, corpora.SQUAD, corpora.HOTPOTQA)]
    joined = json.loads(paths[0].read_text())
    page = "Great cities attract\n\nambitious people’s cats.\n"
    assert joined == {"text": f"First essay. It ends.Second essay.\n{page}", "essays": 3, "of": 4}
    assert server.asked["/hotpot.json"] == 1

    qa = corpora.load("qa", "squad")
    assert qa.documents == ["Tin is a metal."]
    assert qa.questions == [Question("What is tin?", ("a metal",), (0,), ())]
    assert corpora.load("essay", "paul_graham").source.note.endswith("essays: 3 of 4")

    server.asked.clear()
    assert downloads.fetch() == paths
    assert set(server.asked) == {"/gone.html"}

    (empty / "essays/gkamradt/b.txt").write_text("cut")
    server.asked.clear()
    downloads.fetch()
    assert set(server.asked) == {"/b.txt", "/gone.html"}
    assert json.loads(paths[0].read_text()) == joined


def test_fetch_refuses_another_checksum(empty, server, small):
    server.files["/dev.json"] = b"<html>please log in</html>"
    with pytest.raises(UserError, match=r"^fetch: http\S+dev\.json: .* does not match") as error:
        downloads.fetch()
    assert "\n" not in str(error.value)
    assert not (empty / corpora.SQUAD).exists()
    assert (empty / "essays/gkamradt/a.txt").exists()  # what came before is kept

    # Nor what does not answer.
    del server.files["/dev.json"]
    with pytest.raises(UserError, match=r"^fetch: http\S+dev\.json: 404 "):
        downloads.fetch()
