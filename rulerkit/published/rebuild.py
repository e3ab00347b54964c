"""The paper's tables rebuilt from its scores alone, by the functions that judge our own, and held against its print.

A printed average is taken to agree if it is the nearest tenth. Scores are printed to tenths too, so that up to 0.1
is rounding, except in Tables 10 and 11: 500 examples with one answer each make their scores exact (Section 4).
"""

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from rulerkit.lengths import THRESHOLDS, effective_length, length_name, parse_length
from rulerkit.published import PAPER_LENGTHS, VERSIONS, paper_scores, paper_summary, rank_number
from rulerkit.summary import averages, ranks

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

JUDGED = {"all13": "all", "niah": "niah", "vt": "vt", "aggregation": "aggregation", "qa": "qa"}
"""The paper's categories that have thresholds, and what we call them. Tables 10 and 11 have none."""
AVERAGES = ("avg", "wavg_inc", "wavg_dec")
RANKS = ("rank_inc", "rank_dec")
PARTS = {"niah": 8, "vt": 1, "aggregation": 2, "qa": 2}
"""Tasks of each category: the score of Table 3 is their mean."""
ROUNDING, SLIP, CONTRADICTION, MISPRINT = "rounding", "slip of the paper", "contradiction in the paper", "misprint"
_NUDGE = 1e-6
_NEAREST = 0.05 + _NUDGE / 2


@cache
def _rebuilt(version: str, category: str) -> "pd.DataFrame":
    scores, paper, rows = paper_scores(version, category), paper_summary(version, category), []
    for _, printed in paper.iterrows():
        mine = scores[scores["slug"] == printed["slug"]]
        own = {int(n): float(s) for n, s in zip(mine["length"], mine["score"], strict=True)}
        whole = set(own) == set(PAPER_LENGTHS)
        found = averages([own[n] for n in PAPER_LENGTHS]) if whole else (math.nan,) * 3
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
    for average in AVERAGES:
        frame[average] += [_towards(value, own) for value, own in zip(paper[average], frame[average], strict=True)]
    if category not in JUDGED:
        frame[[*RANKS, *AVERAGES[1:]]] = math.nan
    return frame


def _towards(printed: float, own: float) -> float:
    """A nudge to the printed tenth where one is exactly between two: the paper rounds such halves up and down."""
    return math.copysign(_NUDGE, printed - own) if abs(abs(printed - own) - 0.05) < _NUDGE / 2 else 0.0


def rebuilt(version: str = "v3", category: str = "all13") -> "pd.DataFrame":
    """A table of the paper from its scores, a row per model in the paper's order.

    Columns table, category, model, slug, aligned, claimed_length, effective_length, avg, wavg_inc, wavg_dec, rank_inc,
    rank_dec, baseline (one of the two Llama2 rows, of which only 4K is printed), and the scores under their lengths as
    integers. An average exactly between two tenths is moved by a millionth to the one that is printed: both are the
    nearest, and the paper, which rounded longer numbers, prints either. Tables 10 and 11 have neither effective lengths
    nor weighted averages.
    """
    return _rebuilt(version, category).copy()


def _effective(version: str, row: "pd.Series[Any]", scores: dict[int, float]) -> str:
    if row["category"] not in JUDGED:
        return ""
    threshold = THRESHOLDS[row["aligned"]][JUDGED[row["category"]]]
    found = effective_length(scores, threshold, parse_length(row["claimed_length"]))
    # '>128K' is printed in version 3 only, and there for chat models only
    return found if (version, row["aligned"]) == ("v3", "chat") else found.removeprefix(">")


def checks() -> "pd.DataFrame":
    """Every number that the paper prints and that follows from its others, in both versions: a row each.

    Columns version, table, category, model, slug, length, value (avg, wavg_inc, wavg_dec, rank_inc, rank_dec,
    effective_length, or 'mean of 13 tasks' for a score of Tables 3 and 12), printed, rebuilt, difference, decision
    ('' where they agree).
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for version in VERSIONS:
        for category in paper_summary(version)["category"].unique():
            own = rebuilt(version, category)
            for (_, printed), (_, found) in zip(
                paper_summary(version, category).iterrows(), own.iterrows(), strict=True
            ):
                about = {"version": version, **{n: found[n] for n in ("table", "category", "model", "slug")}}
                rows += [about | check for check in _row_checks(printed, found)]
        rows += _mean_checks(version)
    return pd.DataFrame(rows)


def exceptions() -> "pd.DataFrame":
    """The rows of `checks` where the paper's print and its own scores disagree, each with what decides it."""
    found = checks()
    return found[found["decision"] != ""].reset_index(drop=True)


def agreement() -> "pd.DataFrame":
    """How many printed values were rebuilt, by kind: value, printed, agree, and the exceptions by decision.

    `halves` of those that agree lie exactly between two tenths, and are printed as the one or the other.
    """
    import pandas as pd

    found = checks()
    kinds = [kind for kind in (ROUNDING, SLIP, CONTRADICTION, MISPRINT) if (found["decision"] == kind).any()]
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
            about = {"value": name, "printed": printed[name], "rebuilt": f"{found[name]:.0f}", "difference": math.nan}
            rows.append(about | {"decision": misprint if same else CONTRADICTION})
    if found["effective_length"]:
        ours, theirs = found["effective_length"], str(printed["effective_length"]).upper()
        about = {"value": "effective_length", "printed": theirs, "rebuilt": ours, "difference": math.nan}
        rows.append(about | {"decision": "" if ours == theirs else CONTRADICTION})
    return rows


def _check(value: str, printed: float, found: float, beyond: str) -> dict[str, Any]:
    """A printed tenth against what it should be; more than rounding can do is no rounding."""
    difference = float(printed) - float(found)
    decision = "" if abs(difference) <= _NEAREST else beyond if abs(difference) <= 0.1 else CONTRADICTION
    return {
        "value": value,
        "printed": f"{printed:.1f}",
        "rebuilt": f"{found:.3f}",
        "difference": round(difference, 3),
        "decision": decision,
    }


def _mean_checks(version: str) -> list[dict[str, Any]]:
    """The scores of Tables 3 and 12 against the mean of the thirteen tasks, from the four categories' tables."""
    whole = rebuilt(version, "all13")
    parts = {kind: rebuilt(version, kind).set_index("slug") for kind in PARTS}
    rows = []
    for _, row in whole.iterrows():
        about = {"version": version, **{name: row[name] for name in ("table", "category", "model", "slug")}}
        for length in PAPER_LENGTHS:
            if not math.isnan(row[length]):
                mean = sum(n * parts[kind].loc[row["slug"], length] for kind, n in PARTS.items()) / 13
                rows.append(about | {"length": length} | _check("mean of 13 tasks", row[length], mean, ROUNDING))
    return rows


def show(rows: "pd.DataFrame") -> "Styler":
    """Exceptions for a notebook: every row of them, what is not rounding set off."""
    from rulerkit import tables

    shown = rows.drop(columns="slug").assign(length=[length_name(int(n)) if n == n else "" for n in rows["length"]])
    styler = tables.show(shown, formatter={"difference": "{:+.3f}"}, na_rep="")
    shade = {ROUNDING: "", MISPRINT: "", SLIP: "background-color: rgba(230,159,0,.25)"}
    paint = "background-color: rgba(213,94,0,.25)"
    return styler.apply(lambda row: [shade.get(row["decision"], paint)] * len(row), axis=1)
