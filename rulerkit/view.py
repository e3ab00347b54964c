"""An example to look at: its pieces in the colours of their roles (as in Table 2 of the paper),
long stretches cut short.

`show` makes HTML for a notebook, `to_terminal` text for a terminal.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from rulerkit import escape
from rulerkit.example import ROLES, Example, Piece

_HEAD, _TAIL = 260, 180
"""Characters shown at the start and the end of a long stretch."""

_WHOLE = ("instruction", "needle", "question", "answer_prefix")
_TINTS = {  # Okabe and Ito's colours; red, green, blue and an ANSI code of 256 that is near
    "template": ((140, 140, 140), 245),
    "instruction": ((86, 180, 233), 74),
    "demonstration": ((204, 121, 167), 175),
    "haystack": ((0, 0, 0), 0),
    "needle": ((213, 94, 0), 208),
    "distractor": ((240, 228, 66), 227),
    "question": ((0, 158, 115), 36),
    "answer_prefix": ((0, 114, 178), 33),
}


@dataclass(frozen=True)
class Html:
    """A piece of HTML that a notebook shows as it is."""

    text: str

    def _repr_html_(self) -> str:
        return self.text


class Part(NamedTuple):
    """What is shown of one piece, or, without a piece, the remark that stands for what is not
    shown."""

    text: str
    role: str
    piece: Piece | None = None


def parts(example: Example) -> list[list[Part]]:
    """What is shown of an example: stretches (neighbours of one role, or a list of words) of
    parts."""
    stretches: list[list[Piece]] = []
    for words, blocks in groupby(
        example.blocks, key=lambda block: block.role if not block.explode else id(block)
    ):
        own = list(blocks)
        if not isinstance(words, str):
            own = [piece for block in own if block.explode for piece in block.explode()]
            stretches.append(own)
        elif words in ("haystack", "template"):
            stretches.append(own)
        else:
            stretches += [[block] for block in own]
    return [_shortened(stretch) for stretch in stretches if any(piece.text for piece in stretch)]


def show(*examples: Example) -> Html:
    """Examples in colours, for a notebook: legend, then each with its budget and its references."""
    legend = " ".join(_span(role.replace("_", " "), role) for role in ROLES)
    frame = "border:1px solid rgba(128,128,128,.4);border-radius:4px;padding:.6em .8em;margin:.5em 0;line-height:1.55"
    shown = [f'<div style="margin:.3em 0">{legend}</div>']
    for example in examples:
        body = "".join(_html(part, example) for stretch in parts(example) for part in stretch)
        shown.append(
            f'<div style="{frame}"><div style="margin-bottom:.5em"><b>{escape.html(example.task)}</b> '
            f'<span style="opacity:.75">{escape.html(_about(example))}</span></div>'
            f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{body}</div>'
            f'<div style="margin-top:.5em"><span style="opacity:.75">references:</span> '
            f"<b>{escape.html(', '.join(example.references))}</b></div></div>"
        )
    return Html(f'<div class="mathjax_ignore" style="font-size:13px">{"".join(shown)}</div>')


def to_terminal(example: Example, color: bool = True) -> str:
    """An example as text, a stretch a line: in ANSI colours, or with its roles in square
    brackets."""
    head = escape.terminal(f"{example.task}: {_about(example)}")
    tail = escape.terminal(f"references: {', '.join(example.references)}")
    if color:
        legend = " ".join(_ansi(role.replace("_", " "), role) for role in ROLES)
        body = [
            legend,
            "".join(_ansi(part.text, part.role) for stretch in parts(example) for part in stretch),
        ]
    else:
        body = [
            escape.terminal("".join(_marked(stretch))).rstrip("\n") for stretch in parts(example)
        ]
    return "\n".join([head, *body, tail]) + "\n"


# --- what is shown --------------------------------------------------------------------------------


def _shortened(stretch: Sequence[Piece]) -> list[Part]:
    """The stretch, or its head and tail with a remark of how many tokens lie between them."""
    size = sum(len(piece.text) for piece in stretch)
    if (len(stretch) == 1 and stretch[0].role in _WHOLE) or size <= 1.6 * (_HEAD + _TAIL):
        return [Part(piece.text, piece.role, piece) for piece in stretch]
    ends = size - _TAIL
    head: list[Part] = []
    tail: list[Part] = []
    hidden: Counter[str] = Counter()
    exact, before = True, 0
    for piece in stretch:
        first, last = _HEAD - before, ends - before  # where, in this piece, the gap begins and ends
        before += len(piece.text)
        if first >= len(piece.text):
            head.append(Part(piece.text, piece.role, piece))
        elif last <= 0:
            tail.append(Part(piece.text, piece.role, piece))
        elif len(piece.text) <= _TAIL:  # short ones are not cut
            hidden["tokens"] += piece.num_tokens
            hidden[piece.role] += piece.role != "haystack"
        else:
            start, end = (
                _border(piece.text, max(0, first)),
                _border(piece.text, min(len(piece.text), last)),
            )
            whole = start == 0 and end == len(piece.text)
            hidden["tokens"] += round(piece.num_tokens * (end - start) / len(piece.text))
            exact = exact and whole
            if start:
                head.append(Part(piece.text[:start], piece.role, piece))
            if end < len(piece.text):
                tail.append(Part(piece.text[end:], piece.role, piece))
    return [*head, Part(_remark(hidden, exact), "gap"), *tail]


def _border(text: str, place: int) -> int:
    """The start of the run of blanks at or before a place, so that no word is cut."""
    if place in (0, len(text)):
        return place
    found = max(text.rfind(" ", 0, place), text.rfind("\n", 0, place))
    return found if found > 0 else place


def _remark(hidden: Counter[str], exact: bool) -> str:
    others = [f"{hidden[role]:,} {role}s" for role in ("needle", "distractor") if hidden[role]]
    about = "" if exact else "about "
    return f" … {about}{hidden['tokens']:,} tokens{' with ' + ' and '.join(others) if others else ''} … "


def _about(example: Example) -> str:
    depths = example.depths
    shown = ", ".join(f"{depth:.0f} %" for depth in depths[:8]) + (", …" if len(depths) > 8 else "")
    where = f"; needle{'s' if len(depths) > 1 else ''} at {shown} of the context" if depths else ""
    return (
        f"example {example.index}, {example.num_tokens:,} of {example.length:,} tokens "
        f"({example.max_new_tokens} for the answer){where}"
    )


# --- HTML -----------------------------------------------------------------------------------------


def _span(inner: str, role: str, title: str = "") -> str:
    """Tinted so faintly that the theme's own text colour, light or dark, stays readable; a line
    below says it again."""
    if role == "haystack":
        return f'<span style="opacity:.8">{inner}</span>'
    red, green, blue = _TINTS[role][0]
    tint = f"background:rgba({red},{green},{blue},.22);border-bottom:2px solid rgb({red},{green},{blue})"
    return f'<span style="{tint}"{title}>{inner}</span>'


def _html(part: Part, example: Example) -> str:
    if part.piece is None:
        return f'<span style="opacity:.6;font-style:italic">{escape.html(part.text)}</span>'
    piece = part.piece
    inner = "".join(
        f"<b>{escape.html(t)}</b>" if bold else escape.html(t)
        for t, bold in _emphasised(part, example)
    )
    what = f"{part.role.replace('_', ' ')}, {piece.num_tokens:,} tokens"
    pair = f": {piece.key} = {piece.value}" if piece.key and piece.value else ""
    return _span(inner, part.role, f' title="{escape.html(what + pair)}"')


def _emphasised(part: Part, example: Example) -> Iterator[tuple[str, bool]]:
    """The part's text in runs, with key and value (in a gold document, the references) set off."""
    piece = part.piece
    if piece is None or part.role not in ("needle", "distractor"):
        yield part.text, False
        return
    strong = (
        [piece.key, piece.value]
        if piece.value
        else list(example.references)
        if part.role == "needle"
        else []
    )
    found = "|".join(
        re.escape(text) for text in sorted({s for s in strong if s}, key=len, reverse=True)
    )
    for i, text in enumerate(re.split(f"({found})", part.text) if found else [part.text]):
        if text:
            yield text, i % 2 == 1


# --- terminal -------------------------------------------------------------------------------------


def _ansi(text: str, role: str) -> str:
    text = escape.terminal(text)
    if role in ("haystack", "gap"):
        return text if role == "haystack" else f"\x1b[2;3m{text}\x1b[0m"
    code = (
        f"\x1b[1;38;5;{_TINTS[role][1]}m" if role == "needle" else f"\x1b[38;5;{_TINTS[role][1]}m"
    )
    return f"{code}{text}\x1b[0m"


def _marked(stretch: Sequence[Part]) -> Iterator[str]:
    """A stretch behind its role; parts of another role in braces, as `{needle: 12. word}`."""
    usual = (
        "haystack"
        if len(stretch) > 1 and any(p.role == "haystack" for p in stretch)
        else stretch[0].role
    )
    yield f"[{usual}] "
    for part in stretch:
        yield part.text if part.role in (usual, "gap") else f"{{{part.role}: {part.text.strip()}}} "
