"""Tables of scores: each cell, each length, each model, with intervals. No mean is taken over
what is missing.

`summarize` makes three tables, each from the one before: `_cells` has a row for each model, task
and length, with what is known of it; `_lengths` takes the mean over tasks at each length; `_models`
takes the averages over lengths and compares the means with a threshold. Every mean is that of
`_mean`, and every interval that of `statistics.weighted_sum`, which says how it comes about.

Scores are multiplied by 100 in `_mean`: rows hold 0..1, the tables hold percent.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.common.errors import UserError, check_known, remark, unknown
from rulerkit.common.json_text import digest
from rulerkit.common.lengths import length_name, parse_grid
from rulerkit.common.plugins import capability
from rulerkit.generation.corpora import OWN_TEXTS
from rulerkit.generation.tasks import category_of
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
from rulerkit.store.cells import failure_counts, is_enough
from rulerkit.store.places import base_run

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

CATEGORIES = ("all", *scoring.CATEGORIES)
AVERAGES = ("avg", "wavg_inc", "wavg_dec")
RANKS = {"wavg_inc": "rank_inc", "wavg_dec": "rank_dec"}
"""The rank by each weighted average."""
STAND_IN = "synthetic texts"
"""What notes call texts that are not the paper's."""
CELL = ["run", "model", "task", "length"]
"""The columns that name a cell."""
_MODEL = ["run", "model"]
_ABOUT = ["label", "aligned", "claimed_length"]
"""What is the same in all cells of a model."""
_COUNTS = ["other_form", "empty", "cut_off", "cut_thought", "is_copy"]
"""Columns that are added up over the examples of a cell; means are taken of _MEANS."""
_MEANS = ["copied", "reasoning_tokens"]
_REQUESTS = ["wanted", "failed", "failed_refused", "max_failures"]
"""What is known of a cell without an answer."""
_ASKED = ["protocol", "stand_in", "task", "prompt_version", "texts"]
"""What models must share to be compared, by task."""
_SCORE = ["score", "low", "high"]
_COLUMNS = [*_MODEL, *_ABOUT, "task", "category", "suite", "length", *_SCORE]
_COLUMNS += ["copied", "n", "wanted", *_COUNTS, "reasoning_tokens"]
_COLUMNS += ["stand_in", "complete", "failed", "have", "rest", "engine", "seed"]
_COLUMNS += ["prompt_version", "protocol", "texts", "tokenizer", "template", "note", "threshold"]


class Summary(NamedTuple):
    """Three tidy tables of percents.

    `cells`: a row per run, model, task and length. Columns run, model, label, aligned,
    claimed_length, task, category, suite, length, score, low, high, copied (the
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
    given_tasks, given_lengths = parse_grid(tasks, lengths)
    rows = of_one_suite(scoring.as_scores(scores, "summarize"), given_tasks, suite)
    # Cells without any answer: how many of their requests failed is shown.
    empty_cells = [cell for cell in rows.attrs.get("empty_cells", ()) if cell["failed"]]

    # The rows that are asked for. None is most often a typing error, or a run in which every
    # request failed.
    is_asked = np.ones(len(rows), bool)
    if num_examples is not None:
        is_asked &= rows["index"] < num_examples
    for column, chosen in (("length", given_lengths), ("task", given_tasks)):
        if chosen is not None:
            is_asked &= rows[column].isin(chosen)
    if not is_asked.any():
        failed = sum(cell["failed"] for cell in empty_cells)
        failures = f" ({failed} requests failed: see *.failures.jsonl)" if failed else ""
        raise UserError(
            "nothing to summarize: no scored example is among the tasks, lengths and examples "
            f"asked for{failures}; evaluate first, or ask for what the predictions hold"
        )
    rows = merge_repetitions(rows if is_asked.all() else rows[is_asked])

    # Each cell has its mean; then means of several cells are taken, example by example.
    cells = _cells(rows, empty_cells, given_tasks, given_lengths, num_examples)
    cells[_SCORE] = [_mean([counted], [1.0], confidence) for counted in cells["counted"]]

    members = _members(cells)
    lengths_of = _lengths(members, confidence)
    models = _models(members, lengths_of, confidence)
    of_rules: Any = cells[cells["adaptive"].astype(bool)].groupby(_MODEL)
    found = {name: _adaptive(of_model) for name, of_model in of_rules}
    names = models[_MODEL].itertuples(index=False, name=None)
    models["adaptive"] = [found.get(name, "") for name in names]
    models = _with_ranks(models)
    cells = cells[_COLUMNS]
    for frame in (cells, lengths_of, models):
        frame.attrs = {"texts": texts_words(cells)}
    return Summary(cells, lengths_of, models, confidence)


def _cells(
    rows: "pd.DataFrame",
    empty_cells: Sequence[Mapping[str, Any]],
    tasks: Sequence[str] | None,
    lengths: Sequence[int] | None,
    num_examples: int | None,
) -> "pd.DataFrame":
    """A row for each model, task and length: all that is known of the cell but its score. `counted`
    are the examples of a cell that is complete, else None."""
    cells = _grid(rows, empty_cells, tasks, lengths)

    # Nobody asked some of them.
    whole = [*_COUNTS, "n", "wanted", "failed", "failed_refused"]
    cells[whole] = cells[whole].astype(float).fillna(0).astype(int)
    cells = cells.fillna({"max_failures": 0.0, "adaptive": ""})
    cells["reasoning_tokens"] = cells["reasoning_tokens"].mask(cells["n"] == 0, 0)
    cells["stand_in"] = cells["stand_in"].astype("boolean").fillna(False).astype(bool)
    cells["suite"] = rows["suite"].iloc[0]
    # Where nothing says how many examples there should be, as many as elsewhere.
    wanted = cells["wanted"].where(cells["wanted"] > 0, cells["usual"]).astype(int)
    cells["wanted"] = num_examples or wanted

    counts = cells[["n", "wanted", "failed", "max_failures"]].itertuples(index=False, name=None)
    cells["complete"] = [is_enough(*of_cell) for of_cell in counts]

    # "300/500, 2 failed": beside the score where it is of the rest, else in its place.
    have = cells["n"].astype(str) + "/" + cells["wanted"].astype(str)
    failures = map(failure_counts, cells["failed"], cells["failed_refused"])
    have += [f", {failure}" if failure else "" for failure in failures]
    cells["have"] = have.mask(cells["complete"], "")
    cells["rest"] = have.where(cells["complete"] & (cells["n"] < cells["wanted"]), "")

    paper = {kind: thresholds["all"] for kind, thresholds in THRESHOLDS.items()}
    cells["threshold"] = cells["aligned"].map(paper)
    cells["counted"] = cells["examples"].where(cells["complete"], None)
    cells["copied"] = 100 * cells["copied"].astype(float).where(cells["complete"])
    return cells


def _grid(
    rows: "pd.DataFrame",
    empty_cells: Sequence[Mapping[str, Any]],
    tasks: Sequence[str] | None,
    lengths: Sequence[int] | None,
) -> "pd.DataFrame":
    """A row for each model, task and length, also of those that nobody asked, with what its first
    example says, sums and means over all, `examples` as `weighted_sum` takes them, and `usual`, the
    number of examples of other cells of the model.

    Tasks and lengths are those given, else those that any model was asked, also where all requests
    failed; the benchmark's tasks come first, in its own order.
    """
    import pandas as pd

    # As objects, so that whole numbers stay whole where other cells have none.
    by_cell = rows.groupby(CELL, sort=False)
    known = by_cell.head(1).set_index(CELL).astype(object)
    known[_COUNTS] = by_cell[_COUNTS].sum()
    known[_MEANS] = by_cell[_MEANS].mean()
    known["n"] = by_cell.size()
    of_model = known.reset_index().groupby(_MODEL, sort=False)
    models = of_model.head(1).set_index(_MODEL)[_ABOUT]
    models["usual"] = of_model["wanted"].max()

    # Of a cell without an answer, or of its repetition, the numbers of requests are known.
    of_run = [{**cell, "run": base_run(cell["run"])} for cell in empty_cells]
    empty = pd.DataFrame([*empty_cells, *of_run], columns=[*CELL, *_REQUESTS])
    empty = empty.drop_duplicates(CELL, keep="last").set_index(CELL)

    asked = [
        (task, length)
        for run, model, task, length in [*empty.index, *known.index]
        if (run, model) in models.index and (not lengths or length in lengths)
    ]
    if not tasks:
        begun = dict.fromkeys(task for task, _ in asked)
        thirteen = [task for task in scoring.THIRTEEN if task in begun]
        tasks = list(dict.fromkeys([*thirteen, *begun]))
    lengths = sorted(set(lengths or (length for _, length in asked)))
    keys = [(*model, *place) for model in models.index for place in product(tasks, lengths)]
    cells = known.reindex(pd.MultiIndex.from_tuples(keys, names=CELL))
    cells[_REQUESTS] = cells[_REQUESTS].fillna(empty[_REQUESTS])
    examples = weighted_cells(rows, CELL)
    of_cells: Any = [examples.get(key) for key in keys]
    cells["examples"] = of_cells

    # Records say the category of a task; of those that were never run only the name is known.
    categories = {cell["task"]: cell["category"] for cell in empty_cells}
    categories |= dict(zip(known.index.get_level_values("task"), known["category"], strict=True))
    categories |= {task: category_of(task) for task in tasks if task not in categories}
    cells = cells.drop(columns=_ABOUT).reset_index().join(models, on=_MODEL)
    cells["category"] = cells["task"].map(categories)
    return cells.infer_objects()


def _members(cells: "pd.DataFrame") -> "pd.DataFrame":
    """The cells that means are over: each once in 'all', and once in its category. `whole`: whether
    they are all that RULER has in this category; True in other suites."""
    import pandas as pd

    # Other tasks beside all thirteen enter no mean of them, only one of their own category.
    task_category = dict(zip(cells["task"], cells["category"], strict=True))
    averaged = set(task_category)
    if averaged.issuperset(scoring.THIRTEEN):
        averaged = set(scoring.THIRTEEN)

    tasks_of = {}
    for category in dict.fromkeys([*CATEGORIES, *task_category.values()]):
        inside = {task for task, name in task_category.items() if category in ("all", name)}
        tasks_of[category] = inside & averaged or inside
    answered = cells.loc[cells["n"] > 0, "task"]

    members = []
    for _, of_model in cells.groupby(_MODEL, sort=False):
        for category, tasks in tasks_of.items():
            if tasks.isdisjoint(answered):
                continue
            benchmark = {
                task for task in scoring.THIRTEEN if category in ("all", category_of(task))
            }
            whole = of_model["suite"].iloc[0] != "ruler" or tasks == benchmark
            of_category = of_model[of_model["task"].isin(tasks)]
            members.append(of_category.assign(category=category, whole=whole))
    return pd.concat(members, ignore_index=True)


def _mean(
    cells: Iterable[WeightedCell | None], weights: Iterable[float], confidence: float
) -> Estimate:
    """The weighted mean of cells in percent; NaN where one is incomplete, which is None."""
    weighted = []
    for cell, weight in zip(cells, weights, strict=True):
        if cell is None:
            return Estimate(np.nan, np.nan, np.nan)
        weighted.append(cell._replace(weight=float(weight)))
    return weighted_sum(weighted, confidence).percent()


def _lengths(members: "pd.DataFrame", confidence: float) -> "pd.DataFrame":
    """The mean over the tasks of each model, category and length."""
    members = members.assign(
        begun=(members["n"] > 0) | (members["failed"] > 0),
        share=members["n"] / members["wanted"],
        reader=members["engine"] == "reader",
    )
    of_category = members.groupby([*_MODEL, "category"], sort=False)
    members["of_stand_ins"] = of_category["stand_in"].transform("any")
    members["of_reader"] = of_category["reader"].transform("any")

    # What is missing is said of the cell that is furthest from complete.
    members = members.reset_index(drop=True)
    by_length = [*_MODEL, "category", "length"]
    least = members.sort_values(["complete", "share"]).groupby(by_length)["have"].first()
    groups = members.groupby(by_length, sort=False)
    lengths = groups.agg(
        **{name: (name, "first") for name in [*_ABOUT, "whole"]},
        tasks=("task", "size"),
        stand_in=("of_stand_ins", "first"),
        reader=("of_reader", "first"),
        n=("n", "min"),
        begun=("begun", "sum"),
    )
    lengths[_SCORE] = [
        _mean(counted, [1 / len(counted)] * len(counted), confidence)
        for _, counted in groups["counted"]
    ]
    begun = lengths["begun"].astype(str) + "/" + lengths["tasks"].astype(str) + " tasks"
    begun = begun.where(lengths["begun"] > 0, "-")
    lengths["have"] = begun.where(lengths["begun"] < lengths["tasks"], least)
    lengths["complete"] = lengths["have"] == ""
    columns = [*_MODEL, *_ABOUT, "category", "tasks", "whole", "stand_in", "reader", "length"]
    return lengths.reset_index()[[*columns, *_SCORE, "n", "complete", "have"]]


def _models(members: "pd.DataFrame", lengths: "pd.DataFrame", confidence: float) -> "pd.DataFrame":
    """The averages over the lengths of each model and category, and the effective length."""
    import pandas as pd

    by_category = [*_MODEL, "category"]
    same = [*_MODEL, *_ABOUT, "category", "tasks", "whole", "stand_in", "reader"]
    models = lengths.drop_duplicates(by_category)[same].reset_index(drop=True)
    rows = []
    groups = zip(
        members.groupby(by_category, sort=False),
        lengths.groupby(by_category, sort=False),
        strict=True,
    )
    for (_, cells), (_, by_length) in groups:
        row: dict[str, Any] = {}
        for name, weights in zip(AVERAGES, length_weights(len(by_length)), strict=True):
            of_length = dict(zip(by_length["length"], weights, strict=True))
            of_cells = cells["length"].map(of_length) / by_length["tasks"].iloc[0]
            mean = _mean(cells["counted"], of_cells, confidence)
            row |= zip((name, f"{name}_low", f"{name}_high"), mean, strict=True)
        row |= _effective(cells, by_length, confidence)

        # Models are compared where protocol and texts of all their tasks are the same.
        answered = cells[cells["n"] > 0].astype({"prompt_version": "Int64"}).astype(object)
        protocols = sorted({name or "unknown" for name in answered["protocol"].dropna()})
        words = [f"protocol {name}" for name in protocols]
        if cells["stand_in"].any():
            words.append("synthetic texts")
        asked = answered[_ASKED].values.tolist()
        setup = digest("".join(sorted({str(values) for values in asked})))[:8]
        row |= {"complete": by_length["complete"].all(), "setup": f"{', '.join(words)} ({setup})"}
        rows.append(row)
    return models.join(pd.DataFrame(rows))


def _effective(
    cells: "pd.DataFrame", by_length: "pd.DataFrame", confidence: float
) -> dict[str, Any]:
    """The threshold of one model and category, whose it is, and the effective length by it.

    `cells` are those that the means `by_length` are over.
    """
    first = cells.iloc[0]
    category, suite = first["category"], first["suite"]
    own = family_threshold(cells["own_threshold"])
    limits = by_length[["low", "high"]].itertuples(index=False, name=None)
    intervals = dict(zip(by_length["length"], limits, strict=True))
    is_possible = bool(by_length["complete"].any())
    if suite in OWN_MEAN_SUITES:
        threshold, whose, intervals = _own_mean(cells, by_length, confidence)
    elif own is not None:
        threshold, whose = own, OWN_THRESHOLD
    elif suite != "ruler":
        threshold, whose = np.nan, f"the suite {suite} brings no threshold"
        if capability(suite):
            whose = OWN_TABLE
    else:
        # The paper's, Llama2-7B's score at 4K, is for all of the benchmark's tasks in a category.
        threshold, whose = THRESHOLDS[first["aligned"]].get(category, np.nan), PAPERS_THRESHOLD
        if np.isnan(threshold):
            whose = f"neither the paper nor the family has a threshold for {category}"
        is_possible = is_possible and bool(first["whole"])

    length = possible = ""
    if is_possible and not np.isnan(threshold):
        scores = dict(zip(by_length["length"], by_length["score"], strict=True))
        # Why a length has no complete score.
        states = dict.fromkeys(cells.loc[cells["failed"] > 0, "length"], "failed")
        states |= dict.fromkeys(cells.loc[cells["n"] > 0, "length"], "unfinished")
        claimed = first["claimed_length"]
        length = effective_length(scores, threshold, claimed, states)
        possible = effective_set(intervals, threshold, claimed)
    return {
        "effective_length": length,
        "effective_set": possible,
        "threshold": threshold,
        "threshold_of": whose,
    }


def _own_mean(
    cells: "pd.DataFrame", by_length: "pd.DataFrame", confidence: float
) -> tuple[float, str, dict[int, tuple[float, float]]]:
    """The threshold of the small protocol: a share of the model's own mean at its shortest length;
    whose it is, in words; and the interval of each length."""
    shortest = by_length["length"].min()
    start = by_length.loc[by_length["length"] == shortest, "score"].iloc[0]
    threshold = round(OWN_SHARE * start, 1)
    mean_of = f"its own mean at {length_name(shortest)}"
    whose = f"{100 * OWN_SHARE:g} % of {mean_of}"
    # A share of nothing is reached by any answer.
    if not start > 0:
        threshold, whose = np.nan, f"{mean_of} is {'incomplete' if np.isnan(start) else '0'}"

    # The threshold is uncertain too: the interval is that of the difference from it.
    intervals = {}
    for length in by_length["length"]:
        members = cells[cells["length"].isin([length, shortest])]
        weights = 1.0 * (members["length"] == length) - OWN_SHARE * (members["length"] == shortest)
        above = _mean(members["counted"], weights / by_length["tasks"].iloc[0], confidence)
        intervals[length] = (threshold + above.low, threshold + above.high)
    return threshold, whose, intervals


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


def _adaptive(cells: "pd.DataFrame") -> str:
    """What an adaptive run of a model has found, by its cells."""
    from rulerkit.scoring.adaptive import StoppingRule, replay

    first = cells.iloc[0]
    try:
        rule = StoppingRule(**json.loads(first["adaptive"]))
    except TypeError:
        return "adaptive: what a former version asked here is not judged any more"

    # The scores of each cell of the rule, by index; requests that failed behind the last answer
    # count as well.
    scores = {place: np.empty(0) for place in product(rule.tasks, rule.lengths)}
    for cell in cells.to_dict("records"):
        place = (cell["task"], cell["length"])
        if place not in scores:
            continue
        if cell["examples"] is not None:
            scores[place] = cell["examples"].scores
        behind = cell["failed"] - int(np.isnan(scores[place]).sum())
        scores[place] = np.append(scores[place], [np.nan] * max(0, behind))

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
    """What a figure or a table must say of the texts that its scores are over: 'synthetic texts',
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
    if not asked or len({*suite_of.values(), *asked}) == 1:
        return scores
    chosen = choose_suite(asked, is_named=bool(tasks))
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


def merge_repetitions(scores: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of `score`, each example once, with the runs `R-repeat2`, `R-repeat3`, ... of a
    model merged into its run `R`.

    An example's score is the mean over its repetitions, so that an interval over examples holds
    both kinds of noise: that of the examples and that of the repetitions. `empty`, `cut_off`
    and `cut_thought` are added up. An example without an answer in one of the repetitions
    is left out. Raises UserError where one example has different answers.
    """
    # The same row comes twice where frames that overlap are joined.
    place = [*CELL, "index"]
    is_again = scores.duplicated(place)
    if is_again.any():
        said = [name for name in ("score", "prediction") if name in scores]
        different = scores.drop_duplicates([*place, *said])
        twice = different[different.duplicated(place)]
        if len(twice):
            run, model, task, length, index = twice[place].iloc[0]
            raise UserError(
                f"run {run!r}, model {model!r}: example {index} of task {task!r} at {length} "
                "tokens is there twice with different answers: keep one of the two rows"
            )
        scores = scores[~is_again]

    # `R-repeat2` alone, without `R`, is a run of its own.
    models = set(scores[_MODEL].drop_duplicates().itertuples(index=False, name=None))
    merged = {(run, model): run for run, model in models}
    for run, model in models:
        if (base_run(run), model) in models:
            merged[run, model] = base_run(run)
    if all(run == merged_run for (run, _), merged_run in merged.items()):
        return scores

    runs = [merged[name] for name in zip(scores["run"], scores["model"], strict=True)]
    scores = scores.assign(run=runs, repetition=scores["run"])
    repetitions = scores.groupby(_MODEL)["repetition"].transform("nunique")
    answers = scores.groupby(place)["repetition"].transform("size")
    in_all = scores[answers == repetitions]

    rules = dict.fromkeys(scores.columns.difference([*place, "repetition"]), "first")
    rules |= dict.fromkeys(["score", *_MEANS], "mean")
    rules |= dict.fromkeys(_COUNTS, "sum")
    return in_all.groupby(place, sort=False, as_index=False).agg(rules)


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
    indices: Any = scores.groupby([*by], sort=False).indices
    for key, rows in indices.items():
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
