"""The claims of `paper_claims` held against scores: a function for each notebook, from the rows of `score`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rulerkit.claims import (
    UNKNOWN,
    Verdict,
    about,
    above,
    abrupt,
    by_length,
    every,
    falls,
    falls_with_length,
    lower,
    missing,
    not_shown,
    ratio_difference,
    select,
    some,
    straight,
)
from rulerkit.claims.paper_claims import CLAIMS
from rulerkit.errors import UserError
from rulerkit.lengths import length_name
from rulerkit.sweeps import Series

if TYPE_CHECKING:
    import pandas as pd

    from rulerkit.inference.cells import Cell

ALMOST_PERFECT = 95.0
Judge = Callable[["pd.DataFrame"], list[Verdict]]


def needle_types(scores: "pd.DataFrame", series: Sequence[Series]) -> list[Verdict]:
    """02: passkey and vanilla near 100, other forms below, UUIDs lowest."""
    text = _texts("02_needle_types")

    def judge(own: "pd.DataFrame") -> list[Verdict]:
        group = _groups(own, series)
        vanilla, others = group.get("vanilla"), [n for n in group if n not in ("passkey", "vanilla")]
        both = select(own, task=[each.task.name for each in series if each.value in ("passkey", "vanilla")])
        words = [name for name in others if name.startswith("word-") and name != "word-uuid"]
        if vanilla is None or not others:
            return [missing(claim, "vanilla and other forms") for claim in text.values()]
        worst = [lower("", group["word-uuid"], group[n], f"word-uuid less {n}") for n in words if "word-uuid" in group]
        degraded = [lower("", group[name], vanilla, f"{name} less vanilla") for name in others]
        return [
            above(text["perfect"], both, ALMOST_PERFECT, "mean of passkey and vanilla"),
            every(text["degrade"], degraded),
            every(text["uuids"], worst) if worst else missing(text["uuids"], "word-uuid and another form"),
        ]

    return _each_model(scores, judge)


def distractors(scores: "pd.DataFrame", series: Sequence[Series]) -> list[Verdict]:
    """03: lower with the number of keys."""
    text = _texts("03_distractors")

    def judge(own: "pd.DataFrame") -> list[Verdict]:
        word_keys = [each for each in series if each.value != "full uuid-uuid"]
        row = {each.label: select(own, task=each.task.name) for each in word_keys}
        return [falls(text["steady"], row, steadily=True)]

    yi, found = _named(scores, "yi-34b"), _each_model(scores, judge)
    if yi is None:
        return [*found, not_shown(text["forty"], "Yi-34B")]
    at = _groups(select(yi, length=2 * 131072), series)
    if not {1, "full"} <= at.keys():
        return [*found, missing(text["forty"], "one key and full at 256K")]
    return [*found, about(text["forty"], at["full"], at[1], 40, "#K = 1 less #K = FULL at 256K")]


def multiple_needles(scores: "pd.DataFrame", values: Sequence[Series], queries: Sequence[Series]) -> list[Verdict]:
    """04: fewer points with more queries, and with more values."""
    text = _texts("04_multiple_needles")

    def judge(own: "pd.DataFrame") -> list[Verdict]:
        return [
            _last_below_first(text["queries"], _groups(own, queries), "#Q"),
            _last_below_first(text["values"], _groups(own, values), "#V"),
        ]

    yi, found = _named(scores, "yi-34b"), _each_model(scores, judge)
    if yi is None:
        return [*found, not_shown(text["fifteen"], "Yi-34B")]
    longest = int(yi["length"].max())
    at = _groups(select(yi, length=longest), queries)
    if not {1, 8} <= at.keys():
        return [*found, missing(text["fifteen"], "1 and 8 queries")]
    return [*found, about(text["fifteen"], at[8], at[1], 15, f"#Q = 1 less #Q = 8 at {length_name(longest)}")]


def variable_tracking(
    scores: "pd.DataFrame", hops: Sequence[Series], chains: Sequence[Series], beyond: int
) -> list[Verdict]:
    """05: steady falls with the length; with more chains the largest past `beyond`."""
    text = _texts("05_variable_tracking")

    def judge(own: "pd.DataFrame") -> list[Verdict]:
        falling = [falls_with_length("", select(own, task=each.task.name), each.label) for each in hops]
        several = select(own, task=[each.task.name for each in chains])
        return [every(text["hops"], falling), abrupt(text["chains"], several, beyond, "chains")]

    return _each_model(scores, judge)


def frequent_words(scores: "pd.DataFrame", series: Sequence[Series]) -> list[Verdict]:
    """06: lower with lower alpha."""
    text = _texts("06_frequent_words")
    steeper_first = sorted(series, key=lambda each: -float(each.value))

    def judge(own: "pd.DataFrame") -> list[Verdict]:
        return [falls(text["alpha"], {each.label: select(own, task=each.task.name) for each in steeper_first})]

    return _each_model(scores, judge)


def question_answering(
    scores: "pd.DataFrame", with_context: Sequence[Series], alone: Sequence[Series], cells: "Iterable[Cell]"
) -> list[Verdict]:
    """07: towards the no-context baseline; some wrong predictions are its answers."""
    text = _texts("07_question_answering")
    cells = list(cells)

    def judge(own: "pd.DataFrame") -> list[Verdict]:
        gaps = []
        for each in with_context:
            rows = select(own, task=each.task.name)
            first, last = _ends(rows)
            gaps.append(lower("", last, first, f"{each.label}, {_at(last)} less {_at(first)}"))
        return [every(text["approaches"], gaps), _same_answers(text["same"], own, cells, with_context, alone)]

    return _each_model(scores, judge)


def _same_answers(
    claim: str, own: "pd.DataFrame", cells: "Sequence[Cell]", given: Sequence[Series], alone: Sequence[Series]
) -> Verdict:
    from rulerkit.scoring import clean

    longest, model = int(own["length"].max()), own["model"].iloc[0]
    said: dict[tuple[str, int], dict[int, str]] = {}
    for cell in cells:
        result = cell.record["result"]
        if result["model"]["name"] == model:
            answers = {row["index"]: clean(row["pred"]).lower() for row in cell.rows}
            said[result["task"]["name"], int(result["length"])] = answers
    seen, same, wrong = [], 0, 0
    for context, baseline in zip(given, alone, strict=True):
        here = said.get((context.task.name, longest), {})
        there = next((rows for (task, _), rows in said.items() if task == baseline.task.name), {})
        missed = select(own, task=context.task.name, length=longest, score=0.0)["index"]
        hits = [i for i in missed if here.get(i) and here.get(i) == there.get(i)]
        same, wrong = same + len(hits), wrong + len(missed)
        seen.append(f"{context.label}: {len(hits)} of {len(missed)} wrong ones")
    verdict = "holds" if same else UNKNOWN if not wrong else "does not hold"
    return Verdict(claim, verdict, f"at {length_name(longest)}, " + "; ".join(seen))


# --- several models ---------------------------------------------------------------------------------------------------


def training_length(scores: "pd.DataFrame", trained: Mapping[str, float]) -> list[Verdict]:
    """08: models by training length (label to tokens), the drop past it, the line within it."""
    text = _texts("08_training_length")
    order = sorted(trained, key=lambda label: trained[label])
    rows = {label: select(scores, label=label) for label in order}
    down = dict(reversed(rows.items()))
    longest = int(scores["length"].max())
    at_end = {label: own[own["length"] == longest] for label, own in rows.items()}
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :] if trained[a] < trained[b]]
    out_of_order = [
        lower("", at_end[b], at_end[a], f"{b} less {a} at {length_name(longest)}", 1 - 0.05 / len(pairs))
        for a, b in pairs
    ]
    within = {label: own[own["length"] <= trained[label]] for label, own in rows.items()}
    return [
        falls(text["larger"], down),
        some(text["order"], out_of_order),
        _lwm(text["lwm"], scores),
        every(text["abrupt"], [abrupt("", own, trained[label], label) for label, own in rows.items()]),
        every(text["linear"], [straight("", own, label) for label, own in within.items()]),
    ]


def _lwm(claim: str, scores: "pd.DataFrame") -> Verdict:
    large, small = _named(scores, "lwm-7b-chat-1m"), _named(scores, "lwm-7b-chat-512k")
    if large is None or small is None:
        return not_shown(claim, "LWM-1M and LWM-512K")
    at = 2 * 131072
    return lower(claim, select(large, length=at), select(small, length=at), "LWM-1M less LWM-512K at 256K")


def model_size(scores: "pd.DataFrame") -> list[Verdict]:
    """09: the last model of the list against the first, at the start and relative to it."""
    text = _texts("09_model_size")
    if len(labels := list(dict.fromkeys(scores["label"]))) < 2:
        return [Verdict(claim, UNKNOWN, f"only {labels[0]} is shown") for claim in text.values()]
    small, large = (select(scores, label=label) for label in (labels[0], labels[-1]))
    (small_first, small_last), (large_first, large_last) = _ends(small), _ends(large)
    kept = ratio_difference((small_first, small_last), (large_first, large_last))
    name = f"kept from {_at(small_first)} to {_at(small_last)}, {labels[0]} less {labels[-1]}"
    relative = missing(text["relative"], name)
    if kept is not None:
        verdict = "holds" if kept.high < 0 else "does not hold" if kept.low > -2 else UNKNOWN
        relative = Verdict(text["relative"], verdict, f"{name}: {kept}")
    return [
        lower(text["short"], small_first, large_first, f"{labels[0]} less {labels[-1]} at {_at(small_first)}"),
        relative,
    ]


def architectures(scores: "pd.DataFrame", reference: str, edge: int) -> list[Verdict]:
    """10: every model against a reference up to its edge, and all past it. `reference` is a name or a label."""
    text = _texts("10_architectures")
    own = _named(scores, reference)
    if own is None:
        known = ", ".join(dict.fromkeys(scores["model"]))
        raise UserError(f"reference {reference!r} is not among the models shown: {known}; name one of them")
    labels = [str(label) for label in dict.fromkeys(scores["label"]) if label != own["label"].iloc[0]]
    others = {label: select(scores, label=label) for label in labels}
    short = by_length(own[own["length"] <= edge])
    past = sorted({int(n) for n in own["length"] if n > edge})
    margins = [
        lower("", select(rows, length=int(at["length"].iloc[0])), at, f"{label} less {reference} at {name}")
        for label, rows in others.items()
        for name, at in short.items()
    ]
    degraded = [
        lower("", select(rows, length=past[0]), select(rows, length=edge), f"{label}, {length_name(past[0])} less edge")
        for label, rows in others.items()
        if past
    ]
    return [
        every(text["degrade"], degraded) if degraded else missing(text["degrade"], f"past {length_name(edge)}"),
        every(text["margins"], margins) if margins else missing(text["margins"], f"up to {length_name(edge)}"),
        abrupt(text["extrapolates"], own, edge, reference),
    ]


def training_lengths(scores: "pd.DataFrame", given: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Training length by label: what is given by name or label, else what each model claims; unknown ones left out."""
    from rulerkit.lengths import parse_length

    shown = scores.drop_duplicates("model")
    names = dict(zip(shown["model"], shown["label"], strict=True))
    claimed = dict(zip(shown["label"], shown["claimed_length"], strict=True))
    found = {str(label): float(length) for label, length in claimed.items() if length == length}
    for name, length in (given or {}).items():
        if name not in names and name not in claimed:
            known = ", ".join(map(str, names))
            raise UserError(f"training_lengths names {name!r}, which is not among the models shown: {known}")
        found[str(names.get(name, name))] = float(parse_length(length))
    return found


# --- helpers ----------------------------------------------------------------------------------------------------------


def _texts(notebook: str) -> dict[str, str]:
    return {key: claim.text for key, claim in CLAIMS[notebook].items()}


def _each_model(scores: "pd.DataFrame", judge: Judge) -> list[Verdict]:
    """The verdicts for each model; where there are several, its label stands before the claim."""
    labels = list(dict.fromkeys(scores["label"]))
    found = [(label, verdict) for label in labels for verdict in judge(select(scores, label=label))]
    return [each._replace(claim=f"{label}: {each.claim}") if len(labels) > 1 else each for label, each in found]


def _groups(own: "pd.DataFrame", series: Sequence[Series]) -> "dict[Any, pd.DataFrame]":
    return {each.value: rows for each in series if len(rows := select(own, task=each.task.name))}


def _named(scores: "pd.DataFrame", name: str) -> "pd.DataFrame | None":
    """The rows of a model by its name or label, None where it is not shown."""
    own = scores[(scores["model"] == name) | (scores["label"] == name)]
    return own if len(own) else None


def _ends(rows: "pd.DataFrame") -> "tuple[pd.DataFrame, pd.DataFrame]":
    return rows[rows["length"] == rows["length"].min()], rows[rows["length"] == rows["length"].max()]


def _at(rows: "pd.DataFrame") -> str:
    return length_name(int(rows["length"].iloc[0]))


def _last_below_first(claim: str, group: "Mapping[Any, pd.DataFrame]", letter: str) -> Verdict:
    if len(group) < 2:
        return missing(claim, "at least two values")
    least, most = min(group), max(group)
    return lower(claim, group[most], group[least], f"{letter} = {most} less {letter} = {least}")
