"""Nodes without a network: what is missing is named, `rulerkit fetch` gets it, and then nothing
reaches for the network.

A small hub on this machine serves a tiny model to the real client, in processes of their own: the
client reads its settings when it is imported.
"""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from rulerkit.batch.offline import OFFLINE, fetch_all, missing_of
from rulerkit.common.model_files import read_spec
from rulerkit.generation import corpora
from tests.tiny_llama import save_llama, save_tokenizer

ROOT = Path(__file__).resolve().parent.parent
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


# --- a hub, and a network that nobody can use -----------------------------------------------------


class Hub:
    """Serves folders as repositories of the hub, each at one commit, and counts what was asked
    for."""

    def __init__(self):
        self.repositories = {}
        self.gated = set()
        self.cut = set()
        """Files of which only the first half comes before the connection is lost."""
        self.asked = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                outer.answer(self)

            def do_GET(self):
                outer.asked[self.path.partition("?")[0]] += 1
                outer.answer(self)

            def log_message(self, format, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, request):
        found = re.fullmatch(
            r"(/api/models)?/([\w.-]+/[\w.-]+)(?:/(revision|tree|resolve)/([^/?]+)/?([^?]*))?(?:\?.*)?",
            request.path,
        )
        api, name, kind, revision, file = found.groups() if found else ("", "", "", "", "")
        folder = self.repositories.get(name)
        if folder is None:
            return self.refuse(request, 401, "RepoNotFound")
        if revision not in (None, "main", COMMIT):
            return self.refuse(request, 404, "RevisionNotFound")
        if api:
            paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            names = [str(path.relative_to(folder)) for path in paths]
            listing = {
                "id": name,
                "sha": COMMIT,
                "siblings": [{"rfilename": each} for each in names],
            }
            if kind == "tree":
                listing = [
                    {"type": "file", "path": each, "size": path.stat().st_size, "oid": digest(path)}
                    for each, path in zip(names, paths, strict=True)
                ]
            return self.send(
                request, json.dumps(listing).encode(), {"Content-Type": "application/json"}
            )
        if name in self.gated:
            return self.refuse(request, 403, "GatedRepo")
        if not (folder / file).is_file():
            return self.refuse(request, 404, "EntryNotFound")
        return self.send(
            request,
            (folder / file).read_bytes(),
            {"ETag": f'"{digest(folder / file)}"'},
            file in self.cut,
        )

    def refuse(self, request, status, code):
        request.send_response(status)
        request.send_header("X-Error-Code", code)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def send(self, request, content, headers, cut=False):
        start = int(
            (re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", "")) or ["", "0"])[1]
        )
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        for key, value in {
            **headers,
            "X-Repo-Commit": COMMIT,
            "Content-Length": str(len(content) - start),
        }.items():
            request.send_header(key, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(content[start : len(content) // 2] if cut else content[start:])
        if cut:
            request.close_connection = True

    def got(self, name):
        """The files of a repository that were fetched."""
        found = (re.fullmatch(rf"/{name}/resolve/[^/]+/(.+)", path) for path in self.asked)
        return {match[1] for match in found if match}


def digest(path):
    return hashlib.sha1(path.read_bytes()).hexdigest()


@pytest.fixture
def hub():
    hub = Hub()
    yield hub
    hub.http.shutdown()
    hub.http.server_close()


class DeadEnd:
    """An address that hangs up on everybody, and counts them."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.tried = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.tried += 1
            connection.close()

    @property
    def environment(self):
        """All ways out lead here."""
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
        return dict.fromkeys(names, self.address) | {
            "HF_ENDPOINT": self.address,
            "NO_PROXY": "",
            "no_proxy": "",
        }


@pytest.fixture
def dead_end():
    dead_end = DeadEnd()
    yield dead_end
    dead_end.socket.close()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty project root with empty caches, and none of this machine's settings."""
    for name in list(os.environ):
        if name.startswith(
            ("HF_", "HUGGING", "TRANSFORMERS_", "TIKTOKEN", "DATA_GYM", "RULERKIT_")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    monkeypatch.setenv("RULERKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "params" / "models").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(
        "huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9"
    )  # nobody listens there
    corpora.load_haystack.cache_clear()
    corpora.load_qa.cache_clear()
    return tmp_path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A Llama of random weights in two shards, with its tokenizer; beside them all that need not be
    fetched."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    size = save_tokenizer(folder, ["One of the special magic numbers is: 1"], 600)
    save_llama(folder, size, "300KB", max_position_embeddings=8192)
    assert all(
        (folder / name).is_file()
        for name in (*SHARDS, "model.safetensors.index.json", "generation_config.json")
    )
    (folder / "README.md").write_text("not to be fetched")
    return folder


def missing(spec):
    return missing_of([read_spec(spec)])


TINY = {
    "path": "org/tiny",
    "engine": "transformers",
    "template": "base",
    "dtype": "float32",
    "device": "cpu",
}


def program(*arguments, **more):
    """`rulerkit` in a process of its own."""
    return python("from rulerkit.cli import main; main()", *arguments, **more)


def python(code, *arguments, **more):
    call = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        call,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env=os.environ | more,
        check=False,
    )


def model_file(place, **spec):
    path = place / "params" / "models" / "mine.yaml"
    path.write_text(json.dumps({"model": TINY | spec}))
    return str(path)


def failures(done):
    """What a fetch says of what failed; it ended with status 1 and without a traceback."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("failed ")]


def holds(line, *parts):
    assert [part for part in parts if part not in line] == [], line


# --- the hub --------------------------------------------------------------------------------------


def test_a_model_is_fetched_once_in_the_one_format_that_is_read(place, hub, tiny, monkeypatch):
    hub.repositories["org/tiny"] = tiny
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
    asked = model_file(place)
    assert missing(TINY) == ["model org/tiny (hub id)"]
    assert not hub.asked, "looking sends no request"
    done = program("fetch", "-f", asked, HF_ENDPOINT=hub.address)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(f"fetched  model org/tiny (hub id): {place / 'hf'}")
    got = hub.got("org/tiny")
    assert got >= {
        *SHARDS,
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert "README.md" not in got

    hub.asked.clear()
    assert missing(TINY) == []
    assert (
        program("fetch", "-f", asked, HF_ENDPOINT=hub.address).stdout
        == "there    model org/tiny (hub id)\n"
    )
    assert not hub.asked, "what is there is not asked for again"


def test_weights_are_fetched_in_one_format(place, hub):
    cases = {
        "org/a": ("model.safetensors pytorch_model.bin consolidated.safetensors", "model.safetensors"),
        "org/b": ("w.safetensors adapter_model.safetensors sub/model.safetensors", "w.safetensors"),
        "org/c": ("m-00001-of-00002.bin m-00002-of-00002.bin training_args.bin x.pt", "m-00001-of-00002.bin m-00002-of-00002.bin"),
        "org/d": ("consolidated.safetensors x.pth", "consolidated.safetensors"),
        "org/e": ("rwkv.pth optimizer.pt original/model.safetensors", "rwkv.pth"),
        "org/f": ("model.gguf", ""),
    }  # fmt: skip
    for name, (there, _) in cases.items():
        hub.repositories[name] = place / "served" / name
        for file in ("config.json", "tokenizer.json", *there.split()):
            path = hub.repositories[name] / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name}/{file}")  # equal files are fetched once
    asked = json.dumps({"models": list(cases)})
    (line,) = failures(program("fetch", "-y", asked, HF_ENDPOINT=hub.address))
    holds(line, "model org/f (hub id): weights missing after the download")
    assert {name: hub.got(name) for name in cases} == {
        name: {"config.json", "tokenizer.json", *read.split()} for name, (_, read) in cases.items()
    }


def test_an_incomplete_model_is_missing_and_is_completed(place, hub, tiny):
    hub.repositories["org/tiny"] = tiny
    asked = model_file(place)
    assert program("fetch", "-f", asked, HF_ENDPOINT=hub.address).returncode == 0
    cache = place / "hf" / "hub"
    snapshot = cache / "models--org--tiny" / "snapshots" / COMMIT
    names = {
        SHARDS[1],
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    }
    for name in names:
        link = snapshot / name
        blob, content = link.resolve(), link.read_bytes()
        blob.unlink()  # the link leads nowhere
        assert missing(TINY) == [f"model org/tiny (hub id): {name} missing"]
        blob.write_bytes(content)
        assert missing(TINY) == []
    for name in names:
        (snapshot / name).resolve().unlink()
    hub.asked.clear()
    assert program("fetch", "-f", asked, HF_ENDPOINT=hub.address).stdout.startswith("fetched ")
    assert hub.got("org/tiny") == names, "only these are fetched again"


@pytest.mark.slow
def test_a_download_that_is_cut_goes_on_where_it_was(place, hub, tiny):
    hub.repositories["org/tiny"] = tiny
    hub.cut = {SHARDS[1]}
    asked = model_file(place)
    (line,) = failures(program("fetch", "-f", asked, HF_ENDPOINT=hub.address))
    holds(line, "model org/tiny (hub id)", "fetch it again")
    assert missing(TINY) == [f"model org/tiny (hub id): {SHARDS[1]} missing"]
    hub.cut.clear()
    hub.asked.clear()
    assert program("fetch", "-f", asked, HF_ENDPOINT=hub.address).returncode == 0
    assert hub.got("org/tiny") == {SHARDS[1]}, "what came whole is not fetched again"
    assert missing(TINY) == []


def test_what_cannot_be_had_is_said_in_one_line_and_the_others_go_on(place, hub, tiny):
    hub.repositories |= {"org/tiny": tiny, "org/gated": tiny}
    hub.gated = {"org/gated"}
    asked = "[org/gated, org/none, {path: org/tiny, revision: v9, name: v9}, org/x--y, {path: org/tiny, name: main}]"
    gated, none, revision, odd = failures(
        program("fetch", "-y", f"models: {asked}", HF_ENDPOINT=hub.address)
    )
    holds(
        gated,
        "model org/gated (hub id)",
        "gated",
        f"terms at {hub.address}/org/gated",
        "hf auth login",
    )
    holds(none, "model org/none (hub id)", f"there is no {hub.address}/org/none", "hf auth login")
    holds(revision, "model org/tiny at v9 (hub id)", "no such revision")
    holds(odd, "model org/x--y (hub id)")
    assert missing(TINY) == [], "the last one was fetched"

    closed = DeadEnd()
    closed.socket.close()
    (away,) = failures(program("fetch", "-y", "model: org/other", HF_ENDPOINT=closed.address))
    holds(
        away,
        f"model org/other (hub id): {closed.address} cannot be reached",
        "is there a network here?",
    )
    (unset,) = failures(
        program("fetch", "-y", "model: org/other", HF_ENDPOINT=hub.address, HF_HUB_OFFLINE="1")
    )
    holds(
        unset,
        "model org/other (hub id): HF_HUB_OFFLINE is set",
        "unset it",
        "hf download org/other",
    )


def test_a_tokenizer_of_its_own_and_code_are_fetched_too(place, hub, tiny):
    tuned = place / "tuned"
    tuned.mkdir()
    (tuned / "config.json").write_text((tiny / "config.json").read_text())
    (tuned / "modeling_x.py").write_text("X = 1")
    (tuned / "pytorch_model.bin").write_text("the only format there is")
    (tuned / "training_args.bin").write_text("no weights")
    hub.repositories |= {"org/tuned": tuned, "org/words": tiny}
    spec = {"path": "org/tuned", "tokenizer": "org/words", "trust_remote_code": True, "name": "x"}
    assert missing(spec) == ["model org/tuned (hub id)", "tokenizer org/words (hub id)"]
    asked = json.dumps({"model": spec})
    done = program("fetch", "-y", asked, HF_ENDPOINT=hub.address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert hub.got("org/tuned") == {"config.json", "modeling_x.py", "pytorch_model.bin"}
    assert hub.got("org/words") & {*SHARDS} == set()
    assert missing(spec) == []


# --- the job --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_job_answers_offline_and_reaches_for_no_network(place, hub, dead_end, tiny, engine):
    more = {"revision": "main"} if engine == "transformers" else {"device": None}
    if find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    hub.repositories["org/tiny"] = tiny
    asked = model_file(place, engine=engine, **more)
    assert program("fetch", "-f", asked, HF_ENDPOINT=hub.address).returncode == 0
    code = "import json; from rulerkit.batch.offline import offline; print(json.dumps(offline()))"
    job = json.loads(python(code).stdout)
    assert job.items() >= OFFLINE.items()
    assert job["HF_HUB_CACHE"] == str(place / "hf" / "hub")

    evaluate = [
        "evaluate",
        "-f",
        asked,
        "-y",
        "{tasks: [niah_single_1], lengths: [1024], num_examples: 1}",
    ]
    done = program(*evaluate, **dead_end.environment, **job, HF_HOME=str(place / "another"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert dead_end.tried == 0, "nothing may reach for the network"
    rows = list((place / "outputs" / "predictions").rglob("1024.jsonl"))
    assert len(rows) == 1
    assert len(rows[0].read_text().splitlines()) == 1


# --- folders, tokenizers, corpora -----------------------------------------------------------------


def test_a_folder_that_was_not_copied_whole_is_named(place):
    folder = place / "model"
    folder.mkdir()
    spec = {"path": "model", "engine": "transformers"}
    (folder / "config.json").write_text("{}")
    assert missing(spec) == [f"folder {folder}: weights, a tokenizer (tokenizer.json) missing"]
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "model-00002-of-00005.safetensors").write_text("")
    parts = [f"model-0000{part}-of-00005.safetensors" for part in (1, 3, 4)]
    expected = f"folder {folder}: {', '.join(parts)} and 2 more missing"
    assert missing(spec) == [expected]
    assert list(fetch_all([read_spec(spec)])) == [
        ("failed", f"{expected}: a folder cannot be fetched; copy it again, whole")
    ]
    for part in (1, 3, 4, 5):
        (folder / f"model-0000{part}-of-00005.safetensors").write_text("")
    assert missing(spec) == [f"folder {folder}: a tokenizer (tokenizer.json) missing"]
    assert missing(spec | {"tokenizer": "builtin"}) == []
    (folder / "tokenizer.model").write_text("")
    assert missing(spec) == []


def test_a_batch_names_every_model_and_corpus_that_any_of_its_notebooks_asks_for(place, dead_end):
    batch = place / "batch.yaml"
    batch.write_text(
        "models: [reader-4096, org/one]\n"
        f"notebooks: ['{ROOT / 'notebooks' / '01_main_results.ipynb'}']\n"
        "together:\n"
        f"  - notebook: '{ROOT / 'notebooks' / '09_model_size.ipynb'}'\n"
        "    models: [org/one, org/two]\n"
        "    parameters: {corpora: original}\n"
    )
    (place / "notebooks").rmdir()
    (place / "notebooks").symlink_to(ROOT / "notebooks")
    lines = failures(program("fetch", "-f", str(batch), **dead_end.environment))
    for line, title in zip(
        lines, ("model org/one (hub id)", "model org/two (hub id)", "fetch: "), strict=True
    ):
        holds(line, title)
