"""`rulerkit gate`: is a candidate worse than a baseline? Asks both in rounds, until it is certain.

`Party` is one of the two: a model that is asked, or answers that are stored. `run_gate` asks them
for what `sequential` wants next, and ends with a verdict or where a limit is reached.

Each gate is a run of its own, because a server may be restarted with another model at the same
address: answers of an earlier call are used only with `--resume`, which goes on with the newest run
of the same two. The verdict depends on the answers alone, so a run that was resumed ends as one
that was not interrupted.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from rulerkit.analysis.compare import (
    Comparison,
    Decision,
    Key,
    PairedDifferences,
    Side,
    paired,
    side_of,
)
from rulerkit.analysis.remake import examples_of
from rulerkit.common.errors import ModelError, UserError, counted, listed
from rulerkit.common.json_text import digest
from rulerkit.common.lengths import length_name
from rulerkit.common.settings import JSON
from rulerkit.evaluation.cost import Cost, cost_of
from rulerkit.evaluation.evaluate import evaluate
from rulerkit.evaluation.rounds import rounds
from rulerkit.evaluation.study import Study, name_of
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import Task
from rulerkit.scoring.adaptive import Counts
from rulerkit.store.cells import Cell, allowed_failures
from rulerkit.store.comparable import describe_first, differences
from rulerkit_gate.sequential import Design, GateRule, comparison_of, verdict_of

Say = Callable[[str], None]
_MORE_CUT = 0.1  # of the candidate's answers, so that it is worth a note


# --- the two parties ------------------------------------------------------------------------------


@dataclass(eq=False)
class Party:
    """One of the two: a model that is asked (`described`, and loaded as `model`), or answers that
    are stored."""

    name: str
    described: Any = None
    model: Any = None
    stored: Sequence[Cell] = ()
    run: str = ""
    """Where the answers of a model go."""
    resumes: bool = False
    """Whether answers of an earlier call are used, rather than moved aside."""
    _begun: set[int] = field(default_factory=set)

    @property
    def is_asked(self) -> bool:
        return self.model is not None

    def cells(self, study: Study, length: int, counts: Mapping[str, int]) -> list[Cell]:
        """The cells of some tasks at a length, after it was asked for what is missing of them."""
        if not self.is_asked:
            return [c for c in self.stored if c.length == length and c.task in counts]

        # The first round asks for all tasks, and each round for one number of examples.
        is_first = length not in self._begun
        self._begun.add(length)
        asked = replace(
            study,
            models=(self.model,),
            tasks=tuple(task for task in study.tasks if task.name in counts),
            lengths=(length,),
            num_examples=max(counts.values()),
            run=self.run,
        )
        fresh = is_first and not self.resumes
        return evaluate(asked, fresh=fresh, progress=False)


# --- what is asked --------------------------------------------------------------------------------


def in_its_run(study: Study, a: Party, b: Party, is_named: bool, say: Say) -> Study:
    """The study in a run of its own: the one that was named, the last one of the two where they
    resume, else a new one. Each party answers in its half of it."""
    now = datetime.now()
    pair = digest([name_of(p.described) if p.is_asked else p.name for p in (a, b)])
    run = f"gate-{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}-{pair}"
    if a.resumes and not is_named:
        earlier = sorted((study.outputs / "predictions").glob(f"gate-*-{pair}-[ab]"))
        if earlier:
            run = earlier[-1].name[:-2]
        else:
            say(f"no earlier gate of {a.name} and {b.name} is found to resume: begins a new one")
    study = study if is_named else replace(study, run=run)
    a.run, b.run = f"{study.run}-a", f"{study.run}-b"
    if a.name == b.name:
        b.name += " (again)"
    return study


def study_of_stored(study: Study, party: Party, named: bool) -> Study:
    """The study that a folder of answers was asked: its seed, and of its tasks and lengths those of
    the study where these were `named`, else all.

    Raises `UserError` where the folder lacks what was named.
    """
    cells = {(cell.task, cell.length): cell for cell in party.stored}
    wanted = list(cells)
    if named:
        wanted = [(task.name, length) for length in study.lengths for task in study.tasks]
    missing = [f"{task} at {length_name(n)}" for task, n in wanted if (task, n) not in cells]
    if missing:
        raise UserError(
            f"{party.name} has no answers to {listed(missing, 4)}: name the tasks and lengths that "
            "it has with --tasks and --lengths, or leave them out"
        )

    chosen = [cells[key] for key in wanted]
    tasks = {cell.task: examples_of(cell).task for cell in chosen}
    return replace(
        study,
        tasks=tuple(tasks.values()),
        lengths=tuple(sorted({cell.length for cell in chosen})),
        num_examples=min(study.num_examples, *(cell.wanted for cell in chosen)),
        seed=int(chosen[0].record["result"]["seed"]),
    )


def check_lengths(study: Study, parties: Sequence[Party]) -> None:
    """Raise a `UserError` where one of the two cannot be given a length."""
    for party in parties:
        for length in study.lengths:
            if party.is_asked and (reason := party.model.too_long(length)):
                raise UserError(
                    f"{party.name} cannot be given {length_name(length)}: {reason}; name the "
                    "lengths to compare with --lengths"
                )


def check_pairing(study: Study, a: Party, b: Party) -> None:
    """Raise a `UserError` that says what differs where the two are not asked the same prompts."""
    task, length = study.tasks[0], min(study.lengths)
    (prompt, record), (other_prompt, other) = (
        _first_prompt(party, study, task, length) for party in (a, b)
    )
    if prompt != other_prompt:
        changes = differences(record, other)
        what = "the prompts differ"
        if changes:
            name, old, new, more = describe_first(changes)
            what = f"{name}: {old} | {new}{more}"
        raise UserError(
            f"{a.name} and {b.name} are not asked the same prompts ({what}): give both one "
            "tokenizer and template (-y 'tokenizer: X'; where one takes chats alone, "
            "-y 'prompt_path: chat', or -y 'template: gpt-4'), or pair by the number of the "
            "example with --by index, which does not compare the prompts"
        )


def _first_prompt(party: Party, study: Study, task: Task, length: int) -> tuple[str, JSON]:
    """The digest of what a party is asked first, and the settings that made it."""
    for cell in party.stored:
        if (cell.task, cell.length) == (task.name, length) and 0 in cell.coverage.have:
            (row,) = (row for row in cell.rows if row["index"] == 0)
            return row["digest"], cell.record["result"]
    form = party.model.prompt_format if party.is_asked else None
    examples = generate(task, length, 1, study.seed, form)
    return examples[0].digest, examples.record()


# --- the rounds -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """What is to be found out: the study, the two parties, the design of the looks, the limits."""

    study: Study
    a: Party
    b: Party
    design: Design
    by: str
    budget: float = math.inf
    """Tokens. They count what the verdict rests on, whether it was asked now or before: so a run
    that was stopped ends as one that was not."""
    minutes: float | None = None
    """The time that this call may take."""
    started: float = field(default_factory=time.monotonic)
    """When the call began, as `time.monotonic` has it: `minutes` count from there."""

    def cost(self, sizes: Counts) -> Cost:
        """What so many examples of each cell take. Examples count once, tokens for each party
        that is asked."""
        total = Cost(sum(sizes.values()))
        for party in (self.a, self.b):
            if party.is_asked:
                of_party = cost_of(self.study, party.model.spec, sizes)
                total = total.plus(of_party._replace(examples=0))
        return total

    def limit_of(self, sizes: Counts) -> str:
        """The option that forbids so many examples of each cell; else empty."""
        return "--budget" if self.cost(sizes).tokens > self.budget else ""


class GateResult(NamedTuple):
    """How it ended: the verdict, what was seen, and what it took."""

    gate: Gate
    verdict: Decision
    comparison: Comparison | None
    cost: Cost
    stopped: str
    """Why no more was asked before the verdict was certain; empty where it is."""


class _StoppedError(Exception):
    """A round cannot be completed, for the reason that it holds."""


class _Run:
    """The answers of both so far."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.cells: dict[Party, dict[Key, Cell]] = {gate.a: {}, gate.b: {}}
        self.paired: Any = None
        """The two sides, the pairs and the notes of the last complete round."""

    def ask(self, length: int, counts: Mapping[str, int]) -> None:
        """Ask both for so many examples of each task at a length, the baseline first; raises
        `_StoppedError` where they cannot be completed."""
        gate, limit = self.gate, self.gate.minutes
        # Two models that compute here may not fit on one GPU together.
        compute_here = all(party.model and party.model.on_gpu for party in self.cells)
        for party, cells in self.cells.items():
            for other in self.cells:
                if compute_here and other is not party:
                    other.model.close()
            if limit is not None and time.monotonic() - gate.started > 60 * limit:
                raise _StoppedError(f"--minutes {limit:g}")
            try:
                asked = party.cells(gate.study, length, counts)
            except ModelError as error:
                raise _StoppedError(f"{party.name} stopped: {error}") from error
            of_tasks = {cell.task: cell for cell in asked}
            cells |= {(cell.task, cell.length): cell for cell in asked}

            for task, size in counts.items():
                present = of_tasks[task].coverage.have if task in of_tasks else ()
                missing = size - sum(index < size for index in present)
                if missing > allowed_failures(gate.study.max_failures, size):
                    raise _StoppedError(
                        f"{party.name} has no answer to {counted(missing, 'example')} of {task} at "
                        f"{length_name(length)}"
                    )

    def differences_of(self, reached: Counts) -> PairedDifferences:
        """The pairs of answers that a look rests on: so many of each cell."""
        share, most = self.gate.study.max_failures, max(reached.values())
        a, b = (
            side_of(list(cells.values()), "", share, most)._replace(name=party.name)
            for party, cells in self.cells.items()
        )
        pairs, notes = paired(a, b, self.gate.by)
        # A stored side may have more answers than the rounds have looked at.
        keys = zip(pairs["task"], pairs["length"], strict=True)
        sizes = [reached.get(key, 0) for key in keys]
        pairs = pairs[pairs["index"] < sizes].reset_index(drop=True)
        self.paired = a, b, pairs, [*notes, *_server_notes(a, b)]
        return PairedDifferences(pairs)


def _server_notes(a: Side, b: Side) -> list[str]:
    """What the servers of the two say beside their answers: requests that failed first, answers
    that are cut, and other counts of the same prompts."""
    notes = []
    counts: list[dict[Any, Any]] = []
    num_cut = []
    for side in (a, b):
        num_again, num_long, of_side = 0, 0, dict[Any, Any]()
        for key, cell in side.cells.items():
            for row in cell.rows:
                usage = row.get("usage") or {}
                num_again += usage.get("attempts", 1) > 1
                num_long += row.get("finish_reason") == "length"
                of_side[key, row["index"]] = usage.get("prompt_tokens")
        if num_again:
            notes.append(
                f"{num_again} of {counted(len(of_side), 'answer')} of {side.name} came only when a "
                "request that had failed was sent again"
            )
        counts.append(of_side)
        num_cut.append(num_long)
    if num_cut[1] > num_cut[0] + _MORE_CUT * len(counts[1]):
        notes.append(
            f"{counted(num_cut[1], 'answer')} of {b.name} and {num_cut[0]} of {a.name} end where "
            "no more tokens were allowed"
        )

    # Two tokenizers differ by other numbers from prompt to prompt, two beginnings by one.
    one, other = counts
    both = [(one[key], other[key]) for key in one if one[key] and other.get(key)]
    more = {there - here for here, there in both}
    if len(both) > 1 and len(more) == 1 and more != {0}:
        notes.append(
            f"{b.name} counts {more.pop():+} tokens in each prompt (another BOS or template?)"
        )
    return notes


def run_gate(gate: Gate, say: Say) -> GateResult:
    """Ask both parties in rounds until the verdict is certain, or nothing more may be asked.

    Raises `UserError` where not even the first round fits into the limits, and where the two cannot
    be paired.
    """
    least = dict.fromkeys(gate.design.cells, gate.design.sizes[0])
    if limit := gate.limit_of(least):
        raise UserError(
            f"{limit} is less than the first round takes: {gate.cost(least).text()}; raise it, or "
            "name fewer --tasks or --lengths"
        )
    run = _Run(gate)
    rule = GateRule(gate.design, run.differences_of, gate.limit_of, say)
    with ExitStack() as stack:
        for party in (gate.a, gate.b):
            if party.is_asked:
                stack.callback(party.model.close)
        try:
            for length, counts in rounds(rule.wanted):
                run.ask(length, counts)
        except _StoppedError as reason:
            rule.stopped = str(reason)

    found = None
    if rule.last:
        a, b, pairs, notes = run.paired
        found = comparison_of(gate.design, rule.last, a, b, pairs, notes, gate.by)
    return GateResult(
        gate=gate,
        verdict=verdict_of(gate.design, rule.last, found, rule.stopped),
        comparison=found,
        cost=gate.cost(rule.reached),
        stopped=rule.stopped,
    )
