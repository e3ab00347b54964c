"""Judge what the paper says in Sections 4 to 6 by scores: those of one's own models, or those that
the paper prints.

The claims are data, `rulerkit/data/paper/claims.yaml`, whose head says what each key means.
`selection` takes the rows that a claim names, `kinds` says what each kind of claim means.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from rulerkit.analysis.kinds import KINDS, UNKNOWN, Claim, Verdict, share_of
from rulerkit.analysis.selection import Missing, of_models, select, tasks_of, tidy
from rulerkit.common.errors import check_known
from rulerkit.common.lengths import length_name
from rulerkit.common.paths import package_data
from rulerkit.scoring.summary import texts_words

_EACH = "each model"
_KEYS = frozenset(
    {"section", "place", "claim", "number", "judged", "kind", "parts", "every", "share", "rows"}
    | {"than", "answers", "among", "limit", "by", "along", "order", "ends", "steadily", "past"}
    | {"within"}
)
"""The keys of a claim."""
_COLUMNS = ["section", "claim", "verdict", "seen", "missing"]


def claims(
    scores: Any,
    section: str | None = None,
    *,
    listed: Sequence[Claim] | None = None,
    reference: str | None = None,
    trained: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """The claims of a section of the paper (`5, distractors`, or `5`), or of all, judged by scores:
    a row per claim, and per model where each is judged by itself. Columns section, claim, verdict
    (a mark and words), seen (points, with 95 % intervals), missing (without what it cannot be
    judged).

    `scores` are what `rk.score` takes or gives, rows of `rk.failures.label`, or
    `rk.paper.score_rows()`. `listed` are claims of your own in place of the paper's, written as in
    `data/paper/claims.yaml`. `reference` names the model that others are held against, `trained`
    gives training lengths by model; without, a model's is what it claims. Raises UserError for an
    unknown section or model, and for a table without model, task, length and score.
    """
    chosen = package_data("paper/claims.yaml") if listed is None else listed
    if section is not None:
        # "5, distractors", or "5" for all of Section 5
        sections = {claim["section"]: claim["section"].split(",")[0] for claim in chosen}
        check_known("section of the claims", section, [*sections, *set(sections.values())])
        chosen = [
            claim for claim in chosen if section in (claim["section"], sections[claim["section"]])
        ]

    for claim in chosen:
        _check(claim)

    frame = tidy(scores, reference, trained or {})
    rows = []
    for claim in chosen:
        models: dict[Any, pd.DataFrame] = {"": frame}
        if claim.get("judged", _EACH) == _EACH:
            models = dict(iter(frame.groupby("who", sort=False))) or models
        found = {who: judge(claim, of_model) for who, of_model in models.items()}
        if len(set(found.values())) == 1:  # one line says it of all models
            found = {"": next(iter(found.values()))}
        for who, verdict in found.items():
            text = f"{who}: {claim['claim']}" if who else claim["claim"]
            rows.append((claim.get("section", ""), text, *verdict))
    table = pd.DataFrame(rows, columns=_COLUMNS)
    table.attrs["texts"] = texts_words(frame)
    return table


def _check(claim: Claim) -> None:
    """Raise UserError for a key or a kind that claims do not have."""
    for key in claim:
        check_known("key of a claim", key, _KEYS)
    if "parts" not in claim:
        check_known("kind of a claim", claim.get("kind"), list(KINDS))
    for part in claim.get("parts", ()):
        _check(part)


def judge(claim: Claim, frame: pd.DataFrame) -> Verdict:
    """What rows of `selection.tidy` say of a claim."""
    try:
        if claim.get("judged", _EACH) not in (_EACH, "together"):
            frame = of_models(frame, claim["judged"])
        if "parts" in claim:
            found = {str(i): judge(part, frame) for i, part in enumerate(claim["parts"], 1)}
        elif "every" in claim:
            found = _for_every(claim, frame)
        else:
            return KINDS[claim["kind"]](claim, frame)
    except Missing as missing:
        return Verdict(UNKNOWN, "", str(missing))
    return share_of(found, claim.get("share", [1, 1]))


def _for_every(claim: Claim, frame: pd.DataFrame) -> dict[str, Verdict]:
    """The verdicts for each of the models, tasks or lengths that the `rows` of a claim name."""
    rows, than = dict(claim["rows"]), dict(claim.get("than", {}))
    axes = [claim["every"]] if isinstance(claim["every"], str) else claim["every"]
    values: dict[str, list[Any]] = {}
    for axis in axes:
        if axis == "model":
            values[axis] = list(of_models(frame, rows.get("models"))["who"].unique())
        elif axis == "task":
            values[axis] = tasks_of(frame, rows.get("tasks"))
        else:
            lengths = select(frame, rows)["length"].unique()
            values[axis] = [length_name(int(length)) for length in sorted(lengths)]

    found = {}
    for names in product(*values.values()):
        chosen = dict(zip([f"{axis}s" for axis in axes], names, strict=True))
        if "lengths" in chosen:
            chosen["lengths"] = f"at {chosen['lengths']}"
        # what both sides name alike is the same on both
        same = {key: value for key, value in chosen.items() if rows.get(key) == than.get(key)}
        part = {**claim, "rows": rows | chosen, "than": than | same}
        del part["every"]
        found[" at ".join(names)] = judge(part, frame)
    return found
