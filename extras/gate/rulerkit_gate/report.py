"""The gate's result for people: Markdown for a CI, and a page with the answers that flipped, side
by side."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rulerkit.analysis.compare import CANNOT_TELL, NOT_WORSE, WORSE, Comparison, Decision
from rulerkit.analysis.differences import interval_text
from rulerkit.analysis.remake import remaker
from rulerkit.common import escape
from rulerkit.common.errors import UserError, counted, points_text, shorten
from rulerkit.common.lengths import length_name
from rulerkit.report.comparison import difference_table
from rulerkit.store.files import write_whole

_PAGE = Path(__file__).with_name("data") / "gate.html"
_MARKS = {WORSE: "❌", NOT_WORSE: "✅", CANNOT_TELL: "❔"}
_MOST_ROWS = 12  # places of a table in Markdown
_MOST_FLIPS = 200  # pairs of answers on the page
_LONGEST = 1200  # characters of an answer on the page


class Facts(NamedTuple):
    """What a reader must know beside the comparison."""

    command: str
    asked: str
    """How many examples and tokens it took."""
    notes: tuple[str, ...] = ()
    page: str = ""
    """Where the page with the answers lies."""


# --- Markdown -------------------------------------------------------------------------------------


def markdown(comparison: Comparison | None, verdict: Decision, facts: Facts) -> str:
    """The verdict, the places with a loss, and a picture of all tasks and lengths, as GitHub and
    GitLab show them."""
    lines = [
        f"## {_MARKS[verdict.word]} {verdict.word}",
        "",
        escape.markdown(verdict.text) + ".",
        "",
    ]
    if comparison is not None:
        lines += [*_loss_table(comparison), *_picture(comparison)]
        flips = comparison.flips["difference"]
        lines += [
            f"{counted(len(flips), 'answer')} changed: {(flips < 0).sum()} lost, "
            f"{(flips > 0).sum()} gained. {escape.markdown(facts.asked)}.",
            "",
        ]
    lines += [f"- {escape.markdown(note)}" for note in facts.notes]
    if facts.page:
        lines += ["", f"The answers that changed, side by side: `{facts.page}`"]
    lines += ["", "```", escape.one_line(facts.command), "```"]
    return "\n".join(lines) + "\n"


def _loss_table(comparison: Comparison) -> Iterator[str]:
    """The places where a loss is seen, the most certain first."""
    rows = comparison.rows
    losses = rows[rows["loss"] | rows["beyond_margin"]]
    losses = losses.sort_values(["p_margin", "p"], kind="stable")
    if losses.empty:
        yield from ("No loss is seen in any task, length or cell.", "")
        return

    yield "| place | baseline | candidate | difference, 95 % | lost | gained | beyond the margin |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    for _, row in losses.head(_MOST_ROWS).iterrows():
        length = length_name(int(row["length"])) if row["length"] else "all"
        place = f"{row['task'] or 'all tasks'}, {length}"
        beyond = "yes" if row["beyond_margin"] else "cannot tell"
        yield (
            f"| {escape.markdown(place)} | {row['a']:.1f} | {row['b']:.1f} | "
            f"{interval_text(row)} | {row['worse']} | {row['better']} | {beyond} |"
        )
    more = len(losses) - _MOST_ROWS
    if more > 0:
        yield ""
        yield f"and {counted(more, 'place')} more"
    yield ""


def _picture(comparison: Comparison) -> Iterator[str]:
    """A map of tasks and lengths in coloured squares: it needs no file and no script."""
    rows = comparison.rows
    cells = rows[rows["level"] == "cell"]
    lengths = sorted(cells["length"].unique())
    yield f"| B - A, points | {' | '.join(map(length_name, lengths))} |"
    yield "|---" * (1 + len(lengths)) + "|"
    for task, of_task in cells.groupby("task", sort=False):
        by_length = of_task.set_index("length")
        fields = [_square(by_length.loc[n]) if n in by_length.index else "" for n in lengths]
        yield f"| {escape.markdown(str(task))} | {' | '.join(fields)} |"
    yield ""
    yield "🟥 a loss is certain, 🟧 lower by chance or not, ⬜ equal, 🟩 higher"
    yield ""


def _square(row: Any) -> str:
    difference = row["difference"]
    if row["loss"] or row["beyond_margin"]:
        mark = "🟥"
    elif difference < 0:
        mark = "🟧"
    else:
        mark = "🟩" if difference > 0 else "⬜"
    return f"{mark} {difference:+.1f}" if difference else mark


# --- the page -------------------------------------------------------------------------------------


class Flip(NamedTuple):
    """One example whose two answers have other scores."""

    place: str
    question: str
    references: str
    a: str
    b: str
    score_a: float
    score_b: float


def write_page(path: Path, comparison: Comparison, verdict: Decision, facts: Facts) -> Path:
    """Write one HTML file that needs no network: the verdict, the differences, and the answers that
    changed, side by side, the largest losses first."""
    flips = comparison.flips.sort_values("difference", kind="stable")
    values = {
        "verdict": verdict,
        "mark": {WORSE: "✗", NOT_WORSE: "✓", CANNOT_TELL: "?"}[verdict.word],
        "margin": points_text(comparison.margin),
        "notes": [n for n in facts.notes if n not in comparison.notes],
        "comparison": comparison,
        "facts": facts,
        "table": difference_table(comparison, "html", verdict),
        "flips": list(_flips(comparison, flips.head(_MOST_FLIPS))),
        "num_flips": len(flips),
    }
    write_whole(path, escape.fill(_PAGE.read_text(encoding="utf-8"), **values))
    return path


def _flips(comparison: Comparison, flips: Any) -> Iterator[Flip]:
    """The flipped examples with their answers."""
    answers = [_rows_by_key(side.cells, flips) for side in (comparison.a, comparison.b)]
    for flip in flips.to_dict("records"):
        key = flip["task"], flip["length"], flip["index"]
        (cell, row_a), (_, row_b) = answers[0][key], answers[1][key]
        yield Flip(
            f"{flip['task']} at {length_name(flip['length'])}, example {flip['index']}",
            _question(cell, row_a),
            "; ".join(row_a["outputs"]),
            shorten(row_a["pred"], _LONGEST),
            shorten(row_b["pred"], _LONGEST),
            100 * flip["a"],
            100 * flip["b"],
        )


def _rows_by_key(cells: Iterable[Any], flips: Any) -> dict[Any, Any]:
    """The rows of flipped examples, and their cells."""
    wanted: dict[Any, set[int]] = {}
    for task, length, index in flips[["task", "length", "index"]].itertuples(index=False):
        wanted.setdefault((task, length), set()).add(index)
    return {
        (cell.task, cell.length, row["index"]): (cell, row)
        for cell in cells
        for row in cell.rows
        if row["index"] in wanted.get((cell.task, cell.length), ())
    }


def _question(cell: Any, row: Any) -> str:
    """What was asked behind the context; empty where the example cannot be made again."""
    try:
        example = remaker(cell)(row)
    except (UserError, IndexError):
        return ""
    asked = [piece.text for piece in example.pieces if piece.role == "question"]
    return shorten(" ".join(asked), _LONGEST)
