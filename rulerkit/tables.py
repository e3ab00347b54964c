"""The one way to a table: `render` for plain text, Markdown and LaTeX, `show` for a notebook; and
the tables of a summary.

Every table of a summary says below it what its reader must know: the threshold, the number of
examples, whether stand-in corpora were used. A score at or above the threshold is marked:
underlined in LaTeX, as in the paper; bold in Markdown; with a star in plain text.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit import escape
from rulerkit.errors import UserError, unknown
from rulerkit.floors import not_above
from rulerkit.lengths import THRESHOLDS, length_name
from rulerkit.summary import AVERAGES, CATEGORIES, COUNTS, Summary, rest_notes, summary_lengths

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

FORMATS = ("table", "csv", "markdown", "latex")
STAND_IN_NOTE = "stand-in corpora: not comparable with the paper"


class Field(NamedTuple):
    """One field of a table; `marked` where its score reaches the threshold, `small` what stands
    behind it in small."""

    text: str
    marked: bool = False
    bold: bool = False
    small: str = ""


def table_text(
    summary: Summary, format: str = "table", category: str = "all", notes: Sequence[str] = ()
) -> str:
    """The leaderboard of a category: claimed and effective length, score by length, averages and
    ranks, a row a model.

    `format` is 'table', 'markdown', 'latex', or 'csv': then it is `tidy` instead, whatever the
    category. `notes` are further lines to stand below; a CSV has no place for any.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if category not in CATEGORIES:
        raise unknown("category", category, CATEGORIES)
    if format == "csv":
        return escape.csv_text(tidy(summary), "%.4f")
    models = summary.models[summary.models["category"] == category]
    if models.empty:
        raise UserError(
            f"no task of category {category!r} was scored; score one, or ask for another category"
        )
    models = models.sort_values(
        "wavg_dec", ascending=False, kind="stable"
    )  # as the paper sorts its Table 3
    grid = summary_lengths(summary)
    header = [
        "Model",
        "Claimed",
        "Effective",
        *map(length_name, grid),
        "Avg",
        "wAvg(inc)",
        "wAvg(dec)",
    ]
    rows = [
        _model_row(summary, row, names)
        for (_, row), names in zip(models.iterrows(), names_of(models), strict=True)
    ]
    return render(header, rows, format, [*_notes(summary, category), *notes])


def task_table_text(
    summary: Summary,
    model: str,
    run: str | None = None,
    format: str = "table",
    notes: Sequence[str] = (),
) -> str:
    """One model's tasks by length: score to two decimals and interval; what is unusual in a cell
    stands beside it. `notes` are further lines to stand below."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    cells = summary.cells[(summary.cells["model"] == model) | (summary.cells["label"] == model)]
    if cells.empty:
        raise unknown("model", model, summary.cells["model"].unique())
    runs = list(cells["run"].unique())
    if run is None and len(runs) > 1:
        raise UserError(f"model {model!r} is in the runs {', '.join(runs)}: name one of them")
    cells = cells[cells["run"] == (run if run is not None else runs[0])]
    if cells.empty:
        raise unknown("run", run, runs)
    own = Summary(cells, summary.lengths, summary.models, summary.confidence)
    if format == "csv":
        return table_text(own, "csv")
    grid = summary_lengths(summary)
    rows = []
    for task in cells["task"].unique():
        by_length = cells[cells["task"] == task].set_index("length")
        rows.append([Field(task), *(Field(_cell_text(by_length.loc[length])) for length in grid)])
    return render([str(model), *map(length_name, grid)], rows, format, [*_cell_notes(own), *notes])


def tidy(summary: Summary) -> "pd.DataFrame":
    """One row per run, model, task and length: the cells, with the threshold of the 13 tasks beside
    them."""
    cells = summary.cells.copy()
    cells["threshold"] = [THRESHOLDS[aligned]["all"] for aligned in cells["aligned"]]
    return cells


def names_of(models: "pd.DataFrame") -> list[str]:
    """Labels; where two models share one, the model's name and its run tell them apart."""
    twice = models["label"].duplicated(keep=False)
    several = models["run"].nunique() > 1
    names = []
    for label, model, run, double in zip(
        models["label"], models["model"], models["run"], twice, strict=True
    ):
        name = model if double else label
        names.append(f"{name} [{run}]" if double and several else str(name))
    return names


def _model_row(summary: Summary, row: "pd.Series[Any]", name: str) -> list[Field]:
    values = {str(key): value for key, value in row.items()}
    own = summary.lengths
    for key in ("run", "model", "category"):
        own = own[own[key] == values[key]]
    claimed, threshold = float(values["claimed_length"]), float(values["threshold"])
    effective, possible = values["effective_length"], values["effective_set"]
    fields = [
        Field(name + (" (stand-in)" if values["stand_in"] else "")),
        Field("" if math.isnan(claimed) else length_name(int(claimed))),
        Field(f"{effective} [{possible}]" if possible != effective else str(effective)),
    ]
    for score, have in zip(
        own.sort_values("length")["score"], own.sort_values("length")["have"], strict=True
    ):
        fields.append(Field(have) if have else Field(f"{score:.1f}", round(score, 1) >= threshold))
    for average in AVERAGES:
        mean, low, high = (float(values[f"{average}{end}"]) for end in ("", "_low", "_high"))
        rank = float("nan") if average == "avg" else float(values[average.replace("wavg", "rank")])
        text = "" if math.isnan(mean) else f"{mean:.1f} ±{max(mean - low, high - mean):.1f}"
        fields.append(Field(text + ("" if math.isnan(rank) else f" ({ordinal(int(rank))})")))
    return fields


def ordinal(rank: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th ..."""
    ending = (
        "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    )
    return f"{rank}{ending}"


_MOST_NAMED = 6
"""How many cells a note names one by one."""


def _cell_text(cell: "pd.Series[Any]") -> str:
    values = {str(key): value for key, value in cell.items()}
    shown = values["have"] or f"{values['score']:.2f} [{values['low']:.1f}, {values['high']:.1f}]"
    odd = [f"{values[name]} {name.replace('_', ' ')}" for name in COUNTS if values[name]]
    if values.get("floor", 0) >= 1:
        odd.append(f"floor {values['floor']:.0f}")
    return ", ".join([str(shown), *odd])


def _notes(summary: Summary, category: str) -> list[str]:
    models = summary.models[summary.models["category"] == category]
    percent = f"{100 * summary.confidence:g} %"
    used = ", ".join(
        f"{THRESHOLDS[kind][category]} ({kind})" for kind in models["aligned"].unique()
    )
    what = "the 13 tasks" if category == "all" else f"the {category} tasks"
    if (models["effective_length"] != "").any():
        judged = f"Effective: longest length with a score of at least {used}, Llama2-7B at 4K on {what} in the paper"
        notes = [f"{judged}; in brackets all that the {percent} intervals cannot rule out."]
    else:
        notes = [
            f"No effective length: its thresholds ({used}) are for a complete score on {what}."
        ]
    return [
        f"Means over {models['tasks'].iloc[0]} task{'s' if models['tasks'].iloc[0] > 1 else ''}; "
        "marked scores reach "
        f"the threshold; ± is the wider side of the {percent} interval; ranks are among models of "
        "the same alignment.",
        *notes,
        *_cell_notes(summary, category),
    ]


def _cell_notes(summary: Summary, category: str = "all") -> list[str]:
    cells = (
        summary.cells if category == "all" else summary.cells[summary.cells["category"] == category]
    )
    counts = cells.loc[cells["complete"], "n"]
    notes = []
    if len(counts):
        several = (
            f"{counts.min()} to {counts.max()}"
            if counts.min() < counts.max()
            else f"{counts.max()}"
        )
        notes.append(f"n = {several} examples per task and length, scores in percent.")
    if "floor" in cells and (cells["floor"] >= 1).any():
        notes.append(
            "Floor: what the better of two answers without reading scores (the beginning of the "
            "context copied, the most "
            "frequent words of its last 5,000 tokens). A score that is not above its floor says "
            "nothing."
        )
    if len(useless := cells[not_above(cells)]):
        where = (
            useless["label"]
            + " on "
            + useless["task"]
            + " at "
            + useless["length"].map(length_name)
        )
        shown = [
            *where[:_MOST_NAMED],
            *([f"{len(where) - _MOST_NAMED} more"] if len(where) > _MOST_NAMED else []),
        ]
        notes.append(f"Not above the floor: {', '.join(shown)}.")
    if not cells["complete"].all():
        notes.append(
            "Incomplete cells show what they have (300/500 examples) and enter no mean: run the "
            "evaluation again to "
            "complete them."
        )
    notes += rest_notes(cells)
    if cells["stand_in"].any():
        models = cells.loc[cells["stand_in"], "label"].unique()
        tasks = cells.loc[cells["stand_in"], "task"].unique()
        notes.append(
            f"{STAND_IN_NOTE[0].upper()}{STAND_IN_NOTE[1:]}: {', '.join(models)} on "
            f"{', '.join(tasks)}."
        )
    notes += [f"{note}." for note in sorted({str(n) for n in cells["note"].dropna() if n})]
    return notes


# --- layout ---------------------------------------------------------------------------------------


def render(
    header: Sequence[str],
    rows: Sequence[Sequence[Field] | None],
    format: str = "table",
    notes: Sequence[str] = (),
) -> str:
    """A table with notes below it, as plain text, Markdown or LaTeX (booktabs); a row None is a
    line between groups."""
    writers = {"table": _plain, "markdown": _markdown, "latex": _latex}
    return "\n".join(writers[format](header, rows, notes)) + "\n"


def show(frame: "pd.DataFrame", index: bool = False, **format: Any) -> "Styler":
    """A DataFrame for a notebook: its text is never read as HTML or mathematics. `format` goes to
    `Styler.format`."""

    def visible(value: Any) -> Any:
        return escape.one_line(value) if isinstance(value, str) else value

    styler = (
        frame.map(visible)
        .rename(index=visible, columns=visible)
        .style.format(escape="html", **format)
    )
    for axis in (0, 1):
        styler = styler.format_index(escape="html", axis=axis)
    styler = styler.set_table_attributes('class="dataframe mathjax_ignore tex2jax_ignore"')
    return styler if index else styler.hide(axis="index")


def _plain(
    header: Sequence[str], rows: Sequence[Sequence[Field] | None], notes: Sequence[str]
) -> list[str]:
    has_marks = any(field.marked for row in rows if row for field in row)
    texts = [list(map(escape.one_line, header))]
    for row in filter(None, rows):
        fields = [
            escape.one_line(" ".join(filter(None, (field.text, field.small)))) for field in row
        ]
        marks = ["*" if field.marked else " " if has_marks and field.text else "" for field in row]
        texts.append([text + mark for text, mark in zip(fields, marks, strict=True)])
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "  ".join(
            [
                first.ljust(widths[0]),
                *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True)),
            ]
        )
        for first, *others in texts
    ]
    rule = "-" * max(map(len, lines))
    return [
        lines[0].rstrip(),
        rule,
        *(line.rstrip() for line in lines[1:]),
        rule,
        *map(escape.terminal, notes),
    ]


def _markdown(
    header: Sequence[str], rows: Sequence[Sequence[Field] | None], notes: Sequence[str]
) -> list[str]:
    lines = [list(map(escape.markdown, header)), [":---", *["---:"] * (len(header) - 1)]]
    lines += [
        [_styled(field, escape.markdown, "**{}**", "**{}**", " {}") for field in row]
        for row in rows
        if row
    ]
    return [
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
        *(f"- {escape.markdown(note)}" for note in notes),
    ]


def _latex(
    header: Sequence[str], rows: Sequence[Sequence[Field] | None], notes: Sequence[str]
) -> list[str]:
    lines = [r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}", r"\toprule"]
    lines += [
        " & ".join(rf"\textbf{{{escape.latex(name)}}}" for name in header) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        if row is None:
            lines.append(r"\midrule")
        else:
            marks = r"\underline{{{}}}", r"\textbf{{{}}}", r"\textsubscript{{{}}}"
            fields = [_styled(field, escape.latex, *marks) for field in row]
            lines.append(" & ".join(fields) + r" \\")
    return [
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        "",
        r"\par\smallskip\footnotesize",
        *map(escape.latex, notes),
    ]


def _styled(field: Field, escaped: Callable[[str], str], marked: str, bold: str, small: str) -> str:
    """A field in a medium's own marks, each a format string."""
    text = escaped(field.text)
    text = bold.format(text) if field.bold else text
    text = marked.format(text) if field.marked else text
    return text + (small.format(escaped(field.small)) if field.small else "")


html_field = partial(
    _styled, escaped=escape.html, marked="<u>{}</u>", bold="<b>{}</b>", small=" <small>{}</small>"
)
"""A field as HTML."""
