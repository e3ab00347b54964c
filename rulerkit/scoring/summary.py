"""Tables of scores: each cell, each length, each model, with intervals. No mean is taken over
what is missing.

Scores are multiplied by 100 here, and only here: rows hold 0..1, everything below holds percent.
Every interval is that of `statistics.weighted_sum`.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.common.errors import UserError, check_known, remark
from rulerkit.common.lengths import length_name, parse_grid
from rulerkit.common.plugins import capability
from rulerkit.generation.corpora import OWN_TEXTS
from rulerkit.scoring import scores as scoring
from rulerkit.scoring.effective_length import (
    OWN_MEAN_SUITES,
    OWN_SHARE,
    OWN_TABLE,
    OWN_THRESHOLD,
    PAPERS_THRESHOLD,
    THRESHOLDS,
    effective_length,
    effective_set,
    family_threshold,
)
from rulerkit.scoring.statistics import Estimate, WeightedCell, weighted_sum
from rulerkit.scoring.stopping import StoppingRule, replay
from rulerkit.store.cells import allowed_failures, failure_counts

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

CATEGORIES = ("all", *scoring.CATEGORIES)
AVERAGES = ("avg", "wavg_inc", "wavg_dec")
RANKS = {"wavg_inc": "rank_inc", "wavg_dec": "rank_dec"}
"""The rank by each weighted average."""
COUNTS = ["other_form", "empty", "cut_off", "cut_thought", "is_copy"]
_SCORE = ("score", "low", "high")
_MEANS = ["strict", "exact", "copied", "reasoning_tokens"]
STAND_IN = "stand-in corpora"
"""What notes call texts that are not the paper's."""
CELL = ["run", "model", "task", "length"]
"""The columns that name a cell."""
_MODEL = ["run", "model"]
_ABOUT = [*_MODEL, "label", "aligned", "claimed_length"]
_REQUESTS = ["wanted", "failed", "failed_refused", "max_failures"]
_NOTHING: "_Row" = {
    **dict.fromkeys([*COUNTS, *_REQUESTS, "n", "reasoning_tokens"], 0),
    "stand_in": False,
    "own_threshold": np.nan,
    "engine": np.nan,
    "adaptive": "",
}
"""What is known of a cell that nobody asked."""
_COLUMNS = [
    *_ABOUT,
    "task",
    "category",
    "suite",
    "length",
    *_SCORE,
    "strict",
    "exact",
    "copied",
    "n",
    "wanted",
    *COUNTS,
    "reasoning_tokens",
    "stand_in",
    "complete",
    "failed",
    "have",
    "rest",
    "engine",
    "seed",
    "prompt_version",
    "protocol",
    "texts",
    "tokenizer",
    "template",
    "note",
    "threshold",
]


class Summary(NamedTuple):
    """Three tidy tables of percents.

    `cells`: a row per run, model, task and length. Columns run, model, label, aligned,
    claimed_length, task, category, suite, length, score, low, high, strict, exact, copied (the
    score of the beginning of the context, copied; NaN but for cwe and fwe), n, wanted, other_form,
    empty, cut_off, cut_thought, is_copy (numbers of answers; is_copy: that begin as the context
    does), reasoning_tokens (mean of a thought), stand_in, complete, failed (number of requests),
    have ('300/500' where incomplete, else ''), rest ('498/500, 2 failed' where the mean is over the
    rest, as `max_failures` allows, else ''),
    engine, seed, prompt_version, protocol, texts, tokenizer, template, note, threshold (of the 13
    tasks). Where a cell is incomplete its scores are NaN. `lengths`: a row per model, category
    ('all', 'niah', 'vt', 'aggregation', 'qa') and length: score (mean over the category's tasks),
    low, high, tasks (how many the mean is over), whole (whether they are all that RULER has in this
    category; True in other suites), n (smallest of its cells), complete, have ('3/13 tasks'; '-'
    where nothing was run), stand_in, reader. `models`: a row per model and category: tasks, whole,
    avg, avg_low, avg_high, wavg_inc, wavg_inc_low, wavg_inc_high, wavg_dec, wavg_dec_low,
    wavg_dec_high, effective_length and effective_set (text, '' where there is no threshold or the
    tasks are not all that it is for), threshold (NaN where the model's own mean is none) and
    threshold_of (text: whose score it is, or why there is none), setup (text, the same for models
    whose cells have the same protocol and texts), rank_inc, rank_dec (see `_with_ranks`), complete,
    stand_in, reader (whether a reference reader answered), adaptive (question, answer and tokens in
    words, '' for a fixed number of examples).
    """

    cells: "pd.DataFrame"
    lengths: "pd.DataFrame"
    models: "pd.DataFrame"
    confidence: float

    def of(self, category: str) -> "Summary":
        """The rows of one category; of 'all' all cells."""
        cells, lengths, models = (
            frame[frame["category"] == category]
            for frame in (self.cells, self.lengths, self.models)
        )
        if category == "all":
            cells = self.cells
        return Summary(cells, lengths, models, self.confidence)


def length_weights(num_lengths: int) -> "NDArray[np.float64]":
    """The weights of the three averages, a row each in the order of AVERAGES, from the shortest
    length to the longest: plain, 1, 2, 3, ... and ..., 3, 2, 1; a row adds up to 1 (for six
    lengths: 1..6 over 21, Section 4)."""
    rising = np.arange(1, num_lengths + 1) / (num_lengths * (num_lengths + 1) / 2)
    return np.stack([np.full(num_lengths, 1 / num_lengths), rising, rising[::-1]])


def summarize(
    scores: Any,
    tasks: str | Sequence[str] | None = None,
    lengths: int | str | Sequence[int | str] | None = None,
    num_examples: int | None = None,
    confidence: float = 0.95,
    suite: str | None = None,
) -> Summary:
    """Summarize rows of `score`, or what it takes, over a grid of tasks, lengths and examples.

    Means are over the tasks given, else over those that any model was run on. Where all thirteen
    of the benchmark are among them, means are over the thirteen, and other tasks stand in `cells`
    and in the means of a category of one's own. Effective lengths by the paper's thresholds, and
    ranks, need all thirteen, or all of a category. `lengths` are those given (4096 or 4K), else all
    that any model was run at; `num_examples` are the first so many, else as many as each cell was
    to have. What the grid lacks is shown as missing, and no mean is taken over the rest. Cells
    without a row show how many requests failed, if `scores.attrs["empty_cells"]` has them, as
    `score` sets it. A model that answered several times (`repeat`) is one model: see
    `merge_repetitions`. All rows are of one suite: `suite`, or what `of_one_suite` chooses. Raises
    UserError for nothing to summarize, several suites, and one example with two scores.
    """
    import pandas as pd

    given_tasks, given_lengths = parse_grid(tasks, lengths)
    rows = each_once(scoring.as_scores(scores, "summarize"))
    scores = of_one_suite(rows, given_tasks, suite)
    # Cells without any answer: how many of their requests failed is shown.
    empty_cells = [cell for cell in scores.attrs.get("empty_cells", ()) if cell["failed"]]
    answers = _select(scores, given_tasks, given_lengths, num_examples, empty_cells)
    chosen = merge_repetitions(answers)

    examples = weighted_cells(chosen, CELL)
    by_cell = chosen.groupby(CELL, sort=False)
    first_rows = by_cell.head(1)
    facts = _facts_by_cell(by_cell, first_rows, empty_cells)
    grid = _grid_of(given_tasks, given_lengths, first_rows, empty_cells, facts)

    cell_rows, length_rows, model_rows = list[_Row](), list[_Row](), list[_Row]()
    for name, of_model in first_rows.groupby(_MODEL, sort=False):
        about: Any = of_model[_ABOUT].to_dict("records")[0]
        cells = _cells_of_model(
            name, of_model, about, grid, facts, examples, num_examples, confidence
        )
        cell_rows += [row for row in cells if row["task"] in grid.shown]
        adaptive = _adaptive(cells, examples)
        for category in dict.fromkeys([*CATEGORIES, *(row["category"] for row in cells)]):
            members = grid.members(cells, category)
            if grid.answered.isdisjoint(row["task"] for row in members):
                continue
            by_length, over_lengths = _rows_of_category(
                members, about, category, grid.lengths, confidence
            )
            length_rows += by_length
            model_rows.append(over_lengths | {"adaptive": adaptive})

    all_cells = pd.DataFrame(cell_rows, columns=_COLUMNS)
    lengths_of, models = pd.DataFrame(length_rows), pd.DataFrame(model_rows)
    for frame in (all_cells, lengths_of, models):
        frame.attrs["texts"] = texts_words(all_cells)
    return Summary(all_cells, lengths_of, _with_ranks(models), confidence)


def texts_words(frame: "pd.DataFrame") -> str:
    """What a figure or a table must say of the texts that its scores are over: 'stand-in corpora',
    'own texts', both, or ''.

    A frame without the column `stand_in` says it by `attrs["texts"]`, which those who make one from
    scores pass on.
    """
    known = str(frame.attrs.get("texts", ""))
    if "stand_in" not in frame:
        return known
    is_stand_in = frame["stand_in"].fillna(False).astype(bool)
    if not is_stand_in.any():
        return ""
    if "note" not in frame:
        return known or STAND_IN
    is_own = frame["note"].str.contains(OWN_TEXTS, na=False)
    words = {OWN_TEXTS: is_own, STAND_IN: is_stand_in & ~is_own}
    return "; ".join(name for name, is_so in words.items() if is_so.any())


def each_once(scores: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of `score`, each example once; UserError where one has different answers."""
    place = [*CELL, "index"]
    is_again = scores.duplicated(place)
    if not is_again.any():
        return scores

    # The same row comes twice where frames that overlap are joined.
    said = [name for name in ("score", "prediction") if name in scores]
    different = scores.drop_duplicates([*place, *said])
    twice = different[different.duplicated(place)]
    if len(twice):
        run, model, task, length, index = twice[place].iloc[0]
        raise UserError(
            f"run {run!r}, model {model!r}: example {index} of task {task!r} at {length} tokens is "
            "there twice with different answers: keep one of the two rows"
        )
    once = scores[~is_again]
    once.attrs = scores.attrs
    return once


def of_one_suite(
    scores: "pd.DataFrame", tasks: Sequence[str] | None = None, suite: str | None = None
) -> "pd.DataFrame":
    """The rows of one suite: the one given, else that of the tasks given, else what `choose_suite`
    chooses."""
    empty_cells = scores.attrs.get("empty_cells", ())
    pairs = scores[["task", "suite"]].drop_duplicates()
    suite_of = dict(zip(pairs["task"], pairs["suite"], strict=True))
    suite_of |= {cell["task"]: cell["suite"] for cell in empty_cells}
    asked = {suite_of[task] for task in tasks or suite_of if task in suite_of}
    if suite is not None:
        check_known("suite", suite, dict.fromkeys(suite_of.values()))
        asked = {suite}
    if not asked:
        return scores
    chosen = choose_suite(asked, is_named=bool(tasks))
    if set(suite_of.values()) <= {chosen}:
        return scores
    rows = scores[scores["suite"] == chosen]
    rows.attrs["empty_cells"] = [cell for cell in empty_cells if cell["suite"] == chosen]
    return rows


def suites_of(scores: "pd.DataFrame") -> list[str]:
    """The suites that the rows of `score` are of, RULER's first: each has a summary of its own."""
    empty_cells = scores.attrs.get("empty_cells", ())
    found = {*scores["suite"], *(cell["suite"] for cell in empty_cells)}
    return sorted(found, key=lambda suite: (suite != "ruler", suite))


def choose_suite(suites: Collection[str], is_named: bool = False) -> str:
    """The one of several suites that means are taken over: `ruler` where its tasks were not named
    with others, which stderr then says; UserError where nothing tells."""
    if len(suites) == 1:
        return next(iter(suites))
    names = sorted(suites, key=lambda suite: (suite != "ruler", suite))
    if is_named or names[0] != "ruler":
        raise UserError(
            f"these scores are of the suites {' and '.join(names)}, and no mean is over two of "
            "them: name tasks of one"
        )
    remark(
        f"left out: tasks of {' and '.join(names[1:])}, which enter no mean with those of ruler: "
        "name their tasks to see them"
    )
    return "ruler"


class _Grid(NamedTuple):
    """The tasks and lengths of a summary."""

    answered: set[str]
    """The tasks of which any model has an answer."""
    averaged: list[str]
    """The tasks that means are taken over."""
    shown: list[str]
    """The tasks that stand in `cells`."""
    categories: dict[str, str]
    lengths: list[int]
    """In tokens, shortest first."""
    suite: str

    @property
    def tasks(self) -> list[str]:
        """All of them: those that are shown, then the others."""
        return list(dict.fromkeys([*self.shown, *self.averaged]))

    def members(self, cells: "Sequence[_Row]", category: str) -> "list[_Row]":
        """The cells whose mean is that of a category."""
        inside = [row for row in cells if category in ("all", row["category"])]
        averaged = [row for row in inside if row["task"] in self.averaged]
        # A category of one's own has none of the thirteen.
        return averaged or inside


def _grid_of(
    tasks: Sequence[str] | None,
    lengths: Sequence[int] | None,
    first_rows: "pd.DataFrame",
    empty_cells: Sequence[Mapping[str, Any]],
    facts: "dict[Any, _Row]",
) -> _Grid:
    """The tasks and lengths given, or else those that were answered."""
    category_of = dict(zip(first_rows["task"], first_rows["category"], strict=True))
    answered = list(category_of)

    # A task whose requests all failed was run, too: no mean is taken over the others.
    known_models = set(zip(first_rows["run"], first_rows["model"], strict=True))
    begun = [
        (task, length)
        for run, model, task, length in facts
        if (run, model) in known_models and (not lengths or length in lengths)
    ]
    averaged = list(tasks or dict.fromkeys(task for task, _ in begun))
    if not tasks:
        # The benchmark's in its own order, then the others.
        thirteen = [task for task in scoring.THIRTEEN if task in averaged]
        averaged = list(dict.fromkeys([*thirteen, *averaged]))

    # Other tasks beside all thirteen are shown and enter no mean of them.
    shown = list(dict.fromkeys([*averaged, *answered]))
    if set(scoring.THIRTEEN) <= set(averaged):
        averaged = list(scoring.THIRTEEN)

    # Records say the category of a task; of those that were never run only the name is known.
    categories = {task: scoring.category(task) for task in shown}
    categories |= {cell["task"]: cell["category"] for cell in empty_cells}
    categories |= category_of

    at_lengths = {length for task, length in begun if task in shown}
    return _Grid(
        set(answered),
        averaged,
        shown,
        categories,
        sorted(set(lengths or at_lengths)),
        first_rows["suite"].iloc[0],
    )


def _cells_of_model(
    name: Any,
    first_rows: "pd.DataFrame",
    about: "_Row",
    grid: _Grid,
    facts: "dict[Any, _Row]",
    examples: Mapping[Any, WeightedCell],
    num_examples: int | None,
    confidence: float,
) -> "list[_Row]":
    """The rows of all cells of one model, also of those that nobody asked.

    `name` is its run and name.
    """
    usual = first_rows["wanted"].max()
    rows = []
    for task, length in product(grid.tasks, grid.lengths):
        key = (*name, task, length)
        row = _NOTHING | facts.get(key, {}) | about
        row["examples"] = examples.get(key)
        row["task"], row["length"] = task, length
        row["category"] = grid.categories[task]
        row["suite"] = grid.suite
        # Where nothing says how many examples there should be, as many as elsewhere.
        wanted = num_examples or row["wanted"] or usual
        rows.append(_cell(row, wanted, confidence))
    return rows


def _rows_of_category(
    members: "Sequence[_Row]",
    about: "_Row",
    category: str,
    lengths: Sequence[int],
    confidence: float,
) -> "tuple[list[_Row], _Row]":
    """The rows of one model and category: one for each length, and one over all lengths."""
    tasks = {row["task"] for row in members}
    is_ruler = members[0]["suite"] == "ruler"
    common = about | {
        "category": category,
        "tasks": len(tasks),
        "whole": not is_ruler or tasks == _benchmark(category),
        "stand_in": any(row["stand_in"] for row in members),
        "reader": any(row["engine"] == "reader" for row in members),
    }
    by_length = []
    for length in lengths:
        at_length = [row for row in members if row["length"] == length]
        by_length.append(_length_row(at_length, confidence))
    over_lengths = _model_row(members, by_length, category, confidence)
    over_lengths["setup"] = _setup(members)
    return [common | row for row in by_length], common | over_lengths


def _benchmark(category: str) -> set[str]:
    """The tasks of the benchmark in a category."""
    return {task for task in scoring.THIRTEEN if category in ("all", scoring.category(task))}


def _setup(members: "Sequence[_Row]") -> str:
    """The protocol and the texts of some cells in words, with a digest of both by task."""
    parts, protocols = set[str](), set[str]()
    for row in members:
        if not row["n"]:
            continue
        values = [row["task"], row["prompt_version"], row["texts"]]
        parts.add(str([row["protocol"], bool(row["stand_in"]), *values]))
        if isinstance(row["protocol"], str):
            protocols.add(row["protocol"] or "unknown")

    digest = sha256("".join(sorted(parts)).encode()).hexdigest()[:8]
    words = [f"protocol {name}" for name in sorted(protocols)]
    if any(row["stand_in"] for row in members):
        words.append("stand-in texts")
    return f"{', '.join(words)} ({digest})"


def _with_ranks(models: "pd.DataFrame") -> "pd.DataFrame":
    """Rank the models by each weighted average, among chat and among base models apart, as the
    paper counts them, and among models of the same protocol and texts. A model in several runs has
    one rank, that of its mean over them.

    There is no rank of some of the benchmark's tasks, nor of an adaptive run, whose cells have
    different numbers of examples.
    """
    has_rank = models["whole"] & (models["adaptive"] == "")
    alike = ["category", "aligned", "setup"]
    for average, rank in RANKS.items():
        values = models[[*alike, "model"]].assign(value=models[average].where(has_rank))
        of_model = values.groupby([*alike, "model"])["value"].mean().round(9)
        places = of_model.groupby(alike).rank(method="min", ascending=False)
        ranks = values.join(places.rename(rank), on=[*alike, "model"])[rank]
        models[rank] = ranks.where(values["value"].notna())
    return models


def _select(
    scores: "pd.DataFrame",
    tasks: Sequence[str] | None,
    lengths: Sequence[int] | None,
    num_examples: int | None,
    empty_cells: Sequence[Mapping[str, Any]],
) -> "pd.DataFrame":
    """The rows of the tasks, lengths and examples that are asked for; UserError for none."""
    wanted = np.ones(len(scores), bool)
    if num_examples is not None:
        wanted &= scores["index"] < num_examples
    for column, chosen in (("length", lengths), ("task", tasks)):
        if chosen is not None:
            wanted &= scores[column].isin(chosen)

    # Nothing left is most often a typing error, or a run in which every request failed.
    if not wanted.any():
        failed = sum(cell["failed"] for cell in empty_cells)
        failures = ""
        if failed:
            failures = f" ({failed} requests failed: see *.failures.jsonl)"
        raise UserError(
            "nothing to summarize: no scored example is among the tasks, lengths and examples "
            f"asked for{failures}; evaluate first, or ask for what the predictions hold"
        )
    return scores if wanted.all() else scores[wanted]


def _facts_by_cell(
    by_cell: Any, first: "pd.DataFrame", empty_cells: Sequence[Mapping[str, Any]]
) -> "dict[Any, _Row]":
    """What is known of each cell beside its scores: its first row with sums and means over all rows
    (grouped `by_cell`), and of a cell without an answer its failed requests."""
    facts: dict[Any, _Row] = {}
    for cell in empty_cells:
        for run in (cell["run"], base_run(cell["run"])):
            key = (run, cell["model"], cell["task"], cell["length"])
            facts[key] = {name: cell[name] for name in _REQUESTS}
    cells: Any = first.set_index(CELL, drop=False)
    cells[COUNTS] = by_cell[COUNTS].sum()
    cells[_MEANS] = by_cell[_MEANS].mean()
    cells["n"] = by_cell.size()
    facts |= cells.to_dict("index")
    return facts


def _adaptive(rows: "Sequence[_Row]", examples: Mapping[Any, WeightedCell]) -> str:
    """What an adaptive run of a model has found, by the rows of its cells; "" for another run."""
    first = next((row for row in rows if row["adaptive"]), None)
    if first is None:
        return ""
    asked = json.loads(first["adaptive"])
    # Former versions also asked for an average, and for a comparison with another model.
    if asked.pop("average", None) is not None or asked.pop("other", None) is not None:
        return "adaptive: what a former version asked here is not judged any more"
    asked.pop("margin", None)
    rule = StoppingRule(**asked)

    # The scores of each cell of the rule, by index.
    nothing = WeightedCell(1.0, "", np.empty(0))
    scores = {
        (task, length): examples.get((first["run"], first["model"], task, length), nothing).scores
        for task, length in product(rule.tasks, rule.lengths)
    }
    # Requests that failed behind the last answer count as well.
    for row in rows:
        key = row["task"], row["length"]
        if key in scores:
            seen = int(np.isnan(scores[key]).sum())
            behind = max(0, row["failed"] - seen)
            scores[key] = np.append(scores[key], [np.nan] * behind)

    about = (first["aligned"], first["claimed_length"], first["max_failures"])
    return rule.describe(replay(rule, scores, *about))


_Row = dict[str, Any]


def _cell(row: _Row, wanted: int, confidence: float) -> _Row:
    """The row of a cell with `examples`, its answers, if it has any."""
    n = row["n"]
    allowed = min(row["failed"], allowed_failures(row["max_failures"], wanted))
    complete = n > 0 and wanted - n <= allowed

    # "300/500, 2 failed": beside the score where it is of the rest, else in its place.
    failures = failure_counts(row["failed"], row["failed_refused"])
    have = f"{n}/{wanted}"
    if failures:
        have += f", {failures}"

    row["wanted"], row["complete"] = wanted, complete
    row["have"] = "" if complete else have
    row["rest"] = have if complete and n < wanted else ""
    row["threshold"] = THRESHOLDS[row["aligned"]]["all"]
    for name in ("strict", "exact", "copied"):
        row[name] = 100 * row[name] if complete else np.nan
    estimate = _mean([row], [1.0], confidence)
    return row | dict(zip(_SCORE, estimate, strict=True))


def _mean(rows: Sequence[_Row], weights: Iterable[float], confidence: float) -> Estimate:
    """The weighted mean of cells in percent; NaN where one is incomplete."""
    if not all(row["complete"] for row in rows):
        return Estimate(np.nan, np.nan, np.nan)
    weighted = zip(rows, weights, strict=True)
    cells = [row["examples"]._replace(weight=float(weight)) for row, weight in weighted]
    return weighted_sum(cells, confidence).percent()


def _length_row(rows: Sequence[_Row], confidence: float) -> _Row:
    """The mean over the tasks of one model, category and length."""
    num_tasks = len(rows)
    mean = _mean(rows, [1 / num_tasks] * num_tasks, confidence)
    num_begun = sum(row["n"] > 0 or row["failed"] > 0 for row in rows)
    # What is missing is said of the cell that is furthest from complete.
    least = min(rows, key=lambda row: (row["complete"], row["n"] / row["wanted"]))
    have = least["have"]
    if num_begun < num_tasks:
        have = f"{num_begun}/{num_tasks} tasks" if num_begun else "-"
    return {
        "length": rows[0]["length"],
        **dict(zip(_SCORE, mean, strict=True)),
        "n": min(row["n"] for row in rows),
        "complete": not have,
        "have": have,
    }


def _model_row(
    rows: Sequence[_Row], length_rows: Sequence[_Row], category: str, confidence: float
) -> _Row:
    """The averages over the lengths of one model and category, and the effective length."""
    model: _Row = {}
    tasks = {row["task"] for row in rows}
    for name, weights in zip(AVERAGES, length_weights(len(length_rows)), strict=True):
        mean = _mean(rows, np.tile(weights, len(tasks)) / len(tasks), confidence)
        model |= zip((name, f"{name}_low", f"{name}_high"), mean, strict=True)

    complete = [row["complete"] for row in length_rows]
    suite = rows[0]["suite"]
    own = family_threshold(row["own_threshold"] for row in rows)
    if suite in OWN_MEAN_SUITES:
        judgement = _judge_by_own_mean(rows, length_rows, confidence)
    elif own is not None:
        intervals = _intervals(length_rows)
        judgement = _Judgement(own, OWN_THRESHOLD, intervals, any(complete))
    elif suite != "ruler":
        whose = f"the suite {suite} brings no threshold"
        if capability(suite):
            whose = OWN_TABLE
        judgement = _Judgement(np.nan, whose, _intervals(length_rows), False)
    else:
        judgement = _judge_by_paper(rows, length_rows, category, any(complete))

    model["effective_length"] = model["effective_set"] = ""
    model["threshold"] = judgement.threshold
    model["threshold_of"] = judgement.whose
    if judgement.is_possible:
        scores = {row["length"]: row["score"] for row in length_rows}
        # Why a length has no complete score.
        states = {row["length"]: "failed" for row in rows if row["failed"]}
        states |= {row["length"]: "unfinished" for row in rows if row["n"]}
        claimed = rows[0]["claimed_length"]
        model["effective_length"] = effective_length(scores, judgement.threshold, claimed, states)
        model["effective_set"] = effective_set(judgement.intervals, judgement.threshold, claimed)
    return {**model, "complete": all(complete)}


class _Judgement(NamedTuple):
    """What the mean at each length is held against."""

    threshold: float
    """In percent; NaN where there is none."""
    whose: str
    """Whose score it is, or why there is none."""
    intervals: dict[int, tuple[float, float]]
    """Of the mean at each length, in percent."""
    is_possible: bool
    """Whether there is an effective length."""


def _judge_by_paper(
    rows: Sequence[_Row], length_rows: Sequence[_Row], category: str, any_complete: bool
) -> _Judgement:
    """The threshold of the paper: Llama2-7B's score at 4K in this category."""
    threshold = THRESHOLDS[rows[0]["aligned"]].get(category, np.nan)
    whose = PAPERS_THRESHOLD
    if np.isnan(threshold):
        whose = f"neither the paper nor the family has a threshold for {category}"

    # It holds for the benchmark's own tasks only, and for all of them.
    is_whole = {row["task"] for row in rows} == _benchmark(category)
    return _Judgement(threshold, whose, _intervals(length_rows), is_whole and any_complete)


def _judge_by_own_mean(
    rows: Sequence[_Row], length_rows: Sequence[_Row], confidence: float
) -> _Judgement:
    """The threshold of the small protocol: a share of the model's own mean at its shortest
    length."""
    intervals = _intervals(length_rows)
    shortest = min(intervals)
    (start,) = (row["score"] for row in length_rows if row["length"] == shortest)
    threshold = round(OWN_SHARE * start, 1)

    mean_of = f"its own mean at {length_name(shortest)}"
    whose = f"{100 * OWN_SHARE:g} % of {mean_of}"
    # A share of nothing is reached by any answer.
    is_possible = bool(start > 0)
    if not is_possible:
        state = "incomplete" if np.isnan(start) else "0"
        threshold, whose = np.nan, f"{mean_of} is {state}"

    # The threshold is uncertain too: the interval is that of the difference from it.
    num_tasks = len({row["task"] for row in rows})
    for length in intervals:
        members = [row for row in rows if row["length"] in (length, shortest)]
        weights = []
        for row in members:
            weight = 1.0 if row["length"] == length else 0.0
            if row["length"] == shortest:
                weight -= OWN_SHARE
            weights.append(weight / num_tasks)
        above = _mean(members, weights, confidence)
        intervals[length] = (threshold + above.low, threshold + above.high)
    return _Judgement(threshold, whose, intervals, is_possible)


def _intervals(length_rows: Sequence[_Row]) -> dict[int, tuple[float, float]]:
    return {row["length"]: (row["low"], row["high"]) for row in length_rows}


def merge_repetitions(scores: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of `score` with the runs `R-repeat2`, `R-repeat3`, ... of a model merged into its
    run `R`.

    An example's score is the mean over its repetitions, so that an interval over examples holds
    both kinds of noise: that of the examples and that of the repetitions. `empty`, `cut_off`
    and `cut_thought` are added up. An example without an answer in one of the repetitions
    is left out.
    """
    runs_of = cell_rows(scores, _MODEL)
    merged = {}
    for run, model in runs_of:
        # `R-repeat2` alone, without `R`, is a run of its own.
        is_repetition = (base_run(run), model) in runs_of
        merged[run, model] = base_run(run) if is_repetition else run
    if all(run == merged_run for (run, _), merged_run in merged.items()):
        return scores

    runs = [merged[name] for name in zip(scores["run"], scores["model"], strict=True)]
    scores = scores.assign(run=runs, repetition=scores["run"])
    repetitions = scores.groupby(_MODEL)["repetition"].transform("nunique")
    keys = [*CELL, "index"]
    answers = scores.groupby(keys)["repetition"].transform("size")
    in_all = scores[answers == repetitions]

    rules = dict.fromkeys(scores.columns.difference([*keys, "repetition"]), "first")
    rules |= dict.fromkeys(["score", *_MEANS], "mean")
    rules |= dict.fromkeys(COUNTS, "sum")
    return in_all.groupby(keys, sort=False, as_index=False).agg(rules)


def base_run(run: str) -> str:
    """The run that a repetition `RUN-repeat2` belongs to; any other run itself."""
    return re.sub(r"-repeat\d+$", "", run)


def cell_rows(scores: "pd.DataFrame", by: Sequence[str]) -> "dict[Any, NDArray[Any]]":
    """The positions of the rows of each cell, by its values in the columns `by`."""
    indices: Any = scores.groupby([*by], sort=False).indices
    return dict(indices)


def weighted_cells(
    scores: "pd.DataFrame", by: Sequence[str] = ("task", "length")
) -> dict[Any, WeightedCell]:
    """The cells of rows, by the columns `by`, ready for `weighted_sum`, each of weight 1.

    A column `group`, such as the article of a question, says which examples are drawn together.
    """
    index = scores["index"].to_numpy(dtype=int)
    values = scores["score"].to_numpy(dtype=float)
    groups = np.full(len(scores), np.nan)
    if "group" in scores:
        numbers, _ = scores["group"].factorize()
        groups = np.where(numbers >= 0, numbers, np.nan)
    cells = {}
    for key, rows in cell_rows(scores, by).items():
        size = index[rows].max() + 1
        # What was not answered stays NaN.
        scores_by_index = np.full(size, np.nan)
        scores_by_index[index[rows]] = values[rows]
        groups_by_index = np.full(size, np.nan)
        groups_by_index[index[rows]] = groups[rows]
        has_groups = not np.isnan(groups_by_index).all()
        cells[key] = WeightedCell(
            1.0, key[by.index("task")], scores_by_index, groups_by_index if has_groups else None
        )
    return cells
