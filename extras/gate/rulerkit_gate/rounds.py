"""`rulerkit gate`: is a candidate worse than a baseline? Asks both in rounds, until it is certain.

`Party` is one of the two: a model that is asked, or answers that are stored. `run_gate` asks them
for what `sequential` wants next, and ends with a verdict or where a limit is reached.

Each gate is a run of its own, because a server may be restarted with another model at the same
address: answers of an earlier call are used only with `--resume`, which goes on with the newest run
of the same two. The verdict depends on the answers alone, so a run that was resumed ends as one
that was not interrupted.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rulerkit.analysis.compare import Comparison, Decision, paired, side_of
from rulerkit.analysis.differences import Key, PairedDifferences
from rulerkit.analysis.remake import examples_of
from rulerkit.common.errors import ModelError, UserError, counted, listed
from rulerkit.common.lengths import length_name
from rulerkit.common.settings import JSON, Spec
from rulerkit.evaluation.cost import Cost, cost_of
from rulerkit.evaluation.evaluate import Session, evaluate
from rulerkit.evaluation.rounds import rounds
from rulerkit.evaluation.study import Study, name_of
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import Task
from rulerkit.inference.model import Model, load_model
from rulerkit.scoring.effective_length import Counts
from rulerkit.store.cells import Cell, allowed_failures, read_cells
from rulerkit.store.comparable import describe_first, differences
from rulerkit_gate.sequential import Design, GateRule, Look
from rulerkit_gate.verdict import comparison_of, verdict_of

Say = Callable[[str], None]


# --- the two parties ------------------------------------------------------------------------------


class Party:
    """One of the two: a model that is asked, or answers that are stored (`cells`)."""

    def __init__(
        self, described: JSON | Model | None, cells: list[Cell] | None = None, name: str = ""
    ) -> None:
        self.described, self.stored = described, cells
        self.model: Any = None if described is None else load_model(described)
        self.name = name or str(getattr(self.model, "label", ""))
        self.run = ""
        """Where its answers go, if that is not the run of the study."""
        self.resumes = False
        """Whether answers of an earlier call are used, rather than moved aside."""
        self._begun = set[Key]()
        self.session: Session | None = None
        """Its model stays loaded there between two rounds."""

    @property
    def is_asked(self) -> bool:
        return self.stored is None

    @property
    def prices(self) -> Mapping[str, float]:
        """Dollars for a million tokens; empty where nothing is known."""
        spec: Spec = getattr(self.model, "spec", {})
        return dict(spec.get("prices") or {})

    def cells(self, study: Study, length: int, counts: Mapping[str, int]) -> list[Cell]:
        """The cells of some tasks at a length, after it was asked for what is missing of them."""
        if self.stored is not None:
            return [c for c in self.stored if c.length == length and c.task in counts]

        assert self.described is not None
        groups: dict[tuple[bool, int], list[Task]] = {}
        for task in study.tasks:
            if task.name in counts:
                is_begun = self.resumes or (task.name, length) in self._begun
                groups.setdefault((is_begun, counts[task.name]), []).append(task)
        cells = list[Cell]()
        for (is_begun, number), tasks in groups.items():
            one = replace(
                study,
                models=(self.described,),
                tasks=tuple(tasks),
                lengths=(length,),
                num_examples=number,
                run=self.run or study.run,
            )
            cells += evaluate(one, fresh=not is_begun, progress=False, session=self.session)
        self._begun |= {(task, length) for task in counts}
        return cells

    def cells_before(self, study: Study) -> list[Cell]:
        """Its answers that are stored before the gate begins."""
        if self.stored is not None:
            return self.stored
        if not self.resumes:
            return []
        folder = study.outputs / "predictions" / (self.run or study.run) / name_of(self.described)
        return read_cells(folder, scan=False) if folder.is_dir() else []


# --- the run --------------------------------------------------------------------------------------


def new_run() -> str:
    """The name of a run of its own, by the time."""
    now = datetime.now()
    return f"gate-{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}"


def newest_run(study: Study, a: Party, b: Party) -> str | None:
    """The last gate in which these two were asked, or one of them and nobody else; None where there
    is none."""
    names = {name_of(party.described) for party in (a, b) if party.is_asked}
    predictions = study.outputs / "predictions"
    for run in sorted(predictions.glob("gate-*"), reverse=True):
        # A gate that was stopped early has answers of one of the two alone; one of a model against
        # itself has them in a second run.
        models = {folder.name for folder in run.iterdir() if folder.is_dir()}
        is_of_one = (predictions / f"{run.name}-again").is_dir()
        is_of_these = bool(models) and models <= names and (len(names) == 1 or not is_of_one)
        if is_of_these and re.fullmatch(r"gate-\d{8}-\d{6}-\d{3}", run.name):
            return run.name
    return None


def stored_before(study: Study, a: Party, b: Party) -> dict[str, JSON]:
    """How many answers of an earlier call each party brings, and since when they lie there."""
    stored: dict[str, JSON] = {}
    for party in (a, b):
        cells = party.cells_before(study)
        number = sum(len(cell.coverage.have) for cell in cells)
        if number:
            oldest = min(cell.path.stat().st_mtime for cell in cells)
            since = datetime.fromtimestamp(oldest).isoformat(" ", "minutes")
            stored[party.name] = {"answers": number, "since": since}
    return stored


def check_pairing(study: Study, a: Party, b: Party, by: str) -> None:
    """Raise a `UserError` that says what differs where the two are not asked the same prompts."""
    if by != "digest" or (a.stored is not None and b.stored is not None):
        return  # two stored sides are checked where they are paired
    for length in {min(study.lengths), max(study.lengths)}:
        task = study.tasks[0]
        (digest, record), (other_digest, other) = (
            _first_record(party, study, task, length) for party in (a, b)
        )
        if digest == other_digest:
            continue
        changes = differences(record, other)
        field_name, old, new, more = (
            describe_first(changes) if changes else ("prompt", "one", "other", "")
        )
        raise UserError(
            f"{a.name} and {b.name} are not asked the same prompts ({field_name}: {old} | {new}"
            f"{more}): give both one tokenizer and template (-y 'tokenizer: X'), or pair by the "
            "number of the example with --by index, which does not compare the prompts"
        )


def _first_record(party: Party, study: Study, task: Task, length: int) -> tuple[str, JSON]:
    """The digest of what a party is asked first, and the settings that made it."""
    for cell in party.stored or ():
        if (cell.task, cell.length) == (task.name, length) and 0 in cell.coverage.have:
            (row,) = (row for row in cell.rows if row["index"] == 0)
            return row["digest"], cell.record["result"]
    form = party.model.prompt_format if party.is_asked else None
    examples = generate(task, length, 1, study.seed, form)
    return examples[0].digest, examples.record()


def study_of_stored(study: Study, party: Party, named: bool) -> Study:
    """The study that a folder of answers was asked: its seed, and of its tasks and lengths those of
    the study where these were `named`, else all.

    Raises `UserError` where the folder lacks what was named.
    """
    cells = {(cell.task, cell.length): cell for cell in party.stored or ()}
    if not cells:
        raise UserError(f"{party.name} holds no answers")
    if named:
        names = [task.name for task in study.tasks]
        wanted = [(t, n) for n in study.lengths for t in names]
    else:
        wanted = list(cells)
    missing = [f"{t} at {length_name(n)}" for t, n in wanted if (t, n) not in cells]
    if missing:
        raise UserError(
            f"{party.name} has no answers to {listed(missing, 4)}: name the tasks and lengths that "
            "it has with --tasks and --lengths, or leave them out"
        )

    chosen = [cells[key] for key in wanted]
    tasks = {cell.task: examples_of(cell).task for cell in chosen}
    num_examples = min(cell.wanted for cell in chosen)
    return replace(
        study,
        tasks=tuple(tasks.values()),
        lengths=tuple(sorted({cell.length for cell in chosen})),
        num_examples=min(study.num_examples, num_examples),
        seed=int(chosen[0].record["result"]["seed"]),
    )


# --- what may be asked ----------------------------------------------------------------------------


class Limits(NamedTuple):
    """What the gate may use; None is no limit. All but the minutes count what the verdict rests on,
    whether it was asked now or before: so a run that was stopped ends as one that was not."""

    examples: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    minutes: float | None = None


# --- the rounds -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """What is to be found out: the study, the two parties, the design of the looks, the limits."""

    study: Study
    a: Party
    b: Party
    design: Design
    by: str
    limits: Limits
    stored: Mapping[str, JSON]
    """By party: its answers of an earlier call, as `stored_before` found them."""

    @property
    def stored_text(self) -> str:
        """Which answers are of an earlier call, in a sentence."""
        parts = [
            f"{counted(found['answers'], 'answer')} of {name} since {found['since']}"
            for name, found in self.stored.items()
        ]
        return f"Stored before: {'; '.join(parts)}" if parts else "None was stored before"

    def cost(self, sizes: Counts) -> Cost:
        """What so many examples of each cell take. Examples count once, tokens and dollars for each
        party that is asked."""
        total = Cost(sum(sizes.values()))
        for party in (self.a, self.b):
            if party.is_asked:
                of_party = cost_of(self.study, getattr(party.model, "spec", {}), sizes)
                total = total.plus(of_party._replace(examples=0))
        return total

    def limit_of(self, sizes: Counts) -> str:
        """The first limit that so many examples of each cell exceed, in words; else empty."""
        cost, limits = self.cost(sizes), self.limits
        if limits.examples is not None and cost.examples > limits.examples:
            return f"--max-examples {limits.examples}"
        if limits.tokens is not None and cost.tokens > limits.tokens:
            return f"--budget {limits.tokens} tokens"
        if limits.dollars is not None and (cost.dollars or 0) > limits.dollars:
            return f"--budget ${limits.dollars:g}"
        return ""


@dataclass(frozen=True)
class GateResult:
    """How it ended: the verdict, what was seen, and what it took."""

    gate: Gate
    verdict: Decision
    look: Look | None
    """Of the last round that was complete; None where none was."""
    comparison: Comparison | None
    reached: Counts
    cost: Cost
    stopped: str
    """Why no more was asked before the verdict was certain; empty where it is."""

    @property
    def noise(self) -> dict[str, float] | None:
        """The largest loss of a place of each level, in points, where both are one model: what
        serving it twice loses by chance."""
        if not self.look or not self.comparison or not self.comparison.same_model:
            return None
        noise: dict[str, float] = {}
        for test in self.look.tests:
            level = test.place.level
            noise[level] = round(max(noise.get(level, 0.0), -100 * test.mean.value), 4)
        return noise


class _StoppedError(Exception):
    """A round cannot be completed, for the reason that it holds."""


class _Run:
    """The answers of both so far."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.started = gate, time.monotonic()
        self.cells: dict[Party, dict[Key, Cell]] = {gate.a: {}, gate.b: {}}
        self.paired: Any = None
        """The two sides, the pairs and the notes of the last complete round."""

    def ask(self, length: int, counts: Mapping[str, int]) -> None:
        """Ask both for so many examples of each task at a length, the baseline first; raises
        `_StoppedError` where they cannot be completed."""
        gate, limit = self.gate, self.gate.limits.minutes
        for party, cells in self.cells.items():
            if limit is not None and time.monotonic() - self.started > 60 * limit:
                raise _StoppedError(f"--minutes {limit:g}")
            try:
                asked = party.cells(gate.study, length, counts)
            except ModelError as error:
                raise _StoppedError(f"{party.name} stopped: {error}") from error
            of_tasks = {cell.task: cell for cell in asked}
            cells |= {(cell.task, cell.length): cell for cell in asked}

            missing: dict[str, int] = {}
            for task, size in counts.items():
                present = of_tasks[task].coverage.have if task in of_tasks else ()
                without = size - sum(index < size for index in present)
                if without > allowed_failures(gate.study.max_failures, size):
                    missing[task] = without
            if missing:
                number = counted(sum(missing.values()), "example")
                places = listed((f"{task} at {length_name(length)}" for task in missing), 3)
                raise _StoppedError(f"{party.name} has no answer to {number} ({places})")

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
        self.paired = a, b, pairs, notes
        return PairedDifferences(pairs)


def run_gate(gate: Gate, say: Say = lambda _: None) -> GateResult:
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
    with Session() as one, Session() as two:
        gate.a.session = one
        # Two models that compute here may not fit on one GPU together.
        computes_here = any(getattr(party.model, "on_gpu", False) for party in (gate.a, gate.b))
        gate.b.session = one if computes_here else two
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
        look=rule.last,
        comparison=found,
        reached=rule.reached,
        cost=gate.cost(rule.reached),
        stopped=rule.stopped,
    )


def check_lengths(study: Study, parties: tuple[Party, ...], named: bool, say: Say) -> Study:
    """The study with the lengths that both can be given. Where lengths were `named`, or only one of
    the two refuses a length, that is a `UserError`."""
    kept = []
    for length in study.lengths:
        refusals = {
            party.name: reason
            for party in parties
            if party.is_asked and (reason := party.model.too_long(length))
        }
        if not refusals:
            kept.append(length)
            continue
        name, reason = next(iter(refusals.items()))
        text = f"{name} cannot be given {length_name(length)}: {reason}"
        if named or len(refusals) < sum(party.is_asked for party in parties):
            raise UserError(f"{text}; name the lengths to compare with --lengths")
        say(f"left out: {text}")
    if not kept:
        raise UserError("no length is left that both can be given: see above")
    return replace(study, lengths=tuple(kept))


def decide_runs(study: Study, a: Party, b: Party) -> None:
    """Two parties of one name are one model, asked twice: the second time in a run of its own. So
    is a model whose stored answers are the other party."""
    for other, asked in ((a, b), (b, a)):
        if not asked.is_asked:
            continue
        name = name_of(asked.described)
        if other.stored is None:
            is_same = name_of(other.described) == name
        else:
            folder = study.predictions / name
            folders = {cell.path.parents[1].resolve() for cell in other.stored}
            is_same = folder.resolve() in folders
        if is_same:
            asked.run = f"{study.run}-again"
            if not _name_by_folder(a, b):
                asked.name = f"{asked.name} (again)"
            return


def _name_by_folder(a: Party, b: Party) -> bool:
    """Call two checkpoints whose folders have one name, such as `before/model` and `after/model`,
    by the folders around them too; returns whether they are two."""
    paths = [party.model.spec.get("path") for party in (a, b) if party.is_asked]
    if len(paths) < 2 or None in paths or paths[0] == paths[1]:
        return False
    for party, path in zip((a, b), map(Path, paths), strict=True):
        party.name = f"{path.parent.name}/{path.name}"
    return a.name != b.name
