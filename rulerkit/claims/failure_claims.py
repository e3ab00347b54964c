"""What the paper says of errors (Section 5), held against counted labels, model by model.

What the paper says of errors as such (most of it seen with Yi-34B) is judged for any model; the numbers that it gives
for one model only for that one. A claim that something occurs holds once it was seen, and fails where the upper limit
of its share is below RARE.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rulerkit.claims import ELSEWHERE, FAILS, HOLDS, UNKNOWN, Verdict, not_shown
from rulerkit.failures.rules import NEAR
from rulerkit.lengths import length_name
from rulerkit.statistics import wilson

if TYPE_CHECKING:
    import pandas as pd

RARE = 0.05
"""What comes up certainly less often than this counts as never."""
MOST = 0.8
"""The paper: over 80 % of Yi's answers to common words at 128K are copied."""
_LONG = 131072
_SEVERAL = ("niah_multivalue", "niah_multiquery")
_VT_ERRORS = ("empty", "wrong chain", "copied demonstration")


def failure_claims(labels: "pd.DataFrame") -> list[Verdict]:
    """A verdict on each claim of the paper's error analysis, for each model of `failures.label`'s rows."""
    found = []
    for name, own in labels.groupby("name", sort=False):
        who = f"{name}: " if labels["name"].nunique() > 1 else ""
        found += [verdict._replace(claim=who + verdict.claim) for verdict in (claim(own) for claim in _CLAIMS)]
    return found


def _near(own: "pd.DataFrame") -> Verdict:
    claim = "In a haystack of needles, wrong values often stand near the one asked for"
    rows = own[own["task"].str.match("niah_multikey_[23]")]
    if rows.empty:
        return Verdict(claim, ELSEWHERE, "no task with a haystack of needles was run")
    wrong = rows[rows["label"].isin(["near distractor", "other key"])]
    if wrong.empty:
        return Verdict(claim, UNKNOWN, f"no wrong value in {len(rows)} answers")
    chance = float((2 * NEAR / wrong["length"]).clip(upper=1).mean())
    return _share(
        claim,
        wrong,
        ("near distractor",),
        lambda low: low > chance,
        lambda high: high < chance,
        f"by chance {chance:.0%}",
    )


def _duplicates(own: "pd.DataFrame") -> Verdict:
    claim = "Of several values one is given twice in place of the complete set"
    rows = own[own["task"].str.startswith(_SEVERAL)]
    return _occurs(claim, rows, ("duplicated values",), "no task with several values was run")


def _chains(own: "pd.DataFrame") -> Verdict:
    claim = "Errors in variable tracking are empty answers, other chains and copies of the example"
    rows = own[own["category"] == "vt"]
    if rows.empty:
        return Verdict(claim, ELSEWHERE, "no variable tracking was run")
    wrong = rows[rows["label"] != "complete"]
    if wrong.empty:
        return Verdict(claim, UNKNOWN, f"no error in {len(rows)} answers")
    return _share(claim, wrong, _VT_ERRORS, lambda low: low > 0.5, lambda high: high < 0.5, "most of them is over 50%")


def _copies(own: "pd.DataFrame") -> Verdict:
    claim = "Common words: most answers are copied from the example at the longest length, none at the shortest"
    rows = _with_demonstration(own)
    if rows["length"].nunique() < 2:
        nothing = ELSEWHERE if rows.empty else UNKNOWN
        return Verdict(claim, nothing, f"common words were run at {rows['length'].nunique()} lengths")
    first, last = (rows[rows["length"] == n] for n in (rows["length"].min(), rows["length"].max()))
    many = _share(claim, last, ("copied demonstration",), lambda low: low > 0.5, lambda high: high < 0.5)
    none = _share(claim, first, ("copied demonstration",), lambda low: low <= 0, lambda high: high < RARE)
    verdict = many.verdict if none.verdict == HOLDS else FAILS
    return Verdict(claim, verdict, f"longest: {many.seen}; shortest: {none.seen}")


def _over_80(own: "pd.DataFrame") -> Verdict:
    claim = "Yi-34B: over 80% of the answers to common words at 128K are copied from the example"
    if not _is(own, "yi-34b"):
        return not_shown(claim, "Yi-34B")
    rows = _with_demonstration(own)
    rows = rows[rows["length"] == _LONG]
    if rows.empty:
        return Verdict(claim, UNKNOWN, "common words were not run at 128K")
    return _share(claim, rows, ("copied demonstration",), lambda low: low > MOST, lambda high: high < MOST)


def _beginnings(own: "pd.DataFrame") -> Verdict:
    claim = "Without the example the beginning of the input is copied"
    rows = own[own["task"].str.contains("demonstration_False")]
    return _occurs(claim, rows, ("copied beginning",), "no task was run without its demonstration", longest=True)


def _words(own: "pd.DataFrame") -> Verdict:
    claim = "Mistral-7B-v0.2: some answers to common words at large lengths are 'the', 'an', 'a'"
    if not _is(own, "mistral-7b-v0.2"):
        return not_shown(claim, "Mistral-7B-v0.2")
    rows = own[own["task"].str.startswith("cwe")]
    return _occurs(claim, rows, ("parametric words",), "common words were not run", longest=True)


def _alone(own: "pd.DataFrame") -> Verdict:
    claim = "Some wrong answers to questions are those given without any context"
    rows = own[(own["category"] == "qa") & ~own["task"].str.contains("context_none")]
    if rows.empty or not own["task"].str.contains("context_none").any():
        return Verdict(claim, ELSEWHERE, "questions were not run both with and without context")
    wrong = rows[rows["label"] != "complete"]
    if wrong.empty:
        return Verdict(claim, UNKNOWN, f"no error in {len(rows)} answers")
    return _occurs(claim, wrong, ("no-context answer",), "")


def _uuids(own: "pd.DataFrame") -> Verdict:
    claim = "Beyond 128K, UUIDs are sometimes incomplete"
    rows = own[own["task"].str.contains("niah_single_3|niah_multikey_3|uuids") & (own["length"] > _LONG)]
    return _occurs(claim, rows, ("incomplete uuid",), "no task with UUIDs was run beyond 128K")


_CLAIMS: tuple[Callable[["pd.DataFrame"], Verdict], ...] = (
    _near, _duplicates, _uuids, _chains, _copies, _over_80, _beginnings, _words, _alone,
)  # fmt: skip


def _with_demonstration(own: "pd.DataFrame") -> "pd.DataFrame":
    return own[own["task"].str.startswith("cwe") & ~own["task"].str.contains("demonstration_False")]


def _is(own: "pd.DataFrame", name: str) -> bool:
    """Whether rows are those of a model that the paper names, by our name of it."""
    return bool((own["model"].str.lower() == name).any())


def _occurs(claim: str, rows: "pd.DataFrame", kinds: tuple[str, ...], nothing: str, longest: bool = False) -> Verdict:
    """Whether labels come up at all; ELSEWHERE with `nothing` where there are no rows."""
    if rows.empty:
        return Verdict(claim, ELSEWHERE, nothing)
    if longest:
        rows = rows[rows["length"] == rows["length"].max()]
    any_seen = bool(rows["label"].isin(kinds).any())
    return _share(claim, rows, kinds, lambda low: any_seen, lambda high: high < RARE)


def _share(
    claim: str,
    rows: "pd.DataFrame",
    kinds: tuple[str, ...],
    holds: Callable[[float], bool],
    fails: Callable[[float], bool],
    beside: str = "",
) -> Verdict:
    """Judge the share of some labels among rows by its 95 % interval: `holds` of its lower, `fails` of its upper limit."""
    count, n = int(rows["label"].isin(kinds).sum()), len(rows)
    low, high = wilson(count / n, n)
    lengths = " to ".join(dict.fromkeys(length_name(int(f(rows["length"]))) for f in (min, max)))
    seen = f"{count} of {n} ({count / n:.0%} [{low:.0%}, {high:.0%}]) at {lengths}" + (f"; {beside}" if beside else "")
    return Verdict(claim, HOLDS if holds(low) else FAILS if fails(high) else UNKNOWN, seen)
