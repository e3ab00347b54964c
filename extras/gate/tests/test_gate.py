"""`rulerkit gate`: the verdict, what is asked for it, and what it writes; and likely first
mistakes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rulerkit.analysis.compare import PairedDifferences
from rulerkit.evaluation.rounds import rounds
from rulerkit_gate.sequential import Design, GateRule
from tests.processes import hear_signals

GRID = ("--tasks", "vt,niah_single_1", "--lengths", "1K,2K")


def answers(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jsonl")}


def num_rows(folder):
    files = [*folder.rglob("*.jsonl")]
    return sum(file.read_bytes().count(b"\n") for file in files)


# --- the decision ---------------------------------------------------------------------------------


def pairs_with(loss, flips=0.02, seed=1, num_tasks=4, num_lengths=3, most=160):
    """Stored answers of two models; `loss` is a share of lost answers by task and length."""
    random = np.random.default_rng(seed)
    shape = (num_tasks, num_lengths, most)
    lost = flips + np.broadcast_to(loss, shape[:2])[..., None]
    a = random.random(shape) < 0.8
    chance = random.random(shape)
    b = np.where(a, chance >= lost / 0.8, chance < flips / 0.2)
    task, length, index = (places.ravel() for places in np.indices(shape))
    return pd.DataFrame({
        "task": [f"niah_{number}" for number in task],
        "length": 4096 * (1 + length),
        "index": index,
        "a": a.ravel() * 1.0,
        "b": b.ravel() * 1.0,
        "difference": b.ravel() * 1.0 - a.ravel(),
    })  # fmt: skip


def ended(pairs, margin=1.0):
    keys = pairs[["task", "length"]].drop_duplicates()
    cells = tuple(keys.itertuples(index=False, name=None))
    most = int(pairs["index"].max()) + 1
    differences = PairedDifferences(pairs)
    rule = GateRule(Design(cells, most, margin), lambda _: differences)
    for _ in rounds(rule.wanted):
        pass  # all answers are there
    return rule


@pytest.mark.slow
def test_a_loss_at_the_margin_is_seldom_called_worse_however_often_it_is_looked_at():
    """Both sides of the boundary: at the margin at most 5 % of runs, far beyond it all."""
    wrong = [bool(ended(pairs_with(0.05, seed=seed), margin=5.0).last.worse) for seed in range(60)]
    assert sum(wrong) <= 6, "5 % of 60 runs, and what chance adds in 1 of 50 tries"
    found = [bool(ended(pairs_with(0.2, seed=seed), margin=5.0).last.worse) for seed in range(20)]
    assert all(found)


def test_the_place_of_a_loss_goes_on_alone_and_is_named():
    loss = np.zeros((4, 3))
    loss[2] = 0.15
    end = ended(pairs_with(loss))
    assert end.last.worse[0].place.name in ("niah_2", "all tasks")
    sizes = {task: size for (task, _), size in end.reached.items()}
    assert sizes["niah_2"] >= max(sizes.values())
    assert sum(end.reached.values()) < 4 * 3 * 160


def test_more_stored_answers_change_no_verdict_that_is_reached():
    """What was not looked at cannot matter: a run that is resumed ends as one that was not."""
    pairs = pairs_with(0.0, flips=0.001)
    whole = ended(pairs)
    assert whole.last.is_not_worse
    least = min(whole.reached.values())
    assert least < 160
    changed = pairs.copy()
    changed.loc[changed["index"] >= max(whole.reached.values()), "difference"] = -1
    again = ended(changed)
    assert (again.last.is_not_worse, again.reached) == (True, whole.reached)


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_addresses_and_a_verdict(nowhere, serve, rulerkit):
    """Worse, with its page; the baseline's answers then stand in for its server."""
    before, after = serve(), serve(lambda prompt: "VAR " in prompt)
    both = (before.url, after.url, "-y", "tokenizer: builtin")
    said = rulerkit("gate", *both, *GRID, "--page", "page.html", "--format", "github")
    assert said.status == 1, said.err
    assert said.out.startswith("## ❌ worse\n")
    assert re.search(r"\| vt \| \*\*-\d", said.out)
    assert "| niah_single_1 | +0.0 (-" in said.out
    assert "at least 40 examples" in said.err
    page = Path("page.html").read_text(encoding="utf-8")
    assert "I do not know." in page

    requests = len(before.seen)
    (stored,) = (nowhere / "outputs/predictions").glob(f"gate-*/*{before.server_address[1]}")  # fmt: skip
    again = rulerkit("gate", stored, after.url, "-y", "tokenizer: builtin", "--json")
    assert (again.status, len(before.seen)) == (1, requests)
    content = json.loads(again.out)
    assert content["verdict"]["word"] == "worse"
    cells = [row for row in content["rows"] if row["level"] == "cell"]
    assert content["asked"]["examples"] == sum(cell["n"] for cell in cells)


def test_two_addresses_are_enough(nowhere, serve, rulerkit):
    """A server whose tokenizer nobody knows gets texts, whatever it counts, and no ids."""
    servers = serve(), serve()
    for server in servers:

        def amend(body, reply):
            reply["usage"]["prompt_tokens"] = round(1.15 * reply["usage"]["prompt_tokens"])

        server.amend = amend
    urls = [server.url for server in servers]
    said = rulerkit("gate", *urls, "--tasks", "vt", "--lengths", "1K", "--margin", "20")
    assert said.status == 0, said
    known = [line for line in said.lines if "is not known: lengths are approximate" in line]
    assert len(known) == 1
    first, *others = said.out.splitlines()
    assert first.startswith("NOT WORSE: mean ")
    assert len(others) <= 10
    assert {type(body["prompt"]) for server in servers for body in server.seen} == {str}


@pytest.mark.slow
def test_one_line_says_what_pairs_chats_with_completions(nowhere, serve, rulerkit):
    before, after = serve(), serve()
    after.behave = lambda body: (404, {}, {}) if "prompt" in body else None
    both = ("gate", before.url, after.url, "--tasks", "niah_single_1", "--lengths", "1K")
    refused = rulerkit(*both, "-n", "10")
    assert refused.status == 2
    ways = re.findall(r"-y '((?:prompt_path|template): .+?)'", refused.lines[-1])
    assert len(ways) == 2
    for way in ways:
        assert rulerkit(*both, "-n", "10", "-y", way, "--margin", "90").status == 0


def test_what_the_servers_do_beside_their_answers_is_noted(nowhere, serve, rulerkit):
    """Requests that succeed at the second try, answers that are cut, one token more a prompt."""
    before, after = serve(), serve()
    failed = set()

    def fail_first(body):
        is_first = str(body["prompt"]) not in failed and len(failed) < 4
        failed.add(str(body["prompt"]))
        return (500, {}, {"error": {"message": "out of memory"}}) if is_first else None

    def amend(body, reply):
        reply["usage"]["prompt_tokens"] += 1
        reply["choices"][0]["finish_reason"] = "length"

    after.behave, after.amend = fail_first, amend
    few = ("--tasks", "niah_single_1", "--lengths", "1K", "-n", "10")
    said = rulerkit("gate", before.url, after.url, *few)
    name = f"m at 127.0.0.1:{after.server_address[1]}"
    (note,) = [line for line in said.out.splitlines() if line.startswith("Note: ")]
    assert re.search(rf"Note: [1-4] of 10 answers of {name} came only when a request", note)
    assert f"10 answers of {name} and 0 of m at " in note
    assert f"{name} counts +1 tokens in each prompt" in note


def test_each_server_gets_its_own_key(nowhere, serve, rulerkit, monkeypatch):
    before, after = serve(), serve()
    monkeypatch.setenv("BEFORE", "secret-of-before")
    monkeypatch.setenv("AFTER", "secret-of-after")
    keys = ("--baseline-key", "BEFORE", "--candidate-key", "AFTER")
    few = ("--tasks", "niah_single_1", "--lengths", "1K", "-n", "4")
    for candidate in (after.url, f"{{base_url: '{after.url}'}}"):
        said = rulerkit("gate", before.url, candidate, *keys, *few)
        assert said.status == 3, said
        assert before.authorization == "Bearer secret-of-before"
        assert after.authorization == "Bearer secret-of-after"
        assert "secret-of" not in said.out + said.err
        after.authorization = None


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_answers(nowhere, serve, end):
    server = serve()

    def slow(body):
        time.sleep(0.05)

    server.behave = slow
    code = "from rulerkit.cli import main; main()"
    command = [sys.executable, "-c", code, "gate", server.url, server.url, *GRID]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=hear_signals, **pipes) as process:
        while num_rows(nowhere) < 5 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(end)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (128 + end, "")
    assert err.endswith("the same command with --resume goes on\n")
    assert num_rows(nowhere) >= 5


@pytest.mark.slow
def test_equal_servers_are_not_worse(nowhere, serve, rulerkit):
    server = serve()
    one = (server.url, server.url, "-y", "tokenizer: builtin", "--json")
    said = rulerkit("gate", *one, "--tasks", "niah_single_1", "--lengths", "1K")
    content = json.loads(said.out)
    assert said.status == 0
    assert "bound: lost unseen at most" in content["verdict"]["text"]
    runs = {path.name for path in (nowhere / "outputs/predictions").iterdir()}
    (first,) = [run.removesuffix("-a") for run in runs if run.endswith("-a")]
    assert first.startswith("gate-")
    assert runs == {f"{first}-a", f"{first}-b"}
    later = rulerkit("gate", *one, "-n", "10", *GRID)
    assert later.status == 3, "ten examples say little"
    assert "examples per task and length would tell" in json.loads(later.out)["verdict"]["text"]


def test_limits_end_it_with_what_it_would_take(nowhere, rulerkit):
    both = ("perfect", "{base: perfect, engine: planted, drop: 0.02}", *GRID)
    small = rulerkit("gate", *both, "--budget", "200K")
    assert small.status == 3, small.err
    assert "stopped by --budget; about " in small.out
    tiny = rulerkit("gate", *both, "--budget", "10K")
    assert tiny.status == 2
    assert "less than the first round takes: 40 examples, 122,880 tokens" in tiny.err
    late = rulerkit("gate", *both, "--minutes", "0", "-y", "run: late")
    assert (late.status, "--minutes 0" in late.out) == (3, True)


def test_the_name_of_a_model_asks_it_though_it_has_answers(nowhere, rulerkit):
    """RUN/MODEL means the two answers of each cell alone."""
    assert rulerkit("evaluate", "reader-1024", *GRID, "-n", "2").status == 0
    stored = rulerkit("gate", "main/reader-1024", "perfect", *GRID)
    assert (stored.status, "Asked 8 examples" in stored.out) == (3, True)
    found = rulerkit("gate", "reader-1024", "perfect", *GRID, "-n", "10")
    assert "Asked 40 examples" in found.out


@pytest.mark.slow
def test_a_server_that_is_swapped_between_two_calls_is_judged_anew(nowhere, serve, rulerkit):
    """Answers of an earlier call are used only with --resume, whatever the run is called."""
    before, after = serve(), serve(lambda prompt: broken)
    both = ("gate", before.url, after.url, "-y", "tokenizer: builtin", *GRID)
    for run in ((), ("-y", "run: build-7")):
        broken = False
        assert rulerkit(*both, *run).out.startswith("NOT WORSE: ")
        seen = len(before.seen), len(after.seen)

        broken = True
        second = rulerkit(*both, *run)
        assert second.status == 1, second.out
        assert len(before.seen) >= seen[0] + 40
        assert len(after.seen) >= seen[1] + 40

        broken = False
        asked = len(after.seen)
        resumed = rulerkit(*both, *run, "--resume")
        assert resumed.status == 1
        assert len(after.seen) < asked + 10, "probes alone"


def test_resume_goes_on_with_the_last_gate_of_the_same_two(nowhere, rulerkit):
    """Not with a later one of the baseline and another candidate, or of the baseline alone."""
    few = ("--tasks", "vt", "--lengths", "1K", "-n", "10")
    first = rulerkit("gate", "perfect", "reader-1024", *few)
    run = re.search(r"run (gate-[\w-]+):", first.err)[1]
    rulerkit("gate", "perfect", "reader-4096", *few)
    rulerkit("gate", "perfect", "perfect", *few)
    resumed = rulerkit("gate", "perfect", "reader-1024", *few, "--resume")
    assert f"run {run}:" in resumed.err
    assert resumed.out.splitlines()[0] == first.out.splitlines()[0]


def test_what_cannot_be_paired_says_how(nowhere, rulerkit):
    other = "{base: perfect, template: llama2, name: framed}"
    said = rulerkit("gate", "perfect", other, *GRID)
    assert said.status == 2
    assert "are not asked the same prompts (prompt_format.template: " in said.err
    assert "--by index" in said.err
    by_index = ("--by", "index", "-n", "10")
    assert rulerkit("gate", "perfect", other, *GRID, *by_index).status == 3


@pytest.mark.slow
def test_killed_and_resumed_it_ends_the_same(nowhere, serve):
    def call(run, url):
        few = ("--tasks", "vt,niah_single_1", "--lengths", "1K", "-n", "40")
        asked = [*few, "-y", f"run: {run}", "--json", "--resume"]
        code = "from rulerkit.cli import main; main()"
        # Ids of the built-in tokenizer are those of one process: the server gets texts.
        served = {"base_url": url, "path": "m", "prompt_path": "text"}
        model = json.dumps(served | {"tokenizer": "builtin", "name": "served"})
        return [sys.executable, "-c", code, "gate", "perfect", model, *asked]

    url = serve(lambda prompt: len(prompt) % 7 == 0).url
    whole = subprocess.run(call("whole", url), capture_output=True, text=True)
    folder = nowhere / "outputs/predictions/cut-b"
    for least in (3, 30):
        with subprocess.Popen(
            call("cut", url), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            # In the middle of a round: some answers are there, not all.
            while num_rows(folder) < least and process.poll() is None:
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
    cut = subprocess.run(call("cut", url), capture_output=True, text=True)
    keys = ("verdict", "rows", "flips", "asked")
    one, other = (json.loads(done.stdout) for done in (whole, cut))
    assert [one[key] for key in keys] == [other[key] for key in keys]


# --- first mistakes -------------------------------------------------------------------------------

MISTAKES = {
    "gate perfect": ("Missing argument 'CANDIDATE'", "rulerkit gate --help"),
    "gate perfect perfekt": ("did you mean 'perfect'",),
    "gate outputs/predictions/main/perfect perfect": ("no folder", "outputs/predictions"),
}  # fmt: skip
"""What somebody types first, and what the one line must say: what is wrong, and what to do."""


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_first_mistake_is_one_line_with_the_way_out(nowhere, rulerkit, typed):
    ended = rulerkit(*typed.split())
    assert ended.status == 2, ended
    (line,) = ended.lines
    assert line.startswith("rulerkit: ")
    assert [part for part in MISTAKES[typed] if part not in line] == [], line
    assert answers(nowhere) == {}
