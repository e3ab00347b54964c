"""Tables: `render` writes plain text, Markdown, LaTeX and HTML, `show` is for a notebook; the
tables of a summary, and the footnotes below them.

Every table of a summary says below it what its reader must know: the threshold, the number of
examples, whether stand-in corpora were used. A score at or above the threshold is marked:
underlined in LaTeX, as in the paper; bold in Markdown; with a star in plain text.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.analysis.claims import model_rows
from rulerkit.common import escape
from rulerkit.common.errors import (
    UserError,
    check_known,
    counted,
    listed,
    unknown,
)
from rulerkit.common.lengths import length_name
from rulerkit.generation.corpora import OWN_TEXTS
from rulerkit.inference.model import COMPRESSED
from rulerkit.scoring.effective_length import (
    BY_CAPABILITIES,
    OWN_SHARE,
    OWN_THRESHOLD,
    PAPERS_THRESHOLD,
)
from rulerkit.scoring.floors import not_above
from rulerkit.scoring.frontier import (
    ABSOLUTE,
    LEAST_BASE,
    FrontierSummary,
)
from rulerkit.scoring.scores import own_labels, seal_of_scores
from rulerkit.scoring.summary import (
    AVERAGES,
    CATEGORIES,
    RANKS,
    Summary,
)
from rulerkit.store.cells import Cell
from rulerkit.store.comparable import snapshot_notes

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

FORMATS = ("table", "csv", "markdown", "latex")
TITLES: dict[str | int, str] = {
    "model": "Model",
    "claimed_length": "Claimed",
    "effective_length": "Effective",
    "avg": "Avg",
    "wavg_inc": "wAvg(inc)",
    "wavg_dec": "wAvg(dec)",
}
"""The heads of the columns of a table of models, but for those of the lengths."""


# --- layout ---------------------------------------------------------------------------------------


class Field(NamedTuple):
    """One field of a table: `marked` where its score reaches the threshold; `small` follows in
    small letters."""

    text: str
    marked: bool = False
    bold: bool = False
    small: str = ""


_MARKDOWN = """\
{% macro field(f) -%}
{% set stars = "*" * (3 if f.bold and f.marked else 2 if f.bold or f.marked else 0) -%}
[[ stars ]][[ f.text ]][[ stars ]][[ " " ~ f.small if f.small ]]
{%- endmacro -%}
| [[ header | join(" | ") ]] |
| :--- |[[ " ---: |" * (header | length - 1) ]]
{% for row in rows if row %}
| {% for f in row %}[[ field(f) ]][[ " | " if not loop.last ]]{% endfor %} |
{% endfor %}

{% for note in notes %}
- [[ note ]]
{% endfor %}
"""
_LATEX = r"""
{%- macro field(f) -%}
{% set text = "\\textbf{" ~ f.text ~ "}" if f.bold else f.text -%}
[[ "\\underline{" ~ text ~ "}" if f.marked else text ]]
[[- "\\textsubscript{" ~ f.small ~ "}" if f.small ]]
{%- endmacro -%}
\begin{tabular}{l[[ "r" * (header | length - 1) ]]}
\toprule
{% for name in header %}\textbf{[[ name ]]}[[ " & " if not loop.last ]]{% endfor %} \\
\midrule
{% for row in rows %}
{% if row %}{% for f in row %}[[ field(f) ]][[ " & " if not loop.last ]]{% endfor %} \\
{% else %}
\midrule
{% endif %}
{% endfor %}
\bottomrule
\end{tabular}
[[ below ]]"""
_HTML = """\
{% macro field(f) -%}
{% set text = "<b>" ~ f.text ~ "</b>" if f.bold else f.text -%}
[[ "<u>" ~ text ~ "</u>" if f.marked else text ]]
[[- " <small>" ~ f.small ~ "</small>" if f.small ]]
{%- endmacro -%}
<table><thead><tr>{% for name in header %}<th>[[ name ]]</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}
{% if row %}<tr>{% for f in row %}<td>[[ field(f) ]]</td>{% endfor %}</tr>
{% else %}
</tbody><tbody>
{% endif %}
{% endfor %}
</tbody></table>
{% for note in notes %}
<p>[[ note ]]</p>
{% endfor %}
"""
_MEDIA: dict[str, tuple[Callable[[str], str], str]] = {
    "markdown": (escape.markdown, _MARKDOWN),
    "latex": (escape.latex, _LATEX),
    "html": (escape.html, _HTML),
}
"""How a format escapes a text, and its template."""


def render(
    header: Sequence[str],
    rows: Iterable[Sequence[Field | str] | None],
    format: str = "table",
    notes: Sequence[str] = (),
) -> str:
    """A table with notes below it, as plain text, Markdown, LaTeX (booktabs) or HTML; a row None is
    a line between groups."""
    if format not in ("table", *_MEDIA):
        raise unknown("format", format, FORMATS)
    fields = [
        [f if isinstance(f, Field) else Field(f) for f in row or ()]
        for row in rows
    ]
    if format == "table":
        return _plain(header, list(filter(None, fields)), notes)
    escaped, template = _MEDIA[format]
    body = [
        [f._replace(text=escaped(f.text), small=escaped(f.small)) for f in row]
        for row in fields
    ]
    texts = {
        "header": list(map(escaped, header)),
        "notes": list(map(escaped, notes)),
    }
    # the fields are escaped for their medium
    return escape.fill(
        template, rows=body, below=escape.latex_notes(notes), **texts
    )


def _plain(
    header: Sequence[str], rows: Sequence[Sequence[Field]], notes: Sequence[str]
) -> str:
    # A column of numbers stays aligned where some of them have a star.
    has_marks = any(field.marked for row in rows for field in row)
    texts = [list(map(escape.one_line, header))]
    for row in rows:
        texts.append(
            [
                escape.one_line(
                    f"{f.text}{'*' * f.marked}{f' {f.small}' if f.small else ''}"
                )
                + " " * (has_marks and not f.marked)
                for f in row
            ]
        )

    # Names stand on the left, numbers on the right.
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    form = "  ".join(
        f"{{:{'>' if i else '<'}{width}}}" for i, width in enumerate(widths)
    )
    lines = [form.format(*row).rstrip() for row in texts]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [lines[0], rule, *lines[1:], rule, *map(escape.terminal, notes)]
    return "\n".join(lines) + "\n"


def show(frame: "pd.DataFrame", index: bool = False, **format: Any) -> "Styler":
    """A DataFrame for a notebook: its text is never read as HTML or mathematics. `format` goes to
    `Styler.format`."""

    def visible(value: Any) -> Any:
        return escape.one_line(value) if isinstance(value, str) else value

    shown = frame.map(visible).rename(index=visible, columns=visible)
    styler = shown.style.format(escape="html", **format)
    for axis in (0, 1):
        styler = styler.format_index(escape="html", axis=axis)
    styler = styler.set_table_attributes(
        'class="dataframe mathjax_ignore tex2jax_ignore"'
    )
    return styler if index else styler.hide(axis="index")


def ordinal(rank: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th ..."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{rank}{'th' if rank % 100 in (11, 12, 13) else endings.get(rank % 10, 'th')}"


def number_range(numbers: "pd.Series[int]") -> str:
    """'50', or '49 to 50'."""
    return " to ".join(map(str, sorted({numbers.min(), numbers.max()})))


# --- models ---------------------------------------------------------------------------------------


def table_text(
    summary: Summary,
    format: str = "table",
    category: str = "all",
    notes: Sequence[str] = (),
) -> str:
    """The leaderboard of a category: claimed and effective length, score by length, averages and
    ranks, a row a model.

    `format` is 'table', 'markdown', 'latex', 'html', or 'csv': then it is the cells instead,
    whatever the category. `notes` are further lines to stand below; a CSV has no place for any.
    """
    of_others = summary.models["category"]
    check_known("category", category, dict.fromkeys([*CATEGORIES, *of_others]))
    if format == "csv":
        return escape.csv_text(summary.cells, "%.4f")
    summary = summary.of(category)
    if summary.models.empty:
        raise UserError(
            f"no task of category {category!r} was scored; score one, or ask for another category"
        )
    models = board_rows(summary, ["score", "have"])
    models["model"] = names_of(models)
    # as the paper sorts its Table 3
    models = models.sort_values("wavg_dec", ascending=False, kind="stable")
    percent = f"{100 * summary.confidence:g} %"
    judged = models["effective_length"] != ""
    marks = "marked scores reach the threshold; " if judged.any() else ""
    further = [
        f"Means over {counted(models['tasks'].iloc[0], 'task')}; {marks}± is the wider side of the "
        f"{percent} interval.",
        "wAvg(inc) weighs the longest length most, wAvg(dec) the shortest; their ranks are among "
        "models of the same alignment.",
        *_effective_rules(models, category, percent),
        *model_notes(models),
        *cell_notes(summary.cells, marked=True),
        *notes,
    ]
    of_all = [name for name in ("reader", "stand_in") if models[name].all()]
    models["origin"] = [
        origin(row, of_all=of_all) for _, row in models.iterrows()
    ]
    models["group"] = ""
    # of other tasks than those of the threshold no score is marked
    models["threshold"] = models["threshold"].where(judged)
    columns = [
        "claimed_length",
        "effective_length",
        *summary.lengths["length"].unique(),
        *AVERAGES,
    ]
    return models_text(models, columns, format, further)


def board_rows(summary: Summary, values: Sequence[str]) -> "pd.DataFrame":
    """The models of a summary of one category with claimed lengths as text and, by length, each of
    the values: 4096 for the score, '4096_low' ... for the others."""
    # One row a model: the values of all lengths side by side.
    wide = summary.lengths.pivot(
        index=["run", "model"], columns="length", values=list(values)
    )
    columns: Any = wide.columns
    wide.columns = [
        n if value == "score" else f"{n}_{value}" for value, n in columns
    ]
    rows = summary.models.join(wide, on=["run", "model"])
    claimed = [
        "" if math.isnan(n) else length_name(int(n))
        for n in rows["claimed_length"]
    ]
    return rows.assign(claimed_length=claimed).reset_index(drop=True)


def names_of(rows: "pd.DataFrame") -> "pd.Series[str]":
    """The label of each row's model; where several models share one, with the model's name or
    run."""
    names = own_labels(rows, "label")
    in_several_runs = rows["run"].groupby(names).transform("nunique") > 1
    return names.mask(in_several_runs, names + " [" + rows["run"] + "]")


def origin(
    row: "pd.Series[Any]", *known: str, of_all: Collection[str] = ()
) -> str:
    """What stands in brackets behind the name of a model: what is known of it, and what its row is,
    where that is not a language model on the paper's texts with a fixed number of examples.
    `of_all` are columns that hold for all rows of a table, which says so below."""
    kinds = {"reader": "reader", "stand_in": "stand-in", "adaptive": "adaptive"}
    texts = [
        kind for name, kind in kinds.items() if row[name] and name not in of_all
    ]
    return f"({', '.join([*known, *texts])})" if known or texts else ""


def models_text(
    rows: "pd.DataFrame",
    columns: Sequence[str | int],
    format: str,
    notes: Sequence[str],
) -> str:
    """A table of models: `rows` as `board_rows` gives them, with names for `model`, with `origin`,
    which follows a name in small letters, and with `group`: lines separate groups; `bold` may hold
    the names of the bold fields of each row.

    Numbers whose limits are among the rows have their interval: ± the wider side.
    """
    names = ["model", *columns]

    # Groups, such as chat and base models, are set apart by a line.
    body: list[list[Field] | None] = []
    for _, group in rows.groupby("group", sort=False):
        if body:
            body.append(None)
        for _, row in group.iterrows():
            bold = row.get("bold", ())
            body.append(
                [
                    _model_field(row, name)._replace(bold=name in bold)
                    for name in names
                ]
            )
    header = [TITLES.get(name) or length_name(int(name)) for name in names]
    return render(header, body, format, notes)


def _model_field(row: "pd.Series[Any]", column: str | int) -> Field:
    value = row[column]
    if column == "effective_length":
        possible = row["effective_set"]
        return Field(
            f"{value} [{possible}]"
            if possible not in ("", value)
            else value or "-"
        )
    if isinstance(value, str):
        return Field(value, small=row["origin"] if column == "model" else "")

    # An incomplete score shows what there is of it.
    if math.isnan(value):
        have = row.get(f"{column}_have")
        return Field(have if isinstance(have, str) else "")

    # The interval and the rank follow in small letters.
    small = []
    low, high = (
        row.get(f"{column}_low", math.nan),
        row.get(f"{column}_high", math.nan),
    )
    if not math.isnan(low):
        small.append(f"±{max(value - low, high - value):.1f}")
    rank = row.get(RANKS.get(str(column)), math.nan)
    if not math.isnan(rank):
        small.append(f"({ordinal(int(rank))})")

    # The paper compares scores as they are printed.
    number = f"{value:.1f}"
    reached = column not in TITLES and float(number) >= row["threshold"]
    return Field(number, reached, small=" ".join(small))


def _effective_rules(
    models: "pd.DataFrame", category: str, percent: str
) -> list[str]:
    """How the effective lengths of a table are judged, or why there are none."""
    # Only what rows of this table were judged by.
    sources = models.loc[
        models["effective_length"] != "", "threshold_of"
    ].unique()
    used = thresholds_text(models)
    tasks = "the 13 tasks" if category == "all" else f"the {category} tasks"
    if not len(sources) and models["threshold"].any():
        return [
            f"No effective length: the threshold, {used}, is for a complete score on {tasks}."
        ]

    rules = []
    for source in sources:
        if source == PAPERS_THRESHOLD:
            rules.append(
                f"a score of at least {used}, {source} on {tasks} in the paper"
            )
        elif source == OWN_THRESHOLD:
            own = models["threshold"].dropna().unique()
            rules.append(
                f"a score of at least {', '.join(f'{one:g}' for one in own)}, {source}"
            )
        else:
            rules.append(f"at least {source}, as NoLiMa counts it")

    allowed = f"in brackets all that the {percent} intervals cannot rule out"
    return [
        f"Effective: longest length with {rule}; {allowed}." for rule in rules
    ]


def thresholds_text(models: "pd.DataFrame") -> str:
    """'85.6 (chat), 79.4 (base)': the thresholds of the rows."""
    pairs = models[["threshold", "aligned"]].drop_duplicates()
    return ", ".join(
        f"{threshold} ({kind})"
        for threshold, kind in pairs.itertuples(index=False)
    )


# --- tasks of a model -----------------------------------------------------------------------------


def task_table_text(
    summary: Summary,
    model: str,
    run: str | None = None,
    format: str = "table",
    notes: Sequence[str] = (),
) -> str:
    """One model's tasks by length, their mean, and its effective length below.

    A score has its interval, and marks for what is unusual in its cell, which the lines below
    explain. `notes` are further lines below the table.
    """
    cells = model_rows(summary.cells, model)
    runs = list(cells["run"].unique())
    if run is None and len(runs) > 1:
        raise UserError(
            f"model {model!r} is in the runs {', '.join(runs)}: name one of them"
        )
    check_known("run", run or runs[0], runs)
    cells = cells[cells["run"] == (run or runs[0])]
    if format == "csv":
        return escape.csv_text(cells, "%.4f")

    about, summary = cells[["run", "model"]].head(1), summary.of("all")
    means, of_model = summary.lengths.merge(about), summary.models.merge(about)
    by_task: dict[str, list[Field | str]] = {
        task: [task] for task in cells["task"]
    }
    for cell in cells.to_dict("records"):
        by_task[cell["task"]].append(_cell_field(cell))

    # A mean over one task would be the same row once more.
    rows = list(by_task.values())
    num_tasks = means["tasks"].max()
    if num_tasks > 1:
        suite = cells["suite"].iloc[0]
        kind = "" if suite == "ruler" else f" {suite}"
        texts = map(_score_text, means.to_dict("records"))
        rows.append([f"mean of {num_tasks}{kind} tasks", *texts])

    below = [
        *_effective_notes(of_model),
        *model_notes(of_model),
        *cell_notes(cells, marked=True),
        *_mark_notes(cells),
        *notes,
    ]
    return render(
        [str(model), *map(length_name, means["length"])], rows, format, below
    )


def _effective_notes(models: "pd.DataFrame") -> list[str]:
    """A line for each model that has an effective length."""
    notes = []
    rows: Any = models[models["effective_length"] != ""].itertuples()
    for row in rows:
        text = f"Effective length: {row.effective_length}"
        if row.effective_set != row.effective_length:
            text += f"; the intervals allow {row.effective_set}"
        mean = f"a mean of at least {row.threshold:g}, {row.threshold_of}"
        notes.append(f"{text} (the longest with {mean}).")
    return notes


_ADAPTIVE_NOTE = (
    "Means of an adaptive run that went on after its first look are up to half a point too far "
    "from the threshold, and their 95 % intervals hold 93 to 94 %; 89 % where the score falls "
    "evenly with each length."
)
"""Simulated with the stopping rule, November 2026; the answer of the run is not touched by it."""


def model_notes(models: "pd.DataFrame") -> list[str]:
    """Lines for models that have no threshold, and so no effective length, and for those of
    adaptive runs: what was found, for how many tokens."""
    # The frontier suite has a table of its own for its effective lengths.
    unjudged = models["threshold"].isna() & (
        models["threshold_of"] != BY_CAPABILITIES
    )
    without = models[unjudged].groupby("threshold_of", sort=False)["label"]
    adaptive = list(zip(models["label"], models["adaptive"], strict=True))
    return [
        *(
            f"No effective length of {listed(names, 6)}: {reason}."
            for reason, names in without
        ),
        *(f"{label}: {found}." for label, found in adaptive if found),
        *([_ADAPTIVE_NOTE] if any(found for _, found in adaptive) else []),
    ]


def _score_text(row: Any) -> str:
    return (
        row["have"] or f"{row['score']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"
    )


_COUNT_MARKS = {
    "empty": ("e", "empty answers"),
    "cut_off": ("c", "answers cut off at their last token"),
    "cut_thought": ("t", "answers cut off in their thought"),
}
"""The letter that stands before each of COUNTS, and what is counted."""


def _cell_field(cell: Any) -> Field:
    """A score with its interval, in brackets where it is not above its floor, and marks for what is
    unusual."""
    text = _score_text(cell)
    if cell["floor"] >= 1 and cell["score"] <= cell["floor"]:
        text = text.replace(f"{cell['score']:.1f}", f"({cell['score']:.1f})", 1)
    marks = [
        f"{letter}{cell[name]}"
        for name, (letter, _) in _COUNT_MARKS.items()
        if cell[name]
    ]
    if cell["floor"] >= 1:
        marks.append(f"f{cell['floor']:.0f}")
    if cell["reasoning_tokens"]:
        marks.append(f"w{cell['reasoning_tokens']:.0f}")
    return Field(text, small=" ".join(marks))


def _mark_notes(cells: "pd.DataFrame") -> list[str]:
    """What the marks beside the scores of a table of tasks mean."""
    notes = [
        f"{letter}: number of {what}."
        for name, (letter, what) in _COUNT_MARKS.items()
        if cells[name].any()
    ]
    if (cells["floor"] >= 1).any():
        notes.append(
            f"f: {_FLOOR}; a score that is not above it stands in brackets."
        )
    if cells["reasoning_tokens"].any():
        notes.append("w: tokens thought, on average.")
    return notes


_SENTENCES = {
    "reference readers": "Reference readers, no language models",
    COMPRESSED: "The context was compressed without the question",
    OWN_TEXTS: "Own texts: not comparable with the paper",
    "stand-in corpora": "Stand-in corpora: not comparable with the paper",
    "incomplete": (
        "Incomplete cells enter no mean; evaluate these tasks and lengths to complete "
        "them"
    ),
}
"""How tables say what is unusual in some cells, before the names of the models."""


def unusual(cells: "pd.DataFrame") -> "dict[str, pd.Series[bool]]":
    """What a reader of a table or a figure must know of some cells, rows or labels, and which of
    them it holds for."""
    facts = {
        "reference readers": cells["engine"] == "reader",
    }
    for suite in cells["suite"].unique():
        if suite != "ruler":
            facts[suite_words(suite)] = cells["suite"] == suite
    if "note" in cells:
        notes = cells["note"].fillna("").str.split("; ")
        facts[COMPRESSED] = notes.map(lambda parts: COMPRESSED in parts)
    if "stand_in" in cells:
        facts[OWN_TEXTS] = cells["note"].str.contains(OWN_TEXTS, na=False)
        facts["stand-in corpora"] = (
            cells["stand_in"].astype(bool) & ~facts[OWN_TEXTS]
        )
    if "complete" in cells:
        facts["incomplete"] = ~cells["complete"]
    return facts


def suite_words(suite: str) -> str:
    """What figures and tables call the tasks of a suite that is not RULER's."""
    return "small protocol" if suite == "small" else f"suite {suite}"


def _sentence(what: str) -> str:
    """What is unusual in some cells, as a sentence; of a suite, that its scores are others."""
    return _SENTENCES.get(what, f"Tasks of the {what}: no score of RULER")


_FLOOR = "floor, the score of the best answer without reading that the task's family knows"
_MARKS = {"reference readers": "reader", "stand-in corpora": "stand-in"}
"""How a table of models marks a row, by what `unusual` says of it."""


def cell_notes(cells: "pd.DataFrame", marked: bool = False) -> list[str]:
    """What a reader of a table must know of the cells of a summary that it shows: one line each.

    Names of models are listed only where a line holds for some of them, and the table has no marks
    of its own for it (`marked`).
    """
    notes, names = [], names_of(cells)
    if cells["complete"].any():
        n = number_range(cells.loc[cells["complete"], "n"])
        notes.append(
            f"n = {counted(n, 'example')} per task and length, scores in percent."
        )
    for what, is_so in unusual(cells).items():
        sentence, who = _sentence(what), names[is_so].unique()
        if not len(who):
            continue
        is_shown = marked and what in (*_MARKS, "incomplete")
        if is_shown and what in _MARKS and len(who) < names.nunique():
            sentence = f"{_MARKS[what]}: {sentence}"
        elif not is_shown and len(who) < names.nunique():
            sentence += f": {listed(who, 6)}"
        notes.append(f"{sentence}.")

    # A table of tasks marks these cells itself; one of means can only count them.
    below = not_above(cells)
    if below.any() and names.nunique() > 1:
        counts = [
            f"{name} in {is_below.sum()} of {len(is_below)} cells"
            for name, is_below in below.groupby(names, sort=False)
            if is_below.any()
        ]
        notes.append(f"Not above the {_FLOOR}: {listed(counts, 6)}.")

    # A mean over the rest is not the mean that was asked for.
    rest = cells["rest"]
    if rest.any():
        places = names + " on " + cells["task"] + " at "
        places += cells["length"].map(length_name)
        means = (places + ": " + rest)[rest != ""]
        notes.append(
            f"Means over the rest, as max_failures allows: {listed(means, 5, '; ')}."
        )

    # Notes are lists in one text; each is said once, and of whom where not all models have it.
    names_by_note: dict[str, dict[str, None]] = {}
    for name, note in zip(names, cells["note"].fillna(""), strict=True):
        for part in filter(None, note.split("; ")):
            names_by_note.setdefault(part, {})[name] = None
    names_by_note.pop(COMPRESSED, None)
    for part, having in sorted(names_by_note.items()):
        text = part[:1].upper() + part[1:]
        is_shared = len(having) == names.nunique()
        notes.append(f"{text}." if is_shared else f"{text}: {listed(having, 6)}.")
    return notes + [f"Digest of these results: {seal}." for seal in seals(cells)]


def seals(cells: "pd.DataFrame") -> list[str]:
    """The digests of what some tables were made from, see `rulerkit seal`; none where nobody knows
    them. Takes rows of a summary or of `score`."""
    if "seal" not in cells:
        return []
    if "index" in cells:
        return [seal_of_scores(cells)]
    known = cells["seal"].dropna().unique()
    return [seal for seal in map(str, known) if seal]


def remarks(cells: "pd.DataFrame") -> str:
    """What a figure must say below itself of the cells (or the labels) that it shows: reference
    readers, the small protocol, stand-in corpora, texts of the user's, incomplete cells."""
    texts = [what for what, is_so in unusual(cells).items() if is_so.any()]
    return "; ".join([*texts, *(f"digest {seal}" for seal in seals(cells))])


def saved_notes(cells: "pd.DataFrame") -> list[str]:
    """The lines below a table that does not name its models: these, and `cell_notes`."""
    return [
        f"Models: {listed(names_of(cells).unique(), 12)}.",
        *cell_notes(cells),
    ]


# --- the frontier suite ---------------------------------------------------------------------------


def frontier_table(frontier: FrontierSummary) -> "pd.DataFrame":
    """The headline of the frontier suite as text, a row per model: its mean at the shortest length
    with the floors taken off, the relative, the absolute and the shorter effective length, each
    with those that the data cannot rule out, and RULER's."""
    import pandas as pd

    models = frontier.models
    base = models["base"].map("{:.1f}".format).where(models["base"].notna(), "")
    columns = {
        "model": names_of(models)
        + models["thinking"].map({True: " (thinking)", False: ""}),
        "mean": base + " at " + models["base_length"].map(length_name),
        "relative": _with_set(models, "relative", "relative_set"),
        "absolute": _with_set(models, "absolute", "absolute_set"),
        "frontier": _with_set(models, "effective_length", "effective_set"),
        "RULER": models["ruler"].replace("", "-"),
        "note": models["why"],
    }
    table = pd.DataFrame(columns)
    return table if models["why"].any() else table.drop(columns="note")


def _with_set(
    models: "pd.DataFrame", column: str, possible: str
) -> "pd.Series[str]":
    """Effective lengths, in brackets those that the data cannot rule out."""
    lengths, sets = models[column], models[possible]
    several = lengths + " [" + sets + "]"
    return several.where((sets != "") & (sets != lengths), lengths).replace(
        "", "-"
    )


def frontier_text(
    frontier: FrontierSummary, format: str = "table", notes: Iterable[str] = ()
) -> str:
    """`frontier_table` as plain text, Markdown, LaTeX or HTML, with its rules below."""
    table = frontier_table(frontier)
    body = [[Field(text) for text in row] for row in table.to_numpy().tolist()]
    percent = f"{100 * frontier.confidence:g} %"
    rules = [
        "mean: over the eight capabilities of the frontier suite, 0 where an answer without "
        "reading scores, 100 for all right.",
        f"relative: longest length that keeps {100 * OWN_SHARE:g} % of that mean; absolute: "
        f"longest with a mean of at least {ABSOLUTE:g}; frontier: the shorter of the two, none "
        f"where the mean is below {LEAST_BASE:g}; in brackets all that the {percent} intervals "
        "cannot rule out.",
        *notes,
    ]
    return render(list(table.columns), body, format, rules)


# --- footnotes ------------------------------------------------------------------------------------

_FACTS = (
    *(
        "gpu",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "device",
        "strategy",
    ),
    *("rulerkit", "commit", "python"),
)
"""What of an environment footnotes mention, before the versions of packages."""
_FEW = 4  # values of a field that a footnote lists


def footnotes(
    cells: Iterable[Cell], scores: "pd.DataFrame | None" = None
) -> list[str]:
    """Lines below a table of cells: environments that differ, services that answered with several
    versions of a model, rows that were skipped, models whose requests all failed and, of the rows
    of `score`, what `usage_notes` says.

    Of environments only what differs, and which model had it; hosts are left out. A cell that was
    answered in several environments counts in each. What is not known of an environment (a service:
    its GPU) is no difference.
    """
    import pandas as pd

    cells = list(cells)

    # The names of the table, so that a note can be held against its rows.
    models = pd.DataFrame(
        [
            (cell.run, cell.model, cell.about.label or cell.model)
            for cell in cells
        ],
        columns=["run", "model", "label"],
    )
    by_name: dict[str, list[Cell]] = {}
    for name, cell in zip(names_of(models), cells, strict=True):
        by_name.setdefault(name, []).append(cell)

    answered, unseen, silent = list[Cell](), set[str](), list[str]()
    # For each field its values, and who had each of them, in the order of the cells.
    facts: dict[str, dict[str, dict[str, None]]] = {}
    for name, of_model in by_name.items():
        with_rows = [cell for cell in of_model if cell.present]
        answered += with_rows
        for cell in with_rows:
            for field, value in _facts(cell):
                facts.setdefault(field, {}).setdefault(value, {})[name] = None
            server = cell.record["environment"].get("server") or {}
            if not server.get("counts", True):
                unseen.add(name)

        # A model without any answer has no row: its failures must not go unseen.
        failures = []
        if not with_rows:
            failures = [f for cell in of_model for f in cell.failures.values()]
        if failures:
            silent.append(
                f"{name} has no answer: {len(failures)} requests failed, the first: "
                f"{failures[0].reason}."
            )

    notes = _environment_notes(facts)
    notes += snapshot_notes(answered)
    if unseen:
        notes.append(
            f"The server of {', '.join(sorted(unseen))} does not say how many tokens it read: a "
            "cut prompt would go unseen."
        )
    notes += [f"{warning}." for cell in answered for warning in cell.warnings]
    notes += silent
    return notes if scores is None else notes + usage_notes(scores)


def _environment_notes(facts: dict[str, dict[str, dict[str, None]]]) -> list[str]:
    """A line on what differs between environments: by field, its values and who had each of
    them."""
    differ = []
    for field, names_by_value in facts.items():
        # What is the same everywhere needs no footnote.
        if len(names_by_value) > 1:
            texts = [
                f"{value} ({listed(names, _FEW)})"
                for value, names in names_by_value.items()
            ]
            differ.append(f"{field} {listed(texts, _FEW)}")
    return [f"Environments differ: {'; '.join(differ)}."] if differ else []


def usage_notes(scores: "pd.DataFrame") -> list[str]:
    """Lines below a table of rows of `score`: the mean tokens thought at each length, and what the
    answers of a service cost."""
    notes = []
    for (_, _, label), rows in scores.groupby(
        ["run", "model", "label"], sort=False
    ):
        # Thoughts grow with the length, and with them the price of a score.
        thought = rows.groupby("length")["reasoning_tokens"].mean().round()
        if thought.any():
            means = [
                f"{thought[n]:,.0f} at {length_name(n)}"
                for n in thought.index.tolist()
            ]
            notes.append(
                f"Tokens thought by {label}, on average: {', '.join(means)}."
            )

        if rows["empty"].all():
            notes.append(
                f"Every answer of {label} is empty: check its template and stop tokens."
            )

        cost = rows["cost"].sum()
        if cost:
            prompt, cached = (
                rows[["num_prompt_tokens", "cached_tokens"]].sum().astype(int)
            )
            read = f"{prompt - cached:,} prompt tokens and {cached:,} cached ones"
            notes.append(
                f"The answers of {label} cost ${cost:,.2f}, for {read} and the answers."
            )
    return notes


def _facts(cell: Cell) -> Iterator[tuple[str, str]]:
    """What footnotes mention of the environments that a cell was answered in: field and value."""
    record = cell.record
    for environment in record.get("environments") or [record["environment"]]:
        commit = re.sub(
            r"^([0-9a-f]{7})[0-9a-f]+", r"\1", environment.get("git") or ""
        )
        # cuda:0 and cuda:1 are alike.
        device = str(environment.get("device") or "").partition(":")[0]
        packages = environment["packages"]
        known = environment | packages | {"commit": commit, "device": device}
        for name in (*_FACTS, *packages):
            if known.get(name):
                yield name, str(known[name])
