"""The paper's numbers (arXiv 2404.06654, version 3 and version 1), rebuilt from its scores and
beside ours.

The figures are kept as printed, in `rulerkit/data/paper/*.csv`; remarks on misprints stand in their
`note` columns. The rebuilt tables come from the scores alone, by the functions that judge our own.
A printed average agrees if it is the nearest tenth. Scores are printed to tenths too, so that up to
0.1 is rounding, except in Tables 10 and 11: 500 examples with one answer each make their scores
exact (Section 4).
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rulerkit.errors import unknown
from rulerkit.lengths import THRESHOLDS, effective_length, length_name, parse_length
from rulerkit.statistics import critical_value
from rulerkit.summary import AVERAGES, Summary, averages, ranks, summary_lengths
from rulerkit.tables import STAND_IN_NOTE

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

VERSIONS = ("v3", "v1")
PAPER_CATEGORIES = ("all13", "niah", "vt", "aggregation", "qa", "passkey", "vanilla_niah")
PAPER_LENGTHS = tuple(4096 * 2**i for i in range(6))
UPSTREAM = ("upstream", "authors")
"""Who reported a row of upstream's list."""
JUDGED = {"all13": "all", "niah": "niah", "vt": "vt", "aggregation": "aggregation", "qa": "qa"}
"""The paper's categories that have thresholds, and what we call them. Tables 10 and 11 have
none."""
RANKS = ("rank_inc", "rank_dec")
PARTS = {"niah": 8, "vt": 1, "aggregation": 2, "qa": 2}
"""Tasks of each category: the score of Table 3 is their mean."""
ROUNDING, SLIP, CONTRADICTION, MISPRINT = (
    "rounding",
    "slip of the paper",
    "contradiction in the paper",
    "misprint",
)
_NUDGE = 1e-6
_NEAREST = 0.05 + _NUDGE / 2


@cache
def _table(name: str) -> "pd.DataFrame":
    import pandas as pd

    with (files("rulerkit") / "data" / "paper" / f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(
            file, keep_default_na=False, na_values=[""], dtype={"rank_inc": str, "rank_dec": str}
        )


def paper_scores(version: str = "v3", category: str | None = None) -> "pd.DataFrame":
    """Scores by model and length, percent, as printed: columns model, slug, aligned, length, score,
    note ...

    `category` is one of PAPER_CATEGORIES ('all' means 'all13').
    """
    return _chosen(_table("scores"), version, category)


def paper_summary(version: str = "v3", category: str | None = None) -> "pd.DataFrame":
    """Claimed and effective lengths, averages and ranks as printed: columns of summary.csv."""
    return _chosen(_table("summary"), version, category)


def paper_models() -> "pd.DataFrame":
    """The 40 checkpoints of both versions: columns of models.csv (slug, model, parameters,
    checkpoint, family, ...)."""
    return _table("models").copy()


def paper_tasks() -> "pd.DataFrame":
    """The 13 configurations of Table 5: columns of tasks.csv."""
    return _table("tasks").copy()


def paper_row(model: str, category: str = "all13", version: str = "v3") -> "pd.Series[Any] | None":
    """A model's row of one of the paper's tables, or None where that table does not have it.

    `model` is a slug, a name as printed, or a checkpoint's id or last part; case and punctuation do
    not matter. The entries are those of summary.csv, ranks as numbers, and the scores under their
    lengths as integers (4096, ...).
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
    """The leading integer of a printed rank ('1st', and the misprint '3th'); NaN where none is
    printed."""
    found = re.match(r"\d+", str(printed))
    return float(found[0]) if found else float("nan")


def beside(summary: Summary, paper_version: str = "v3") -> "pd.DataFrame":
    """Our row of each model and, below it, the paper's where it has one.

    Columns: model, source ('ours' or 'paper v3'), claimed_length, effective_length, one per length
    (integers), avg, wavg_inc, wavg_dec, and note, which says what stands between the two: stand-in
    corpora, another set of tasks.
    """
    import pandas as pd

    grid = summary_lengths(summary)
    rows: list[dict[Any, Any]] = []
    for _, model in summary.models[summary.models["category"] == "all"].iterrows():
        own = summary.lengths[summary.lengths["category"] == "all"]
        own = own[(own["model"] == model["model"]) & (own["run"] == model["run"])]
        notes = [STAND_IN_NOTE] * bool(model["stand_in"])
        if model["tasks"] != 13:
            notes.append(f"tasks: {model['tasks']}, the paper's 13")
        if tuple(grid) != PAPER_LENGTHS:
            notes.append(
                f"averages over {', '.join(map(length_name, grid))}, the paper's over 4K to 128K"
            )
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
        paper = _row_of(model, "all", paper_version)
        if paper is not None:
            about = {
                "model": model["label"],
                "source": f"paper {paper_version}",
                "note": paper["model"],
            }
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


def upstream_rows(version: str = "v3", lengths: Sequence[int] = PAPER_LENGTHS) -> "pd.DataFrame":
    """The chat models of upstream's list that the paper does not have, as rows of Table 3 (see
    `rebuilt`).

    `source` is 'upstream', or 'authors' where the list marks a row as reported by the model's
    authors. Averages over `lengths` and effective lengths follow from the scores; `note` says where
    the list prints others.
    """
    import pandas as pd

    paper = rebuilt(version)[[*PAPER_LENGTHS]].itertuples(index=False, name=None)
    known = set(paper)
    rows: list[dict[Any, Any]] = []
    for _, printed in _table("leaderboard").iterrows():
        scores = {n: float(printed[f"score_{length_name(n)}"]) for n in PAPER_LENGTHS}
        if tuple(scores.values()) in known:
            continue
        claimed = str(printed["claimed_length"]).upper()
        size = "" if printed.isna()["parameters"] else f" ({printed['parameters']})"
        row: dict[Any, Any] = {
            "model": f"{printed['model']}{size}",
            "aligned": "chat",
            "claimed_length": claimed,
            **scores,
        }
        means = averages([scores[n] for n in lengths]) if lengths else (math.nan,) * 3
        row |= dict(zip(AVERAGES, means, strict=True))
        row["effective_length"] = effective_length(
            scores, THRESHOLDS["chat"]["all"], parse_length(claimed)
        )
        rows.append({**row, "source": printed["reported_by"], "note": printed["note"]})
    return pd.DataFrame(rows)


def against_paper(summary: Summary, version: str = "v3") -> "pd.DataFrame":
    """Our scores by length beside the paper's, for the models and categories that it has: what
    agrees, what does not.

    Columns model, category, length, score, low, high, paper, z (of the difference: the paper's own
    noise is that of 500 right-or-wrong examples per task) and verdict: 'agrees' where |z| is below
    the critical value, 'differs', or 'not comparable: ' and what differs from the paper (protocol,
    tokenizer, template, examples).
    """
    import pandas as pd

    z_limit = critical_value(summary.confidence)
    rows = []
    for _, score in summary.lengths[summary.lengths["complete"]].iterrows():
        paper = _row_of(score, str(score["category"]), version)
        length = int(score["length"])
        if paper is None or math.isnan(float(paper.get(length, math.nan))):
            continue
        share = float(paper[length]) / 100
        noise = 100 * math.sqrt(share * (1 - share) / (500 * score["tasks"]))
        error = math.hypot((score["high"] - score["low"]) / (2 * z_limit), noise)
        z = float(score["score"] - paper[length]) / error
        cells = summary.cells[
            (summary.cells["model"] == score["model"]) & (summary.cells["run"] == score["run"])
        ]
        reasons = ", ".join(_departures(cells[cells["length"] == length], str(paper["slug"])))
        judged = "agrees" if abs(z) < z_limit else "differs"
        row = {
            name: score[name] for name in ("model", "category", "length", "score", "low", "high")
        }
        verdict = f"not comparable: {reasons}" if reasons else judged
        rows.append({**row, "paper": float(paper[length]), "z": round(z, 2), "verdict": verdict})
    columns = ["model", "category", "length", "score", "low", "high", "paper", "z", "verdict"]
    return pd.DataFrame(rows, columns=columns)


def _departures(cells: "pd.DataFrame", slug: str) -> list[str]:
    """In what our cells of a model differ from the paper's set-up."""
    models = paper_models().set_index("slug")
    forms = _key(str(models.loc[slug, "template"])) if slug in models.index else ""
    templates = {_key(str(name)) for name in cells["template"].dropna()}
    found = {
        "protocol": not cells["note"].fillna("").str.contains("Protocol paper").all(),
        "tokenizer": (cells["tokenizer"] == "builtin").any(),
        "template": any(name not in forms and not name.startswith("auto") for name in templates),
        "examples": cells["stand_in"].any(),
    }
    return [name for name, differs in found.items() if differs]


def _row_of(model: "pd.Series[Any]", category: str, version: str) -> "pd.Series[Any] | None":
    """The paper's row of one of our models, by its name or label."""
    rows = (paper_row(str(model[name]), category, version) for name in ("model", "label"))
    return next((row for row in rows if row is not None), None)


# --- the paper's tables rebuilt -------------------------------------------------------------------


@cache
def _rebuilt(version: str, category: str, lengths: tuple[int, ...]) -> "pd.DataFrame":
    scores, paper, rows = paper_scores(version, category), paper_summary(version, category), []
    for _, printed in paper.iterrows():
        mine = scores[scores["slug"] == printed["slug"]]
        own = {int(n): float(s) for n, s in zip(mine["length"], mine["score"], strict=True)}
        whole = set(own) == set(PAPER_LENGTHS)
        found = averages([own[n] for n in lengths]) if whole and lengths else (math.nan,) * 3
        about = {name: printed[name] for name in ("table", "category", "model", "slug", "aligned")}
        row: dict[Any, Any] = {**about, **own, "baseline": not whole}
        row |= dict(zip(AVERAGES, found, strict=True))
        rows.append(
            row
            | {
                "claimed_length": str(printed["claimed_length"]).upper(),
                "effective_length": _effective(version, printed, own) if whole else "",
            }
        )
    import pandas as pd

    frame = pd.DataFrame(rows)
    for rank, average in zip(RANKS, AVERAGES[1:], strict=True):
        frame[rank] = frame.groupby("aligned")[average].transform(lambda column: ranks(column))
    for average in AVERAGES if lengths == PAPER_LENGTHS else ():
        frame[average] += [
            _towards(value, own) for value, own in zip(paper[average], frame[average], strict=True)
        ]
    if category not in JUDGED:
        frame[[*RANKS, *AVERAGES[1:]]] = math.nan
    return frame


def _towards(printed: float, own: float) -> float:
    """A nudge to the printed tenth where one is exactly between two: the paper rounds such halves
    up and down."""
    return (
        math.copysign(_NUDGE, printed - own) if abs(abs(printed - own) - 0.05) < _NUDGE / 2 else 0.0
    )


def rebuilt(
    version: str = "v3", category: str = "all13", lengths: Sequence[int] = PAPER_LENGTHS
) -> "pd.DataFrame":
    """A table of the paper from its scores, a row per model in the paper's order, averaged over
    `lengths`.

    Columns table, category, model, slug, aligned, claimed_length, effective_length, avg, wavg_inc,
    wavg_dec, rank_inc, rank_dec, baseline (one of the two Llama2 rows, of which only 4K is
    printed), and the scores under their lengths as integers. An average exactly between two tenths
    is moved by a millionth to the one that is printed: both are the nearest, and the paper, which
    rounded longer numbers, prints either. Tables 10 and 11 have neither effective lengths nor
    weighted averages.
    """
    return _rebuilt(version, category, tuple(lengths)).copy()


def _effective(version: str, row: "pd.Series[Any]", scores: dict[int, float]) -> str:
    if row["category"] not in JUDGED:
        return ""
    threshold = THRESHOLDS[row["aligned"]][JUDGED[row["category"]]]
    found = effective_length(scores, threshold, parse_length(row["claimed_length"]))
    # '>128K' is printed in version 3 only, and there for chat models only
    return found if (version, row["aligned"]) == ("v3", "chat") else found.removeprefix(">")


def checks() -> "pd.DataFrame":
    """Every number that the paper prints and that follows from its others, in both versions: a row
    each.

    Columns version, table, category, model, slug, length, value (avg, wavg_inc, wavg_dec, rank_inc,
    rank_dec, effective_length, or 'mean of 13 tasks' for a score of Tables 3 and 12), printed,
    rebuilt, difference, decision ('' where they agree).
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for version in VERSIONS:
        for category in paper_summary(version)["category"].unique():
            own = rebuilt(version, category)
            for (_, printed), (_, found) in zip(
                paper_summary(version, category).iterrows(), own.iterrows(), strict=True
            ):
                about = {
                    "version": version,
                    **{n: found[n] for n in ("table", "category", "model", "slug")},
                }
                rows += [about | check for check in _row_checks(printed, found)]
        rows += _mean_checks(version)
    return pd.DataFrame(rows)


def exceptions() -> "pd.DataFrame":
    """The rows of `checks` where the paper's print and its own scores disagree, each with what
    decides it."""
    found = checks()
    return found[found["decision"] != ""].reset_index(drop=True)


def agreement() -> "pd.DataFrame":
    """How many printed values were rebuilt, by kind: value, printed, agree, and the exceptions by
    decision.

    `halves` of those that agree lie exactly between two tenths, and are printed as the one or the
    other.
    """
    import pandas as pd

    found = checks()
    kinds = [
        kind
        for kind in (ROUNDING, SLIP, CONTRADICTION, MISPRINT)
        if (found["decision"] == kind).any()
    ]
    rows = []
    for value in found["value"].unique():
        own = found[found["value"] == value]
        decisions = own["decision"]
        halves = int(((own["difference"].abs() - 0.05).abs() < _NUDGE).sum())
        counts = {kind: int((decisions == kind).sum()) for kind in kinds}
        rows.append(
            {
                "value": value,
                "printed": len(decisions),
                "agree": int((decisions == "").sum()),
                "halves": halves,
                **counts,
            }
        )
    return pd.DataFrame(rows)


def _row_checks(printed: "pd.Series[Any]", found: "pd.Series[Any]") -> list[dict[str, Any]]:
    rows = []
    exact = found["category"] not in JUDGED
    for name in AVERAGES:
        if not math.isnan(printed[name]):
            rows.append(_check(name, printed[name], found[name], SLIP if exact else ROUNDING))
    for name in RANKS:
        if isinstance(printed[name], str):
            same = rank_number(printed[name]) == found[name]
            misprint = MISPRINT if printed[name] == "3th" else ""
            about = {
                "value": name,
                "printed": printed[name],
                "rebuilt": f"{found[name]:.0f}",
                "difference": math.nan,
            }
            rows.append(about | {"decision": misprint if same else CONTRADICTION})
    if found["effective_length"]:
        ours, theirs = found["effective_length"], str(printed["effective_length"]).upper()
        about = {
            "value": "effective_length",
            "printed": theirs,
            "rebuilt": ours,
            "difference": math.nan,
        }
        rows.append(about | {"decision": "" if ours == theirs else CONTRADICTION})
    return rows


def _check(value: str, printed: float, found: float, beyond: str) -> dict[str, Any]:
    """A printed tenth against what it should be; more than rounding can do is no rounding."""
    difference = float(printed) - float(found)
    decision = (
        "" if abs(difference) <= _NEAREST else beyond if abs(difference) <= 0.1 else CONTRADICTION
    )
    return {
        "value": value,
        "printed": f"{printed:.1f}",
        "rebuilt": f"{found:.3f}",
        "difference": round(difference, 3),
        "decision": decision,
    }


def _mean_checks(version: str) -> list[dict[str, Any]]:
    """The scores of Tables 3 and 12 against the mean of the thirteen tasks, from the four
    categories' tables."""
    whole = rebuilt(version, "all13")
    parts = {kind: rebuilt(version, kind).set_index("slug") for kind in PARTS}
    rows = []
    for _, row in whole.iterrows():
        about = {
            "version": version,
            **{name: row[name] for name in ("table", "category", "model", "slug")},
        }
        for length in PAPER_LENGTHS:
            if not math.isnan(row[length]):
                mean = (
                    sum(n * parts[kind].loc[row["slug"], length] for kind, n in PARTS.items()) / 13
                )
                rows.append(
                    about
                    | {"length": length}
                    | _check("mean of 13 tasks", row[length], mean, ROUNDING)
                )
    return rows


def show(rows: "pd.DataFrame") -> "Styler":
    """Exceptions for a notebook: every row of them, what is not rounding set off."""
    from rulerkit import tables

    shown = rows.drop(columns="slug").assign(
        length=[length_name(int(n)) if n == n else "" for n in rows["length"]]
    )
    styler = tables.show(shown, formatter={"difference": "{:+.3f}"}, na_rep="")
    shade = {ROUNDING: "", MISPRINT: "", SLIP: "background-color: rgba(230,159,0,.25)"}
    paint = "background-color: rgba(213,94,0,.25)"
    return styler.apply(lambda row: [shade.get(row["decision"], paint)] * len(row), axis=1)
