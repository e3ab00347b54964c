"""The doors to servers: addresses as people write them, keys and headers, replies in odd clothes, odd
lists of models, and why nothing answers."""

import json
import shutil
import ssl
import subprocess
from contextlib import ExitStack

import pytest

import rulerkit as rk
from rulerkit.common.urls import is_address, url_of
from rulerkit.store.cells import read_cells
from tests.conftest import needs_extras
from tests.projects import REPOSITORY
from tests.records import predict
from tests.test_openai import ask_and_check, client, error, server, serving, some
from tests.text_server import Handler, ReaderServer

ASKED = ("--tasks", "vt", "--lengths", "1K", "-n", "1", "-y", "tokenizer: builtin")
KEY = "Tulip4711Ochre"
__all__ = ["server"]


class Recorder(ReaderServer):
    """Remembers the key and the headers of each request; with `wants` it refuses without."""

    def __init__(self):
        super().__init__(rk.load_tokenizer("builtin"))
        self.RequestHandlerClass = _Recording
        self.headers, self.wants = [], ""

    @property
    def secrets(self):
        return {KEY in text for text in self.headers}


class _Recording(Handler):
    def parse_request(self):
        is_read = super().parse_request()
        self.server.headers.append(str(self.headers))
        if is_read and self.server.wants not in str(self.headers):
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.reply(401, {}, error("who are you?"))
            return False
        return is_read


@pytest.fixture
def recorders():
    with ExitStack() as stack:
        yield [stack.enter_context(serving(Recorder())) for _ in "ab"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


ADDRESSES = {
    "LOCALHOST:{}": "http://LOCALHOST:{}",
    "HTTP://LocalHost:{}/v1/": "HTTP://LocalHost:{}/v1",
    "0.0.0.0:{}/v1": "http://0.0.0.0:{}/v1",
}


@pytest.mark.parametrize(("written", "url"), ADDRESSES.items())
def test_an_address_may_be_written_in_any_way(written, url, server, folder, monkeypatch, rulerkit):
    """A proxy is for other machines."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    address, url = (text.format(server.server_address[1]) for text in (written, url))
    assert url_of(address) == url
    assert rulerkit("evaluate", address, *ASKED).status == 0
    assert rk.study(model=address).models[0]["path"] == "m"
    if "/v1" in address:
        assert client(server, base_url=address).base_url == url


def test_a_page_of_the_hub_is_no_server(rulerkit):
    ended = rulerkit("evaluate", "https://huggingface.co/Qwen/Qwen3-8B/tree/main", *ASKED)
    assert ended.status == 2
    assert "is a page of the Hugging Face hub, no server: give Qwen/Qwen3-8B" in ended.err


def test_what_is_no_address(folder):
    assert is_address("gpu-07:8000")
    assert is_address("[::1]:8000")
    for name in ("org/name", "llama-3.1-8b", "checkpoints/a:8000", "x.yaml", "a:b"):
        assert not is_address(name)
    with pytest.raises(rk.UserError, match="is no address"):
        rk.load_model("http://host:99999")
    (folder / "own.yaml").write_text("model: localhost:8000")
    with pytest.raises(rk.UserError, match=r"localhost:8000: in a file, .* under `base_url`"):
        rk.load_model("own.yaml")


@pytest.fixture
def tls(server, tmp_path):
    """A server behind a certificate that nobody has signed, its address and the certificate."""
    key, file = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {file}"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    subprocess.run([*made.split(), *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    with serving(ReaderServer(rk.load_tokenizer("builtin"))) as secure:
        secure.socket = context.wrap_socket(secure.socket, server_side=True)
        yield secure.server_address[1], file


def reasons(address):
    """Why nothing answers: at an address alone, and at the base_url of a mapping."""
    said = []
    for model in (address, {"path": "m", "base_url": address, "tokenizer": "builtin"}):
        with pytest.raises(rk.UserError) as caught:
            _ = rk.load_model(model).prompt_format
        said.append(str(caught.value).removeprefix("model m: "))
    return said


def test_a_certificate_is_what_is_wrong(tls, monkeypatch):
    port, file = tls
    for reason in reasons(f"https://localhost:{port}/v1"):
        assert "self-signed" in reason
        assert "SSL_CERT_FILE" in reason
    assert "with TLS an address begins with https://" in reasons(f"http://localhost:{port}/v1")[0]
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert rk.load_model(f"https://localhost:{port}").spec["path"] == "m"


def test_why_nothing_answers(server, monkeypatch):
    port = server.server_address[1]
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    said = {
        f"https://127.0.0.1:{port}/v1": "without it with http://",
        "http://127.0.0.1:1/v1": "start the server",
        "http://no-such-host.invalid/v1": "correct the address",
    }
    for address, words in said.items():
        for reason in reasons(address):
            assert reason.startswith(f"nothing answers at {address}: ")
            assert words in reason
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    for reason in reasons("http://model.test/v1"):
        assert "NO_PROXY=model.test leads around a proxy" in reason


BAD_KEYS = {f"“{KEY}”": "a typographic quote", f"{KEY}\r\n": "a line end"}


@pytest.mark.parametrize("value", BAD_KEYS)
def test_a_key_that_no_header_takes(value, server, monkeypatch):
    monkeypatch.setenv("MY_KEY", value)
    for given in ({"api_key_env": "MY_KEY"}, {"headers": {"api-key": "$MY_KEY"}}):
        with pytest.raises(rk.UserError, match=BAD_KEYS[value]) as caught:
            _ = client(server, **given).prompt_format
        assert "MY_KEY" in str(caught.value)
        assert KEY not in str(caught.value)


def test_refused_unset_and_unnamed_are_three_sentences(recorders, monkeypatch):
    server, _ = recorders
    server.wants = "another"
    monkeypatch.setenv("MY_KEY", KEY)
    for given, words in (
        ({"api_key_env": "MY_KEY"}, "refused the key in MY_KEY: HTTP 401"),
        ({"headers": {"x-key": "$MY_KEY"}}, "refused the key in MY_KEY: HTTP 401"),
        ({}, "it wants a key, and none was named"),
        ({"api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY, which holds the key, is not set"),
    ):
        with pytest.raises(rk.UserError, match=words):
            rk.load_model({"base": server.url, **given})
        with pytest.raises(rk.UserError, match=words):
            _ = client(server, **given).prompt_format


def test_further_headers_are_sent_and_never_shown(recorders, tmp_path, monkeypatch):
    server, _ = recorders
    monkeypatch.setenv("MY_KEY", KEY)
    server.wants = f"api-key: {KEY}"
    server.amend = lambda body, reply: reply.update(model=f"m of {KEY}")
    headers = {"api-key": "$MY_KEY", "X-Plain": "1"}
    model = client(server, headers=headers)
    predict(model, some(model, 2), tmp_path / "run", progress=False)
    assert "X-Plain: 1" in server.headers[-1]
    assert "authorization" not in "".join(server.headers).lower()
    written = "".join(file.read_text() for file in tmp_path.rglob("*.json*"))
    assert KEY not in written
    server.wants = ""
    assert client(server).identity() == model.identity()


@needs_extras
def test_the_gate_sends_no_key_to_the_other_side(recorders, folder, monkeypatch, rulerkit):
    monkeypatch.setenv("MY_KEY", KEY)
    ours, theirs = recorders
    theirs.wants = KEY
    keyed = f"{{base: {theirs.url}, api_key_env: MY_KEY}}"
    ended = rulerkit("gate", ours.url, keyed, *ASKED[:4], "-n", "10", *ASKED[6:])
    assert ended.status in (0, 3), ended
    assert (ours.secrets, theirs.secrets) == ({False}, {True})

    ours.headers.clear()
    ended = rulerkit("gate", ours.url, theirs.url, *ASKED, "-y", "api_key_env: MY_KEY")
    assert ended.status == 2
    assert "would go to 2 models" in ended.err
    assert ours.headers == []
    both = f"models: ['{ours.url}', '{theirs.url}']"
    ended = rulerkit("evaluate", "-y", both, *ASKED, "-y", "headers: {x-key: $MY_KEY}")
    assert "would go to 2 models" in ended.err
    assert ours.headers == []


def test_a_key_stays_with_its_server(recorders, folder, monkeypatch):
    ours, theirs = recorders
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    keys = {"api_key_env": "MY_KEY", "headers": {"x-key": "$MY_KEY"}}
    # Neither where a redirect leads to,
    ours.behave = lambda body: (307, {"Location": f"{theirs.url}/completions"}, "")
    ask_and_check(client(ours, prompt_path="text", api_key_env="MY_KEY"))
    assert (ours.secrets, theirs.secrets) == ({True}, {False})
    with pytest.raises(rk.UserError, match="HTTP 307"):
        _ = client(ours, prompt_path="text", **keys).server
    # nor to a variant at another address, nor OpenAI's own to another server.
    base = {"name": "b", "path": "m", "base_url": ours.url, **keys}
    (folder / "b.yaml").write_text(json.dumps({"model": base}))
    variant = {"base": "b.yaml", "base_url": theirs.url, "tokenizer": "builtin"}
    ask_and_check(rk.load_model(variant))
    assert theirs.secrets == {False}
    assert client(ours, base_url="https://api.openai.com/v1").address().key == KEY
    assert client(ours, base_url=theirs.url).address().key == ""


def parts(choice):
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    other = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    image = {"type": "image_url", "image_url": {"url": "x"}}
    words = {"type": "text", "text": choice["message"]["content"]}
    choice["message"]["content"] = [thought, other, image, words]


ODD = {
    "parts": parts,
    "a text": lambda c: c.update(text=c.pop("message")["content"], message=None),
    "other types": lambda c: (
        c.update(logprobs="none", token_ids="none", stop_reason=5, index="0"),
        c["message"].update(tool_calls="", refusal=False, reasoning_content=7),
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_valid_reply_is_read_whatever_it_wears(kind, server):
    server.amend = lambda body, reply: ODD[kind](reply["choices"][0])
    ask_and_check(client(server, prompt_path="chat", max_retries=0))


def test_a_mark_before_the_json_is_no_part_of_it(server):
    server.behave = lambda body: (200, {}, "\ufeff" + json.dumps(server.answer(body)))
    ask_and_check(client(server, prompt_path="chat"))


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_usage_of_any_type(is_counted, server):
    def amend(body, reply):
        count = str(reply["usage"]["prompt_tokens"]) if is_counted else None
        odd = {"prompt_tokens_details": [], "completion_tokens_details": "x"}
        usage = {"prompt_tokens": count, "completion_tokens": "many", **odd}
        reply.update(usage=usage, error=None, system_fingerprint=7)

    server.amend = amend
    ask_and_check(client(server, prompt_path="text", max_retries=0))


@pytest.mark.parametrize(("value", "limit"), [("131072", 131072), (1e400, None), ([5], None)])
def test_a_limit_that_is_no_number(value, limit, server, folder, rulerkit):
    odd = {"owned_by": float("inf"), "root": ["x"], "meta": {"size": float("nan")}}
    server.listing = {"data": [{"id": "m", "max_model_len": value, **odd}]}
    assert rulerkit("evaluate", server.url, *ASKED).status == 0
    (cell,) = read_cells(folder / "outputs")
    assert cell.record["environment"]["server"].get("max_model_len") == limit


def test_odd_entries_of_a_list(server):
    server.listing = {"data": [{"name": "x"}, None, "y", {"id": "m"}]}
    assert rk.load_model({"base": server.url, "tokenizer": "builtin"}).path == "m"
    server.listing = [{"id": "alone"}]
    assert rk.load_model({"base": server.url, "tokenizer": "builtin"}).path == "alone"
    for listing, said in (
        ({"data": []}, "lists no model"),
        ("<!doctype html><html><body>Open Chat</body></html>", "HTTP 200: an HTML page, Open"),
    ):
        server.listing = listing
        with pytest.raises(rk.UserError, match=said):
            rk.load_model(server.url)


def listed(**more):
    return {"data": [{"id": "m", "owned_by": "vllm", "created": 1, **more}]}


OTHERS = [{"root": "/ck/2000"}, {"meta": {"size": 8}}]
SAME = [{"root": "/ck/1000/", "max_model_len": 9000, "pid": 7}]
FIRST = {"root": "/ck/1000", "meta": {"size": 7, "n_ctx": 4}, "pid": 6}


@pytest.mark.parametrize("change", [*OTHERS, *SAME], ids=str)
def test_another_checkpoint_at_the_same_address(change, server, tmp_path):
    server.listing = listed(**FIRST)

    def evaluated(number):
        model = client(server)
        return predict(model, some(model, number), tmp_path / "run", progress=False)

    evaluated(2)
    server.listing = listed(**FIRST | change)
    if change in SAME:
        assert len(evaluated(3).rows) == 3
        return
    for number in (2, 3):
        with pytest.raises(rk.UserError, match=r"model\.server\..* now it is .*run: NAME"):
            evaluated(number)


def test_a_server_that_runs_already_is_the_same_model_where_it_lists_it(server, tmp_path):
    config = {"model_type": "llama", "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    base = {"path": str(tmp_path), "engine": "vllm", "dtype": "bfloat16", "name": "mine"}
    server.listing = {"data": [{"id": "warm", "root": f"{tmp_path}/.", "max_model_len": 512}]}
    one, warm = (rk.load_model(spec) for spec in (base, {"base": base, "base_url": server.url}))
    assert (warm.name, warm.identity()) == (one.name, one.identity())
    assert warm.shown_command() == ""
    assert warm.wait_until_ready().address.url == server.url
    assert "room for 512 here" in warm.too_long(1024)
    server.listing = {"data": [{"id": "warm", "root": "/ck/other"}]}
    with pytest.raises(rk.UserError, match=r"model mine: http.* serves /ck/other, and not /"):
        rk.load_model({"base": base, "base_url": server.url}).open()


def test_what_a_server_of_ones_own_answered_the_engine_does_not_ask_again(tmp_path):
    folder, tokenizer = tmp_path / "m", str(REPOSITORY / "rulerkit/data/small/tokenizer")
    shutil.copytree(REPOSITORY / "rulerkit/data/small/llama", folder)
    base = {"path": str(folder), "engine": "vllm", "dtype": "bfloat16", "name": "mine"}
    base |= {"template": "base", "tokenizer": tokenizer, "max_length": 2048}
    asked = {"tasks": ["niah_single_2"], "lengths": [1024], "num_examples": 3}
    asked |= {"outputs": str(tmp_path)}

    def amend(body, reply):
        choice = reply["choices"][0]
        choice["token_ids"] = server.tokenizer.encode(choice["text"]).tolist() or [5]
        choice["prompt_token_ids"] = body["prompt"]

    with serving(ReaderServer(rk.load_tokenizer(tokenizer))) as server:
        server.listing = {"data": [{"id": "warm", "root": str(folder), "max_model_len": 2048}]}
        server.amend = amend
        warm = {"base": base, "base_url": server.url}
        (cell,) = rk.evaluate(rk.study(asked, model=warm), progress=False)
        assert (len(cell.rows), len(server.real)) == (3, 3)
        assert {body["model"] for body in server.real} == {"warm"}
    # vLLM is not installed here, and nothing is left to ask.
    (same,) = rk.evaluate(rk.study(asked, model=base), progress=False)
    assert (same.path, len(same.rows)) == (cell.path, 3)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_server_that_fails_at_once_ends_its_model_not_the_others(is_there, server, tmp_path):
    server.behave = lambda body: (500, {}, error("out of order"))
    url = server.url if is_there else "http://localhost:9"
    broken = {"engine": "openai", "name": "broken", "path": "m", "base_url": url}
    broken |= {"tokenizer": "builtin", "prompt_path": "text", "max_retries": 0, "timeout": 5}
    asked = {"tasks": ["vt"], "lengths": [1024], "num_examples": 2, "outputs": str(tmp_path)}
    errors = []
    study = rk.study(models=[broken, "perfect"], **asked)
    cells = rk.evaluate(study, progress=False, failed=errors.append)
    assert [(cell.model, len(cell.rows)) for cell in cells] == [("perfect", 2)]
    assert len(errors) == 1
    with pytest.raises(rk.UserError):
        rk.evaluate(rk.study(models=[broken], run="alone", **asked), progress=False)
