"""An example to look at: its pieces in the colours of their roles (as in Table 2 of the paper),
long stretches cut short.

`show` makes HTML for a notebook, `to_terminal` text for a terminal.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from rulerkit.common import escape
from rulerkit.common.errors import check_type
from rulerkit.generation.example import ROLES, Example, Piece
from rulerkit.generation.generate import Examples

_HEAD, _TAIL = 260, 180
"""Characters shown at the start and the end of a long stretch."""

_WHOLE = ("instruction", "needle", "question", "answer_prefix")
_TINTS = {  # Okabe and Ito's colours, and an ANSI code of 256 that is near
    "template": ("#8c8c8c", 245),
    "instruction": ("#56b4e9", 74),
    "demonstration": ("#cc79a7", 175),
    "needle": ("#d55e00", 208),
    "distractor": ("#f0e442", 227),
    "question": ("#009e73", 36),
    "answer_prefix": ("#0072b2", 33),
}
_PALE = {"haystack": "opacity:.8", "gap": "opacity:.6;font-style:italic"}


@dataclass(frozen=True)
class Html:
    """A piece of HTML that a notebook shows as it is."""

    text: str = field(repr=False)
    """Not in its repr, which a saved notebook holds beside the HTML."""

    def _repr_html_(self) -> str:
        return self.text


class Part(NamedTuple):
    """A text that is shown, and its role: 'gap' for a remark on what is hidden."""

    text: str
    role: str


def parts(example: Example) -> list[list[Part]]:
    """What is shown of an example: stretches (a run of haystack or template, a list of words, or
    any other block) of parts."""
    stretches: list[list[Piece]] = []
    last_role = ""
    for block in example.blocks:
        if block.explode:
            stretches.append(block.pieces)
        elif block.role == last_role in ("haystack", "template"):
            stretches[-1].append(block)
        else:
            stretches.append([block])
        last_role = "" if block.explode else block.role
    return [_shortened(stretch) for stretch in stretches if any(piece.text for piece in stretch)]


def show(*examples: Example | list[Example] | Examples) -> Html:
    """Examples in colours, for a notebook: legend, then each with its budget and its references.
    Of a list of examples, such as `rk.generate` gives, each is shown."""
    legend = " ".join(_span(role.replace("_", " "), role) for role in ROLES)
    frame = (
        "border:1px solid rgba(128,128,128,.4);border-radius:4px;padding:.6em "
        ".8em;margin:.5em 0;line-height:1.55"
    )

    # Styles stand in the elements: a notebook drops style sheets of its outputs.
    shown = [f'<div style="margin:.3em 0">{legend}</div>']
    each = list[Example]()
    for given in examples:
        each += given if isinstance(given, list | Examples) else [given]
    takes = "examples, such as `rk.generate(...)` or `rk.example_of(row)`"
    for example in each:
        check_type(example, Example, "show", takes)
        body = "".join(_span(*part) for stretch in parts(example) for part in stretch)
        shown.append(
            f'<div style="{frame}"><div style="margin-bottom:.5em">'
            f"<b>{escape.html(example.task)}</b> "
            f'<span style="opacity:.75">{escape.html(_describe(example))}</span></div>'
            f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{body}</div>'
            f'<div style="margin-top:.5em"><span style="opacity:.75">references:</span> '
            f"<b>{escape.html(', '.join(example.references))}</b></div></div>"
        )
    return Html(f'<div class="mathjax_ignore" style="font-size:13px">{"".join(shown)}</div>')


def to_terminal(example: Example, color: bool = True) -> str:
    """An example as text, a stretch a line behind its role in square brackets, parts of another
    role in braces, as `{needle: 12. word}`; in ANSI colours where they are wanted."""
    lines = [escape.terminal(f"{example.task}: {_describe(example)}")]
    for stretch in parts(example):
        roles = [part.role for part in stretch]
        # Only what differs from the rest of its stretch is named.
        usual = "haystack" if "haystack" in roles else roles[0]
        texts = []
        for part in stretch:
            is_last = part is stretch[-1]
            text = escape.terminal(part.text.rstrip("\n") if is_last else part.text)
            if part.role not in (usual, "gap"):
                text = f"{{{part.role}: {text.strip()}}} "
            if color and part.role in _TINTS:
                text = f"\x1b[38;5;{_TINTS[part.role][1]}m{text}\x1b[0m"
            texts.append(text)
        lines.append(f"[{usual}] {''.join(texts)}")
    lines.append(escape.terminal(f"references: {', '.join(example.references)}\n"))
    return "\n".join(lines)


# --- what is shown --------------------------------------------------------------------------------


def _shortened(stretch: Sequence[Piece]) -> list[Part]:
    """The stretch, or its head and tail with a remark on the tokens between them; neighbours of one
    role are one part."""
    size = sum(len(piece.text) for piece in stretch)
    is_whole = stretch[0].role in _WHOLE and len(stretch) == 1
    is_whole |= size <= 1.6 * (_HEAD + _TAIL)
    head = list[Part]()
    tail = list[Part]()
    hidden = 0.0
    place = 0
    for piece in stretch:
        # Short pieces are shown or hidden as a whole, long ones by words.
        is_long = len(piece.text) > _TAIL and not is_whole
        for text in re.findall(r"\s*\S+|\s+", piece.text) if is_long else [piece.text]:
            end = place + len(text)
            if is_whole or end <= _HEAD:
                head.append(Part(text, piece.role))
            elif place >= size - _TAIL:
                tail.append(Part(text, piece.role))
            else:
                hidden += piece.num_tokens * len(text) / len(piece.text)
            place = end

    gap = [] if is_whole else [Part(f" … about {hidden:,.0f} tokens … ", "gap")]
    by_role = groupby([*head, *gap, *tail], key=lambda part: part.role)
    return [Part("".join(part.text for part in run), role) for role, run in by_role]


def _describe(example: Example) -> str:
    depths = ", ".join(f"{depth:.0f} %" for depth in example.depths[:8])
    where = ""
    if depths:
        more = ", …" if len(example.depths) > 8 else ""
        where = f"; needles at {depths}{more} of the context"
    return (
        f"example {example.index}, {example.num_tokens:,} of {example.length:,} tokens "
        f"({example.max_new_tokens} for the answer){where}"
    )


# --- HTML -----------------------------------------------------------------------------------------


def _span(text: str, role: str) -> str:
    """Tinted so faintly that the theme's own text colour, light or dark, stays readable, and
    underlined."""
    style = _PALE.get(role)
    if style is None:
        color = _TINTS[role][0]
        style = f"background:{color}38;border-bottom:2px solid {color}"
    return f'<span style="{style}">{escape.html(text)}</span>'
