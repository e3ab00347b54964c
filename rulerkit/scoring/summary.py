"""Tables of scores: each cell, each length, each model, with intervals. No mean is taken over
what is missing.

Scores are multiplied by 100 here, and only here: rows hold 0..1, everything below holds percent.
Every interval is that of `statistics.weighted_sum`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name, parse_grid
from rulerkit.scoring import scores as scoring
from rulerkit.scoring.effective_length import (
    OWN_SHARE,
    PAPERS_THRESHOLD,
    THRESHOLDS,
    effective_length,
    effective_set,
    has_own_threshold,
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
COUNTS = ["empty", "cut_off", "cut_thought"]
_SCORE = ("score", "low", "high")
_MEANS = ["strict", "exact", "reasoning_tokens"]
CELL = ["run", "model", "task", "length"]
"""The columns that name a cell."""
_MODEL = ["run", "model"]
_ABOUT = [*_MODEL, "label", "aligned", "claimed_length"]
_REQUESTS = ["wanted", "failed", "failed_refused", "max_failures"]
_NOTHING: "_Row" = {
    **dict.fromkeys([*COUNTS, *_REQUESTS, "n", "reasoning_tokens"], 0),
    "stand_in": False,
    "floor": np.nan,
    "engine": np.nan,
    "adaptive": "",
}
"""What is known of a cell that nobody asked."""
_COLUMNS = [
    *(
        *_ABOUT,
        "task",
        "category",
        "length",
        *_SCORE,
        "strict",
        "exact",
        "n",
        "floor",
        "wanted",
    ),
    *(*COUNTS, "reasoning_tokens", "stand_in", "complete", "failed", "have", "rest"),
    *("engine", "seed"),
    *("prompt_version", "tokenizer", "template", "note", "threshold"),
]


class Summary(NamedTuple):
    """Three tidy tables of percents.

    `cells`: a row per run, model, task and length. Columns run, model, label, aligned,
    claimed_length, task, category, length, score, low, high, strict, exact, floor (the better of
    two answers without reading; NaN where it was not recorded), n, wanted, empty, cut_off,
    cut_thought (numbers of answers), reasoning_tokens (mean of a thought), stand_in,
    complete, failed (number of requests), have ('300/500' where incomplete, else ''), rest
    ('498/500, 2 failed' where the mean is over the rest, as `max_failures` allows, else ''),
    engine, seed, prompt_version, tokenizer, template, note, threshold (of the 13 tasks). Where a
    cell is incomplete its scores are NaN. `lengths`: a row per model, category ('all', 'niah',
    'vt', 'aggregation', 'qa') and length: score (mean over the category's tasks), low, high, tasks,
    n (smallest of its cells), complete, have, stand_in, reader. `models`: a row per model and
    category: tasks, avg, avg_low, avg_high, wavg_inc, wavg_inc_low, wavg_inc_high, wavg_dec,
    wavg_dec_low, wavg_dec_high, effective_length and effective_set (text, '' where the tasks are
    neither the benchmark's nor the small protocol's, or there is no threshold), threshold (NaN
    where the model's own mean is none) and threshold_of (text: whose score it is, or why there is
    none), rank_inc, rank_dec (among models of the same alignment; none of an adaptive run, whose
    cells have different numbers of examples), complete, stand_in, reader (whether a reference
    reader answered), adaptive (question, answer and tokens in words, '' for a fixed number of
    examples).
    """

    cells: "pd.DataFrame"
    lengths: "pd.DataFrame"
    models: "pd.DataFrame"
    confidence: float

    def of(self, category: str) -> "Summary":
        """The rows of one category; of 'all' all cells."""
        cells, lengths, models = (
            frame[frame["category"] == category] for frame in self[:3]
        )
        return Summary(
            self.cells if category == "all" else cells, lengths, models, self.confidence
        )


def length_weights(num_lengths: int) -> "NDArray[np.float64]":
    """The weights of the three averages, a row each in the order of AVERAGES, from the shortest
    length to the longest: plain, 1, 2, 3, ... and ..., 3, 2, 1; a row adds up to 1 (for six
    lengths: 1..6 over 21, Section 4)."""
    rising = np.arange(1, num_lengths + 1) / (num_lengths * (num_lengths + 1) / 2)
    return np.stack([np.full(num_lengths, 1 / num_lengths), rising, rising[::-1]])


def summarize(
    scores: "pd.DataFrame",
    tasks: str | Sequence[str] | None = None,
    lengths: int | str | Sequence[int | str] | None = None,
    num_examples: int | None = None,
    confidence: float = 0.95,
) -> Summary:
    """Summarize the rows of `score` over a grid of tasks, lengths and examples.

    Without `tasks`, means are over the benchmark's thirteen, and other tasks stand in `cells` and in
    the means of a category of one's own; with them, or where none of the thirteen was answered,
    means are over those given or answered. `lengths` are those given (4096 or 4K), else all that
    any model was asked; `num_examples` are the first so many, else as many as each cell was to
    have. What the grid lacks is shown as missing, and no mean is taken over the rest. Cells without
    a row show how many requests failed, if `scores.attrs["empty_cells"]` has them, as `score` sets
    it. A model that answered several times (`repeat`) is one model: see `merge_repetitions`. Raises
    UserError if there is nothing to summarize.
    """
    import pandas as pd

    tasks, tokens = parse_grid(tasks, lengths)
    empty_cells = [
        cell for cell in scores.attrs.get("empty_cells", ()) if cell["failed"]
    ]
    scores = merge_repetitions(
        _select(scores, tasks, tokens, num_examples, empty_cells)
    )
    examples = weighted_cells(scores, CELL)
    by_cell = scores.groupby(CELL, sort=False)
    first = by_cell.head(1)
    answered = dict(zip(first["task"], first["category"], strict=True))
    averaged = list(
        tasks or (scoring.THIRTEEN if {*answered} & {*scoring.THIRTEEN} else answered)
    )
    categories = {task: scoring.category(task) for task in averaged}
    categories |= {cell["task"]: cell["category"] for cell in empty_cells} | answered
    shown = dict.fromkeys(
        [*(tasks or [t for t in averaged if t in answered]), *answered]
    )
    facts = _facts_by_cell(by_cell, first, empty_cells)
    known = {*zip(first["run"], first["model"], strict=True)}
    asked = {key[3] for key in facts if key[:2] in known and key[2] in shown}
    grid = sorted(set(tokens or asked))
    cell_records, length_rows, model_rows = [], [], []
    for name, of_model in first.groupby(_MODEL, sort=False):
        about: Any = of_model[_ABOUT].to_dict("records")[0]
        usual = of_model["wanted"].max()
        rows = []
        for task, length in product(dict.fromkeys([*shown, *averaged]), grid):
            key = (*name, task, length)
            row = (
                _NOTHING | facts.get(key, {}) | about | {"examples": examples.get(key)}
            )
            row |= {"task": task, "category": categories[task], "length": length}
            rows.append(_cell(row, num_examples or row["wanted"] or usual, confidence))
        cell_records += [row for row in rows if row["task"] in shown]
        adaptive = _adaptive(rows, examples) if of_model["adaptive"].any() else ""
        for category in CATEGORIES:
            members = [row for row in rows if category in ("all", row["category"])]
            # a category of one's own has none of the thirteen
            members = [row for row in members if row["task"] in averaged] or members
            names = {row["task"] for row in members}
            if answered.keys().isdisjoint(names):
                continue
            about |= {
                "category": category,
                "tasks": len(names),
                "stand_in": any(row["stand_in"] for row in members),
                "reader": any(row["engine"] == "reader" for row in members),
            }
            by_length = [
                _length_row(
                    [row for row in members if row["length"] == length], confidence
                )
                for length in grid
            ]
            length_rows += [about | row for row in by_length]
            model_row = _model_row(members, by_length, category, confidence)
            model_rows.append(about | model_row | {"adaptive": adaptive})
    models = pd.DataFrame(model_rows)
    for average, rank in RANKS.items():
        values = models[average].where(models["adaptive"] == "").round(9)
        # among chat and among base models apart, as the paper counts them
        of_kind = values.groupby([models["category"], models["aligned"]])
        models[rank] = of_kind.rank(method="min", ascending=False)
    cells = pd.DataFrame(cell_records, columns=_COLUMNS)
    return Summary(cells, pd.DataFrame(length_rows), models, confidence)


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
    if not wanted.any():
        failed = sum(cell["failed"] for cell in empty_cells)
        failures = (
            f" ({failed} requests failed: see *.failures.jsonl)" if failed else ""
        )
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
    """What an adaptive run of a model has found, by the rows of its cells."""
    first = next(row for row in rows if row["adaptive"])
    rule = StoppingRule(**json.loads(first["adaptive"]))
    nothing = WeightedCell(1.0, "", np.empty(0))
    scores, other = (
        {
            (task, length): examples.get(
                (first["run"], model, task, length), nothing
            ).scores
            for task, length in product(rule.tasks, rule.lengths)
        }
        for model in (first["model"], rule.other)
    )
    for row in rows:  # requests that failed behind the last answer count as well
        key = row["task"], row["length"]
        if key in scores:
            behind = max(0, row["failed"] - int(np.isnan(scores[key]).sum()))
            scores[key] = np.append(scores[key], [np.nan] * behind)
    claimed, max_failures = first["claimed_length"], first["max_failures"]
    return rule.describe(
        replay(rule, scores, first["aligned"], claimed, other, max_failures)
    )


_Row = dict[str, Any]


def _cell(row: _Row, wanted: int, confidence: float) -> _Row:
    """The row of a cell with `examples`, its answers, if it has any."""
    n = row["n"]
    allowed = min(row["failed"], allowed_failures(row["max_failures"], wanted))
    complete = n > 0 and wanted - n <= allowed
    failures = failure_counts(row["failed"], row["failed_refused"])
    have = ", ".join(filter(None, [f"{n}/{wanted}", failures]))
    row |= {"wanted": wanted, "complete": complete}
    row |= {
        "have": "" if complete else have,
        "rest": have if complete and n < wanted else "",
    }
    row |= {"threshold": THRESHOLDS[row["aligned"]]["all"], "floor": 100 * row["floor"]}
    for name in ("strict", "exact"):
        row[name] = 100 * row[name] if complete else np.nan
    return row | dict(zip(_SCORE, _mean([row], [1.0], confidence), strict=True))


def _mean(
    rows: Sequence[_Row], weights: Iterable[float], confidence: float
) -> Estimate:
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
    least = min(rows, key=lambda row: (row["complete"], row["n"] / row["wanted"]))
    have = least["have"] if num_begun == num_tasks else f"{num_begun}/{num_tasks} tasks"
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
    scores = {row["length"]: row["score"] for row in length_rows}
    intervals = {row["length"]: (row["low"], row["high"]) for row in length_rows}
    states = {row["length"]: "failed" for row in rows if row["failed"]}
    states |= {row["length"]: "unfinished" for row in rows if row["n"]}
    claimed = rows[0]["claimed_length"]
    threshold = THRESHOLDS[rows[0]["aligned"]].get(category, np.nan)
    whose = (
        f"the paper has no category {category}"
        if np.isnan(threshold)
        else PAPERS_THRESHOLD
    )
    complete = [row["complete"] for row in length_rows]
    # the thresholds of the paper are those of the benchmark's own tasks
    benchmark = {
        t for t in scoring.THIRTEEN if category in ("all", scoring.category(t))
    }
    is_judged = tasks == benchmark and any(complete)
    if has_own_threshold(tasks):
        shortest = min(scores)
        start, mean_of = scores[shortest], f"its own mean at {length_name(shortest)}"
        threshold, whose = (
            round(OWN_SHARE * start, 1),
            f"{100 * OWN_SHARE:g} % of {mean_of}",
        )
        floor = np.fmax(
            0, np.mean([row["floor"] for row in rows if row["length"] == shortest])
        )
        is_judged = bool(start > floor)
        if not is_judged:  # a share of nothing is reached by any answer
            state = f"{start:.1f}, not above its floor of {floor:.1f}"
            state = "incomplete" if np.isnan(start) else state
            threshold, whose = np.nan, f"{mean_of} is {state}"
        for length in intervals:  # the threshold is uncertain too
            members = [row for row in rows if row["length"] in (length, shortest)]
            at_both = np.array([row["length"] for row in members])
            weights = (at_both == length) - OWN_SHARE * (at_both == shortest)
            above = _mean(members, weights / len(tasks), confidence)
            intervals[length] = (threshold + above.low, threshold + above.high)
    model |= {"effective_length": "", "effective_set": ""}
    model |= {"threshold": threshold, "threshold_of": whose}
    if is_judged:
        model["effective_length"] = effective_length(scores, threshold, claimed, states)
        model["effective_set"] = effective_set(intervals, threshold, claimed)
    return {**model, "complete": all(complete)}


def merge_repetitions(scores: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of `score` with the runs `R-repeat2`, `R-repeat3`, ... of a model merged into its
    run `R`.

    An example's score is the mean over its repetitions, so that an interval over examples holds
    both kinds of noise: that of the examples and that of the repetitions. `empty`, `cut_off`
    and `cut_thought` are added up. An example without an answer in one of the repetitions
    is left out.
    """
    names = cell_rows(scores, _MODEL)
    merged = {
        (run, model): base_run(run) if (base_run(run), model) in names else run
        for run, model in names
    }
    if all(run == name[0] for name, run in merged.items()):
        return scores
    runs = [merged[name] for name in zip(scores["run"], scores["model"], strict=True)]
    scores = scores.assign(run=runs, repetition=scores["run"])
    repetitions = scores.groupby(_MODEL)["repetition"].transform("nunique")
    keys = [*CELL, "index"]
    answers = scores.groupby(keys)["repetition"].transform("size")
    rules = dict.fromkeys(scores.columns.difference([*keys, "repetition"]), "first")
    means = ["score", "precision", "gold_probability", "gold_greedy", *_MEANS]
    rules |= dict.fromkeys(means, "mean")
    rules |= dict.fromkeys(COUNTS, "sum")
    return (
        scores[answers == repetitions]
        .groupby(keys, sort=False, as_index=False)
        .agg(rules)
    )


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
    index, values = (
        scores["index"].to_numpy(dtype=int),
        scores["score"].to_numpy(dtype=float),
    )
    groups = np.full(len(scores), np.nan)
    if "group" in scores:
        numbers, _ = scores["group"].factorize()
        groups = np.where(numbers >= 0, numbers, np.nan)
    cells = {}
    for key, rows in cell_rows(scores, by).items():
        by_index = np.full((2, index[rows].max() + 1), np.nan)
        by_index[:, index[rows]] = values[rows], groups[rows]
        scores_by_index, groups_by_index = by_index
        some = None if np.isnan(groups_by_index).all() else groups_by_index
        cells[key] = WeightedCell(1.0, key[by.index("task")], scores_by_index, some)
    return cells
