"""Tables 3 and 10 to 16 of the paper over all models: the paper's, rebuilt from its scores, and ours with intervals."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rulerkit.errors import unknown
from rulerkit.lengths import THRESHOLDS, length_name
from rulerkit.published import PAPER_LENGTHS
from rulerkit.published.rebuild import AVERAGES, JUDGED, RANKS, rebuilt
from rulerkit.scoring import THIRTEEN
from rulerkit.summary import Summary, summarize, summary_lengths
from rulerkit.tables import STAND_IN_NOTE

if TYPE_CHECKING:
    import pandas as pd

    from rulerkit.studies import Study

TABLES: dict[str, tuple[str, str, str]] = {
    "3": ("all13", "chat", "the thirteen tasks, chat models"),
    "10": ("passkey", "", "passkey retrieval (niah_single_1)"),
    "11": ("vanilla_niah", "", "vanilla needle in a haystack (niah_single_2)"),
    "12": ("all13", "base", "the thirteen tasks, base models"),
    "13": ("niah", "", "the eight retrieval tasks"),
    "14": ("vt", "", "multi-hop tracing (vt)"),
    "15": ("aggregation", "", "aggregation (cwe, fwe)"),
    "16": ("qa", "", "question answering (qa_1, qa_2)"),
}
"""The paper's numbers of the tables: category, alignment ('' for both), what they are about."""
SINGLE_TASKS = {"passkey": "niah_single_1", "vanilla_niah": "niah_single_2"}
ORDERS = (*AVERAGES, "paper")
OURS = "ours"


@dataclass(frozen=True)
class Board:
    """One table. `rows`, chat models before base models, the threshold's row first in each:

    source ('ours' or 'paper v3'), run, model, aligned, baseline, claimed_length, effective_length, effective_set,
    threshold (NaN where there is none), stand_in, avg, wavg_inc, wavg_dec with avg_low, avg_high ..., rank_inc,
    rank_dec (of ours: their place among the paper's models, where the two can be compared), and for each length 4096:
    4096, '4096_low', '4096_high', '4096_have' (what there is of an incomplete score).
    """

    number: str
    category: str
    title: str
    lengths: tuple[int, ...]
    rows: "pd.DataFrame"
    notes: tuple[str, ...]


def boards(
    scores: "pd.DataFrame | None" = None,
    version: str = "v3",
    lengths: Sequence[int] = PAPER_LENGTHS,
    order: str = "wavg_dec",
) -> list[Board]:
    """All tables. `scores` are rows of `score` over everything that was run, None or empty for the paper alone;
    `scores.attrs["notes"]`, as `everything` sets it, are further lines to stand below ours.

    `lengths` are the columns; ours are averaged over those of them that any of our models has. `order` is one of ORDERS.
    """
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    columns = tuple(sorted(lengths))
    kinds = {SINGLE_TASKS.get(category) for category, _, _ in TABLES.values()}
    notes = () if scores is None else tuple(scores.attrs.get("notes", ()))
    summaries = {single: _summary(scores, single, columns) for single in kinds}
    return [
        _board(number, summaries[SINGLE_TASKS.get(category)], version, columns, order, notes)
        for number, (category, _, _) in TABLES.items()
    ]


def everything(study: "Study") -> "pd.DataFrame | None":
    """All that was ever answered in a study's run, scored; None where nothing was.

    Raises UserError where cells were made so differently that no table can hold both.
    """
    from rulerkit.inference.cells import read_cells
    from rulerkit.inference.sameness import check_same, footnotes
    from rulerkit.scoring import score

    cells = read_cells(study.predictions) if study.predictions.is_dir() else []
    asked = [cell for cell in cells if cell.rows and cell.task in THIRTEEN]
    if not asked:
        return None
    check_same(asked)
    scores = score(asked)
    scores.attrs["notes"] = footnotes(asked)
    return scores


def board(found: Iterable[Board], number: str | int) -> Board:
    """The table of a number in the paper."""
    by_number = {each.number: each for each in found}
    if str(number) not in by_number:
        raise unknown("table of the paper", number, by_number)
    return by_number[str(number)]


def _board(
    number: str, summary: Summary | None, version: str, lengths: tuple[int, ...], order: str, more: tuple[str, ...]
) -> Board:
    import pandas as pd

    category, aligned, title = TABLES[number]
    paper = rebuilt(version, category).assign(source=f"paper {version}", run="", stand_in=False, effective_set="")
    ours = _ours(summary, category, paper) if summary else paper.iloc[:0]
    rows = pd.concat([paper, ours]) if len(ours) else paper
    if aligned:
        rows = rows[rows["aligned"] == aligned]
    limits = {kind: THRESHOLDS[kind][JUDGED[category]] if category in JUDGED else math.nan for kind in THRESHOLDS}
    rows = rows.assign(threshold=rows["aligned"].map(limits)).reindex(columns=_columns(lengths))
    rows["baseline"] = rows["baseline"].fillna(False).astype(bool)
    shown = bool(summary) and (rows["source"] == OURS).any()
    notes = (*_notes(rows, summary), *more) if shown else _notes(rows, None)
    return Board(number, category, title, lengths, _sorted(rows, order), tuple(notes))


def _columns(lengths: Iterable[int]) -> list[str | int]:
    averages = [f"{average}{end}" for average in AVERAGES for end in ("", "_low", "_high")]
    scores: list[str | int] = [c for n in lengths for c in (n, f"{n}_low", f"{n}_high", f"{n}_have")]
    about = ["source", "run", "model", "aligned", "baseline", "claimed_length", "effective_length", "effective_set"]
    return [*about, "threshold", "stand_in", *scores, *averages, *RANKS]


def _summary(scores: "pd.DataFrame | None", single: str | None, lengths: Sequence[int]) -> Summary | None:
    """Our scores of one task, or of the thirteen; None where there are none."""
    if scores is None or scores.empty:
        return None
    rows = scores[scores["length"].isin(lengths) & (scores["task"].isin([single] if single else THIRTEEN))]
    return summarize(rows, [single] if single else None) if len(rows) else None


def _ours(summary: Summary, category: str, paper: "pd.DataFrame") -> "pd.DataFrame":
    import pandas as pd

    wanted = JUDGED.get(category, "all")
    models = summary.models[summary.models["category"] == wanted]
    grid = tuple(summary_lengths(summary))
    rows: list[dict[Any, Any]] = []
    for _, model in models.iterrows():
        own = summary.lengths[summary.lengths["category"] == wanted]
        own = own[(own["run"] == model["run"]) & (own["model"] == model["model"])]
        row: dict[Any, Any] = {name: model[name] for name in ("run", "aligned", "stand_in")}
        for average in AVERAGES if category in JUDGED else AVERAGES[:1]:
            row |= {f"{average}{end}": model[f"{average}{end}"] for end in ("", "_low", "_high")}
        for _, each in own.iterrows():
            row[int(each["length"])] = each["score"]
            row |= {f"{each['length']}_{name}": each[name] for name in ("low", "high", "have")}
        claimed = float(model["claimed_length"])
        row["claimed_length"] = "" if math.isnan(claimed) else length_name(int(claimed))
        judged = category in JUDGED
        row["effective_length"], row["effective_set"] = (
            (model["effective_length"], model["effective_set"]) if judged else ("", "")
        )
        if judged and grid == PAPER_LENGTHS and not model["stand_in"]:
            row |= _places(row, paper[paper["aligned"] == model["aligned"]])
        rows.append({**row, "source": OURS, "model": model["label"], "name": model["model"], "baseline": False})
    frame = pd.DataFrame(rows)
    if frame.empty:
        return frame
    twice = frame["model"].duplicated(keep=False)
    frame.loc[twice, "model"] = frame["model"] + " [" + frame["run"] + "/" + frame["name"] + "]"
    return frame


def _places(row: dict[Any, Any], paper: "pd.DataFrame") -> dict[str, float]:
    """Where a model would stand among the paper's; NaN where it has no average."""
    places = {}
    for rank, average in zip(RANKS, AVERAGES[1:], strict=True):
        value = float(row[average])
        places[rank] = math.nan if math.isnan(value) else 1.0 + int((paper[average] > value).sum())
    return places


def _sorted(rows: "pd.DataFrame", order: str) -> "pd.DataFrame":
    """Chat before base, the threshold's row first; Tables 10 and 11 know only the average."""
    rows = rows.reset_index(drop=True)
    key = "avg" if order != "paper" and rows[AVERAGES[1]].isna().all() else order
    value = -rows[key].fillna(-1.0) if key != "paper" else rows.index
    rows["_kind"], rows["_first"], rows["_value"] = rows["aligned"] == "base", ~rows["baseline"], value
    keys = ["_kind", "_first", "_value"]
    return rows.sort_values(keys, kind="stable").drop(columns=keys).reset_index(drop=True)


def _notes(rows: "pd.DataFrame", summary: Summary | None) -> list[str]:
    notes = ["Rows of the paper are rebuilt from its scores; averages that it prints otherwise are listed apart."]
    if rows["threshold"].notna().any():
        pairs = rows[["aligned", "threshold"]].drop_duplicates()
        used = ", ".join(f"{value} ({kind})" for kind, value in pairs.itertuples(index=False))
        notes.append(
            f"Underlined scores (bold in Markdown) reach the threshold, Llama2-7B at 4K: {used}. Ranks: the paper's models."
        )
    if summary is None:
        return notes
    ours = rows[rows["source"] == OURS]
    grid = summary_lengths(summary)
    percent = f"{100 * summary.confidence:g} %"
    notes.append(
        f"Ours stand with their {percent} intervals; a model without a complete score at a length has no average."
    )
    if tuple(grid) != PAPER_LENGTHS:
        notes.append(
            f"Our averages are over {', '.join(map(length_name, grid))}, the paper's over 4K to 128K: no ranks."
        )
    if ours["stand_in"].any():
        notes.append(
            f"{STAND_IN_NOTE[0].upper()}{STAND_IN_NOTE[1:]}: {', '.join(ours.loc[ours['stand_in'].astype(bool), 'model'])}."
        )
    return notes
