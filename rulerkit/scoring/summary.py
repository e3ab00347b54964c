"""Tables of scores: each cell, each length, each model, with intervals. No mean is taken over
what is missing.

`summarize` makes three tables: `_cells` has a row for each model, task and length, with what is
known of it; from it `_means` makes the other two, with the means over tasks at each length, and
with the averages over lengths and the effective length. Every mean is that of `_mean`, and every
interval that of `statistics.weighted_sum`, which says how it comes about.

Scores are multiplied by 100 in `_mean`: rows hold 0..1, the tables hold percent.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from rulerkit.common.errors import UserError, check_known, counted, remark, unknown
from rulerkit.common.json_text import digest
from rulerkit.common.lengths import parse_grid
from rulerkit.generation.corpora import OWN_TEXTS
from rulerkit.generation.tasks import category_of, in_order
from rulerkit.scoring import scores as scoring
from rulerkit.scoring.effective_length import (
    OWN_THRESHOLD,
    PAPERS_THRESHOLD,
    effective_length,
    effective_set,
    threshold_of,
)
from rulerkit.scoring.statistics import WeightedCell, weighted_sum
from rulerkit.store.cells import Report, failure_counts, is_enough
from rulerkit.store.places import as_cells, is_table

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

CATEGORIES = ("all", *scoring.CATEGORIES)
AVERAGES = ("avg", "wavg_inc", "wavg_dec")
RANKS = {"wavg_inc": "rank_inc", "wavg_dec": "rank_dec"}
"""The rank by each weighted average."""
READERS = "reference readers"
STAND_IN = "synthetic texts"
"""What notes call models that are none, and texts that are not the paper's."""
CELL = ["run", "model", "task", "length"]
"""The columns that name a cell."""
_MODEL = ["run", "model"]
_ABOUT = ["label", "aligned", "claimed_length"]
"""What is the same in all cells of a model."""
_COUNTS = ["other_form", "empty", "cut_off", "cut_thought", "is_copy"]
"""Columns that are added up over the examples of a cell."""
_NOTHING: dict[str, Any] = dict.fromkeys(scoring.CELL_COLUMNS, np.nan)
_NOTHING |= dict.fromkeys(["wanted", "failed", "failed_refused", "n", *_COUNTS, "unasked"], 0)
_NOTHING |= {"max_failures": 0.0, "adaptive": "", "stand_in": False}
_NOTHING |= {"thought": 0.0, "copied": np.nan, "examples": None}
"""What is known of a cell that nobody asked; `unasked`: thoughts without an answer that nobody gave
room for."""
_ASKED = ["protocol", "stand_in", "task", "prompt_version", "texts"]
"""What models must share to be compared, by task."""
_SCORE = ["score", "low", "high"]
_COLUMNS = [*_MODEL, *_ABOUT, "task", "category", "suite", "length", *_SCORE]
_COLUMNS += ["copied", "n", "wanted", *_COUNTS, "reasoning_tokens"]
_COLUMNS += ["stand_in", "complete", "failed", "have", "rest", "engine", "seed"]
_COLUMNS += ["prompt_version", "protocol", "texts", "tokenizer", "template", "note"]


class Summary(NamedTuple):
    """Three tidy tables of percents.

    `cells`: a row per run, model, task and length. Columns run, model, label, aligned,
    claimed_length, task, category, suite, length, score, low, high, copied (the score of the
    beginning of the context, copied; NaN but for cwe and fwe), n, wanted, other_form, empty,
    cut_off, cut_thought, is_copy (numbers of answers; is_copy: that begin as the context does),
    reasoning_tokens (mean of a thought), stand_in, complete, failed (number of requests), have
    ('300/500' where incomplete, else ''), rest ('498/500, 2 failed' where the mean is over the
    rest, as `max_failures` allows, else ''), engine, seed, prompt_version, protocol, texts,
    tokenizer, template, note. Where a cell is incomplete its scores are NaN.
    `lengths`: a row per model, category ('all', 'niah', 'vt', 'aggregation', 'qa') and length:
    score (mean over the category's tasks), low, high, tasks (how many the mean is over), whole
    (whether they are all that RULER has in this category; True in other suites), n (smallest of its
    cells), complete, have ('3/13 tasks'; '-' where nothing was run), stand_in.
    `models`: a row per model and category: tasks, whole, avg, avg_low, avg_high, wavg_inc,
    wavg_inc_low, wavg_inc_high, wavg_dec, wavg_dec_low, wavg_dec_high, effective_length and
    effective_set (text, '' where there is no threshold of these tasks), threshold (NaN for none)
    and threshold_of (text: whose score it is), setup (digest, the same for models whose cells have
    the same protocol and texts), rank_inc, rank_dec (see `_with_ranks`), complete, stand_in,
    adaptive (question, answer and tokens in words, '' for a fixed number of examples).
    """

    cells: "pd.DataFrame"
    lengths: "pd.DataFrame"
    models: "pd.DataFrame"

    def of(self, category: str) -> "Summary":
        """The rows of one category; of 'all' all cells."""
        cells, lengths, models = (frame[frame["category"] == category] for frame in self)
        return Summary(self.cells if category == "all" else cells, lengths, models)


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
    suite: str | None = None,
) -> Summary:
    """Summarize rows of `score`, or what it takes, over a grid of tasks, lengths and examples.

    Means are over the tasks given, else over those that any model was run on. Where all thirteen
    of the benchmark are among them, means are over the thirteen, and other tasks stand in `cells`
    and in the means of a category of one's own. Effective lengths by the paper's thresholds, and
    ranks, need all thirteen, or all of a category. `lengths` are those given (4096 or 4K), else all
    that any model was run at; `num_examples` are the first so many, else as many as each cell was
    to have. What the grid lacks is shown as missing, and no mean is taken over the rest. All rows
    are of one suite: `suite`, or what `choose_suite` chooses. Raises UserError for nothing to
    summarize, tasks of two suites, and one example with two scores.
    """
    given_tasks, given_lengths = parse_grid(tasks, lengths)
    tallies = tally(scores, num_examples=num_examples)
    if len(tallies):
        # The suite that is named, or that of the tasks that are.
        suites = {*tallies["suite"]}
        of_tasks = {*tallies.loc[tallies["task"].isin(given_tasks or ()), "suite"]}
        check_one_suite(of_tasks)
        chosen = suite or choose_suite(of_tasks or suites)
        check_known("suite", chosen, suites)
        tallies = tallies[tallies["suite"] == chosen]

    # None is most often a typing error, or a run in which every request failed.
    is_given = tallies["task"].notna()
    for column, given in (("length", given_lengths), ("task", given_tasks)):
        if given is not None:
            is_given &= tallies[column].isin(given)
    is_asked = is_given & (tallies["n"] > 0)
    if not is_asked.any():
        failed = tallies.loc[is_given, "failed"].sum()
        failures = f" ({counted(failed, 'request')} failed: see *.failures.jsonl)" if failed else ""
        raise UserError(
            "nothing to summarize: no scored example is among the tasks, lengths and examples "
            f"asked for{failures}; evaluate first, or ask for what the predictions hold"
        )

    # Each cell has its mean; then means of several cells are taken, example by example.
    tallies = tallies[is_asked | ((tallies["n"] == 0) & (tallies["failed"] > 0))]
    cells = _cells(tallies, given_tasks, given_lengths, num_examples)
    lengths_of, models = _means(cells)
    models["adaptive"] = ""
    for (run, model), of_model in tallies[tallies["adaptive"] != ""].groupby(_MODEL):
        is_own = (models["run"] == run) & (models["model"] == model)
        models.loc[is_own, "adaptive"] = _adaptive(of_model)
    models = _with_ranks(models)
    cells = cells[_COLUMNS]
    for frame in (cells, lengths_of, models):
        frame.attrs = {"texts": texts_words(cells)}
    return Summary(cells, lengths_of, models)


def _cells(
    tallies: "pd.DataFrame",
    tasks: Sequence[str] | None,
    lengths: Sequence[int] | None,
    num_examples: int | None,
) -> "pd.DataFrame":
    """A row for each model with an answer, task and length, also of those that nobody asked: all
    that is known of the cell. `counted` are the examples of a cell that is complete, else None.

    Tasks and lengths are those given, else those that any model was asked, also where all requests
    failed; the benchmark's tasks come first, in its own order.
    """
    import pandas as pd

    answered = tallies[tallies["n"] > 0]
    asked = tallies.merge(answered[_MODEL].drop_duplicates())
    if lengths:
        asked = asked[asked["length"].isin(lengths)]
    if not tasks:
        tasks = in_order(asked["task"])
    lengths = sorted(set(lengths or asked["length"].tolist()))
    # Records say the category of a task; of those that were never run only the name is known.
    categories = dict(zip(tallies["task"], tallies["category"], strict=True))

    records: Any = tallies.to_dict("records")
    known = {tuple(cell[name] for name in CELL): cell for cell in records}
    rows = []
    for (run, model), of_model in answered.groupby(_MODEL, sort=False):
        about: Any = of_model.iloc[0][[*_ABOUT, "suite"]].to_dict()
        most = int(of_model["wanted"].max())
        for task, length in product(tasks, lengths):
            row = _NOTHING | {"run": run, "model": model, "task": task, "length": length}
            row |= known.get((run, model, task, length), {})
            row |= about
            row["category"] = categories.get(task) or category_of(task)
            row["wanted"] = num_examples or row["wanted"] or most
            rows.append(row | _answers(row))
    return pd.DataFrame(rows, dtype=object).infer_objects()


def _answers(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The mean of a cell where it has its answers, and in words what it lacks."""
    n, wanted = cell["n"], cell["wanted"]
    complete = is_enough(n, wanted, cell["failed"], cell["max_failures"])
    counted = cell["examples"] if complete else None

    # "300/500, 2 failed": beside the score where it is of the rest, else in its place.
    failures = failure_counts(cell["failed"], cell["failed_refused"])
    have = f"{n}/{wanted}" + (f", {failures}" if failures else "")
    return {
        **_mean([counted], [1.0]),
        "copied": 100 * cell["copied"] if complete else np.nan,
        "reasoning_tokens": cell["thought"] / n if n else 0.0,
        "counted": counted,
        "complete": complete,
        "have": "" if complete else have,
        "rest": have if complete and n < wanted else "",
    }


def _mean(
    cells: Iterable[WeightedCell | None], weights: Iterable[float], names: Sequence[str] = _SCORE
) -> dict[str, float]:
    """The weighted mean of cells in percent and its interval, under three names; NaN where one of
    the cells is incomplete, which is None."""
    weighted = []
    for cell, weight in zip(cells, weights, strict=True):
        if cell is None:
            return dict.fromkeys(names, np.nan)
        weighted.append(cell._replace(weight=float(weight)))
    return dict(zip(names, weighted_sum(weighted).percent(), strict=True))


def _means(cells: "pd.DataFrame") -> "tuple[pd.DataFrame, pd.DataFrame]":
    """The tables `lengths` and `models`: the means of each model in each category that any model
    has an answer in. `whole`: whether they are over all tasks that RULER has in it; True in other
    suites."""
    import pandas as pd

    # Other tasks beside all thirteen enter no mean of them, only one of their own category.
    task_category = dict(zip(cells["task"], cells["category"], strict=True))
    averaged = set(task_category)
    if averaged.issuperset(scoring.THIRTEEN):
        averaged = set(scoring.THIRTEEN)
    answered = set(cells.loc[cells["n"] > 0, "task"])

    lengths, models = [], []
    for _, of_model in cells.groupby(_MODEL, sort=False):
        for category in dict.fromkeys([*CATEGORIES, *task_category.values()]):
            inside = {task for task, name in task_category.items() if category in ("all", name)}
            inside = inside & averaged or inside
            if inside.isdisjoint(answered):
                continue
            members = of_model[of_model["task"].isin(inside)]
            first = members.iloc[0]
            benchmark = {
                task for task in scoring.THIRTEEN if category in ("all", category_of(task))
            }
            about = {
                **first[[*_MODEL, *_ABOUT]],
                "category": category,
                "tasks": len(inside),
                "whole": first["suite"] != "ruler" or inside == benchmark,
                "stand_in": bool(members["stand_in"].any()),
            }
            by_length = [
                {**about, "length": length, **_mean_at(at_length)}
                for length, at_length in members.groupby("length")
            ]
            lengths += by_length
            models.append(about | _averages(members, by_length))
    return pd.DataFrame(lengths), pd.DataFrame(models)


def _mean_at(members: "pd.DataFrame") -> dict[str, Any]:
    """The mean over the tasks of a category at one length."""
    # What is missing is said of the cell that is furthest from complete.
    begun = int(((members["n"] > 0) | (members["failed"] > 0)).sum())
    least = members.assign(share=members["n"] / members["wanted"])
    have = least.sort_values(["complete", "share"])["have"].iloc[0]
    if begun < len(members):
        have = f"{begun}/{len(members)} tasks" if begun else "-"
    return {
        **_mean(members["counted"], [1 / len(members)] * len(members)),
        "n": members["n"].min(),
        "complete": have == "",
        "have": have,
    }


def _averages(members: "pd.DataFrame", by_length: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The averages over the lengths of one model and category, and its effective length."""
    row: dict[str, Any] = {}
    lengths = [mean["length"] for mean in by_length]
    for name, weights in zip(AVERAGES, length_weights(len(lengths)), strict=True):
        of_length = dict(zip(lengths, weights, strict=True))
        of_cells = members["length"].map(of_length) / by_length[0]["tasks"]
        row |= _mean(members["counted"], of_cells, (name, f"{name}_low", f"{name}_high"))
    row |= _effective(members, by_length)

    # Models are compared where protocol and texts of all their tasks are the same.
    answered = members[members["n"] > 0]
    asked = {str(tuple(values)) for values in answered[_ASKED].astype(str).to_numpy()}
    row["setup"] = digest(sorted(asked))
    row["complete"] = all(mean["complete"] for mean in by_length)
    return row


def _effective(members: "pd.DataFrame", by_length: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The threshold of one model and category, whose it is, and the effective length by it: ""
    where no length is complete, or there is no threshold of these tasks.

    `members` are the cells that the means `by_length` are over.
    """
    first = by_length[0]
    own, *others = members["own_threshold"].unique()
    has_own = not (others or np.isnan(own))
    threshold = own if has_own else None
    # The paper's is for all tasks of the benchmark, or of a category.
    if not has_own and first["whole"]:
        threshold = threshold_of(set(members["task"]), first["aligned"])
    length = possible = ""
    if threshold is not None and any(mean["complete"] for mean in by_length):
        claimed = first["claimed_length"]
        scores = {mean["length"]: mean["score"] for mean in by_length}
        length = effective_length(scores, threshold, claimed)
        intervals = {mean["length"]: (mean["low"], mean["high"]) for mean in by_length}
        possible = effective_set(intervals, threshold, claimed)
    return {
        "effective_length": length,
        "effective_set": possible,
        "threshold": np.nan if threshold is None else threshold,
        "threshold_of": OWN_THRESHOLD if has_own else PAPERS_THRESHOLD,
    }


def _with_ranks(models: "pd.DataFrame") -> "pd.DataFrame":
    """Rank the models by each weighted average, among chat and among base models apart, as the
    paper counts them, and among models of the same protocol and texts.

    There is no rank of some of the benchmark's tasks, nor of an adaptive run, whose cells have
    different numbers of examples.
    """
    has_rank = models["whole"] & (models["adaptive"] == "")
    alike = models[["category", "aligned", "setup"]].agg(tuple, axis=1)
    for average, rank in RANKS.items():
        values = models[average].where(has_rank).round(9)
        models[rank] = values.groupby(alike).rank(method="min", ascending=False)
    return models


def _adaptive(cells: "pd.DataFrame") -> str:
    """What the adaptive run of one model has found."""
    from rulerkit.scoring.adaptive import StoppingRule, replay

    first = cells.iloc[0]
    try:
        rule = StoppingRule(**json.loads(first["adaptive"]))
    except TypeError:
        return "adaptive: the record asks what is not judged here"

    # The scores of each cell of the rule, by index; requests that failed behind the last answer
    # count as well.
    scores = {place: np.empty(0) for place in product(rule.tasks, rule.lengths)}
    for cell in cells.to_dict("records"):
        place = (cell["task"], cell["length"])
        if place in scores:
            answered = scores[place] if cell["examples"] is None else cell["examples"].scores
            behind = cell["failed"] - int(np.isnan(answered).sum())
            scores[place] = np.append(answered, [np.nan] * max(0, behind))
    about = (first["aligned"], first["claimed_length"], first["max_failures"])
    return rule.describe(replay(rule, scores, *about))


def model_rows(rows: "pd.DataFrame", name: str) -> "pd.DataFrame":
    """The rows of the model with this name or label. Raises UserError where it is not among those
    shown."""
    chosen = rows[(rows["model"] == name) | (rows["label"] == name)]
    if chosen.empty:
        raise unknown("model among those shown", name, rows["model"].unique())
    return chosen


def texts_words(frame: "pd.DataFrame") -> str:
    """What a figure or a table must say of how its scores were made: 'reference readers',
    'synthetic texts', 'own texts', several of them, or ''.

    A frame without the column `stand_in` says it by `attrs["texts"]`, which those who make one from
    scores pass on.
    """
    known = str(frame.attrs.get("texts", ""))
    if "stand_in" not in frame:
        return known
    is_stand_in = frame["stand_in"].fillna(False).astype(bool)
    if "note" not in frame and is_stand_in.any() and known:
        return known
    # Some frames have no such columns.
    about = frame.reindex(columns=["engine", "note"]).astype(str)
    is_own = about["note"].str.contains(OWN_TEXTS)
    words = {
        READERS: about["engine"] == "reader",
        OWN_TEXTS: is_stand_in & is_own,
        STAND_IN: is_stand_in & ~is_own,
    }
    return "; ".join(name for name, is_so in words.items() if is_so.any())


def ordered_suites(suites: Iterable[str]) -> list[str]:
    """Each suite once, RULER's first: each has a summary of its own."""
    return sorted({*suites}, key=lambda suite: (suite != "ruler", suite))


def check_one_suite(of_tasks: Collection[str]) -> None:
    """Raise UserError where the tasks that were named are of several suites."""
    if len(of_tasks) > 1:
        names = " and ".join(sorted(of_tasks))
        raise UserError(f"the tasks named are of {names}, and no mean is over two suites")


def choose_suite(suites: Iterable[str]) -> str:
    """The first of some suites, which means are taken over. Of the others stderr says that they are
    left out."""
    chosen, *others = ordered_suites(suites)
    if others:
        remark(
            f"left out: tasks of {' and '.join(others)}, which enter no mean with those of "
            f"{chosen}: name their tasks to see them"
        )
    return chosen


# --- cells ----------------------------------------------------------------------------------------


def tally(
    given: Any, report: Report | None = None, num_examples: int | None = None
) -> "pd.DataFrame":
    """A row for each cell of what `score` takes, or of its rows: what the record says, `n` answers,
    how many of them are what _COUNTS says, the mean of `copied`, all tokens of `thought`, and
    `examples`, their scores by index. `num_examples`: only the first so many.

    The rows of a cell are let go before the next is read: a million need not be in memory at once.
    What is a tally already stays as it is.
    """
    import pandas as pd

    if is_table(given) and "examples" in given:
        return cast("pd.DataFrame", given)
    most = math.inf if num_examples is None else num_examples
    tallies = []
    if is_table(given):
        scores = scoring.as_scores(given, "summarize")
        firsts: Any = scores[scoring.CELL_COLUMNS].drop_duplicates(CELL).to_dict("records")
        groups = scores.groupby(CELL, sort=False)
        for about, (_, of_cell) in zip(firsts, groups, strict=True):
            tallies.append(_tallied(about, of_cell, most))
        tallies += [_NOTHING | cell for cell in scores.attrs.get("empty_cells", ())]
    else:
        for about, rows in scoring.judged_cells(as_cells(given, "summarize"), report):
            tallies.append(_tallied(about, rows, most))
    frame = pd.DataFrame(tallies, columns=list(_NOTHING), dtype=object).infer_objects()
    frame["label"] = scoring.own_labels(frame)
    return frame


def _tallied(about: Mapping[str, Any], rows: Any, most: float) -> dict[str, Any]:
    """The row of one cell, by the rows of its examples."""
    rows = rows[np.asarray(rows["index"]) < most]
    cell = {**_NOTHING, **about, "n": len(rows)}
    if not len(rows):
        return cell
    for name in _COUNTS:
        cell[name] = int(np.nansum(np.asarray(rows[name], float)))
    thought = np.asarray(rows["reasoning_tokens"], float)
    cell["thought"] = float(np.nansum(thought))
    cell["unasked"] = int((np.asarray(rows["cut_thought"], bool) & (thought == 0)).sum())
    cell["copied"] = float(np.asarray(rows["copied"], float).mean())
    cell["examples"] = examples_of(about["task"], rows)
    return cell


def examples_of(task: str, rows: Any) -> WeightedCell:
    """The scores of the rows of one cell by index, with the weight 1. A column `group`, such as the
    number of a question's article, says which examples are drawn together. Raises UserError where
    an example is there twice."""
    import pandas as pd

    index = np.asarray(rows["index"], int)
    times = np.bincount(index)
    if times.max() > 1:
        raise UserError(
            f"example {times.argmax()} of task {task!r} is there twice in one cell: keep one of "
            "its rows"
        )
    # What was not answered stays NaN.
    scores = np.full(times.size, np.nan)
    scores[index] = np.asarray(rows["score"], float)
    groups = np.full(times.size, np.nan)
    numbers, _ = pd.factorize(np.asarray(rows["group"]))
    groups[index] = np.where(numbers < 0, np.nan, numbers)
    return WeightedCell(1.0, task, scores, None if np.isnan(groups).all() else groups)


def weighted_cells(
    scores: "pd.DataFrame", by: Sequence[str] = ("task", "length")
) -> dict[Any, WeightedCell]:
    """The cells of rows, by the columns `by`, ready for `weighted_sum`, each of weight 1: see
    `examples_of`."""
    if "group" not in scores:
        scores = scores.assign(group=np.nan)
    columns = scores[["index", "score", "group"]]
    cells = {}
    indices: Any = scores.groupby([*by], sort=False).indices
    for key, rows in indices.items():
        cells[key] = examples_of(key[list(by).index("task")], columns.iloc[rows])
    return cells
