"""Text of models, files and users, escaped for the medium that shows it: nothing in it runs,
nothing of it is lost."""

import html as html_library
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What steers a terminal, changes the order in which letters are shown, or cannot be written as
UTF-8."""
_FORMULA = re.compile(r"'*[=+\-@＝＋－＠\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)
_PICTURES = {0x2400 + code: "^" + chr(64 + code) for code in range(32)} | {0x2421: "^?"}
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "`": r"\textasciigrave{}",
        '"': r"{\char34}",
        "<": "$<$",
        ">": "$>$",
        "±": r"$\pm$",
        "≤": r"$\le$",
        "≥": r"$\ge$",
        "\u2212": "$-$",
        "α": r"$\alpha$",
        "✓": r"$\surd$",
        "✗": r"$\times$",
        **{letter: "\\" + letter for letter in "&%$#_{}"},
    }
)
_MARKDOWN = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        # MathJax reads the rendered page: a tag keeps its delimiters apart
        "$": "<span>&#36;</span>",
        "\\": "<span>&#92;</span>",
        **{letter: "\\" + letter for letter in "`*~|"},
    }
)


def terminal(text: str) -> str:
    """A text for a terminal or a log: controls become visible (␛, \\u202e); line breaks and tabs
    stay."""
    return _CONTROLS.sub(lambda match: match[0] if match[0] in "\n\t" else _visible(match), text)


def one_line(text: str) -> str:
    """As `terminal`, with line breaks and tabs visible too: for the fields of a table."""
    return _CONTROLS.sub(_visible, text)


def html(text: str) -> str:
    """A text for HTML, also within a quoted attribute. Put it below an element of the class
    `mathjax_ignore`: JupyterLab reads `$` and `\\(` on the finished page as mathematics."""
    return html_library.escape(terminal(text))


def markdown(text: str) -> str:
    """A text for Markdown as Jupyter and GitHub show it: no emphasis, link, HTML or mathematics,
    one line."""
    # within a word `_` is an ordinary letter
    escaped = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", one_line(text).translate(_MARKDOWN))
    return escaped.replace("](", "]\\(")


def latex(text: str) -> str:
    """A text for LaTeX, also at the start of a table's row; controls are written as ^A to ^_."""
    plain = one_line(text).translate(_PICTURES).replace(">=", "≥")
    escaped = re.sub("-(?=-)", "-{}", plain.translate(_LATEX))  # two hyphens would become a dash
    # behind `\\` a bracket or a star would be its argument
    return "{}" + escaped if escaped[:1] in ("[", "*") else escaped


def csv_cell(value: Any) -> Any:
    """A value for CSV: controls become visible, as on a terminal, and a text that a spreadsheet
    could take for a formula gets a quote (') before it. Numbers stay numbers, whether they are
    numbers or look like one, and so does a lone hyphen, which stands where there is no value."""
    if not isinstance(value, str):
        return value
    text = terminal(value)
    is_plain = text == "-" or _NUMBER.fullmatch(text)
    is_formula = _FORMULA.match(text) and not is_plain
    return f"'{text}" if is_formula else text


def csv_text(frame: "pd.DataFrame", float_format: str | None = None) -> str:
    """A DataFrame as CSV without its index, each text escaped by `csv_cell`."""
    # A column of whole numbers becomes one of fractions where one of them is missing.
    for name in frame.select_dtypes("float"):
        known = frame[name].dropna()
        if len(known) < len(frame) and (known % 1 == 0).all():
            frame = frame.astype({name: "Int64"})
    safe = frame.map(csv_cell).rename(columns=csv_cell)
    return safe.to_csv(index=False, float_format=float_format, lineterminator="\n")


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 32 else "\u2421" if code == 127 else f"\\u{code:04x}"
