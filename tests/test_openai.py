"""The OpenAI engine against real HTTP on loopback: a reader behind a server, and servers that
misbehave."""

import json
import re
import threading
import time
from contextlib import contextmanager

import pytest

import rulerkit.inference.http as requests
from rulerkit.common.errors import UserError
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import task
from rulerkit.generation.tasks.base import string_match_all
from rulerkit.generation.tokenizers import load_tokenizer
from rulerkit.inference.model import Failure, load_model
from tests.records import predict
from tests.text_server import PROBE, ReaderServer
from tests.tiny_llama import save_tokenizer


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def server(monkeypatch):
    """A well-behaved server that counts with the built-in tokenizer; the client waits little
    between attempts."""
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.02)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(ReaderServer(load_tokenizer("builtin"))) as server:
        yield server


SMALL = "rulerkit/data/small/tokenizer"
"""One whose ids mean the same in every process."""


def client(server, **spec):
    return load_model({"path": "m", "base_url": server.url, "tokenizer": "builtin"} | spec)


def some(model, number=6, name="niah_single_1", length=1024):
    asked = task(name).with_corpora("builtin")
    return generate(asked, length, number, prompt_format=model.prompt_format)


def ask(model, examples):
    """The answers or failures by index, and the error in the end, which must be one line."""
    answers = {}
    failure = ""
    try:
        for example, answer in model.answer(examples):
            assert example.index not in answers
            answers[example.index] = answer
    except UserError as error:
        failure = str(error)
    assert len(failure.splitlines()) <= 1
    return answers, failure


def ask_and_check(model, number=2, **more):
    """All examples are answered, and rightly."""
    examples = some(model, number, **more)
    answers, problem = ask(model, examples)
    scores = [string_match_all(answers[i].text, examples[i].references) for i in sorted(answers)]
    assert (problem, scores) == ("", [1] * number)
    return examples, answers


def error(message, **more):
    return {"error": {"message": message, **more}}


def test_one_example_is_sent_in_the_order_of_the_caller(server):
    server.tokenizer = load_tokenizer(SMALL)
    model = client(server, prompt_path="ids", tokenizer=SMALL)
    examples = some(model, 2)
    for index in (1, 0, 1):
        answer = model.send(examples[index], cache_salt=str(index))
        assert examples[index].references[0] in answer.text
        assert answer.usage["prompt_tokens"] == examples[index].num_tokens
        assert answer.usage["cached_tokens"] == 128
    assert [body["cache_salt"] for body in server.real[-3:]] == ["1", "0", "1"]

    server.behave = lambda body: (400, {}, error("no"))
    assert isinstance(model.send(examples[0]), Failure), "this example alone"
    server.behave = lambda body: (402, {}, error("no credit"))
    with pytest.raises(UserError, match="no credit"):
        model.send(examples[0])
    model.close()


def test_a_cell_is_stored_with_its_path_and_what_it_took(server, tmp_path):
    server.tokenizer = load_tokenizer(SMALL)
    model = client(server, extra_body={"seed": 7}, tokenizer=SMALL)
    cell = predict(model, some(model), tmp_path / "run", progress=False)
    assert not cell.coverage.missing
    described = {"path": "m", "prompt_path": "ids", "extra_body": {"seed": 7}}
    described["server"] = {"id": "m", "owned_by": "tests"}
    assert cell.record["result"]["model"] == {"name": "m", "engine": "openai", **described}
    usage = cell.rows[0]["usage"]
    assert (usage["server_model"], usage["server_finish_reason"]) == ("m-0613", "stop")
    assert all(body["seed"] == 7 for body in server.seen)
    other = client(server, prompt_path="text", extra_body={"seed": 7}, tokenizer=SMALL)
    with pytest.raises(UserError, match='prompt_path "ids", now it is "text"'):
        predict(other, some(other), tmp_path / "run", progress=False)


def test_requests_are_under_way_together(server):
    model = client(server, concurrency=4)
    server.behave = lambda body: time.sleep(0.05)
    assert len(ask(model, some(model, 20))[0]) == 20
    assert server.most_at_once == 4


TEMPLATE = "{{ bos_token }}<|user|>{{ messages[-1]['content'] }}<|end|><|assistant|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-pair tokenizer with a BOS and a chat template."""
    made = tmp_path_factory.mktemp("tokenizer")
    names = ("niah_single_2", "vt", "qa_1")
    texts = [generate(task(n).with_corpora("builtin"), 2048, 1)[0].prompt for n in names]
    marks = ("<|user|>", "<|end|>", "<|assistant|>")
    save_tokenizer(made, texts, 2000, *marks, template=TEMPLATE)
    return made


def test_a_server_adds_no_bos_that_the_template_leaves_out(folder):
    about = {"tokenizer": str(folder), "prompt_path": "text"}
    about["template"] = TEMPLATE.removeprefix("{{ bos_token }}")
    with serving(ReaderServer(load_tokenizer(str(folder)))) as server:
        ask_and_check(client(server, **about))
    with serving(ReaderServer(load_tokenizer(str(folder)), True)) as server:
        model = client(server, **about)
        answers, problem = ask(model, some(model))
        assert (answers, server.real) == ({}, [])
        assert "puts <s> before each prompt" in problem
        assert "add_special_tokens: false" in problem


def no_ids(body):
    ids = isinstance(body.get("prompt"), list)
    return (400, {}, {"detail": "prompt must be a string."}) if ids else None


def no_completions(body):
    return (404, {}, error("This is a chat model.", code=None)) if "prompt" in body else None


@pytest.mark.parametrize(
    ("behave", "path"), [(lambda body: None, "ids"), (no_ids, "text"), (no_completions, "chat")]
)
def test_auto_takes_the_first_path_that_the_server_takes(server, behave, path):
    server.behave, server.tokenizer = behave, load_tokenizer(SMALL)
    model = client(server, tokenizer=SMALL)
    assert model.identity()["prompt_path"] == path
    assert model.prompt_format.form == ("gpt-4" if path == "chat" else "base")
    examples, answers = ask_and_check(model, name="niah_multiquery")
    for index, answer in answers.items():
        # A chat's content begins without the blank of a template.
        less = examples[index].num_tokens - answer.usage["prompt_tokens"]
        assert less in ((0, 1) if path == "chat" else (0,))
        assert answer.usage["completion_tokens"] == answer.num_tokens
    body, most = server.real[-1], examples[0].max_new_tokens
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0, most, "m")
    asked = len(server.seen)
    assert model.identity()["prompt_path"] == path
    assert len(server.seen) == asked
    if path == "text":
        problem = ask(client(server, prompt_path="ids", tokenizer=SMALL), some(model))[1]
        assert "HTTP 400: prompt must be a string" in problem


def test_ids_of_the_builtin_tokenizer_are_never_sent(server):
    """It gives them out anew in each process."""
    assert client(server).identity()["prompt_path"] == "text"
    ask_and_check(client(server))
    assert all(isinstance(body["prompt"], str) for body in server.seen)
    with pytest.raises(UserError, match="ids of `tokenizer: builtin` mean nothing to a server"):
        client(server, prompt_path="ids")


def test_a_server_that_counts_no_tokens_is_sent_texts(server, folder):
    """Nobody would see that ids of another tokenizer are other words to it."""
    server.amend = lambda body, reply: reply.pop("usage")
    model = client(server, tokenizer=str(folder))
    assert model.identity()["prompt_path"] == "text"
    ask_and_check(model)
    chosen = client(server, tokenizer=str(folder), prompt_path="ids")
    assert chosen.identity()["prompt_path"] == "ids"


def test_ids_of_another_tokenizer_are_never_sent(server, folder):
    for path in ("auto", "ids", "text"):
        with pytest.raises(UserError, match=r"counts \d+ tokens where the tokenizer .* counts \d+"):
            _ = client(server, tokenizer=str(folder), prompt_path=path).server
    assert server.real == []
    # a closed service: its own counts are recorded, ours decide the length
    chat = client(server, tokenizer=str(folder), prompt_path="chat", template="gpt-4")
    assert not chat.server.exact_tokenizer
    ask_and_check(chat)


def reply(finish, content="half", **more):
    """A reply of a completion and of a chat alike."""
    message = {"role": "assistant", "content": content, **more}
    choice = {"finish_reason": finish, "text": content, "message": message}
    return {"choices": [choice], "usage": {"completion_tokens": 3}}


REFUSAL = {"type": "refusal", "refusal": "I may not."}
ALWAYS = [
    ((400, {}, error("not\nthis one")), "HTTP 400: not this one", False),
    ((400, {}, error("filtered", code="content_filter")), "HTTP 400: filtered", True),
    ((200, {}, reply("SAFETY")), "the service declined (safety)", True),
    ((200, {}, reply("stop", "", refusal="I cannot.")), "the service declined (I cannot.)", True),
    ((200, {}, reply("stop", [REFUSAL])), "the service declined (I may not.)", True),
    ((500, {}, error("the card fell off the bus")), "HTTP 500: the card fell off the bus", False),
]
"""What a server does with a prompt however often it is asked, the reason in the ledger, and whether
that is a refusal."""


def test_what_a_server_never_answers_stands_in_the_ledger_and_is_asked_again(server, tmp_path):
    sent = []

    def behave(body):
        if body["max_tokens"] == PROBE:
            return None
        if body["prompt"] not in sent:
            sent.append(body["prompt"])
        number = sent.index(body["prompt"])
        return ALWAYS[number][0] if number < len(ALWAYS) else None

    server.behave = behave
    model = client(server, prompt_path="text", max_retries=1, concurrency=1)
    cell = predict(model, some(model, 8), tmp_path / "run", progress=False)
    failed = [(one.reason, one.refused) for one in cell.coverage.failed.values()]
    assert sorted(failed) == sorted((reason, refused) for _, reason, refused in ALWAYS)
    server.behave = lambda body: None
    asked = len(server.real)
    again = predict(model, some(model, 8), tmp_path / "run", progress=False)
    assert (again.coverage.missing, len(server.real) - asked) == ([], len(ALWAYS))


def test_a_storm_of_failures_ends_the_sending(server):
    model = client(server, concurrency=2, max_retries=1)
    examples = some(model, 40)
    server.behave = lambda body: (500, {}, error("no")) if body["max_tokens"] != PROBE else None
    failed, problem = ask(model, examples)
    assert re.search("6 requests to http.* in a row had no answer", problem)
    assert 0 < len(failed) < 6
    assert all(isinstance(failure, Failure) for failure in failed.values())


def test_a_wait_that_a_server_asks_for_holds_all_requests(server):
    busy = []
    times = []

    def behave(body):
        if body["max_tokens"] == PROBE:
            return None
        times.append(time.monotonic())
        if busy:
            return None
        busy.append(time.monotonic())
        return 429, {"Retry-After": "1"}, error("busy")

    server.behave = behave
    ask_and_check(client(server, concurrency=3), 12)
    assert not any(busy[0] + 0.3 < moment < busy[0] + 1 for moment in times)
    assert max(times) > busy[0] + 1


@pytest.mark.slow
def test_a_server_that_hangs_is_named_and_not_waited_for_forever(server):
    model = client(server, concurrency=2, timeout=0.5, max_retries=1)
    examples = some(model, 40)
    _ = model.server
    server.behave = lambda body: server.released.wait(20) and None
    start = time.perf_counter()
    answers, problem = ask(model, examples)
    assert time.perf_counter() - start < 15
    assert len(answers) <= 2  # none but those that were under way for the second time
    assert re.search(r"in a row had no answer \(no answer within .*`timeout: SECONDS`", problem)
    assert len(server.real) < 12
    with pytest.raises(UserError, match=r"no answer within 0.5 s: is it busy or still loading"):
        _ = client(server, timeout=0.5).server


def test_a_server_that_cuts_the_prompt_is_found_out(server, tmp_path):
    def amend(body, reply):
        reply["usage"]["prompt_tokens"] = min(512, reply["usage"]["prompt_tokens"])

    server.amend = amend
    model = client(server, concurrency=2)
    with pytest.raises(UserError, match=r"cut the prompt: it read 512 of \d+ tokens"):
        predict(model, some(model), tmp_path / "run", progress=False)
    assert list(tmp_path.rglob("*.json*")) == [], "nothing is written before the first answer"
    assert len(server.real) <= 5


def test_a_length_that_a_server_refuses_failed_and_what_it_cannot_count_is_said(
    server, tmp_path, rulerkit
):
    words = "This model's maximum context length is 512 tokens"
    server.behave = lambda body: (400, {}, error(words)) if len(body["prompt"]) > 3000 else None
    server.amend = lambda body, reply: reply.pop("usage")
    about = {"path": "m", "base_url": server.url, "tokenizer": "builtin", "prompt_path": "text"}
    asked = {"model": about, "num_examples": 2, "lengths": [512, 1024], "outputs": str(tmp_path)}
    asked["tasks"] = [{"base": "niah_single_1", "name": "niah_small", "suite": "small"}]
    ended = rulerkit("evaluate", "-y", json.dumps(asked))
    assert ended.status == 3
    assert f"HTTP 400: {words}" in ended.err
    assert "0/2, 2 failed" in ended.out
    assert "2 of 2 examples of niah_small at 1024 have no answer" in ended.err
    notes = " ".join(ended.out.split())
    assert "does not say how many tokens it read: a cut prompt would go unseen" in notes


def test_a_thought_that_the_server_takes_apart_is_put_back(server):
    def amend(body, reply):
        reply["choices"][0]["message"]["reasoning_content"] = "hm"

    server.amend = amend
    thinking = {"prompt_path": "chat", "thinking_tokens": 64, "enable_thinking": True}
    model = client(server, base_url=f"{server.url}/", **thinking)
    examples = some(model, 2)
    answers, problem = ask(model, examples)
    assert problem == ""
    assert all(answer.text.startswith("<think>hm</think>") for answer in answers.values())
    assert server.real[-1]["max_tokens"] == examples[0].max_new_tokens + 64
    assert server.real[-1]["chat_template_kwargs"] == {"enable_thinking": True}


def test_a_key_is_sent_and_never_shown(server, monkeypatch):
    model = client(server, api_key_env="A_KEY_OF_OURS")
    with pytest.raises(UserError, match=r"A_KEY_OF_OURS.* is not set"):
        _ = client(server, api_key_env="A_KEY_OF_OURS", tokenizer="no/such").prompt_format
    monkeypatch.setenv("A_KEY_OF_OURS", "sk-very-secret-0123456789")
    examples = some(model, 3)
    server.behave = lambda body: (401, {}, error("Incorrect key: sk-very-secret-0123456789."))
    answers, problem = ask(model, examples)
    assert answers == {}
    assert "HTTP 401: Incorrect key: ***" in problem
    assert "api_key_env" in problem
    assert "secret" not in problem
    assert server.authorization == "Bearer sk-very-secret-0123456789"
    with pytest.raises(UserError, match="never the key itself") as caught:
        client(server, api_key_env="sk-very-secret-0123456789")
    assert "secret" not in str(caught.value)


def test_secrets_of_a_mapping_stand_in_no_record_and_no_message(server, tmp_path):
    headers = {"Authorization": "Bearer hush-4-0123"}
    hidden = {
        "base_url": server.url.replace("//", "//me:hush-1-0123@") + "?code=hush-2-0123",
        "extra_body": {"api_key": "hush-3-0123", "headers": headers, "stop_token_ids": [1]},
    }
    model = client(server, **hidden)
    predict(model, some(model, 1), tmp_path / "run", progress=False)
    assert server.seen[-1]["api_key"] == "hush-3-0123"
    server.behave = lambda body: (
        (403, {}, error(f"no access for {body}")) if body["max_tokens"] != PROBE else None
    )
    model = client(server, **hidden)  # one that was not answered before
    problem = ask(model, some(model, 1))[1]
    assert "HTTP 403" in problem
    with pytest.raises(UserError) as caught:
        client(server, base_url="ftp://me:hush-5-0123@host?key=hush-6-0123")
    text = (tmp_path / "run/m/niah_single_1/1024.json").read_text()
    assert all("hush" not in each for each in (problem, str(caught.value), text))
    record = json.loads(text)
    assert record["environment"]["base_url"] == server.url.replace("//", "//***@") + "?***"
    assert record["result"]["model"]["extra_body"]["stop_token_ids"] == [1]


@pytest.mark.parametrize(
    ("headers", "code", "words"),
    [
        ({}, "insufficient_quota", "HTTP 429: no more: run the same command again once it takes"),
        ({"Retry-After": "7200"}, None, "asks to wait 7200 s"),
    ],
)
def test_a_spent_quota_is_not_asked_again(server, headers, code, words):
    model = client(server, concurrency=1)
    examples = some(model, 20)
    server.behave = lambda body: (429, headers, error("no more", code=code))
    answers, problem = ask(model, examples)
    assert answers == {}
    assert words in problem
    assert len(server.real) <= 3


def test_a_server_that_does_not_work(server):
    for status, body, words in (
        (502, "<html><b>Bad gateway</b></html>", "HTTP 502: an HTML page, Bad gateway"),
        (200, "{oops", "without a completion"),
        (200, {"choices": []}, r"without a completion \(.*'choices': \[\]"),
        (200, {"choices": [{"text": 7}]}, r"without a completion \(its content is 7"),
    ):
        server.behave = lambda _, answer=(status, {}, body): answer
        with pytest.raises(UserError, match=rf"does not work: .*{words}.* look into the server's"):
            _ = client(server, max_retries=0).server


def test_lengths_beyond_what_the_server_takes_are_named(server):
    server.base = "/v1beta/openai"  # services have other addresses than vLLM's
    server.listing = {"data": [{"id": "m", "max_model_len": 2048}]}
    model = client(server)
    assert model.too_long(2048) is None
    assert "its limit is 2048 tokens: lengths up to 2048 fit" in model.too_long(2049)
    seen = len(server.seen)
    assert client(server, prompt_path="text", max_length="4K").too_long(4096) is None
    assert len(server.seen) == seen  # what the mapping says needs no server
