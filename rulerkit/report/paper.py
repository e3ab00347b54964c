"""The numbers that the paper prints (arXiv 2404.06654, versions 3 and 1), and ours beside them.

They stand as printed in `rulerkit/data/paper/*.csv`; its columns `note` name misprints. The tables
that hold the paper's models and ours together are in `leaderboard`.

`published_rows` are scores that others have published since, as printed, with their source. They
were measured with other harnesses, prompts and numbers of examples (`docs/scorers.md`), so they
stand in a table of their own, are never averaged, and get no rank. docs/add-results.md says how a
row is added.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from rulerkit.common.errors import check_known, unknown
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.common.render import Field, render
from rulerkit.scoring.effective_length import effective_length
from rulerkit.scoring.statistics import critical_value
from rulerkit.scoring.summary import AVERAGES, RANKS, Summary, length_weights

VERSIONS = ("v3", "v1")
PAPER_CATEGORIES = ("all13", "niah", "vt", "aggregation", "qa", "passkey", "vanilla_niah")
PAPER_LENGTHS = tuple(4096 * 2**i for i in range(6))
PAPER_EXAMPLES = 500
"""Examples for each task and length in the paper (Section 4)."""
UPSTREAM = ("upstream", "authors")
"""Who reported a row of upstream's list."""
SECOND_HAND = "second-hand"
"""How `checked` begins where the source of a published score itself was not seen."""
SERIES = ["model", "aligned", "thinking", "source"]
"""What the published scores of one row have in common: two sources of one model are two rows."""
_DATA = Path(__file__).parents[1] / "data" / "paper"


# --- tables as printed ----------------------------------------------------------------------------


@cache
def _table(name: str) -> "pd.DataFrame":
    """One of the files: scores, summary, models (the 40 checkpoints of both versions), leaderboard
    (upstream's list)."""
    # Only an empty field is missing: a model could be called "NA" or "None".
    return pd.read_csv(_DATA / f"{name}.csv", keep_default_na=False, na_values=[""])


def _rows_of(name: str, version: str, category: str | None) -> "pd.DataFrame":
    check_known("version of the paper", version, VERSIONS)
    rows = _table(name).query("paper_version == @version")

    if category is not None:
        # Our summaries say 'all' for what the paper's files call 'all13'.
        category = "all13" if category == "all" else category
        check_known("category of the paper", category, PAPER_CATEGORIES)
        rows = rows[rows["category"] == category]
    return rows.reset_index(drop=True)


def paper_scores(version: str = "v3", category: str | None = None) -> "pd.DataFrame":
    """Scores by model and length in percent, as printed: the columns of scores.csv.

    `category` is one of PAPER_CATEGORIES; 'all' means 'all13'. Raises UserError for an unknown
    version or category.
    """
    return _rows_of("scores", version, category)


def paper_summary(version: str = "v3", category: str | None = None) -> "pd.DataFrame":
    """Claimed and effective lengths, averages and ranks as printed: the columns of summary.csv."""
    return _rows_of("summary", version, category)


def printed_models() -> "pd.DataFrame":
    """The models of version 3 as printed in its Table 4: the columns of models.csv."""
    rows = _table("models")
    return rows[rows["paper_versions"].str.contains("v3")].reset_index(drop=True)


def printed_tasks() -> "pd.DataFrame":
    """The settings of the thirteen tasks as printed in Table 5, as texts: the columns of
    tasks.csv."""
    return pd.read_csv(_DATA / "tasks.csv", dtype=str, keep_default_na=False)


@cache
def _printed(version: str, category: str) -> "pd.DataFrame":
    """`paper_summary` with the scores under their lengths as integers."""
    scores = paper_scores(version, category).pivot(index="slug", columns="length", values="score")
    return paper_summary(version, category).join(scores, on="slug")


# --- one model ------------------------------------------------------------------------------------


def _key(name: str) -> str:
    """A name without case and punctuation: Llama-3.1 and llama3.1 are one model."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _slugs() -> dict[str, str]:
    """Slug by every spelling of a model, except those that two models share."""
    slugs: dict[str, set[str]] = defaultdict(set)
    for row in _table("models").astype(object).fillna("").itertuples():
        checkpoint = str(row.checkpoint)
        spellings = [
            str(row.slug),
            *str(row.names_in_score_tables).split(";"),
            checkpoint,
            checkpoint.rpartition("/")[2],
        ]
        for spelling in spellings:
            slugs[_key(spelling)].add(str(row.slug))

    # A model without a checkpoint adds an empty spelling, which names nobody.
    slugs.pop("", None)
    return {spelling: next(iter(models)) for spelling, models in slugs.items() if len(models) == 1}


def paper_row(model: str, category: str = "all13", version: str = "v3") -> "pd.Series[Any] | None":
    """A model's row of one of the paper's tables, or None where the table does not have it.

    `model` is a slug, a name as printed, or a checkpoint's id or its last part; case and
    punctuation do not matter. The entries are those of summary.csv, and the scores under their
    lengths as integers (4096, ...).
    """
    rows = _printed(version, category)
    rows = rows[rows["slug"] == _slugs().get(_key(model))]
    return None if rows.empty else rows.iloc[0]


def published_scores(
    models: str | Iterable[str], category: str = "all"
) -> dict[str, dict[int, float]]:
    """Printed scores by length of each model, which is named as `paper_row` takes it, under its
    name in the paper. Raises UserError for a model that the table of the category does not have."""
    scores: dict[str, dict[int, float]] = {}
    for model in [models] if isinstance(models, str) else models:
        row = paper_row(model, category)
        if row is None:
            printed = _printed("v3", category)["model"]
            raise unknown("model with published scores", model, printed)
        by_length: Any = row[[*PAPER_LENGTHS]].dropna().astype(float).to_dict()
        scores[row["model"]] = by_length
    return scores


# --- all models of a table ------------------------------------------------------------------------


def listed_rows(version: str = "v3", category: str = "all13") -> "pd.DataFrame":
    """The paper's rows of a table in its order and, for the thirteen tasks, those of upstream's
    list that the paper does not have: `source` is 'paper v3', 'upstream', or 'authors' where the
    list marks a row as reported by the model's authors.

    The columns are those of summary.csv, `baseline` (one of the two Llama2 rows, of which only 4K
    is printed), and the scores under their lengths as integers. The paper's rows are as printed,
    ranks as numbers. Averages and effective lengths of upstream's list follow from its scores;
    `note` says where it prints others.
    """
    rows = _printed(version, category).assign(source=f"paper {version}")
    rows["baseline"] = rows[[*PAPER_LENGTHS]].isna().any(axis=1)
    effective = rows["effective_length"].fillna("").str.upper()
    rows["effective_length"] = effective.replace("-", "")
    # Six ordinals are misprinted as 3th.
    for rank in RANKS.values():
        rows[rank] = rows[rank].str.extract(r"(\d+)", expand=False).astype(float)

    if category in ("all", "all13"):
        rows = pd.concat([rows, _upstream_only(rows)])
    rows = rows.assign(
        stand_in=False, reader=False, run="", effective_set="", adaptive="", label=""
    )
    rows["claimed_length"] = rows["claimed_length"].str.upper()
    return rows.reset_index(drop=True)


def _upstream_only(papers: "pd.DataFrame") -> "pd.DataFrame":
    """Rows of upstream's list that are not among the paper's."""
    lengths: list[Any] = [*PAPER_LENGTHS]
    names = {f"score_{length_name(n)}": n for n in lengths}
    listed = _table("leaderboard").rename(columns={**names, "reported_by": "source"})
    listed = listed.drop(columns=[*AVERAGES, *RANKS.values()])

    # The list spells some models otherwise than the paper: six equal scores are the same model.
    is_known = listed.set_index(lengths).index.isin(papers.set_index(lengths).index)
    listed = listed[~is_known].assign(aligned="chat", baseline=False)
    scores = listed[lengths].to_numpy(dtype=float)
    listed[[*AVERAGES]] = scores @ length_weights(len(lengths)).T

    # Models of one name differ by their size, which some names have already.
    sizes = zip(listed["model"], listed["parameters"].fillna(""), strict=True)
    listed["model"] = [name if size in name else f"{name} ({size})" for name, size in sizes]

    # Some effective lengths of the list contradict its own scores.
    listed["effective_length"] = [
        effective_length({n: row[n] for n in lengths}, 85.6, parse_length(row["claimed_length"]))
        for _, row in listed.iterrows()
    ]
    return listed


def score_rows(version: str = "v3", aligned: str = "chat") -> "pd.DataFrame":
    """The printed scores as rows that `rk.claims` judges: run, model (slug), label, aligned,
    claimed_length, task, length and score (0..1); the two rows of Llama2-7B left out.

    The mean of the thirteen tasks is the task `thirteen`, those of the categories are `niah`, `vt`,
    `aggregation` and `qa`, passkey and vanilla NIAH are `niah_single_1` and `niah_single_2`.
    """
    names = {"all13": "thirteen", "passkey": "niah_single_1", "vanilla_niah": "niah_single_2"}
    rows = paper_scores(version)
    is_baseline = rows["slug"].isin(["llama2-7b-chat", "llama2-7b-base"])
    rows = rows[(rows["aligned"] == aligned) & ~is_baseline]

    claimed = paper_summary(version, "all").set_index("slug")["claimed_length"]
    # a table or two spell a model otherwise: it has the name of the first
    labels = rows.groupby("slug")["model"].first()
    return pd.DataFrame(
        {
            "run": f"paper {version}",
            "model": rows["slug"],
            "label": rows["slug"].map(labels),
            "aligned": rows["aligned"],
            "claimed_length": rows["slug"].map(claimed.map(parse_length)),
            "task": rows["category"].replace(names),
            "length": rows["length"],
            "score": rows["score"] / 100,
        }
    )


# --- what others have published since -------------------------------------------------------------


def published_rows() -> "pd.DataFrame":
    """A row per model, length and source, in the columns of the file that docs/add-results.md
    explains; `score` is percent as printed, a text."""
    # Scores stay texts: 95.30 keeps its zero.
    rows = pd.read_csv(_DATA / "published.csv", dtype=str, keep_default_na=False)
    return rows.astype({"length": int})


def published_table(format: str = "text") -> str:
    """Published scores as printed, a row per model and source, at powers of two and at 1000K; what
    was not published is empty. `format` is text, markdown or latex, or csv or json for all rows."""
    rows = published_rows()
    if format in ("csv", "json"):
        return render(rows, format)

    numbers = {source: n for n, source in enumerate(rows["source"].unique(), 1)}
    # Cards also print 96K, 640K and the like: columns are powers of two, and 1000K.
    lengths = [
        length
        for length in sorted(rows["length"].unique())
        if length.bit_count() == 1 or length_name(length) == "1000K"
    ]
    body = []
    # Base models stand before chat models.
    groups: Any = rows.sort_values("aligned", kind="stable").groupby(SERIES, sort=False)
    for (model, aligned, thinking, source), of_model in groups:
        printed = dict(zip(of_model["length"], of_model["score"], strict=True))
        is_second = of_model["checked"].str.startswith(SECOND_HAND).any()
        said = ", thinking" if thinking == "yes" else ""
        name = f"{model}{said} [{numbers[source]}]"
        scores = [Field(printed.get(length, "")) for length in lengths]
        body.append([Field(name), aligned + (" *" if is_second else ""), *scores])

    notes = [
        "Percent as printed. Not comparable by default: each source has its own scorer, prompts "
        "and number of examples. Empty: not published. Other lengths: format csv.",
        "*: second-hand, the source itself was not seen.",
        *(f"[{n}] {source}." for source, n in numbers.items()),
    ]
    table = pd.DataFrame(body, columns=["model", "kind", *map(length_name, lengths)])
    return render(table, format, notes, table["kind"].str.split().str[0])


# --- our models beside the paper's ----------------------------------------------------------------


def against_paper(summary: Summary) -> "pd.DataFrame":
    """Our scores beside the paper's, for the models, categories and lengths that it has.

    Columns model, category, length (0 for the mean over all of ours), score, low, high, paper,
    verdict, effective_length and paper_effective_length. The verdict is 'agrees' where chance may
    explain the difference (the paper's own noise is that of 500 right-or-wrong examples per task),
    'differs', or 'not comparable: ' and what differs from the paper's set-up (protocol, tokenizer,
    template, examples, tasks).
    """
    averages = summary.models.rename(columns={"avg": "score", "avg_low": "low", "avg_high": "high"})
    effective = summary.models[["run", "model", "category", "effective_length"]]
    ours = pd.concat([summary.lengths.merge(effective), averages.assign(length=0)])
    ours = ours[ours["category"].isin(["all", *PAPER_CATEGORIES])]

    all_lengths = list(summary.lengths["length"].unique())
    rows = []
    for row in ours.dropna(subset="score").to_dict("records"):
        lengths = [row["length"]] if row["length"] else all_lengths
        paper = paper_row(row["model"], row["category"])
        if paper is None:
            paper = paper_row(row["label"], row["category"])
        if paper is None or paper.reindex(lengths).isna().any():
            continue
        printed = paper[lengths].to_numpy(dtype=float) / 100

        # The paper prints no intervals: its error is that of right-or-wrong answers.
        variance = (printed * (1 - printed)).sum() / (PAPER_EXAMPLES * row["tasks"])
        variance /= len(lengths) ** 2
        our_error = (row["high"] - row["low"]) / (2 * critical_value())
        error = math.hypot(our_error, 100 * math.sqrt(variance))
        z = (row["score"] - 100 * printed.mean()) / error
        row["verdict"] = "agrees" if abs(z) < critical_value() else "differs"

        # Without all tasks of a category there is no effective length of it.
        cells = summary.cells[summary.cells["length"].isin(lengths)]
        cells = cells[(cells["run"] == row["run"]) & (cells["model"] == row["model"])]
        found = departures(cells, paper["slug"])
        reasons = [reason for reason, is_so in found.items() if is_so.any()]
        reasons += ["tasks"] if row["effective_length"] == "" else []
        if reasons:
            row["verdict"] = f"not comparable: {', '.join(reasons)}"

        row["paper"] = 100 * printed.mean()
        row["paper_effective_length"] = paper["effective_length"]
        rows.append(row)

    columns = ["model", "category", "length", "score", "low", "high", "paper"]
    columns += ["verdict", "effective_length", "paper_effective_length"]
    return pd.DataFrame(rows, columns=columns)


def departures(cells: "pd.DataFrame", slug: str = "") -> "dict[str, pd.Series[bool]]":
    """What differs from the paper's set-up (protocol, tokenizer, template, examples), and in which
    cells; the chat template where the model of the paper is known by its slug."""
    printed = _key(_table("models").set_index("slug")["template"].get(slug, ""))

    def is_another(template: str) -> bool:
        # 'auto' is the template of the tokenizer, as the model's authors ship it.
        return template not in printed and not template.startswith("auto")

    return {
        "protocol": cells["protocol"] != "paper",
        "tokenizer": cells["tokenizer"] == "builtin",
        "template": cells["template"].dropna().map(_key).map(is_another),
        "examples": cells["stand_in"],
    }
