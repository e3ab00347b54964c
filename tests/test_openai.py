"""The OpenAI engine against real HTTP on loopback: a reader behind a server, servers that
misbehave, transformers serve."""

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rulerkit as rk
import rulerkit.models.client as sending
from rulerkit.errors import UserError
from rulerkit.evaluation import predict
from rulerkit.generation import Examples, generate
from rulerkit.models import Answer, Failure, load_model
from rulerkit.models.client import Reply, read_reply
from rulerkit.models.server import OpenAI
from rulerkit.prompt_format import DIRECT
from rulerkit.scoring import string_match_all
from rulerkit.tasks import read_answer, task
from rulerkit.tokenizers import Tokenizer, load_tokenizer
from tests.tiny_llama import save_llama

Reaction = tuple[int, dict[str, str], Any]  # status, headers, JSON
RESET, HALF = 0, 1  # in place of a status: the connection is cut before, or within, the reply


class Reader(ThreadingHTTPServer):
    """A reference reader behind HTTP. `behave` may answer in its place, or change its answer;
    `seen` are the requests."""

    daemon_threads, block_on_close = True, False

    def __init__(
        self, tokenizer: Tokenizer, adds_bos: bool = False, template: str = "{user}"
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.tokenizer, self.adds_bos, self.template = tokenizer, adds_bos, template
        self.seen: list[dict[str, Any]] = []
        self.authorization: str | None = None
        self.at_once = self.most_at_once = 0
        self.behave: Callable[[dict[str, Any]], Reaction | None] = lambda body: None
        self.amend: Callable[[dict[str, Any], dict[str, Any]], None] = lambda body, reply: None
        self.listing: dict[str, Any] = {
            "object": "list",
            "data": [{"id": "m", "object": "model", "owned_by": "tests"}],
        }
        self.count = threading.Lock()
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def real(self) -> list[dict[str, Any]]:
        """The requests that hold a prompt of ours; the others only found out what the server
        takes."""
        return [body for body in self.seen if body.get("max_tokens") != 16]

    def read(self, body: dict[str, Any]) -> tuple[str, int]:
        """The whole text that a model would see, and its tokens."""
        if "messages" not in body:
            prompt = body["prompt"]
            ids = prompt if isinstance(prompt, list) else self.tokenizer.encode(prompt)
            return self.tokenizer.decode(ids), len(ids) + self.adds_bos
        user, *more = [message["content"] for message in body["messages"]]
        text = self.template.format(user=user)
        if more:
            text += (
                more[0]
                if body.get("continue_final_message")
                else f"{more[0]}</s> {self.template.format(user='')}"
            )
        return text, self.tokenizer.count(text) + self.adds_bos

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        text, tokens = self.read(body)
        ids = self.tokenizer.encode(read_answer(text.replace(DIRECT, "")) or "")
        said = self.tokenizer.decode(ids[: body["max_tokens"]])
        said_as = (
            {"message": {"role": "assistant", "content": said}}
            if "messages" in body
            else {"text": said}
        )
        finish = "length" if len(ids) > body["max_tokens"] else "stop"
        written = min(len(ids), body["max_tokens"])
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": written,
            "total_tokens": tokens + written,
        }
        usage["prompt_tokens_details"] = {"cached_tokens": 128}  # type: ignore[assignment]
        choice = {"index": 0, "finish_reason": finish, "logprobs": None, **said_as}
        return {
            "id": "x",
            "object": "o",
            "created": 0,
            "model": "m-0613",
            "choices": [choice],
            "usage": usage,
        }


class Handler(BaseHTTPRequestHandler):
    """The three addresses of the protocol."""

    protocol_version = "HTTP/1.1"
    server: Reader

    def log_message(self, *_: Any) -> None:
        """Nothing on the screen."""

    def do_GET(self) -> None:
        self.reply(200, {}, self.server.listing)

    def do_POST(self) -> None:
        server = self.server
        assert self.path.partition("?")[0] in ("/v1/completions", "/v1/chat/completions")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.count:
            server.seen.append(body)
            server.authorization = self.headers["Authorization"]
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            reaction = server.behave(body)
            if reaction is None:
                answer = server.answer(body)
                server.amend(body, answer)
                reaction = 200, {}, answer
        finally:
            with server.count:
                server.at_once -= 1
        if reaction[0] == HALF:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices": [{"text": "half of an')
        if reaction[0] in (HALF, RESET):
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.reply(*reaction)

    def reply(self, status: int, headers: dict[str, str], body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        kind = "text/html" if isinstance(body, str) else "application/json"
        try:
            self.send_response(status)
            for name, value in {
                "Content-Type": kind,
                "Content-Length": str(len(data)),
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has hung up, as it may


def serve(reader: Reader) -> Iterator[Reader]:
    thread = threading.Thread(target=reader.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield reader
    reader.released.set()
    reader.shutdown()
    reader.server_close()
    thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A well-behaved server that counts with the built-in tokenizer; the client waits little
    between attempts."""
    monkeypatch.setattr(sending, "FIRST_WAIT", 0.02)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield from serve(Reader(load_tokenizer("builtin")))


def client(server: Reader, **spec: Any) -> Any:
    return load_model({"path": "m", "base_url": server.url, "tokenizer": "builtin"} | spec)


def some(model: Any, number: int = 6, name: str = "niah_single_1", length: int = 1024) -> Examples:
    return generate(
        task(name).with_corpora("builtin"), length, number, prompt_format=model.prompt_format
    )


def told(model: Any, examples: Examples) -> tuple[dict[int, Any], str]:
    """The answers or failures by index, and the error in the end, which must be one line."""
    answers: dict[int, Answer | Failure] = {}
    failure = ""
    try:
        for example, answer in model.answer(examples):
            assert example.index not in answers
            answers[example.index] = answer
    except UserError as error:
        failure = str(error)
    assert len(failure.splitlines()) <= 1
    return answers, failure


def right(examples: Examples, answers: dict[int, Answer]) -> list[bool]:
    return [string_match_all(answers[i].text, examples[i].references) == 1 for i in sorted(answers)]


def nth(
    every: int, reaction: Callable[[], Reaction]
) -> Callable[[dict[str, Any]], Reaction | None]:
    """Something else at every n-th request that holds a prompt."""
    lock, count = threading.Lock(), [0]

    def behave(body: dict[str, Any]) -> Reaction | None:
        if body["max_tokens"] == 16:
            return None
        with lock:
            count[0] += 1
            mine = count[0] % every == 0
        return reaction() if mine else None

    return behave


# --- a server as it should be ---------------------------------------------------------------------


@pytest.mark.parametrize("path", ["ids", "text", "prefill", "chat"])
def test_every_path_sends_the_whole_prompt(server: Reader, path: str) -> None:
    model = client(server, prompt_path=path)
    assert model.prompt_format.form == ("gpt-4" if path == "chat" else "base")
    for name in ("niah_multiquery", "vt", "qa_1"):
        examples = some(model, 2, name, 1024 if name.startswith("niah") else 2048)
        answers, error = told(model, examples)
        assert error == ""
        assert right(examples, answers) == [True, True], name
        for index, answer in answers.items():
            usage = answer.usage or {}
            assert usage["prompt_tokens"] == examples[index].num_tokens
            assert usage["completion_tokens"] == answer.num_tokens
            assert (usage["cached_tokens"], "cost" in usage, usage["seconds"] >= 0) == (
                128,
                False,
                True,
            )
    body = server.real[-1]
    assert (body["temperature"], body["max_tokens"], body["model"]) == (
        0,
        examples[0].max_new_tokens,
        "m",
    )
    if path == "chat":
        assert [m["role"] for m in body["messages"]] == ["user"]
        assert DIRECT in body["messages"][0]["content"]
    if path == "prefill":
        assert [m["role"] for m in body["messages"]] == ["user", "assistant"]
        assert body["messages"][1]["content"] == examples[0].answer_prefix
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


def test_a_cell_is_stored_with_its_path_and_what_it_took(server: Reader, tmp_path: Path) -> None:
    model = client(
        server, prices={"prompt": 10, "completion": 30, "cached": 5}, extra_body={"seed": 7}
    )
    examples = some(model)
    cell = predict(model, examples, tmp_path / "run", progress=False)
    assert cell.complete
    assert cell.record["result"]["model"] == {
        "name": "m",
        "engine": "openai",
        "path": "m",
        "prompt_path": "ids",
        "extra_body": {"seed": 7},
    }
    about = cell.record["environment"]
    assert about["base_url"] == server.url
    assert about["server"] == {"exact_tokenizer": True, "owned_by": "tests"}
    usage = cell.rows[0]["usage"]
    assert (usage["server_model"], usage["server_finish_reason"]) == ("m-0613", "stop")
    spent = (usage["prompt_tokens"] - 128) * 10 + 128 * 5 + usage["completion_tokens"] * 30
    assert usage["cost"] == pytest.approx(spent / 1e6)
    assert all(body["seed"] == 7 for body in server.seen)
    assert all(isinstance(body["prompt"], list) for body in server.real)
    asked = len(server.seen)
    again = client(server, prompt_path="ids", extra_body={"seed": 7}, concurrency=64, timeout=9)
    assert predict(again, some(again), tmp_path / "run", progress=False).rows == cell.rows
    assert len(server.seen) == asked  # complete, so nobody is asked
    other = client(server, prompt_path="text", extra_body={"seed": 7})
    with pytest.raises(UserError, match='prompt_path "ids", now it is "text"'):
        predict(other, some(other), tmp_path / "run", progress=False)


def test_requests_are_under_way_together_and_are_dropped_when_nobody_reads_on(
    server: Reader,
) -> None:
    model = client(server, concurrency=4)
    server.behave = lambda body: time.sleep(0.05)
    assert len(told(model, some(model, 20))[0]) == 20
    assert server.most_at_once == 4
    server.behave = nth(2, lambda: (server.released.wait(30), (200, {}, {}))[1])
    answers = model.answer(some(model))
    next(answers)
    start = time.perf_counter()
    answers.close()
    assert time.perf_counter() - start < 5
    assert [t for t in threading.enumerate() if t.name == "rulerkit-client"] == []


# --- paths and the BOS ----------------------------------------------------------------------------

TEMPLATE = "{{ bos_token }}<|user|>{{ messages[-1]['content'] }}<|end|><|assistant|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-pair tokenizer with a BOS and a chat template."""
    made = tmp_path_factory.mktemp("tokenizer")
    return make_tokenizer(made, TEMPLATE)


def make_tokenizer(made: Path, template: str | None) -> Path:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
    from tokenizers import Tokenizer as Backend

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = [
        AddedToken(t, special=True) for t in ("<s>", "</s>", "<|user|>", "<|end|>", "<|assistant|>")
    ]
    texts = [
        generate(task(n).with_corpora("builtin"), 2048, 1)[0].prompt
        for n in ("niah_single_2", "vt", "qa_1")
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    backend.save(str(made / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    settings |= {"chat_template": template} if template else {}
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    return made


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", ["auto", "base"])
@pytest.mark.parametrize("path", ["ids", "text"])
def test_exactly_one_bos_whoever_adds_it(
    folder: Path, path: str, template: str, adds_bos: bool
) -> None:
    for server in serve(Reader(load_tokenizer(str(folder)), adds_bos)):
        model = client(server, tokenizer=str(folder), prompt_path=path, template=template)
        assert model.server.adds_bos == adds_bos
        examples = some(model, 2)
        answers, error = told(model, examples)
        assert error == ""
        assert all(right(examples, answers))
        assert [answers[i].usage["prompt_tokens"] for i in (0, 1)] == [
            examples[i].num_tokens for i in (0, 1)
        ]
        for body in server.real:
            sent = body["prompt"]
            ids = sent if path == "ids" else server.tokenizer.encode(sent).tolist()
            assert ids.count(0) == (0 if adds_bos else 1)
            assert [0] * adds_bos + ids in [examples[i].ids.tolist() for i in (0, 1)]


@pytest.mark.parametrize("path", ["prefill", "chat"])
def test_messages_leave_the_template_to_the_server_and_count_it(folder: Path, path: str) -> None:
    template = "<|user|>{user}<|end|><|assistant|>"
    for server in serve(Reader(load_tokenizer(str(folder)), True, template)):
        model = client(server, tokenizer=str(folder), prompt_path=path, template="auto")
        assert model.aligned == "chat"
        examples = some(model, 2)
        answers, error = told(model, examples)
        assert error == ""
        assert all(right(examples, answers))
        assert all("<|" not in body["messages"][0]["content"] for body in server.real)
        for index in (0, 1):
            assert abs(answers[index].usage["prompt_tokens"] - examples[index].num_tokens) <= 1


def test_a_server_that_closes_the_assistants_turn_is_no_prefill(folder: Path) -> None:
    template = "<|user|>{user}<|end|><|assistant|>"
    for server in serve(Reader(load_tokenizer(str(folder)), True, template)):
        # the client's own fields are taken away, so this server does what others do that never
        # heard of them
        model = client(
            server,
            tokenizer=str(folder),
            prompt_path="prefill",
            extra_body={"continue_final_message": None},
        )
        answers, error = told(model, some(model, 2))
        assert (answers, server.real) == ({}, [])
        assert "closes the turn" in error
        assert "prompt_path: text" in error


def no_ids(body: dict[str, Any]) -> Reaction | None:
    """As transformers serve says it."""
    ids = isinstance(body.get("prompt"), list)
    return (400, {}, {"detail": "prompt must be a string."}) if ids else None


def no_completions(body: dict[str, Any]) -> Reaction | None:
    """As OpenAI says it of its chat models."""
    words = "This is a chat model and not supported in the v1/completions endpoint."
    return (404, {}, {"error": {"message": words, "code": None}}) if "prompt" in body else None


@pytest.mark.parametrize(
    ("behave", "path"), [(lambda body: None, "ids"), (no_ids, "text"), (no_completions, "chat")]
)
def test_auto_takes_the_first_path_that_the_server_takes(
    server: Reader, behave: Any, path: str
) -> None:
    server.behave = behave
    model = client(server)
    examples = some(model)
    assert model.identity()["prompt_path"] == path
    answers, error = told(model, examples)
    assert (error, len(answers), all(right(examples, answers))) == ("", 6, True)
    asked = len(server.seen)
    assert model.identity()["prompt_path"] == path
    assert len(server.seen) == asked


def test_a_path_that_the_server_does_not_take_is_refused_in_its_words(server: Reader) -> None:
    server.behave = no_ids
    answers, error = told(model := client(server, prompt_path="ids"), some(model))
    assert answers == {}
    assert "HTTP 400: prompt must be a string" in error


def test_ids_of_another_tokenizer_are_never_sent(server: Reader, folder: Path) -> None:
    for path in ("auto", "ids", "text"):
        with pytest.raises(UserError, match=r"counts \d+ tokens where the tokenizer .* counts \d+"):
            _ = client(server, tokenizer=str(folder), prompt_path=path).server
    assert server.real == []
    chat = client(server, tokenizer=str(folder), prompt_path="chat", template="gpt-4")
    assert (
        not chat.server.exact
    )  # a closed service: its own counts are kept, ours decide the length
    examples = some(chat, 2)
    answers, error = told(chat, examples)
    assert error == ""
    assert all(right(examples, answers))


def test_newer_models_want_another_name_for_the_limit(server: Reader) -> None:
    def behave(body: dict[str, Any]) -> Reaction | None:
        if "max_tokens" in body:
            words = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return 400, {}, {"error": {"message": words, "code": "unsupported_parameter"}}
        body["max_tokens"] = body["max_completion_tokens"]
        return None

    server.behave = behave
    model = client(server, prompt_path="chat", extra_body={"temperature": None})
    examples = some(model, 2)
    answers, error = told(model, examples)
    assert error == ""
    assert all(right(examples, answers))
    assert all("temperature" not in body for body in server.seen)


# --- servers that misbehave -----------------------------------------------------------------------


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


def choice(**more: Any) -> dict[str, Any]:
    """A reply with this choice, of a completion and of a chat alike."""
    return {"choices": [more], "usage": {"completion_tokens": 3}}


def said(finish: str | None, content: Any = "half", **more: Any) -> dict[str, Any]:
    return choice(
        finish_reason=finish,
        text=content,
        message={"role": "assistant", "content": content, **more},
    )


ONCE: list[Reaction] = [
    (500, {}, error("busy")),
    (200, {}, choice()),
    (503, {"Retry-After": "0.1"}, "<html>Service Unavailable</html>"),
    (200, {}, said("tool_calls", None, tool_calls=[{"id": "1"}])),
    (429, {"Retry-After": "0.1"}, error("slow down")),
    (200, {}, said("network_error")),
    (RESET, {}, None),
    (200, {}, said("insufficient_system_resource", "")),
    (HALF, {}, None),
    (200, {}, said(None, "no reason for the end")),
    (200, {}, "<html>It works!</html>"),
    (200, {}, said("stop", [{"type": "text", "text": "a list"}])),
    (200, {}, error("overloaded", code="server_error")),
    (200, {}, said("stop", None)),
    (200, {}, said("length", "")),
    (200, {}, {"choices": []}),
    (200, {}, {"choices": [{"message": "a text", "finish_reason": "stop"}], "usage": []}),
    (429, {"retry-after": "soon"}, {"detail": ["too", "many"]}),
    (
        200,
        {},
        {
            "choices": [{"message": None, "text": "", "finish_reason": "stop"}],
            "usage": {"completion_tokens": 0},
        },
    ),
]
"""What the hostile server does at the first request for a prompt, one after the other."""

ALWAYS: list[tuple[Reaction, str, bool]] = [
    ((400, {}, error("not\nthis one")), "HTTP 400: not this one", False),
    ((400, {}, error("filtered", code="content_filter")), "HTTP 400: filtered", True),
    ((200, {}, said("SAFETY")), "the service declined (safety)", True),
    ((200, {}, said("stop", "", refusal="I cannot.")), "the service declined (I cannot.)", True),
    ((200, {}, said("function_call")), "the server broke off (finish_reason function_call)", False),
    ((200, {}, choice()), "the server broke off (finish_reason None)", False),
    ((500, {}, error("the card fell off the bus")), "HTTP 500: the card fell off the bus", False),
]
"""What it does with a few prompts however often it is asked, the reason in the ledger, and whether
that is a refusal."""


def test_what_can_be_answered_is_whatever_a_server_does(server: Reader, tmp_path: Path) -> None:
    """Two models behind it, all tasks; the first prompt of each is refused. The second run asks
    only for the rest."""
    started: dict[str, int] = {}
    doomed: dict[str, tuple[Reaction, str, bool]] = {}
    lock = threading.Lock()

    def behave(body: dict[str, Any]) -> Reaction | None:
        if body["max_tokens"] == 16:
            return None
        prompt = json.dumps(body.get("prompt") or body["messages"])
        with lock:
            first = prompt not in started
            number = started.setdefault(prompt, len(started))
            if number % 5 == 0 and number // 5 < 2 * len(ALWAYS):
                doomed.setdefault(prompt, ALWAYS[number // 5 % len(ALWAYS)])
        if prompt in doomed:
            return doomed[prompt][0]
        if number % 29 == 1 and first:
            server.released.wait(4)  # longer than the client waits
        return ONCE[number % len(ONCE)] if first else None

    server.behave = behave
    common = {
        "path": "m",
        "base_url": server.url,
        "tokenizer": "builtin",
        "timeout": 2.5,
        "max_retries": 2,
    }
    models = [{**common, "name": path, "prompt_path": path} for path in ("ids", "chat")]
    study = rk.study(models=models, lengths=[2048], num_examples=3, outputs=str(tmp_path))
    cells = rk.evaluate(study, progress=False)
    assert len(cells) == 26
    assert all(
        string_match_all(row["pred"], row["outputs"]) == 1 for cell in cells for row in cell.rows
    )
    ledger = [
        json.loads(line)
        for file in tmp_path.rglob("*.failures.jsonl")
        for line in file.read_text().splitlines()
    ]
    expected = sorted((reason, refused) for _, reason, refused in doomed.values())
    assert sorted((entry["reason"], entry["refused"]) for entry in ledger) == expected
    assert len(doomed) == 2 * len(ALWAYS)
    assert sum(len(cell.rows) for cell in cells) == 26 * 3 - len(doomed)
    server.behave = lambda body: None
    asked = len(server.real)
    cells = rk.evaluate(study, progress=False)
    assert all(cell.complete for cell in cells)
    assert len(server.real) == asked + len(doomed)


@pytest.mark.parametrize("status", [500, 429, 400, RESET])
def test_a_storm_of_failures_ends_the_sending(server: Reader, status: int) -> None:
    model = client(server, concurrency=2, max_retries=1)
    examples = some(model, 40)
    server.behave = lambda body: (status, {}, error("no")) if body["max_tokens"] != 16 else None
    failed, problem = told(model, examples)
    assert "6 requests to http" in problem
    assert "in a row had no answer" in problem
    assert 6 <= len(failed) <= 10
    assert all(isinstance(failure, Failure) for failure in failed.values())


def test_a_wait_that_a_server_asks_for_holds_all_requests(server: Reader) -> None:
    server.behave = nth(3, lambda: (429, {"Retry-After": "1"}, error("busy")))
    model = client(server, concurrency=3)
    start = time.perf_counter()
    answers, problem = told(model, examples := some(model, 6))
    assert (problem, right(examples, answers)) == ("", [True] * 6)
    assert time.perf_counter() - start > 1


@pytest.mark.parametrize(
    ("finish", "text", "expected"),
    [("end_turn", "done", "stop"), ("MAX_TOKENS", "The", "length"), ("stop", "", "stop")],
)
def test_servers_have_several_words_for_the_end_of_an_answer(
    finish: str, text: str, expected: str
) -> None:
    form = load_model("perfect").prompt_format
    reply = Reply.model_validate(
        {**said(finish, text), "usage": None, "model": "m-1", "system_fingerprint": "fp"}
    )
    answer = read_reply(reply, form)
    assert (answer.text, answer.finish_reason) == (text, expected)
    usage = {
        "server_finish_reason": finish,
        "server_model": "m-1",
        "system_fingerprint": "fp",
        "seconds": 0.0,
    }
    assert answer.usage == usage


def test_a_timed_out_request_waits_until_all_others_were_sent(server: Reader) -> None:
    model = client(server, concurrency=2, timeout=2)
    examples = some(model, 8)
    slow, hung = examples[0].ids.tolist(), []

    def behave(body: dict[str, Any]) -> None:
        if body["prompt"] == slow and not hung:
            hung.append(1)
            server.released.wait(20)

    server.behave = behave
    _ = model.server
    answers, error = told(model, examples)
    assert error == ""
    assert all(right(examples, answers))
    assert len(answers) == 8
    order = [body["prompt"] for body in server.real]
    assert order.count(slow) == 2
    assert order.index(slow) <= 1
    assert order[-1] == slow


def test_a_server_that_hangs_is_told_of_and_not_waited_for_forever(server: Reader) -> None:
    model = client(server, concurrency=2, timeout=1, max_retries=1)
    examples = some(model, 40)
    server.behave = lambda body: (
        server.released.wait(20) and None if body["max_tokens"] != 16 else None
    )
    start = time.perf_counter()
    answers, error = told(model, examples)
    assert (answers, time.perf_counter() - start < 15) == ({}, True)
    assert "in a row had no answer (no answer within 1 s)" in error
    assert len(server.real) < 12
    server.behave = lambda body: server.released.wait(20) and None
    fresh = client(server, timeout=1)
    with pytest.raises(UserError, match=r"no answer within 1 s: is it busy or still loading"):
        _ = fresh.server


def test_a_server_that_cuts_the_prompt_is_found_out(server: Reader, tmp_path: Path) -> None:
    def amend(body: dict[str, Any], reply: dict[str, Any]) -> None:
        reply["usage"]["prompt_tokens"] = min(512, reply["usage"]["prompt_tokens"])

    server.amend = amend
    model = client(server, concurrency=2)
    with pytest.raises(
        UserError, match=r"the server cut the prompt: it read 512 of \d+ tokens \(length 1024\)"
    ):
        predict(model, some(model), tmp_path / "run", progress=False)
    assert next(iter((tmp_path / "run").rglob("*.jsonl"))).read_text() == ""
    assert len(server.real) <= 5


def test_a_thought_that_the_server_takes_apart_is_put_back(server: Reader) -> None:
    def amend(body: dict[str, Any], reply: dict[str, Any]) -> None:
        reply["choices"][0]["message"]["reasoning_content"] = "hm"

    server.amend = amend
    model = client(
        server,
        base_url=f"{server.url}/",
        prompt_path="chat",
        thinking_tokens=64,
        enable_thinking=True,
    )
    examples = some(model, 2)
    answers, error = told(model, examples)
    assert error == ""
    assert all(answer.text.startswith("<think>hm</think>") for answer in answers.values())
    assert server.real[-1]["max_tokens"] == examples[0].max_new_tokens + 64
    assert server.real[-1]["chat_template_kwargs"] == {"enable_thinking": True}


def test_a_key_is_sent_and_never_told(server: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    model = client(server, api_key_env="A_KEY_OF_OURS")
    with pytest.raises(
        UserError, match="environment variable A_KEY_OF_OURS, which holds the key, is not set"
    ):
        _ = model.server
    monkeypatch.setenv("A_KEY_OF_OURS", "sk-very-secret-0123456789")
    examples = some(model, 3)
    server.behave = lambda body: (
        401,
        {},
        {"error": {"message": "Incorrect key: sk-very-secret-0123456789."}},
    )
    answers, error = told(model, examples)
    assert answers == {}
    assert "HTTP 401: Incorrect key: ***" in error
    assert "api_key_env" in error
    assert "secret" not in error
    assert server.authorization == "Bearer sk-very-secret-0123456789"
    with pytest.raises(UserError, match="refuses: HTTP 401"):
        _ = client(server, api_key_env="A_KEY_OF_OURS").server
    with pytest.raises(UserError, match="never the key itself") as caught:
        client(server, api_key_env="sk-very-secret-0123456789")
    assert "secret" not in str(caught.value)


def test_secrets_of_a_mapping_stand_in_no_record_and_no_message(
    server: Reader, tmp_path: Path
) -> None:
    hidden = {
        "base_url": server.url.replace("//", "//me:hush-1@") + "?code=hush-2",
        "extra_body": {
            "api_key": "hush-3",
            "headers": {"Authorization": "Bearer hush-4"},
            "stop_token_ids": [1],
        },
    }
    model = client(server, **hidden)
    predict(model, some(model, 1), tmp_path / "run", progress=False)
    assert server.seen[-1]["api_key"] == "hush-3"
    server.behave = lambda body: (403, {}, error(f"no access for {body}"))
    problem = told(model, some(model, 1))[1]
    assert "refuses: HTTP 403" in problem
    with pytest.raises(UserError) as caught:
        client(server, **hidden | {"extra_body": {}, "base_url": "ftp://me:hush-5@host?key=hush-6"})
    record = (tmp_path / "run/m/niah_single_1/1024.json").read_text()
    assert all("hush" not in text for text in (problem, str(caught.value), record))
    assert (
        json.loads(record)["environment"]["base_url"] == server.url.replace("//", "//***@") + "?***"
    )
    assert json.loads(record)["result"]["model"]["extra_body"]["stop_token_ids"] == [1]


def test_a_spent_quota_is_not_asked_again(server: Reader) -> None:
    spent = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    model = client(server, concurrency=1)
    examples = some(model, 20)
    server.behave = lambda body: (429, {}, spent)
    answers, error = told(model, examples)
    assert answers == {}
    assert "You exceeded your current quota" in error
    assert len(server.real) <= 3
    server.seen.clear()
    server.behave = lambda body: (429, {"Retry-After": "7200"}, {"error": {"message": "slow down"}})
    answers, error = told(model, examples)
    assert answers == {}
    assert "asks to wait 7200 s" in error
    assert len(server.real) <= 3


def test_nobody_there(server: Reader) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(
        UserError, match=r"nothing answers at http.*Connection refused|connect.*base_url"
    ):
        _ = client(server, base_url=url).prompt_format
    server.listing = "<html>It works!</html>"  # type: ignore[assignment]
    server.behave = lambda body: (200, {}, "<html>It works!</html>")
    with pytest.raises(UserError, match="an answer without a completion: <html>It works!</html>"):
        _ = client(server, max_retries=0).prompt_format


def test_lengths_beyond_what_the_server_takes_are_named(server: Reader) -> None:
    server.listing = {
        "object": "list",
        "data": [{"id": "m", "object": "model", "max_model_len": 2048}],
    }
    model = client(server)
    assert model.too_long(2048) is None
    assert "its limit is 2048 tokens: lengths up to 2048 fit" in model.too_long(2049)
    chat = client(server, prompt_path="chat")
    assert chat.too_long(2032) is None
    assert "up to 16 for itself (overhead_tokens): lengths up to 2032 fit" in chat.too_long(2048)
    seen = len(server.seen)
    assert client(server, prompt_path="ids", max_length="4K").too_long(4096) is None
    assert len(server.seen) == seen  # what the mapping says needs no server


# --- what a mapping may say -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"base_url": "localhost:8000"},
            "'localhost:8000' is not allowed; it takes the server's address",
        ),
        (
            {"prompt_path": "chat", "prefix_in": "assistant"},
            "prompt_path: chat has no assistant's turn",
        ),
        ({"prompt_path": "prefill", "prefix_in": "user"}, "else use prompt_path: chat"),
        ({"prompt_path": "telepathy"}, "auto, ids, text, prefill, chat"),
        ({"prices": {"prompt": 1}}, "it takes a mapping: dollars per million tokens"),
        ({"concurrency": 0}, "at least 1"),
        ({"timeout": -1}, "seconds for one answer"),
        ({"dtype": "float32"}, "unknown key"),
    ],
)
def test_what_is_wrong_with_a_mapping_is_said_before_anything_is_asked(
    spec: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load_model({"engine": "openai", "path": "m", "tokenizer": "builtin"} | spec)
    assert len(str(caught.value).splitlines()) == 1


def test_the_tokenizer_is_known_or_must_be_named(folder: Path) -> None:
    with pytest.raises(UserError, match="`tokenizer` is missing"):
        _ = load_model(
            {"engine": "openai", "path": "some-model", "prompt_path": "chat"}
        ).prompt_format
    own = load_model({"engine": "openai", "path": str(folder), "prompt_path": "text"})
    assert own.prompt_format.tokenizer.bos_token == "<s>"


# --- real servers ---------------------------------------------------------------------------------

MESSAGES = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% if m['role'] == "
    "'user' %}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama of random weights that takes 4096 tokens, with its tokenizer and chat
    template."""
    made = make_tokenizer(tmp_path_factory.mktemp("tiny"), MESSAGES)
    save_llama(made, 2000)
    return made


def answers_of(spec: Any, folder: Path) -> dict[tuple[str, int], str]:
    """The predictions on a few cells, stored; the server must have read as many tokens as were
    sent."""
    model, found = load_model(spec), {}
    for name, length in (("niah_single_1", 1024), ("vt", 1024), ("fwe", 2048)):
        cell = predict(model, some(model, 3, name, length), folder, progress=False)
        found |= {(name, row["index"]): row["pred"] for row in cell.rows}
        for row in cell.rows:
            assert (
                row.get("usage", {}).get("prompt_tokens", row["num_prompt_tokens"])
                == row["num_prompt_tokens"]
            )
    return found


def serve_command() -> str | None:
    """`transformers` with its serving extras: as RULERKIT_SERVE names it, else the one on the
    path."""
    if named := os.environ.get("RULERKIT_SERVE"):
        return named
    return shutil.which("transformers") if find_spec("fastapi") and find_spec("uvicorn") else None


@pytest.mark.slow
def test_transformers_serve_answers_as_transformers_does(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = serve_command()
    if command is None:
        pytest.skip(
            "no `transformers serve`: RULERKIT_SERVE names none, and transformers[serving] is not "
            "installed"
        )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plain = answers_of({"path": str(tiny), "device": "cpu", "name": "plain"}, tmp_path)
    assert len(set(plain.values())) > 5
    serve = f"{command} serve --device cpu --host 127.0.0.1 --port {{port}}"
    model = load_model({"path": str(tiny), "serve": serve, "name": "served", "concurrency": 2})
    assert isinstance(model, OpenAI)
    assert (model.prompt_path, model.server.adds_bos, model.server.exact) == (
        "text",
        True,
        True,
    )  # it takes no ids
    try:
        assert answers_of(model, tmp_path) == plain
        where = {
            "path": str(tiny),
            "base_url": model.replicas[0].address.url,
            "prompt_path": "prefill",
        }
        with pytest.raises(UserError, match="model prefill: "):  # it has no such thing
            _ = load_model(where | {"name": "prefill"}).prompt_format
    finally:
        model.close()
