"""The one builder of tables: a DataFrame as plain text, Markdown, LaTeX (booktabs), HTML, CSV or
JSON."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.common import escape
from rulerkit.common.errors import unknown

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("text", "csv", "json", "markdown", "latex")
WIDTH = 80
"""Columns of a table as plain text."""


class Field(NamedTuple):
    """One field of a table: `marked` where its score reaches the threshold; `small` follows in
    small letters."""

    text: str
    marked: bool = False
    bold: bool = False
    small: str = ""


_MARKS = {
    "markdown": ("**%s**", "**%s**", " %s"),
    "latex": (r"\textbf{%s}", r"\underline{%s}", r"\textsubscript{%s}"),
    "html": ("<b>%s</b>", "<u>%s</u>", " <small>%s</small>"),
}
"""How a field is bold, how it is marked, and how small letters follow it."""
_BORDERS = {
    "markdown": ("| ", " | ", " |"),
    "latex": ("", " & ", r" \\"),
    "html": ("<tr><td>", "</td><td>", "</td></tr>"),
}
"""What stands before, between and behind the fields of a row."""
_LATEX = r"""{\footnotesize\setlength{\tabcolsep}{3pt}%%
\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{\begin{tabular}{%s}
\toprule
%s
\midrule
%s
\bottomrule
\end{tabular}}}
"""
_LATEX_NOTES = r"""%% Notes below the table
{\par\smallskip\footnotesize\raggedright
%s
\par}
%% End of notes
"""
_NOTES = re.compile(r"^% Notes below the table\n(.*?)^% End of notes\n", re.MULTILINE | re.DOTALL)
"""A per cent sign of a text is escaped: no text can look like these lines."""
_LONG = 25  # letters; LaTeX breaks longer texts into lines
_LINE = 70
"""Letters that fill the width of the columns of long texts."""
_LETTER = 0.014  # of a line of a page with one column


def render(
    frame: "pd.DataFrame",
    format: str = "text",
    notes: Sequence[str] = (),
    groups: Iterable[object] | None = None,
) -> str:
    """A DataFrame without its index, with notes below it, as plain text ('text'), Markdown, LaTeX
    (booktabs) or HTML; as CSV or JSON (a list of rows), which have no place for notes.

    Its values are texts, numbers (shown to three decimals, nothing where one is missing), or a
    `Field`: a name in the first column, a number in the others. `groups` says the group of each
    row: LaTeX and HTML draw a line between neighbours of two groups.

    LaTeX needs the packages booktabs, array and graphicx: a table wider than its column or page is
    made as small as that.
    """
    if format == "csv":
        return escape.csv_text(frame, "%.4f")
    if format == "json":
        return str(frame.to_json(orient="records", double_precision=4)) + "\n"
    rows = [[_field(value) for value in row] for row in frame.itertuples(index=False, name=None)]
    if format == "text":
        return _plain([str(name) for name in frame.columns], rows, notes)
    if format not in _MARKS:
        raise unknown("format", format, FORMATS)
    return _marked_up(frame, rows, format, notes, groups)


def _marked_up(
    frame: "pd.DataFrame",
    rows: Sequence[Sequence[Field]],
    format: str,
    notes: Sequence[str],
    groups: Iterable[object] | None,
) -> str:
    """A table in Markdown, LaTeX or HTML."""
    lines = [_line(row, format) for row in rows]
    names = list(groups) if groups is not None and format != "markdown" else []
    rule = r"\midrule" if format == "latex" else "</tbody><tbody>"
    for n in range(len(names) - 1, 0, -1):
        if names[n] != names[n - 1]:
            lines.insert(n, rule)

    header = [str(name) for name in frame.columns]
    escaped = getattr(escape, format)
    below = [escaped(note) for note in notes]
    body = "\n".join(lines)
    if format == "latex":
        head = _line([Field(name, bold=True) for name in header], format)
        text = _LATEX % (_columns(frame), head, body)
        return text + (_LATEX_NOTES % "\n".join(below) if below else "")
    if format == "html":
        head = "".join(f"<th>{escaped(name)}</th>" for name in header)
        text = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>\n"
        return text + "".join(f"<p>{note}</p>\n" for note in below)
    head = _line([Field(name) for name in header], format)
    sides = {"l": " :--- |", "r": " ---: |"}
    rule = "|" + "".join(sides[side] for side in _sides(frame))
    text = f"{head}\n{rule}\n{body}\n\n"
    return text + "".join(f"- {note}\n" for note in below)


def _line(row: Sequence[Field], format: str) -> str:
    """A row of a table in Markdown, LaTeX or HTML."""
    escaped = getattr(escape, format)
    bold, marked, small = _MARKS[format]
    texts = []
    for field in row:
        text = escaped(field.text)
        if field.bold:
            text = bold % text
        if field.marked:
            text = marked % text
        if field.small:
            text += small % escaped(field.small)
        texts.append(text)
    begin, between, end = _BORDERS[format]
    return begin + between.join(texts) + end


def _sides(frame: "pd.DataFrame") -> list[str]:
    """The side on which each column is aligned: `l` for names and texts, `r` for numbers."""
    sides = []
    for position in range(frame.shape[1]):
        is_text = all(value is None or type(value) is str for value in frame.iloc[:, position])
        sides.append("l" if position == 0 or is_text else "r")
    return sides


def _columns(frame: "pd.DataFrame") -> str:
    """The columns of a table in LaTeX; long texts are broken into lines, and share the width by
    their lengths."""
    kinds = _sides(frame)
    longest = dict[int, int]()
    words = dict[int, int]()
    for position in range(frame.shape[1]):
        values = [value for value in frame.iloc[:, position] if type(value) is str]
        # An identifier has no place to break.
        lengths = [len(value) for value in values if " " in value]
        if max(lengths, default=0) > _LONG:
            longest[position] = max(lengths)
            words[position] = max(map(len, " ".join(values).split()))
    for position, length in longest.items():
        share = 0.85 * length / max(_LINE, sum(longest.values()))
        share = max(share, words[position] * _LETTER)
        kinds[position] = rf">{{\raggedright\arraybackslash}}p{{{share:.2f}\linewidth}}"
    return "".join(kinds)


def table_files(path: Path, text: str) -> dict[Path, str]:
    """What is written where a table goes to a file. LaTeX is two files, so that a caption may stand
    between them: NAME.tex has the table, NAME-notes.tex its notes, empty where there are none."""
    if path.suffix != ".tex":
        return {path: text}
    notes = "".join(_NOTES.findall(text))
    return {path: _NOTES.sub("", text), path.with_name(f"{path.stem}-notes.tex"): notes}


def _field(value: Any) -> Field:
    if isinstance(value, Field):
        return value
    if isinstance(value, float):
        # A minus sign, as a hyphen is shorter.
        return Field("" if value != value else f"{round(value, 3):.12g}".replace("-", "\u2212"))
    return Field("" if value is None else str(value))


def _plain(header: Sequence[str], rows: Sequence[Sequence[Field]], notes: Sequence[str]) -> str:
    """At most WIDTH columns wide: what does not fit stands in a further table below, again with the
    names of the rows."""
    # A column of numbers stays aligned where some of them have a star.
    has_marks = any(field.marked for row in rows for field in row)
    texts = [[escape.one_line(name) for name in header]]
    for row in rows:
        shown = []
        for field in row:
            text = field.text + "*" * field.marked
            if field.small:
                text += f" {field.small}"
            elif has_marks and not field.marked:
                text += " "
            shown.append(escape.one_line(text))
        texts.append(shown)
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]

    blocks = [[0]]
    used = widths[0]
    for column, width in enumerate(widths[1:], 1):
        if used + 2 + width > WIDTH and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(column)
        used += 2 + width

    lines = []
    for block in blocks:
        # Names stand on the left, numbers on the right.
        form = "  ".join(f"{{{i}:{'>' if i else '<'}{widths[i]}}}" for i in block)
        head, *body = [form.format(*row).rstrip() for row in texts]
        rule = "-" * (sum(widths[i] for i in block) + 2 * (len(block) - 1))
        lines += [head, rule, *body, rule]
    for note in notes:
        lines += textwrap.wrap(
            escape.terminal(note),
            WIDTH,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines) + "\n"
