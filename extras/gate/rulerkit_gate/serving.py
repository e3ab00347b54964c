"""One server against itself: the same prompts cold, from its cache, after a twin, in the next turn,
in a crowd, from what a crowd left in the cache, and after eviction.

`Run.go` asks in rounds until something is proven (`evidence`) or a limit is reached. Requests go
out one after the other, in the order that is written here; only a crowd is asked at once. A round:

1. for each length a *case*: A cold, `warm` A again, `partial` a twin of A, a cold clone of the
   twin, `back` A once more, and in every second case `turn`: the next turn of a cold clone, then
   of A;
2. `crowd`: clones of cases, a seen prompt, the longest one and ten fresh ones of one layout; then
   `after`, clones of that crowd once more, alone;
3. in the rounds of `_PRESSURE`, cold prompts until the pool of blocks is full; then `late`, cold
   clones of what was asked before, and `return`, earlier prompts as they were.

After a loss the same layout is asked again in fresh prompts at once.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from rulerkit.common.errors import DoesNotFit, UserError, counted, listed
from rulerkit.common.lengths import length_name
from rulerkit.common.settings import JSON
from rulerkit.generation.example import Example
from rulerkit.generation.tasks.base import string_match_all
from rulerkit.inference.model import Failure
from rulerkit.store.cells import allowed_failures
from rulerkit_gate.evidence import DOUBT, PROBES, PROOF, Evidence
from rulerkit_gate.twins import Prompt, Prompts

_SHARES = (0.95, 0.5, 0.75, 0.25)
_NUM_VALUES = (12, 4, 1)
_CAN_DO, _CAN_DO_ONE = 0.9, 0.5  # the least median score of three cold answers
_PRESSURE = (2, 5)  # rounds
_MOST_AGAIN, _FEW_AGAIN = 14, 4
_LATE = 8  # cases that are asked again after eviction
_EARLY = 12  # short cold answers from before anything can have been evicted
_OLDEST = 4  # ... of which so many are asked again first
_FEW_FAILED = 2  # requests under one condition, whatever their share
_FEW_LOST = 3  # of them, so that more are asked
_BATCH = 12  # ... and where a loss was seen there
_CROWD = 10  # fresh prompts in a crowd
_LEAST_ROUNDS = 2
_HITS = re.compile(
    r"^(?:vllm:(?:gpu_)?prefix_cache_hits(?:_total)?|sglang:cached_tokens(?:_total)?)"
    r"(?:\{[^}]*\})? ([\d.e+]+)",
    re.MULTILINE,
)
_POOL = (
    re.compile(r'kv_cache_size_tokens="(\d+)"'),
    re.compile(r"^sglang:max_total_num_tokens(?:\{[^}]*\})? ([\d.e+]+)", re.MULTILINE),
)
_BLOCK = re.compile(r'[{,]block_size="(\d+)"')
_BLOCKS = re.compile(r'num_gpu_blocks="(\d+)"')


@dataclass(frozen=True)
class Limits:
    """How much a run may ask."""

    requests: int = 200
    pressure: int = 200_000
    """Tokens that may be asked to fill the pool of blocks."""
    tokens: float | None = None
    minutes: float | None = None
    max_failures: float = 0.05
    """Requests that may fail: a share below 1, else a number."""


@dataclass
class Sent:
    """One request and its answer."""

    number: int
    probe: str
    prompt: Prompt
    answer: str = ""
    score: float | None = None
    """The share of values written; None where the request failed."""
    cached: int | None = None
    """Tokens that came from the cache, where that is known."""
    tokens: int = 0
    failure: str = ""

    def row(self) -> JSON:
        """As a line of the journal."""
        prompt = self.prompt
        return {
            "number": self.number,
            "probe": self.probe,
            "length": prompt.length,
            "turn": prompt.answer,
            "tokens": self.tokens,
            "cached": self.cached,
            "score": self.score,
            "failure": self.failure,
            "references": list(prompt.example.references),
            "answer": self.answer,
            "prompt": prompt.example.prompt,
        }


class Loss(NamedTuple):
    """A pair whose probe wrote less than its control."""

    control: Sent
    probe: Sent
    lost: list[str]
    """The values that the control wrote and the probe did not."""


class Enough(Exception):  # noqa: N818  (an end, not an error)
    """No more is asked, for the reason that it holds; "" where something is proven."""


@dataclass
class Result:
    """What a run has found: `word` is sound, worse or cannot tell."""

    word: str
    status: int
    text: str
    run: "Run"


@dataclass
class Run:
    """One run over one server."""

    model: Any
    lengths: Sequence[int]
    limits: Limits
    seed: int
    journal: Path
    say: Callable[[str], None]
    evidence: Evidence = field(default_factory=Evidence)
    sent: list[Sent] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    not_tested: dict[str, str] = field(default_factory=dict)
    counts_hits: str = ""
    """Where hits are read: the `reply` or `metrics`; empty where they are unknown."""
    block_size: int = 0
    """The greatest common divisor of all hits; 0 before the first one."""
    pool: int | None = None
    """Tokens that the cache holds, where the server says so."""
    rounds: int = 0
    num_tokens: int = 0
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.prompts = Prompts(self.model.prompt_format, self.seed)
        self.random = Random(f"sizes of {self.seed}")
        self.cases: list[tuple[Sent, Sent]] = []
        """Cold answers of each case: to A, and to the clone of its twin."""
        self.controls: list[Sent] = []
        """Cold answers that no late probe was held against yet."""
        self.paired = set[tuple[str, int]]()
        """Conditions, and the cold answers that a pair of theirs has: each has one at most."""
        self.returned = 0
        self.sightings = 2
        """How often a prompt is asked until it is a hit."""
        self.offset = 0
        """Tokens that the server counts beside ours."""

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, probe: str, prompt: Prompt) -> Sent:
        """Ask one prompt, alone. Raises `Enough`, as all that asks."""
        before = self._hits_so_far()
        (sent,) = self._send(probe, [prompt])
        if sent.cached is None and before is not None and not sent.failure:
            after = self._hits_so_far()
            if after is not None and after < before:
                self._note([sent])
                raise Enough(
                    "its count of hits in /metrics went down: it was restarted, or several servers "
                    "answer at this address"
                )
            if after is not None:
                sent.cached = round(after - before)
                if sent.cached:
                    self.counts_hits = self.counts_hits or "metrics"
        self._note([sent])
        return sent

    def ask_crowd(self, prompts: Sequence[Prompt]) -> list[Sent]:
        """Ask several prompts at once."""
        sent = self._send("crowd", prompts)
        self._note(sent)
        return sent

    def _send(self, probe: str, prompts: Sequence[Prompt]) -> list[Sent]:
        """The requests with their answers, once all are there."""
        self._check_limits(len(prompts))
        sent = [Sent(n, probe, prompt) for n, prompt in enumerate(prompts, len(self.sent) + 1)]
        self.sent += sent
        for one in sent:
            self.evidence.hold(one.number, one.prompt.values)
        with ThreadPoolExecutor(len(sent)) as threads:
            list(threads.map(self._fetch, sent))
        return sent

    def _note(self, sent: Sequence[Sent]) -> None:
        """Write the requests down, and look at what their answers leak."""
        with self.journal.open("a", encoding="utf-8") as file:
            for one in sent:
                file.write(json.dumps(one.row(), ensure_ascii=False) + "\n")
        for one in sent:
            self.num_tokens += one.tokens
            if one.failure:
                continue
            if one.cached and len(sent) == 1:
                self.block_size = gcd(self.block_size, one.cached)
            self.evidence.read(one.number, one.prompt.example.prompt, one.answer)

        if self.evidence.has_leaked:
            raise Enough("")
        failed = sum(bool(one.failure) for one in self.sent)
        if failed > 4 and failed > len(self.sent) / 2:
            raise Enough(f"{failed} of {len(self.sent)} requests failed ({self.failure})")

    def _fetch(self, sent: Sent) -> None:
        """Ask, and note the answer and what the server counted."""
        prompt, fields = sent.prompt, dict[str, Any]()
        if prompt.before and self.model.prompt_path == "chat":
            fields["messages"] = self._messages(prompt.before, prompt.answer)
        sent.tokens = prompt.example.num_tokens
        try:
            answer = self.model.send(prompt.example, **fields)
        except UserError as error:
            if len(self.sent) <= 1:
                raise
            raise Enough(f"the server stopped: {error}") from error
        if isinstance(answer, Failure):
            sent.failure = answer.reason
            return
        sent.answer = answer.text
        sent.score = string_match_all(answer.text, prompt.example.references)

        usage = answer.usage or {}
        sent.cached = usage.get("cached_tokens")
        if sent.cached is not None:
            self.counts_hits = "reply"
        elif self.counts_hits == "reply":
            # vLLM leaves out what is zero.
            sent.cached = 0
        if not prompt.answer and usage.get("prompt_tokens"):
            self.offset = usage["prompt_tokens"] - sent.tokens

    def _messages(self, first: Example, answer: str) -> list[JSON]:
        """A chat with both turns of a prompt."""
        question = [block for block in first.blocks[first.context[1] :] if block.role != "template"]
        return [
            *self.model.request(first)["messages"],
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "".join(block.text for block in question)},
        ]

    def _check_limits(self, more: int) -> None:
        limits = self.limits
        if len(self.sent) + more > limits.requests:
            raise Enough(f"--requests {limits.requests}")
        minutes = (time.monotonic() - self.started) / 60
        if limits.minutes is not None and minutes > limits.minutes:
            raise Enough(f"--minutes {limits.minutes:g}")
        if limits.tokens is not None and self.num_tokens > limits.tokens:
            raise Enough("--budget")

    @property
    def failure(self) -> str:
        """Why the first request failed that did."""
        return next((one.failure for one in self.sent if one.failure), "")

    def _metrics(self) -> str:
        """The server's own numbers; empty where it has none."""
        connection = self.model.connection
        if connection is None:
            return ""
        status, text = connection.address.get("/metrics", 10)
        return text if status == 200 else ""

    def _hits_so_far(self) -> float | None:
        """The tokens that ever came from the cache; None where replies or nobody says so."""
        if self.counts_hits == "reply":
            return None
        found = _HITS.findall(self._metrics())
        return sum(map(float, found)) if found else None

    def fresh(self, length: int, aligned: bool = False) -> Prompt:
        """A prompt of up to a length. Each has another size, so that needles stand elsewhere; an
        `aligned` one ends at a border of blocks, or one token beside it."""
        most = length - self.prompts.answer_tokens
        tokens = most - self.random.randrange(max(1, most // 16))
        block = self.block_size
        if aligned and 1 < block <= most // 2:
            beside = (0, 1, -1)[len(self.cases) // 2 % 3]
            tokens -= (tokens + self.offset - beside) % block
        return self.prompts.fresh(length, tokens)

    # --- pairs ------------------------------------------------------------------------------------

    def pair(self, probe: str, control: Sent, sent: Sent) -> bool:
        """Take a pair; whether it is a loss. Raises `Enough` where one is proven."""
        if control.score is None or sent.score is None:
            return False
        # Two bets on one control would win and lose together, and not be fair.
        if (probe, control.number) in self.paired:
            return control.score > sent.score
        self.paired.add((probe, control.number))
        pair = self.evidence.add(probe, sent.prompt.length, control.score, sent.score)
        if pair.sign == 1:
            # Of a clone the values are the same.
            values = sent.prompt.example.references
            lost = [v for v in values if v in control.answer and v not in sent.answer]
            self.losses.append(Loss(control, sent, lost))
        if self.evidence.is_worse:
            raise Enough("")
        return pair.sign == 1

    # --- the rounds -------------------------------------------------------------------------------

    def go(self) -> Result:
        """Ask until something is proven or a limit is reached."""
        try:
            reason = self._rounds()
        except Enough as end:
            reason = str(end)
        return self._result(reason)

    def _rounds(self) -> str:
        if problem := self._can_do():
            return problem
        self._find_out()
        while True:
            number = self.rounds + 1
            for length in self.lengths:
                self._case(length)
            self._crowd(self.lengths[self.rounds % min(2, len(self.lengths))])
            self.rounds = number
            if number in _PRESSURE:
                self._after_eviction()
            self.say(
                f"round {number}: {len(self.sent)} requests, evidence {self.evidence.mean:.2g} of "
                "100"
            )

    def _can_do(self) -> str:
        """Why the model is too weak for the task; "" where it can do it, with fewer values where
        it must be."""
        shortest = min(self.lengths)
        least = 0.0
        for number in _NUM_VALUES:
            self.prompts.num_values = number
            try:
                self.controls = [self.ask("cold", self.fresh(shortest)) for _ in range(3)]
            except DoesNotFit:
                continue
            if (self.sent[0].cached or 0) > 0.9 * self.sent[0].tokens:
                return "the first prompt was in the cache already: take another -y seed"
            scores = sorted(one.score for one in self.controls if one.score is not None)
            if not scores:
                return f"no request was answered ({self.failure})"
            least = scores[len(scores) // 2]
            if least >= (_CAN_DO if number > 1 else _CAN_DO_ONE):
                for _ in range(len(self.sent), _EARLY):
                    self.controls.append(self.ask("cold", self.fresh(shortest)))
                return ""
        return (
            f"the model cannot do the task alone (it finds {100 * least:.0f} % of the values at "
            f"{length_name(shortest)}): nothing can be lost"
        )

    def _find_out(self) -> None:
        """How often a prompt is asked until it is a hit, and how large the pool is."""
        prompt = self.fresh(max(self.lengths))
        cold, *more = [self.ask("warm" if i else "cold", prompt) for i in range(3)]
        self.pair("warm", cold, more[-1])
        self.controls.append(cold)
        if not more[0].cached and more[1].cached:
            self.sightings = 3

        text = self._metrics()
        for pattern in _POOL:
            if found := pattern.findall(text):
                self.pool = round(sum(map(float, found)))
        blocks, size = _BLOCKS.findall(text), _BLOCK.findall(text)
        if self.pool is None and blocks and size:
            self.pool = sum(map(int, blocks)) * int(size[0])

    def _sighted(self, prompt: Prompt) -> Sent:
        """The answer to a prompt that was asked once, from the cache where that can be had."""
        for _ in range(self.sightings - 2):
            self.ask("again", prompt)
        sent = self.ask("warm", prompt)
        if self.counts_hits and not sent.cached and self.sightings == 2:
            more = self.ask("warm", prompt)
            return more if more.cached else sent
        return sent

    def _case(self, length: int) -> None:
        """All conditions of one prompt, each against its own cold control."""
        number = len(self.cases)
        share = _SHARES[number // len(self.lengths) % len(_SHARES)]
        a = self.fresh(length, aligned=number % 2 == 1)
        cold = self.ask("cold", a)
        lost = {"warm": self.pair("warm", cold, self._sighted(a))}

        b = self.prompts.twin(a, share)
        partial = self.ask("partial", b)
        control = self.ask("cold", self.prompts.clone(b))
        lost["partial"] = self.pair("partial", control, partial)
        lost["back"] = self.pair("back", cold, self.ask("back", a))
        if number % 2 == 0 and cold.score is not None:
            lost["turn"] = self._turn(a, cold)
        self.cases.append((cold, control))
        self.controls += [cold, control]
        for probe, is_lost in lost.items():
            if is_lost:
                self._again(probe, a, share)
                return

    def _turn(self, a: Prompt, cold: Sent) -> bool:
        """Whether the next turn is lost; not asked where it does not fit."""
        after_clone = self.prompts.turn(self.prompts.clone(a), cold.answer)
        example = after_clone.example
        if self.model.too_long(example.num_tokens + example.max_new_tokens):
            return False
        control = self.ask("cold", after_clone)
        return self.pair("turn", control, self.ask("turn", self.prompts.turn(a, cold.answer)))

    def _again(self, probe: str, layout: Prompt, share: float) -> None:
        """Ask the same layout and share again in fresh prompts, as long as losses go on."""
        num_lost = 0
        for number in range(1, _MOST_AGAIN + 1):
            a = self.prompts.like(layout)
            cold = self.ask("cold", a)
            if probe == "warm":
                num_lost += self.pair(probe, cold, self._sighted(a))
            elif probe == "turn":
                num_lost += self._turn(a, cold)
            else:
                for _ in range(self.sightings - 2):
                    self.ask("again", a)
                b = self.prompts.twin(a, share)
                partial = self.ask("partial", b)
                if probe == "partial":
                    num_lost += self.pair(probe, self.ask("cold", self.prompts.clone(b)), partial)
                else:
                    num_lost += self.pair(probe, cold, self.ask("back", a))
            if (number >= 2 and not num_lost) or (number >= _FEW_AGAIN and num_lost < number / 3):
                return

    def _crowd(self, length: int) -> None:
        """Many prompts at once; those that were asked alone before are pairs."""
        cold = [one for case in self.cases for one in case]
        controls = [one for one in cold if one.prompt.length == length][-3:]
        longest = max(self.lengths)
        others = [one for one in cold if one.prompt.length == longest and one not in controls]
        controls += others[-1:]
        prompts = [self.prompts.clone(control.prompt) for control in controls]
        prompts[-2] = controls[-2].prompt
        layout = self.fresh(length)
        prompts += [layout, *(self.prompts.like(layout) for _ in range(_CROWD - 1))]
        sent = self.ask_crowd(prompts)

        lost = [self.pair("crowd", c, s) for c, s in zip(controls, sent, strict=False)]
        # Those that have no control say whether it is worth while to ask for controls.
        fresh = [one.score for one in sent[len(controls) :] if one.score is not None]
        alone = [
            one.score
            for one in self.sent
            if one.probe == "cold" and one.score is not None and one.prompt.length == length
        ]
        num_bad = sum(score < 1 for score in fresh)
        expected = len(fresh) * sum(score < 1 for score in alone) / max(1, len(alone))
        beside = prompts[-_CROWD - 2 : -_CROWD]
        if sum(lost) >= 2 or num_bad > 2 + 2 * expected:
            self._crowd_with_controls("crowd", layout, beside)

        # What requests side by side left in the cache is read by the next one.
        clones = ((controls[0], prompts[0]), (controls[-1], beside[1]))
        harmed = [one for one, p in clones if self.pair("after", one, self.ask("after", p))]
        # Where a new cold prompt is as bad, it is not what the crowd left.
        if harmed:
            again = self.ask("cold", self.prompts.clone(harmed[0].prompt))
            if again.score == harmed[0].score:
                self._crowd_with_controls("after", layout, beside)

    def _crowd_with_controls(self, probe: str, layout: Prompt, beside: Sequence[Prompt]) -> None:
        """Crowds of fresh prompts, of each of which a clone is asked alone afterwards; for `after`
        each itself is, before that. `beside` are the seen prompt and the longest one that are in
        the crowd, too."""
        num_lost = _BATCH
        while num_lost >= _BATCH / 3:
            prompts = [self.prompts.like(layout) for _ in range(_BATCH)]
            others = [beside[0], self.prompts.clone(beside[1])]
            crowd = self.ask_crowd([*others, *prompts])
            num_lost = 0
            for one in crowd[len(others) :]:
                sent = self.ask("after", one.prompt) if probe == "after" else one
                control = self.ask("cold", self.prompts.clone(one.prompt))
                num_lost += self.pair(probe, control, sent)

    # --- eviction ---------------------------------------------------------------------------------

    def _after_eviction(self) -> None:
        """Fill the pool, then ask anew what was asked before."""
        most = self.limits.pressure
        if self.pool is not None and self.pool > most:
            reason = (
                f"the cache holds {self.pool:,} tokens, --pressure is {most:,} (raise it, or serve "
                "with a small pool, such as vLLM's --num-gpu-blocks-override 4096)"
            )
            self.not_tested |= {"late": reason, "return": reason}
            return
        controls = [one for one in self.controls if one.score is not None]
        self.controls = []
        earlier = [cold for cold, _ in self.cases[self.returned :]][:_LATE]
        self.returned += len(earlier)
        self._press()

        # The oldest answers are the likeliest to be from before any eviction.
        first = controls[:_OLDEST] + [one for one in controls[_OLDEST:] if one in earlier]
        lost = self._late(first)
        if lost >= _FEW_LOST:
            self._late([one for one in controls if one not in first])

        while True:
            lost, num_kept = 0, 0
            for cold in reversed(earlier):
                sent = self.ask("return", cold.prompt)
                lost += self.pair("return", cold, sent)
                num_kept += (sent.cached or 0) > 0.9 * sent.tokens
            if num_kept == len(earlier) and not lost:
                reason = "earlier prompts are still in the cache: nothing was evicted"
                self.not_tested |= dict.fromkeys(("late", "return"), f"{reason} (raise --pressure)")
                return
            if lost < _FEW_LOST:
                return
            earlier = [self.ask("cold", self.fresh(min(self.lengths))) for _ in range(_BATCH)]
            self._press()

    def _late(self, controls: Sequence[Sent]) -> int:
        """How many prompts are lost that were asked before, now cold again."""
        return sum(
            self.pair("late", control, self.ask("late", self.prompts.clone(control.prompt)))
            for control in controls
        )

    def _press(self) -> None:
        """Cold prompts of the longest length, until as many tokens were asked as the pool holds."""
        asked, wanted = 0, min(self.pool or self.limits.pressure, self.limits.pressure)
        while asked < wanted:
            asked += self.ask("pressure", self.fresh(max(self.lengths))).tokens

    # --- the verdict ------------------------------------------------------------------------------

    def _result(self, reason: str) -> Result:
        evidence = self.evidence
        name = self.model.label
        if evidence.has_leaked or evidence.is_worse:
            return Result("worse", 1, f"{name} {self._worse_text()}", self)
        doubt = reason
        if reason.startswith("--"):
            # A limit says nothing against a run of enough rounds.
            doubt = ""
            if self.rounds < _LEAST_ROUNDS:
                doubt = (
                    f"stopped by {reason} in round {self.rounds + 1}, and it takes {_LEAST_ROUNDS}"
                )
        doubt = doubt or self._failed() or self._unproven()
        if not doubt and evidence.mean >= DOUBT:
            doubt = (
                f"perhaps it {self._worse_text()} (evidence {evidence.mean:.0f} of "
                f"{PROOF:.0f}: raise --requests)"
            )
        if doubt:
            return Result("cannot tell", 3, f"{name}: {doubt}", self)
        for probe, pairs in evidence.pairs.items():
            if not pairs:
                self.not_tested.setdefault(probe, f"stopped by {reason}")
        tested = [probe for probe in PROBES if probe not in self.not_tested]
        text = (
            f"{name} answers as well from its cache as cold: {listed(tested, 9)}, in "
            f"{sum(len(evidence.pairs[probe]) for probe in tested)} pairs"
        )
        return Result("sound", 0, text, self)

    def _failed(self) -> str:
        """Which requests failed too often: all together, or those under one condition."""
        for probe in ("", *PROBES):
            asked = [one for one in self.sent if probe in ("", one.probe)]
            failed = sum(bool(one.failure) for one in asked)
            allowed = allowed_failures(self.limits.max_failures, len(asked))
            if failed > (max(allowed, _FEW_FAILED) if probe else allowed):
                return f"too many requests failed: {self.failures()}"
        return ""

    def failures(self) -> str:
        """How many requests failed under each condition, and why the first one did."""
        asked = Counter(one.probe for one in self.sent)
        failed = Counter(one.probe for one in self.sent if one.failure)
        parts = [f"{number} of {asked[probe]} in {probe}" for probe, number in failed.items()]
        return f"{listed(parts, len(parts))} ({self.failure})" if parts else ""

    def _unproven(self) -> str:
        """Why nothing is known of hits, where that is so."""
        if not self.counts_hits:
            return (
                "the server does not say what comes from its cache (vLLM: "
                "--enable-prompt-tokens-details, SGLang: --enable-cache-report)"
            )
        proven = {one.probe for one in self.sent if one.cached} & {"warm", "partial"}
        if len(proven) == 2:
            return ""
        what = "no prompt came from its cache"
        if proven:
            what = "no prompt came in part from its cache"
        return (
            f"{what} (hybrid models keep blocks of 528 to 8,320 tokens: give longer --lengths; or "
            "the cache is off)"
        )

    def _worse_text(self) -> str:
        if self.evidence.has_leaked:
            leak = self.evidence.leaks[0]
            sent = self.sent[leak.request - 1]
            values = {one.value for one in self.evidence.leaks if one.request == leak.request}
            how = PROBES.get(sent.probe, "in a new prompt")
            number = counted(len(values), "value")
            return (
                f"answers with what other prompts hold: {how} ({sent.probe}) at "
                f"{length_name(sent.prompt.length)} it wrote {number} of another prompt (request "
                f"{leak.of})"
            )
        probe = max(PROBES, key=self.evidence.of)
        pairs, lost, gained = self.evidence.counts(probe)
        lengths = sorted({p.length for p in self.evidence.pairs[probe] if p.sign == 1})
        at = listed(map(length_name, lengths), 3)
        return (
            f"answers worse {PROBES[probe]} ({probe}) at {at}: {lost} of {pairs} pairs lost, "
            f"{gained} gained"
        )


def run_serving(
    model: Any,
    lengths: Sequence[int],
    limits: Limits,
    seed: int,
    journal: Path,
    say: Callable[[str], None],
) -> Result:
    """Check a model behind a server against itself; each request is a line of `journal`.

    Raises `UserError` where nothing can be asked.
    """
    kept = []
    for length in sorted(lengths):
        if reason := model.too_long(length):
            say(f"left out: {length_name(length)}: {reason}")
        else:
            kept.append(length)
    if not kept:
        raise UserError("no length is left that the server can be given: name shorter --lengths")
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text("")
    return Run(model, kept, limits, seed, journal, say).go()
