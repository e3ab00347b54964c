"""How a table is laid out: `render` writes plain text, Markdown, LaTeX (booktabs) and HTML, `show`
is for a notebook."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.common import escape
from rulerkit.common.errors import unknown
from rulerkit.scoring.summary import texts_words

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

FORMATS = ("text", "csv", "markdown", "latex")
_FLUSH_LEFT = "text-align: left; vertical-align: top"


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
    format: str = "text",
    notes: Sequence[str] = (),
) -> str:
    """A table with notes below it, as plain text, Markdown, LaTeX (booktabs) or HTML; a row None is
    a line between groups."""
    if format not in ("text", *_MEDIA):
        raise unknown("format", format, FORMATS)
    fields = [[f if isinstance(f, Field) else Field(f) for f in row or ()] for row in rows]
    if format == "text":
        return _plain(header, list(filter(None, fields)), notes)
    escaped, template = _MEDIA[format]
    body = [
        [f._replace(text=escaped(f.text), small=escaped(f.small)) for f in row] for row in fields
    ]
    texts = {"header": list(map(escaped, header)), "notes": list(map(escaped, notes))}
    # the fields are escaped for their medium
    return escape.fill(template, rows=body, below=escape.latex_notes(notes), **texts)


def _plain(header: Sequence[str], rows: Sequence[Sequence[Field]], notes: Sequence[str]) -> str:
    # A column of numbers stays aligned where some of them have a star.
    has_marks = any(field.marked for row in rows for field in row)
    texts = [list(map(escape.one_line, header))]
    for row in rows:
        texts.append(
            [
                escape.one_line(f"{f.text}{'*' * f.marked}{f' {f.small}' if f.small else ''}")
                + " " * (has_marks and not f.marked)
                for f in row
            ]
        )

    # Names stand on the left, numbers on the right.
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    form = "  ".join(f"{{:{'>' if i else '<'}{width}}}" for i, width in enumerate(widths))
    lines = [form.format(*row).rstrip() for row in texts]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [lines[0], rule, *lines[1:], rule, *map(escape.terminal, notes)]
    return "\n".join(lines) + "\n"


def show(frame: "pd.DataFrame", index: bool = False, **format: Any) -> "Styler":
    """A DataFrame for a notebook: its text is never read as HTML or mathematics. Its caption says
    where the texts are not the paper's. `format` goes to `Styler.format`."""
    from pandas.api.types import is_numeric_dtype

    def visible(value: Any) -> Any:
        return escape.one_line(value) if isinstance(value, str) else value

    shown = frame.map(visible).rename(index=visible, columns=visible)
    styler = shown.style.format(escape="html", **format)
    for axis in (0, 1):
        styler = styler.format_index(escape="html", axis=axis)
    # pandas sets all columns flush right, which is for numbers
    texts = [f".col{i}" for i, kind in enumerate(shown.dtypes) if not is_numeric_dtype(kind)]
    if texts:
        styler = styler.set_table_styles([{"selector": ", ".join(texts), "props": _FLUSH_LEFT}])
    styler = styler.set_table_attributes('class="dataframe mathjax_ignore tex2jax_ignore"')
    if words := texts_words(frame):
        styler = styler.set_caption(f"{words}: not comparable with the paper")
    return styler if index else styler.hide(axis="index")


def ordinal(rank: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th ..."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{rank}{'th' if rank % 100 in (11, 12, 13) else endings.get(rank % 10, 'th')}"


def number_range(numbers: "pd.Series[int]") -> str:
    """'50', or '49 to 50'."""
    return " to ".join(map(str, sorted({numbers.min(), numbers.max()})))
