# ruff: noqa: F811
"""What a server read of a prompt and wrote of an answer is judged by its counts: servers that cut
prompts, add to them, ignore limits or think, and say so in their counts alone."""

import pytest

from rulerkit.generation.tokenizers import load_tokenizer
from rulerkit.inference.model import Failure
from tests.test_openai import ask, ask_and_check, client, error, server, some  # noqa: F401
from tests.text_server import PROBE

BUILTIN = load_tokenizer("builtin")


def counting(server, ratio=1.0, frame=0, context=10**9, cached=0, apart=False):
    """Let a server count with another tokenizer, put a frame around prompts, read only what fits
    into its context, and have a part of it in its cache, which it may count apart."""

    def amend(body, reply):
        tokens = round(ratio * server.read(body)[1]) + frame
        tokens = min(context, tokens)
        in_cache = min(cached, tokens - 1)
        reply["usage"]["prompt_tokens"] = tokens - in_cache * apart
        reply["usage"]["prompt_tokens_details"] = {"cached_tokens": in_cache}

    server.amend = amend


@pytest.mark.parametrize(("path", "missing"), [("chat", 12), ("text", 300)])
def test_a_cut_is_seen_to_the_token_where_counts_are_exact(server, path, missing):
    model = client(server, prompt_path=path)
    examples = some(model, 3)
    ask_and_check(model, 3)
    counting(server, context=examples[0].num_tokens - missing)
    answers, problem = ask(client(server, prompt_path=path), examples)
    assert answers == {}
    assert "the server cut the prompt" in problem


@pytest.mark.parametrize(
    ("ratio", "frame", "context"), [(0.7, 30, 840), (1.5, 30, 1800), (1.0, 900, 2200)]
)
def test_a_cut_is_seen_by_estimate_whatever_tokenizer_and_frame(server, ratio, frame, context):
    counting(server, ratio, frame)
    ask_and_check(client(server, prompt_path="chat"), 3, length=2048)
    counting(server, ratio, frame, context)
    model = client(server, prompt_path="chat")
    answers, problem = ask(model, some(model, 3, length=2048))
    assert answers == {}
    assert "the server cut the prompt" in problem


def test_cached_tokens_that_are_counted_apart_are_added(server):
    for path, ratio in (("chat", 1.0), ("chat", 1.2), ("text", 1.0)):
        counting(server, ratio, cached=10**6, apart=True)
        ask_and_check(client(server, prompt_path=path), 4)
    # Those that are within the count do not make up for what is missing.
    counting(server, cached=200, context=600)
    answers, problem = ask(model := client(server, prompt_path="chat"), some(model))
    assert answers == {}
    assert "the server cut the prompt" in problem


def test_what_a_server_adds_and_what_goes_unseen_is_said(server, nowhere, rulerkit):
    def evaluated(run, **counts):
        counting(server, **counts)
        mapping = f"{{path: m, base_url: '{server.url}', tokenizer: builtin, prompt_path: chat}}"
        asked = ("--tasks", "niah_single_1", "--lengths", "1K", "-n", "1", "-y", f"run: {run}")
        return " ".join(rulerkit("evaluate", mapping, *asked).out.split())

    assert "adds 700 tokens to each prompt, beyond its length" in evaluated("a", frame=700)
    assert "to each prompt" not in evaluated("b", frame=8)
    assert "by less than a quarter would go unseen" in evaluated("c", ratio=1.2)


def test_a_limit_of_the_server_counts_its_frame(server):
    server.listing = {"data": [{"id": "m", "max_model_len": 1500}]}
    assert client(server, prompt_path="chat").too_long(1024) is None
    counting(server, frame=600)
    assert "1624 tokens are needed" in client(server, prompt_path="chat").too_long(1024)


def test_counts_that_are_left_out_within_a_run_are_recorded(server):
    """The note below the table is made from the record."""
    model = client(server, prompt_path="chat")
    ask_and_check(model, 2)
    assert model.environment()["server"]["counts"] is True

    def amend(body, reply):
        reply["usage"]["prompt_tokens"] = None

    server.amend = amend
    ask_and_check(model, 3, name="niah_single_2")
    assert model.environment()["server"]["counts"] is False


@pytest.mark.parametrize("counts", [True, False])
def test_an_answer_ends_at_its_limit_whatever_the_server_does(server, counts):
    def amend(body, reply):
        if body["max_tokens"] == PROBE:
            return
        choice = reply["choices"][0]
        choice |= {"text": "Let me see. " * 200 + choice["text"], "finish_reason": "stop"}
        tokens = BUILTIN.count(choice["text"])
        reply["usage"]["completion_tokens"] = tokens if counts else None

    server.amend = amend
    model = client(server, prompt_path="text")
    examples = some(model, 2)
    answers, _ = ask(model, examples)
    for index, answer in answers.items():
        assert (answer.finish_reason, answer.num_tokens) == ("length", 128)
        assert examples[index].references[0] not in answer.text


def test_an_answer_in_more_tokens_of_ours_than_of_the_server_is_whole(server):
    def amend(body, reply):
        reply["choices"][0]["message"]["content"] = "a b c d e " * 20
        reply["usage"]["completion_tokens"] = 100

    server.amend = amend
    answers, _ = ask(model := client(server, prompt_path="chat"), some(model, 1))
    assert answers[0].text == "a b c d e " * 20


def test_a_server_that_returns_the_prompt_is_found_out_before_its_answer_is_cut(server):
    def amend(body, reply):
        if body["max_tokens"] != PROBE:
            reply["choices"][0]["text"] = server.read(body)[0] + "It is 4711."

    server.amend = amend
    answers, problem = ask(model := client(server, prompt_path="text"), some(model))
    assert answers == {}
    assert "returned the prompt" in problem


def thinking(server, content, reason, apart=False):
    """A server whose model thinks: in a field of its own, or told by its counts alone."""

    def amend(body, reply):
        if body["max_tokens"] == PROBE:
            return
        message = {"content": content}
        if apart:
            reply["usage"]["completion_tokens_details"] = {"reasoning_tokens": 128}
        else:
            message["reasoning"] = "It says no or None."
        reply["choices"] = [{"finish_reason": reason, "message": message}]

    server.amend = amend


@pytest.mark.parametrize(
    ("content", "reason", "apart"),
    [(None, "length", False), ("", "stop", False), ("", "length", True)],
)
def test_a_model_that_thinks_by_default_is_told_what_to_set(server, content, reason, apart):
    thinking(server, content, reason, apart)
    model = client(server, prompt_path="chat", concurrency=2)
    answers, problem = ask(model, some(model))
    assert answers == {}
    assert "thinking_tokens" in problem
    assert "enable_thinking: false" in problem
    assert len(server.real) <= 4


def test_a_thought_with_no_answer_behind_it_is_a_failure(server):
    thinking(server, None, "stop")
    room = {"thinking_tokens": 50, "thinking_marks": ["<think>", "</think>"]}
    model = client(server, prompt_path="chat", **room)
    answers, _ = ask(model, some(model, 2))
    assert all(isinstance(answer, Failure) for answer in answers.values())
    assert "None" not in {getattr(answer, "text", "") for answer in answers.values()}
