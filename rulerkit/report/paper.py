"""The numbers that the paper prints (arXiv 2404.06654, versions 3 and 1).

They stand as printed in `rulerkit/data/paper/*.csv`; its columns `note` name misprints. The tables
that hold the paper's models and ours together are in `leaderboard`.

`published_rows` are scores that others have published since, as printed, with their source. They
were measured with other harnesses, prompts and numbers of examples (`docs/scorers.md`), so they
stand in a table of their own, are never averaged, and get no rank. docs/add-results.md says how a
row is added.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from rulerkit.common.errors import check_known
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.common.render import Field, render
from rulerkit.scoring.effective_length import effective_length
from rulerkit.scoring.summary import AVERAGES, RANKS, length_weights

VERSIONS = ("v3", "v1")
PAPER_LENGTHS = tuple(4096 * 2**i for i in range(6))
PAPER_EXAMPLES = 500
"""Examples for each task and length in the paper (Section 4)."""
UPSTREAM = ("upstream", "authors")
"""Who reported a row of upstream's list."""
SECOND_HAND = "second-hand"
"""How `checked` begins where the source of a published score itself was not seen."""
_DATA = Path(__file__).parents[1] / "data" / "paper"


# --- tables as printed ----------------------------------------------------------------------------


@cache
def printed_table(name: str) -> "pd.DataFrame":
    """One of the files as it is: scores, summary, models (the 40 checkpoints of both versions),
    or leaderboard (upstream's list)."""
    # Only an empty field is missing: a model could be called "NA" or "None".
    return pd.read_csv(_DATA / f"{name}.csv", keep_default_na=False, na_values=[""])


def _rows_of(name: str, version: str, category: str | None) -> "pd.DataFrame":
    check_known("version of the paper", version, VERSIONS)
    rows = printed_table(name).query("paper_version == @version")

    if category is not None:
        # Our summaries say 'all' for what the paper's files call 'all13'.
        category = "all13" if category == "all" else category
        check_known("category of the paper", category, [*rows["category"].unique()])
        rows = rows[rows["category"] == category]
    return rows.reset_index(drop=True)


def paper_scores(version: str = "v3", category: str | None = None) -> "pd.DataFrame":
    """Scores by model and length in percent, as printed: the columns of scores.csv.

    `category` is one of theirs; 'all' means 'all13'. Raises UserError for an unknown version or
    category.
    """
    return _rows_of("scores", version, category)


def paper_summary(version: str = "v3", category: str | None = None) -> "pd.DataFrame":
    """Claimed and effective lengths, averages and ranks as printed: the columns of summary.csv."""
    return _rows_of("summary", version, category)


def printed_tasks() -> "pd.DataFrame":
    """The settings of the thirteen tasks as printed in Table 5, as texts: the columns of
    tasks.csv."""
    return pd.read_csv(_DATA / "tasks.csv", dtype=str, keep_default_na=False)


@cache
def _printed(category: str) -> "pd.DataFrame":
    """`paper_summary` with the scores under their lengths as integers."""
    scores = paper_scores("v3", category).pivot(index="slug", columns="length", values="score")
    return paper_summary("v3", category).join(scores, on="slug")


def published_scores(
    models: str | Iterable[str], category: str = "all"
) -> dict[str, dict[int, float]]:
    """Printed scores of version 3 by length of each model, under its name in the paper; `models`
    are slugs, such as 'gpt-4' or 'llama3-1-8b'.

    Raises UserError for a model that the table of the category does not have.
    """
    printed = _printed(category).set_index("slug")
    scores: dict[str, dict[int, float]] = {}
    for slug in [models] if isinstance(models, str) else models:
        check_known("model with published scores", slug, printed.index)
        row: Any = printed.loc[slug]
        by_length: Any = row[[*PAPER_LENGTHS]].dropna().astype(float).to_dict()
        scores[row["model"]] = by_length
    return scores


# --- all models of a table ------------------------------------------------------------------------


def listed_rows(category: str = "all13") -> "pd.DataFrame":
    """The paper's rows of a table in its order and, for the thirteen tasks, those of upstream's
    list that the paper does not have: `source` is 'paper v3', 'upstream', or 'authors' where the
    list marks a row as reported by the model's authors.

    The columns are those of summary.csv, `baseline` (one of the two Llama2 rows, of which only 4K
    is printed), and the scores under their lengths as integers. The paper's rows are as printed,
    ranks as numbers. Averages and effective lengths of upstream's list follow from its scores;
    `note` says where it prints others.
    """
    rows = _printed(category).assign(source="paper v3")
    rows["baseline"] = rows[[*PAPER_LENGTHS]].isna().any(axis=1)
    effective = rows["effective_length"].fillna("").str.upper()
    rows["effective_length"] = effective.replace("-", "")
    # Six ordinals are misprinted as 3th.
    for rank in RANKS.values():
        rows[rank] = rows[rank].str.extract(r"(\d+)", expand=False).astype(float)

    if category in ("all", "all13"):
        rows = pd.concat([rows, _upstream_only(rows)])
    rows["claimed_length"] = rows["claimed_length"].str.upper()
    return rows.reset_index(drop=True)


def _upstream_only(papers: "pd.DataFrame") -> "pd.DataFrame":
    """Rows of upstream's list that are not among the paper's."""
    lengths: list[Any] = [*PAPER_LENGTHS]
    names = {f"score_{length_name(n)}": n for n in lengths}
    listed = printed_table("leaderboard").rename(columns={**names, "reported_by": "source"})
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

    sources = list(rows["source"].unique())
    numbers = rows["source"].map(sources.index) + 1
    thinking = rows["thinking"].map({"yes": ", thinking"}).fillna("")
    rows["model"] += thinking + " [" + numbers.astype(str) + "]"
    rows["kind"] = rows["aligned"].where(
        ~rows["checked"].str.startswith(SECOND_HAND), rows["aligned"] + " *"
    )

    # Cards also print 96K, 640K and the like: columns are powers of two, and 1000K.
    is_power = rows["length"].map(int.bit_count) == 1
    shown = rows[is_power | (rows["length"] == parse_length("1000K"))]
    # Base models stand before chat models.
    index = ["aligned", "model", "kind"]
    scores = shown.pivot(index=index, columns="length", values="score").fillna("").map(Field)
    table = scores.rename(columns=length_name).reset_index()
    notes = [
        "Percent as printed. Not comparable by default: each source has its own scorer, prompts "
        "and number of examples. Empty: not published. Other lengths: format csv.",
        "*: second-hand, the source itself was not seen.",
        *(f"[{n}] {source}." for n, source in enumerate(sources, 1)),
    ]
    return render(table.drop(columns="aligned"), format, notes, table["aligned"])
