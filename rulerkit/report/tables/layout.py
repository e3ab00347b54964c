"""What several tables share: the view of a DataFrame in a notebook, and numbers in words."""

from typing import TYPE_CHECKING, Any

from rulerkit.common import escape
from rulerkit.common.render import Field as Field
from rulerkit.common.render import render as render
from rulerkit.scoring.summary import texts_words

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

_FLUSH_LEFT = "text-align: left; vertical-align: top"


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


def number_range(numbers: "pd.Series[int]") -> str:
    """'50', or '49 to 50'."""
    return " to ".join(map(str, sorted({numbers.min(), numbers.max()})))
