"""The paper's numbers (arXiv 2404.06654, version 3 and version 1), beside ours.

The figures are kept as printed, in `rulerkit/paper/*.csv`; remarks on misprints stand in their `note` columns.
"""

import math
import re
from collections import defaultdict
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rulerkit.errors import unknown
from rulerkit.lengths import length_name
from rulerkit.summary import AVERAGES, Summary, summary_lengths

if TYPE_CHECKING:
    import pandas as pd

VERSIONS = ("v3", "v1")
PAPER_CATEGORIES = ("all13", "niah", "vt", "aggregation", "qa", "passkey", "vanilla_niah")
PAPER_LENGTHS = tuple(4096 * 2**i for i in range(6))


@cache
def _table(name: str) -> "pd.DataFrame":
    import pandas as pd

    with (files("rulerkit") / "paper" / f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False, na_values=[""], dtype={"rank_inc": str, "rank_dec": str})


def paper_scores(version: str = "v3", category: str | None = None) -> "pd.DataFrame":
    """Scores by model and length, percent, as printed: columns model, slug, aligned, length, score, note ...

    `category` is one of PAPER_CATEGORIES ('all' means 'all13').
    """
    return _chosen(_table("scores"), version, category)


def paper_summary(version: str = "v3", category: str | None = None) -> "pd.DataFrame":
    """Claimed and effective lengths, averages and ranks as printed: columns of summary.csv."""
    return _chosen(_table("summary"), version, category)


def paper_models() -> "pd.DataFrame":
    """The 40 checkpoints of both versions: columns of models.csv (slug, model, parameters, checkpoint, family, ...)."""
    return _table("models").copy()


def paper_tasks() -> "pd.DataFrame":
    """The 13 configurations of Table 5: columns of tasks.csv."""
    return _table("tasks").copy()


def paper_row(model: str, category: str = "all13", version: str = "v3") -> "pd.Series[Any] | None":
    """A model's row of one of the paper's tables, or None where that table does not have it.

    `model` is a slug, a name as printed, or a checkpoint's id or last part; case and punctuation do not matter. The
    entries are those of summary.csv, ranks as numbers, and the scores under their lengths as integers (4096, ...).
    """
    import pandas as pd

    slug = _slugs().get(_key(model))
    rows = paper_summary(version, category)
    rows = rows[rows["slug"] == slug]
    if rows.empty:
        return None
    row: dict[Any, Any] = rows.iloc[0].to_dict()
    for rank in ("rank_inc", "rank_dec"):
        row[rank] = rank_number(row[rank])
    scores = paper_scores(version, category)
    own = scores[scores["slug"] == slug]
    row |= {int(n): float(s) for n, s in zip(own["length"], own["score"], strict=True)}
    return pd.Series(row)


def rank_number(printed: object) -> float:
    """The leading integer of a printed rank ('1st', and the misprint '3th'); NaN where none is printed."""
    found = re.match(r"\d+", str(printed))
    return float(found[0]) if found else float("nan")


def beside(summary: Summary, paper_version: str = "v3") -> "pd.DataFrame":
    """Our row of each model and, below it, the paper's where it has one.

    Columns: model, source ('ours' or 'paper v3'), claimed_length, effective_length, one per length (integers),
    avg, wavg_inc, wavg_dec, and note, which says what stands between the two: stand-in corpora, another set of tasks.
    """
    import pandas as pd

    from rulerkit.tables import STAND_IN_NOTE

    grid = summary_lengths(summary)
    rows: list[dict[Any, Any]] = []
    for _, model in summary.models[summary.models["category"] == "all"].iterrows():
        own = summary.lengths[summary.lengths["category"] == "all"]
        own = own[(own["model"] == model["model"]) & (own["run"] == model["run"])]
        notes = [STAND_IN_NOTE] * bool(model["stand_in"])
        if model["tasks"] != 13:
            notes.append(f"tasks: {model['tasks']}, the paper's 13")
        if tuple(grid) != PAPER_LENGTHS:
            notes.append(f"averages over {', '.join(map(length_name, grid))}, the paper's over 4K to 128K")
        claimed = model["claimed_length"]
        ours: dict[Any, Any] = {
            "model": model["label"],
            "source": "ours",
            "claimed_length": "" if math.isnan(claimed) else length_name(int(claimed)),
            "effective_length": model["effective_length"],
            "note": "; ".join(notes),
        }
        ours |= {int(n): float(s) for n, s in zip(own["length"], own["score"], strict=True)}
        rows.append(ours | {average: model[average] for average in AVERAGES})
        found = (paper_row(str(name), version=paper_version) for name in (model["model"], model["label"]))
        paper = next((row for row in found if row is not None), None)
        if paper is not None:
            about = {"model": model["label"], "source": f"paper {paper_version}", "note": paper["model"]}
            rows.append({**paper.to_dict(), **about})
    columns = ["model", "source", "claimed_length", "effective_length", *grid, *AVERAGES, "note"]
    return pd.DataFrame(rows, columns=columns)


def _chosen(table: "pd.DataFrame", version: str, category: str | None) -> "pd.DataFrame":
    if version not in VERSIONS:
        raise unknown("version of the paper", version, VERSIONS)
    rows = table[table["paper_version"] == version]
    if category is not None:
        category = "all13" if category == "all" else category
        if category not in PAPER_CATEGORIES:
            raise unknown("category of the paper", category, PAPER_CATEGORIES)
        rows = rows[rows["category"] == category]
    return rows.reset_index(drop=True)


@cache
def _slugs() -> dict[str, str]:
    """Slug by every spelling of a model, except those that two models share."""
    spelled: dict[str, set[str]] = defaultdict(set)
    models = paper_models()
    columns = ("slug", "names_in_score_tables", "checkpoint")
    for slug, names, checkpoint in models[list(columns)].fillna("").itertuples(index=False):
        for name in (slug, *names.split(";"), checkpoint, checkpoint.rpartition("/")[2]):
            spelled[_key(name)].add(slug)
    return {name: slugs.pop() for name, slugs in spelled.items() if name and len(slugs) == 1}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
