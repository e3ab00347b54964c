"""`rulerkit gate SERVER --serving`: what proves a loss, what is asked, and what it finds on servers
with a block cache and faults in it."""

import itertools
import json
import re
from pathlib import Path
from statistics import mean

import pytest

from extras.gate.tests.cache_server import FAULTS, BlockCache, CacheServer, Direct, started
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.inference.model import Failure
from rulerkit_gate.evidence import PROBES, STAKE, Evidence
from rulerkit_gate.serving import Limits, Run, run_serving
from rulerkit_gate.twins import Prompts, numbers_in

FORM = PromptFormat(tokenizer="builtin")
LENGTHS = (1024, 2048, 4096)


def checked(tmp_path, cache, seed=0, limits=None, **server):
    """A run without HTTP."""
    model = Direct(CacheServer(cache, seed=seed, **server), FORM)
    return run_serving(
        model, LENGTHS, limits or Limits(), seed, tmp_path / "asked.jsonl", lambda _: None
    )


# --- the evidence ---------------------------------------------------------------------------------


def test_a_bet_is_fair_and_eleven_losses_decide():
    """All sequences of losses, ties and gains are as likely as their mirror images: the mean is 1."""
    products = []
    for signs in itertools.product((-1, 0, 1), repeat=6):
        evidence = Evidence()
        for sign in signs:
            evidence.add("warm", 1024, float(sign == 1), float(sign == -1))
        products.append(evidence.of("warm"))
    assert mean(products) == pytest.approx(1)

    evidence = Evidence()
    for number in range(1, 12):
        evidence.add("late", 1024, 1.0, 0.0)
        assert evidence.is_worse == (number == 11)
    evidence.add("late", 1024, 0.0, 1.0)
    assert not evidence.is_worse
    assert evidence.of("late") == pytest.approx((1 + STAKE) ** 11 * (1 - STAKE))
    assert evidence.counts("late") == (12, 11, 1)


@pytest.mark.parametrize(
    ("num_values", "num_wrong", "num_leaks", "is_proof"),
    [(500, 1, 1, True), (500, 40, 1, False), (500, 40, 2, True), (3000, 2, 1, True)]
    + [(3000, 400, 2, False), (3000, 400, 4, True)],
)
def test_a_leak_is_a_proof_unless_a_weak_model_may_have_made_it_up(
    num_values, num_wrong, num_leaks, is_proof
):
    evidence = Evidence()
    values = [str(10**6 + number) for number in range(num_values)]
    evidence.hold(1, values)
    made_up = [str(9_000_000 + number) for number in range(num_wrong - num_leaks)]
    evidence.read(2, "the prompt holds 7777777", ", ".join(["7777777", *made_up]))
    assert not evidence.leaks
    evidence.read(3, "", ", ".join(values[:num_leaks]))
    assert (len(evidence.leaks), evidence.has_leaked) == (num_leaks, is_proof)


@pytest.mark.parametrize("lengths", [(1024,), LENGTHS])
def test_no_control_decides_twice_in_one_condition(tmp_path, lengths):
    """Its pairs would win and lose together: the bets would not be fair."""
    bets = []

    class Counted(Evidence):
        def add(self, probe, length, control, score):
            bets.append(probe)
            return super().add(probe, length, control, score)

    model = Direct(CacheServer(BlockCache(pool=2000)), FORM)
    run = Run(model, lengths, Limits(), 1, tmp_path / "a", lambda _: None, evidence=Counted())
    run.go()
    assert len(bets) == len(run.paired)
    assert bets.count("crowd") >= 6


# --- the prompts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "builtin",
        "gpt-neox",
        pytest.param("llama-3", marks=pytest.mark.slow),
        pytest.param("qwen2.5", marks=pytest.mark.slow),
    ],
)
def test_twins_and_clones_differ_where_they_should(name, request):
    tokenizer = name
    if name != "builtin":
        tokenizer = str(request.getfixturevalue("data") / "tokenizers" / name)
    form = PromptFormat(tokenizer=tokenizer)
    prompts = Prompts(form, 1)
    for length in (1024, 4096):
        a = prompts.fresh(length, length - prompts.answer_tokens)
        for share in (0.95, 0.5, 0.25):
            twin = prompts.twin(a, share)
            one, other = a.example.ids.tolist(), twin.example.ids.tolist()
            assert len(one) == len(other)
            first = next(
                i for i, pair in enumerate(zip(one, other, strict=True)) if len({*pair}) > 1
            )
            value = a.values[int(share * 12)]
            # The common beginning ends at the value, not inside it.
            assert form.tokenizer.decode(one[first:]).lstrip().startswith(value)
            assert a.values[: int(share * 12)] == twin.values[: int(share * 12)]
            assert {*a.values[int(share * 12) :]}.isdisjoint(twin.values)
            assert {*twin.example.references} == {*twin.values}

        clone = prompts.clone(a)
        assert clone.example.num_tokens == a.example.num_tokens
        number = re.compile(r"Record \d{12}")
        assert number.sub("", clone.example.prompt) == number.sub("", a.example.prompt)
        assert clone.example.prompt != a.example.prompt
        leading = list(form.leading_ids)
        ids = a.example.ids.tolist()
        assert ids[: len(leading)] == leading
        assert leading == [] or ids.count(leading[0]) == 1

        turn = prompts.turn(a, " 1234567")
        assert turn.example.prompt.startswith(a.example.prompt + " 1234567")
        assert turn.example.prompt.endswith(a.example.answer_prefix)
    values = [value for _ in range(5) for value in prompts.like(a).values]
    assert len({*values}) == len(values)


# --- servers --------------------------------------------------------------------------------------

SETTINGS = {
    "blocks of 16": {"pool": 2000},
    "hybrid": {"block": 528, "pool": 60, "sightings": 3},
}


@pytest.mark.parametrize("fault", ["HalfHashed", "Padded", "Turn"])
def test_a_planted_fault_is_found(tmp_path, fault):
    found = checked(tmp_path, FAULTS[fault](pool=2000))
    assert (found.word, found.status) == ("worse", 1), found.text


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found_in_nine_of_ten_seeds(tmp_path, fault):
    found = [checked(tmp_path, FAULTS[fault](pool=2000), seed).word for seed in range(10)]
    assert found.count("worse") >= 9


@pytest.mark.parametrize("flips", [0.0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_a_sound_server_is_sound(tmp_path, flips):
    found = checked(tmp_path, BlockCache(**SETTINGS["hybrid"]), flips=flips)
    assert (found.word, found.status) == ("sound", 0), found.text
    assert {one.probe for one in found.run.sent} >= {*PROBES}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_sound_and_noisy_servers_raise_no_false_alarm(tmp_path, setting):
    found = [
        checked(tmp_path, BlockCache(**SETTINGS[setting]), seed, flips=flips, details=seed % 2 == 0)
        for seed in range(4)
        for flips in (0.0, 0.02, 0.1)
    ]
    assert [one.text for one in found if one.word == "worse"] == []


@pytest.mark.parametrize(
    ("cache", "server", "words"),
    [
        ({"off": True}, {}, "the cache is off"),
        ({"block": 8320, "pool": 40}, {}, "longer --lengths"),
        ({}, {"details": False, "metrics": False}, "--enable-prompt-tokens-details"),
    ],
)
def test_nothing_is_sound_without_a_proven_hit(tmp_path, cache, server, words):
    limits = Limits(requests=100, pressure=20_000)
    found = checked(tmp_path, BlockCache(**cache), limits=limits, **server)
    assert (found.word, found.status) == ("cannot tell", 3), found.text
    assert words in found.text


@pytest.mark.slow
def test_metrics_stand_in_for_replies_that_do_not_count(tmp_path):
    found = checked(tmp_path, BlockCache(pool=2000), details=False)
    assert (found.word, found.run.counts_hits) == ("sound", "metrics")
    assert found.run.pool == 32_000


def test_cold_prompts_are_cold(tmp_path):
    found = checked(tmp_path, BlockCache(pool=2000), limits=Limits(requests=80))
    cold = [one for one in found.run.sent if one.probe == "cold"]
    # They share the words before their first number at most.
    assert max(one.cached or 0 for one in cold) <= 16


def test_the_order_of_a_case_and_the_crowd(tmp_path):
    """One request after the other, but for the crowd; nothing is sent twice."""
    server = CacheServer(BlockCache(pool=2000))
    run_serving(
        Direct(server, FORM), LENGTHS, Limits(requests=60), 3, tmp_path / "a", lambda _: None
    )
    rows = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    probes = [row["probe"] for row in rows]
    assert probes[:15] == ["cold"] * 13 + ["warm", "warm"]
    assert probes[15:22] == ["cold", "warm", "partial", "cold", "back", "cold", "turn"]
    assert probes[22:27] == ["cold", "warm", "partial", "cold", "back"]
    assert probes[34:49] == ["crowd"] * 13 + ["after"] * 2
    assert len(server.seen) == len(rows) == 60
    assert rows[16]["prompt"] == rows[15]["prompt"]
    twin, clone = rows[17], rows[18]
    assert twin["prompt"] != clone["prompt"]
    assert twin["references"] == clone["references"]

    again = CacheServer(BlockCache(pool=2000))
    run_serving(
        Direct(again, FORM), LENGTHS, Limits(requests=60), 3, tmp_path / "b", lambda _: None
    )
    one, other = ([body["prompt"] for body in each.seen] for each in (server, again))
    assert (one[:34], sorted(one)) == (other[:34], sorted(other)), "a seed gives the same requests"


def test_limits_end_it(tmp_path):
    tokens = checked(tmp_path, BlockCache(), limits=Limits(tokens=30_000))
    assert "stopped by --budget in round 1" in tokens.text
    late = checked(tmp_path, BlockCache(), limits=Limits(minutes=0.0))
    assert (late.status, len(late.run.sent)) == (3, 0)
    full = checked(tmp_path, BlockCache(pool=20_000), limits=Limits(requests=110))
    assert full.word == "sound"
    assert "--num-gpu-blocks-override" in full.run.not_tested["late"]


@pytest.mark.slow
def test_a_weak_model_and_failures_are_not_sound(tmp_path):
    class Weak(CacheServer):
        def flipped(self, answer):
            return "I do not know."

    weak = run_serving(
        Direct(Weak(BlockCache()), FORM), LENGTHS, Limits(), 1, tmp_path / "w", lambda _: None
    )
    assert (weak.status, "cannot do the task alone" in weak.text) == (3, True)

    class Failing(Direct):
        def send(self, example, **fields):
            answer = super().send(example, **fields)
            return Failure("HTTP 500") if len(self.server.seen) % 8 == 0 else answer

    model = Failing(CacheServer(BlockCache()), FORM)
    failing = run_serving(model, LENGTHS, Limits(), 1, tmp_path / "f", lambda _: None)
    assert (failing.status, "requests failed: " in failing.text) == (3, True)
    assert " in cold, " in failing.text
    assert "(HTTP 500)" in failing.text


def test_failures_in_a_crowd_alone_are_not_sound(tmp_path):
    class Crowded(Direct):
        def send(self, example, **fields):
            answer = super().send(example, **fields)
            is_crowded = self.server.arrived > 1 and len(self.server.seen) % 5 == 0
            return Failure("HTTP 500") if is_crowded else answer

    model = Crowded(CacheServer(BlockCache(pool=2000)), FORM)
    found = run_serving(model, LENGTHS, Limits(), 1, tmp_path / "f", lambda _: None)
    assert found.status == 3
    assert re.search(r"too many requests failed: \d+ of \d+ in crowd \(HTTP 500\)$", found.text)


def test_a_server_that_is_swapped_in_the_run_is_not_sound(tmp_path):
    """Cold prompts are as bad as all others, so there is little evidence for any condition."""

    class Swapped(CacheServer):
        def flipped(self, answer):
            return answer if len(self.seen) < 60 else ", ".join(answer.split(", ")[::2])

    model = Direct(Swapped(BlockCache(pool=2000)), FORM)
    found = run_serving(model, LENGTHS, Limits(), 1, tmp_path / "s", lambda _: None)
    assert found.status in (1, 3)
    assert " pairs lost, 0 gained" in found.text


def test_a_count_of_hits_that_goes_down_is_not_sound(tmp_path):
    cache = BlockCache(pool=2000)
    model = Direct(CacheServer(cache, details=False), FORM)
    read = cache.read

    def restarted(ids):
        if len(model.server.seen) == 100:
            cache.hits = 0
            cache.known.clear()
        return read(ids)

    cache.read = restarted
    found = run_serving(model, LENGTHS, Limits(), 1, tmp_path / "m", lambda _: None)
    assert (found.status, "it was restarted" in found.text) == (3, True)


def test_what_is_still_in_the_cache_was_not_evicted(tmp_path):
    """Of a server that does not say how large its cache is."""
    limits = Limits(requests=120, pressure=30_000)
    server = CacheServer(BlockCache(pool=20_000))
    server.page = lambda: ""
    found = run_serving(Direct(server, FORM), LENGTHS, limits, 1, tmp_path / "e", lambda _: None)
    assert found.word == "sound"
    assert {*found.run.not_tested} == {"late", "return"}
    assert "nothing was evicted" in found.run.not_tested["late"]
    assert "late" not in found.text


# --- the command ----------------------------------------------------------------------------------

SERVED = ("--serving", "-y", "tokenizer: builtin", "--lengths", "1K,2K")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["text", "chat"])
def test_the_command_checks_a_server(nowhere, rulerkit, path):
    server = started(CacheServer(BlockCache(pool=1000)))
    few = ("-y", f"prompt_path: {path}", "-y", "seed: 1", "--requests", "130", "--lengths", "1K")
    said = rulerkit("gate", server.url, "--serving", "-y", "tokenizer: builtin", *few)
    assert said.status == 0, said
    assert said.out.startswith("SOUND: m at 127.0.0.1")
    rows = [line.split()[0] for line in said.out.splitlines()[4:12]]
    assert rows == list(PROBES)
    turned = [body for body in server.seen if len(body.get("messages", ())) > 2]
    assert bool(turned) == (path != "text")
    server.shutdown()


@pytest.mark.slow
def test_a_fault_is_shown_on_a_page_and_in_json(nowhere, rulerkit):
    server = started(CacheServer(FAULTS["HalfHashed"](pool=2000)))
    said = rulerkit("gate", server.url, *SERVED, "--json", "-y", "prompt_path: text")
    content = json.loads(said.out)
    assert (said.status, content["verdict"]["word"]) == (1, "worse")
    values = [leak["value"] for leak in content["leaks"]]
    values += [value for loss in content["losses"] for value in loss["lost"]]
    page = Path(content["page"]).read_text(encoding="utf-8")
    assert values[0] in page
    assert "leaks and losses:</p>" in page
    table = (Path(__file__).parents[3] / "docs/commands.md").read_text(encoding="utf-8")
    assert [key for key in content if f"`{key}`" not in table] == []
    rows = Path(content["journal"]).read_text(encoding="utf-8").splitlines()
    assert len(rows) == content["asked"]["requests"]
    for leak in content["leaks"]:
        assert leak["value"] in numbers_in(json.loads(rows[leak["request"] - 1])["answer"])
    markdown = rulerkit(
        "gate", server.url, *SERVED, "--format", "github", "-y", "prompt_path: text"
    )
    assert markdown.out.startswith("## ❌ worse\n")
    server.shutdown()


def test_what_cannot_be_checked_is_one_line(nowhere, rulerkit, serve):
    for more in (("mute",), ("--resume",), ("--margin", "3"), ("--by", "index")):
        said = rulerkit("gate", "perfect", *more, "--serving")
        assert (said.status, "leave out CANDIDATE" in said.err) == (2, True)
    assert "need --serving" in rulerkit("gate", "perfect", "mute", "--requests", "50").err
    assert "--serving checks a server" in rulerkit("gate", "perfect", "--serving").err
    url = serve().url
    small = rulerkit("gate", url, *SERVED, "-y", "max_length: 512")
    assert (small.status, "no length is left" in small.err) == (2, True)
