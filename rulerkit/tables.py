"""The one way to a table: `render` for plain text, Markdown and LaTeX, `show` for a notebook; and
the tables of a summary.

Every table of a summary says below it what its reader must know: the threshold, the number of
examples, whether stand-in corpora were used. A score at or above the threshold is marked:
underlined in LaTeX, as in the paper; bold in Markdown; with a star in plain text.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit import escape
from rulerkit.errors import UserError, listed, unknown
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


class _Medium(NamedTuple):
    """How a medium escapes a text, and its format strings for marked, bold and small ones."""

    escape: Callable[[str], str]
    marked: str
    bold: str
    small: str

    def field(self, field: Field) -> str:
        text = self.escape(field.text)
        text = self.bold.format(text) if field.bold else text
        text = self.marked.format(text) if field.marked else text
        return text + (self.small.format(self.escape(field.small)) if field.small else "")


_PLAIN = _Medium(escape.one_line, "{}*", "{}", " {}")
_MARKDOWN = _Medium(escape.markdown, "**{}**", "**{}**", " {}")
_LATEX = _Medium(escape.latex, r"\underline{{{}}}", r"\textbf{{{}}}", r"\textsubscript{{{}}}")
_HTML = _Medium(escape.html, "<u>{}</u>", "<b>{}</b>", " <small>{}</small>")


def html_field(field: Field) -> str:
    """A field as HTML."""
    return _HTML.field(field)


def table_text(
    summary: Summary, format: str = "table", category: str = "all", notes: Sequence[str] = ()
) -> str:
    """The leaderboard of a category: claimed and effective length, score by length, averages and
    ranks, a row a model.

    `format` is 'table', 'markdown', 'latex', or 'csv': then it is the cells instead, whatever the
    category. `notes` are further lines to stand below; a CSV has no place for any.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if category not in CATEGORIES:
        raise unknown("category", category, CATEGORIES)
    if format == "csv":
        return escape.csv_text(_with_threshold(summary.cells), "%.4f")
    models = summary.models[summary.models["category"] == category]
    if models.empty:
        raise UserError(
            f"no task of category {category!r} was scored; score one, or ask for another category"
        )
    # as the paper sorts its Table 3
    models = models.sort_values("wavg_dec", ascending=False, kind="stable")
    rows = [
        _model_row(model, _rows_of(model, summary.lengths, category))
        for model in models.assign(name=names_of(models)).itertuples()
    ]
    names = map(length_name, summary_lengths(summary))
    header = ["Model", "Claimed", "Effective", *names, "Avg", "wAvg(inc)", "wAvg(dec)"]
    cells = summary.cells
    cells = cells if category == "all" else cells[cells["category"] == category]
    further = [*_notes(models, category, summary.confidence), *_cell_notes(cells), *notes]
    return render(header, rows, format, further)


def task_table_text(
    summary: Summary,
    model: str,
    run: str | None = None,
    format: str = "table",
    notes: Sequence[str] = (),
) -> str:
    """One model's tasks by length, their mean, and its effective length below.

    A score has two decimals and its interval; what is unusual in a cell stands beside it. `notes`
    are further lines below the table.
    """
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
    if format == "csv":
        return escape.csv_text(_with_threshold(cells), "%.4f")
    lengths = sorted(cells["length"].unique())
    texts = cells.assign(text=[_cell_text(cell) for cell in cells.itertuples()])
    wide = texts.pivot(index="task", columns="length", values="text").loc[cells["task"].unique()]
    rows = [[Field(task), *map(Field, row)] for task, *row in wide.itertuples()]
    means = _rows_of(cells.iloc[0], summary.lengths)
    if len(means) and means["tasks"].max() > 1:
        mean_texts = map(_score_text, means.sort_values("length").itertuples())
        rows.append([*map(Field, [f"mean of {means['tasks'].max()} tasks", *mean_texts])])
    header = [str(model), *map(length_name, lengths)]
    effective = _effective_note(_rows_of(cells.iloc[0], summary.models))
    notes = [*effective, *_cell_notes(cells), *notes]
    return render(header, rows, format, notes)


def _rows_of(model: Any, table: "pd.DataFrame", category: str = "all") -> "pd.DataFrame":
    """The rows of `Summary.lengths` or `models` about the model that a row of a summary is of."""
    is_row = (table["run"] == model.run) & (table["model"] == model.model)
    rows: pd.DataFrame = table[is_row & (table["category"] == category)]
    return rows


def _effective_note(models: "pd.DataFrame") -> list[str]:
    return [
        f"Effective length: {length}"
        + f"; the intervals allow {possible}" * (possible != length)
        + f" (the longest with a mean of at least {threshold}, Llama2-7B at 4K)."
        for length, possible, threshold in zip(
            models["effective_length"], models["effective_set"], models["threshold"], strict=True
        )
        if length
    ]


def _with_threshold(cells: "pd.DataFrame") -> "pd.DataFrame":
    """Cells with the threshold of the 13 tasks beside them."""
    thresholds = {aligned: limits["all"] for aligned, limits in THRESHOLDS.items()}
    return cells.assign(threshold=cells["aligned"].map(thresholds))


def names_of(models: "pd.DataFrame") -> list[str]:
    """Labels; where two models share one, the model's name and its run tell them apart."""
    names = models["label"].astype(str)
    run = " [" + models["run"] + "]" if models["run"].nunique() > 1 else ""
    return list(names.mask(names.duplicated(keep=False), models["model"] + run))


def _model_row(model: Any, lengths: "pd.DataFrame") -> list[Field]:
    """The fields of a model, a row of `Summary.models` with its name, from those of its lengths."""
    possible = model.effective_set
    fields = [
        Field(model.name + " (stand-in)" * model.stand_in),
        Field("" if math.isnan(model.claimed_length) else length_name(int(model.claimed_length))),
        Field(model.effective_length + f" [{possible}]" * (possible != model.effective_length)),
    ]
    rows: Any = lengths.sort_values("length").itertuples()
    for row in rows:
        reached = round(row.score, 1) >= model.threshold
        fields.append(Field(row.have) if row.have else Field(f"{row.score:.1f}", reached))
    for name in AVERAGES:
        mean, low, high = (getattr(model, name + end) for end in ("", "_low", "_high"))
        rank = getattr(model, name.replace("wavg", "rank")) if name != "avg" else math.nan
        text = "" if math.isnan(mean) else f"{mean:.1f} ±{max(mean - low, high - mean):.1f}"
        fields.append(Field(text + ("" if math.isnan(rank) else f" ({ordinal(int(rank))})")))
    return fields


def ordinal(rank: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th ..."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{rank}{'th' if rank % 100 in (11, 12, 13) else endings.get(rank % 10, 'th')}"


def _score_text(row: Any) -> str:
    return row.have or f"{row.score:.2f} [{row.low:.1f}, {row.high:.1f}]"


def _cell_text(cell: Any) -> str:
    """A score with its interval, and what is unusual."""
    parts = [_score_text(cell)]
    counts = ((getattr(cell, name), name.replace("_", " ")) for name in COUNTS)
    parts += [f"{count} {name}" for count, name in counts if count]
    parts += [f"floor {cell.floor:.0f}"] * bool(cell.floor >= 1)
    return ", ".join(parts)


def _notes(models: "pd.DataFrame", category: str, confidence: float) -> list[str]:
    percent = f"{100 * confidence:g} %"
    kinds = models["aligned"].unique()
    used = ", ".join(f"{THRESHOLDS[kind][category]} ({kind})" for kind in kinds)
    what = "the 13 tasks" if category == "all" else f"the {category} tasks"
    num_tasks = int(models["tasks"].iloc[0])
    notes = [
        f"Means over {num_tasks} task{'s' * (num_tasks > 1)}; marked scores reach the threshold; "
        f"± is the wider side of the {percent} interval; ranks are among models of the same "
        "alignment."
    ]
    if (models["effective_length"] == "").all():
        return [
            *notes,
            f"No effective length: its thresholds ({used}) are for a complete score on {what}.",
        ]
    return [
        *notes,
        f"Effective: longest length with a score of at least {used}, Llama2-7B at 4K on {what} in "
        f"the paper; in brackets all that the {percent} intervals cannot rule out.",
    ]


def _cell_notes(cells: "pd.DataFrame") -> list[str]:
    notes = []
    if cells["complete"].any():
        n = number_range(cells.loc[cells["complete"], "n"])
        notes.append(f"n = {n} examples per task and length, scores in percent.")
    if (cells["floor"] >= 1).any():
        notes.append(
            "Floor: what the better of two answers without reading scores (the beginning of the "
            "context copied, the most frequent words of its last 5,000 tokens). A score that is "
            "not above its floor says nothing."
        )
    useless = cells[not_above(cells)]
    if len(useless):
        lengths = useless["length"].map(length_name)
        names = useless["label"] + " on " + useless["task"] + " at " + lengths
        notes.append(f"Not above the floor: {listed(names, 6)}.")
    if not cells["complete"].all():
        notes.append(
            "Incomplete cells show what they have (300/500 examples) and enter no mean: run the "
            "evaluation again to complete them."
        )
    notes += rest_notes(cells)
    stand_in = cells[cells["stand_in"]]
    if len(stand_in):
        models, tasks = (", ".join(stand_in[name].unique()) for name in ("label", "task"))
        notes.append(f"{STAND_IN_NOTE[0].upper()}{STAND_IN_NOTE[1:]}: {models} on {tasks}.")
    return notes + [f"{note}." for note in sorted(set(cells["note"].dropna())) if note]


def number_range(numbers: "pd.Series[int]") -> str:
    """'50', or '49 to 50'."""
    return " to ".join(map(str, sorted({numbers.min(), numbers.max()})))


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


_Rows = Sequence[Sequence[Field] | None]


def _plain(header: Sequence[str], rows: _Rows, notes: Sequence[str]) -> list[str]:
    body = [row for row in rows if row]
    has_marks = any(field.marked for row in body for field in row)
    texts = [list(map(escape.one_line, header))]
    for row in body:
        texts.append([_PLAIN.field(f) + " " * (has_marks and not f.marked) for f in row])
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for first, *others in texts:
        numbers = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *numbers]).rstrip())
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return [lines[0], rule, *lines[1:], rule, *map(escape.terminal, notes)]


def _markdown(header: Sequence[str], rows: _Rows, notes: Sequence[str]) -> list[str]:
    lines = [list(map(escape.markdown, header)), [":---", *["---:"] * (len(header) - 1)]]
    lines += [list(map(_MARKDOWN.field, row)) for row in rows if row]
    table = ["| " + " | ".join(line) + " |" for line in lines]
    return [*table, "", *(f"- {escape.markdown(note)}" for note in notes)]


def _latex(header: Sequence[str], rows: _Rows, notes: Sequence[str]) -> list[str]:
    head: list[Field] = [Field(name, bold=True) for name in header]
    lines = [
        " & ".join(map(_LATEX.field, row)) + r" \\" if row else r"\midrule"
        for row in [head, None, *rows]
    ]
    return [
        r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}",
        r"\toprule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        "",
        r"\par\smallskip\footnotesize",
        *map(escape.latex, notes),
    ]
