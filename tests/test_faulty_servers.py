"""What a server says or does costs the request that it answers, and no more."""

import json
import subprocess
import sys
import time
from collections import Counter

import pytest

from rulerkit.inference.model import Failure
from tests.faulty_replies import KINDS, deep
from tests.test_openai import PROBE, ask, ask_and_check, client, error, server, some

__all__ = ["server"]


@pytest.mark.parametrize("status", [401, 404])
def test_a_server_that_has_answered_may_refuse_once(server, status):
    """As a gateway does that changes its routes; before the first answer it is meant."""
    seen = []

    def behave(body):
        if body["max_tokens"] == PROBE:
            return None
        seen.append(body)
        return (status, {}, error("gone")) if len(seen) == 3 else None

    server.behave = behave
    ask_and_check(client(server, concurrency=1), 6)
    assert len(seen) == 7

    server.behave = lambda body: (
        (status, {}, error("gone")) if body["max_tokens"] != PROBE else None
    )
    model = client(server, concurrency=1)
    examples, before = some(model, 6), len(server.real)
    answers, problem = ask(model, examples)
    assert (answers, len(server.real) - before) == ({}, 1)
    assert f"HTTP {status}" in problem


@pytest.mark.parametrize("status", [408, 409, 425, 429, 503])
def test_a_status_that_may_be_over_soon_is_sent_again_and_others_are_not(server, status):
    seen = []

    def behave(body):
        if body["max_tokens"] == PROBE:
            return None
        seen.append(body)
        return {1: (status, {}, error("busy")), 3: (422, {}, error("no"))}.get(len(seen))

    server.behave = behave
    answers, problem = ask(model := client(server, concurrency=1), some(model, 3))
    failed = [one.reason for one in answers.values() if isinstance(one, Failure)]
    assert (problem, failed, len(seen)) == ("", ["HTTP 422: no"], 4)


BAD = [deep(100_000), '{"error": {"message": ' + deep(150) + ', "code": []}}', ""]


@pytest.mark.parametrize("reply", BAD, ids=["brackets", "error", "nothing"])
def test_whatever_a_reply_holds_is_a_failure_of_its_request(server, reply):
    model = client(server, concurrency=1, max_retries=0, prompt_path="text")
    examples = some(model, 4)
    asked = []

    def behave(body):
        if body["max_tokens"] == PROBE:
            return None
        asked.append(body)
        return (200, {}, reply) if len(asked) == 2 else None

    server.behave = behave
    answers, problem = ask(model, examples)
    assert problem == ""
    failed = [one for one in answers.values() if isinstance(one, Failure)]
    assert (len(answers), len(failed)) == (4, 1)
    assert len(failed[0].reason) < 400


def test_a_prompt_that_was_cut_once_is_its_own_failure_and_a_row_of_them_ends_the_run(server):
    cut = set()

    def amend(body, reply):
        if body["max_tokens"] == PROBE:
            return
        if len(server.real) in cut:
            reply["usage"]["prompt_tokens"] = 512

    server.amend = amend
    cut |= {2, 4}
    model = client(server, concurrency=1, prompt_path="text")
    examples = some(model, 6)
    answers, problem = ask(model, examples)
    failed = [one for one in answers.values() if isinstance(one, Failure)]
    assert (problem, len(answers), len(failed)) == ("", 6, 2)
    assert "the server cut the prompt: it read 512" in failed[0].reason

    cut |= {*range(8, 100)}
    answers, problem = ask(model, some(model, 9))
    assert "in a row had no answer (the server cut the prompt" in problem
    assert len(answers) == 4


ROUNDS = 4  # examples of each kind
KILLS = 3


@pytest.mark.slow
def test_no_kind_of_faulty_reply_loses_or_doubles_a_row(server, tmp_path):
    """Each example's first request is answered by one kind, its later ones rightly; the process is
    killed a few times, and the same command goes on."""
    names = [*KINDS]
    wanted = ROUNDS * len(names)
    kind_of, faults = {}, Counter()

    def behave(body):
        if body["max_tokens"] == PROBE:
            return None
        key = body["prompt"]
        with server.lock:
            if key in kind_of:
                return None
            kind_of[key] = names[len(kind_of) % len(names)]
        # A server that has answered nothing yet may end the run by one word.
        if len(kind_of) == 1:
            return None
        faults[kind_of[key]] += 1
        return KINDS[kind_of[key]](server.answer(body))

    server.behave = behave
    model = {"path": "m", "name": "m", "base_url": server.url, "tokenizer": "builtin"}
    model |= {"prompt_path": "text", "concurrency": 8, "timeout": 2, "max_retries": 2}
    study = {"model": model, "tasks": ["niah_single_1"], "lengths": [1024]}
    study |= {"num_examples": wanted, "outputs": str(tmp_path)}
    command = [sys.executable, "-m", "rulerkit", "evaluate", "-y", json.dumps(study)]

    def rows():
        text = "".join(file.read_text() for file in tmp_path.rglob("1024.jsonl"))
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    for kill in range(KILLS):
        running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while running.poll() is None and len(rows()) < (kill + 1) * wanted / 8:
            time.sleep(0.05)
        running.kill()
        running.wait()
    said = ""
    for _ in range(6):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
        said += ended.stderr
        if len({row["index"] for row in rows()}) == wanted:
            break
    found = rows()
    counts = Counter(row["index"] for row in found)
    examples = some(client(server, prompt_path="text"), wanted)
    wrong = {
        kind_of.get(examples[row["index"]].prompt): row["pred"]
        for row in found
        if examples[row["index"]].references[0] not in row["pred"]
    }
    assert "Traceback" not in said
    assert len(counts) == len(found) == wanted
    assert wrong == {}
    assert len(faults) == len(names)
