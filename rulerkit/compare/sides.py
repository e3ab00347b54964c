"""The two sides of a comparison: found by name, and paired example by example only where both were asked the same."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.errors import UserError, unknown
from rulerkit.foreign import read_predictions
from rulerkit.inference.cells import Cell, read_cells
from rulerkit.paths import resolve

if TYPE_CHECKING:
    import pandas as pd

WAYS = ("digest", "index")
_SHOWN = 4
Key = tuple[str, int]


@dataclass(frozen=True)
class Side:
    """One model's predictions of one run, a cell per task and length."""

    name: str
    cells: dict[Key, Cell]

    @property
    def label(self) -> str:
        cell = next(iter(self.cells.values()))
        return str(cell.record.get("label") or cell.model)


def find(name: str | Path, outputs: str | Path = "outputs") -> list[Cell]:
    """The predictions that a name means.

    A file or folder of predictions (ours or others'), else `run/model` or `run` in `outputs/predictions`, else a
    model's name that stands there in one run only.
    """
    given = Path(name).expanduser()
    root = resolve(outputs) / "predictions"
    for path in (given.absolute(), resolve(given), root / given):
        if path.exists():
            return read_predictions(path)
    known = sorted(f"{path.parent.name}/{path.name}" for path in root.glob("*/*") if path.is_dir())
    found = [each for each in known if each.rpartition("/")[2] == str(name)]
    if len(found) > 1:
        raise UserError(f"model {str(name)!r} has predictions in several runs: name one of {', '.join(found)}")
    if not found:
        raise unknown("model or folder of predictions", name, known, f"Predictions lie in {root}")
    return read_cells(root / found[0])


def side(cells: Iterable[Cell], name: str = "") -> Side:
    """The cells of one model and run; those without any answer are left out. Raises UserError for more than one."""
    held = [cell for cell in cells if cell.rows]
    both = list(dict.fromkeys((cell.run, cell.model) for cell in held))
    if len(both) != 1:
        several = ", ".join(f"{run}/{model}" for run, model in both) or "no answer at all"
        raise UserError(f"{name or 'one side'} holds {several}: a side is one model in one run; name its folder")
    by_key: dict[Key, Cell] = {}
    for cell in held:
        if twice := by_key.get((cell.task, cell.length)):
            raise UserError(f"{cell.path} and {twice.path} hold the same task and length: keep one of them")
        by_key[cell.task, cell.length] = cell
    return Side("/".join(part for part in both[0] if part), by_key)


def sides(cells: Iterable[Cell]) -> tuple[Side, Side]:
    """The two sides in cells of two models, or of one model in two runs, in the order in which they first come."""
    groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.run, cell.model].append(cell)
    if len(groups) != 2:
        seen = ", ".join(f"{run}/{model}" for run, model in groups) or "none"
        raise UserError(f"a comparison needs the predictions of two models, or of one model twice; found {seen}")
    first, second = (side(own) for own in groups.values())
    return first, second


def choose(
    cells: Iterable[Cell],
    tasks: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    num_examples: int | None = None,
) -> list[Cell]:
    """Of the cells those of these tasks and lengths, each with its first `num_examples` rows; None takes all."""
    return [
        Cell(cell.path, cell.record, [row for row in cell.rows if num_examples is None or row["index"] < num_examples])
        for cell in cells
        if (tasks is None or cell.task in tasks) and (lengths is None or cell.length in lengths)
    ]


def paired(a: Side, b: Side, by: str = "digest") -> tuple["pd.DataFrame", list[str]]:
    """The examples that both answered, and what a reader must know about the two.

    Columns task, category, length, index, digest, a, b (scores 0..1), difference (b - a). Pairs have the same task,
    length and index, and with `by='digest'` the same prompt: other prompts are a `UserError` that names the cells.
    """
    from rulerkit.scoring import score

    if by not in WAYS:
        raise unknown("way to pair examples", by, WAYS)
    common = [key for key in a.cells if key in b.cells]
    if not common:
        raise UserError(f"{a.name} and {b.name} have no task and length in common: {_held(a)} | {_held(b)}")
    if any(a.cells[key].path.resolve() == b.cells[key].path.resolve() for key in common):
        raise UserError(f"{a.name} and {b.name} are the same predictions; name two models, or two runs of one")
    first, second = (score(side.cells[key] for key in common) for side in (a, b))
    keys = ["task", "length", "index"]
    rows = first.merge(second[[*keys, "digest", "score"]], on=keys, suffixes=("_a", "_b"))
    if rows.empty:
        raise UserError(f"{a.name} and {b.name} answered no example of the same task, length and index")
    other = (rows["digest_a"] != rows["digest_b"]) | (rows["digest_a"] == "")
    if by == "digest" and other.any():
        raise UserError(
            _refused(a, b, sorted({(t, n) for t, n in rows.loc[other, ["task", "length"]].itertuples(index=False)}))
        )
    rows = rows.rename(columns={"score_a": "a", "score_b": "b", "digest_a": "digest"})
    rows["difference"] = rows["b"] - rows["a"]
    kept = rows[["task", "category", "length", "index", "digest", "a", "b", "difference"]]
    return kept, [
        *_prompts_note(a, b, common, int(other.sum()), len(rows)),
        *_left_out(a, b, len(rows)),
        *differing(a, b),
    ]


def differing(a: Side, b: Side) -> list[str]:
    """Result-defining settings that differ between cells of the two, the models' names apart: 'engine: vllm | openai'."""
    found: dict[str, list[Key]] = {}
    common = [key for key in a.cells if key in b.cells]
    for key in common:
        left, right = (dict(_settings(side.cells[key].record["result"])) for side in (a, b))
        both = {name.partition(".")[0] for name in left} & {name.partition(".")[0] for name in right}
        for name in dict.fromkeys([*left, *right]):
            if name.partition(".")[0] in both and left.get(name) != right.get(name):
                text = f"{name}: {_brief(left.get(name, '-'))} | {_brief(right.get(name, '-'))}"
                found.setdefault(text, []).append(key)
    return [text + (f" ({_keys(keys)})" if len(keys) < len(common) else "") for text, keys in found.items()]


def same_model(a: Side, b: Side) -> bool:
    """Whether both sides are one model, served alike: then what differs is the noise of serving it."""
    pairs = [(a.cells[key], b.cells[key]) for key in a.cells if key in b.cells]
    return all(x.record["result"] == y.record["result"] for x, y in pairs)


def _settings(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values; names of models and tokenizers say nothing about what was asked."""
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _settings(inner, f"{above}{name}.")
        elif f"{above}{name}" not in ("model.name", "tokenizer.name"):
            yield above + name, inner


def _refused(a: Side, b: Side, keys: list[Key]) -> str:
    why = [note for note in differing(a, b) if note.startswith(("tokenizer", "prompt", "seed", "sources", "task"))]
    if any(not row.get("digest") for side in (a, b) for key in keys for row in side.cells[key].rows):
        why = ["predictions of other programs carry no digest"]
    return (
        f"{a.name} and {b.name} were not asked the same prompts in {_keys(keys)} ({'; '.join(why[:_SHOWN]) or 'digests differ'}): "
        "compare runs with the same tokenizer, template, seed and corpora, or pair by index (`--by index`), which does not hold "
        "prompts against each other"
    )


def _prompts_note(a: Side, b: Side, common: Sequence[Key], other: int, pairs: int) -> list[str]:
    """Only pairing by index comes here with prompts that differ."""
    if not other:
        return []
    asked = 0
    for key in common:
        left = {row["index"]: row["outputs"] for row in a.cells[key].rows}
        asked += sum(left.get(row["index"], row["outputs"]) != row["outputs"] for row in b.cells[key].rows)
    note = f"paired by index: {other} of {pairs} pairs were asked with prompts that differ, or that nobody knows"
    return [note + (f", {asked} of them with other references: pairing gains little there" if asked else "")]


def _left_out(a: Side, b: Side, pairs: int) -> list[str]:
    notes = []
    for one, other in ((a, b), (b, a)):
        if alone := [key for key in one.cells if key not in other.cells]:
            notes.append(f"only {one.name} has {_keys(alone)}: left out")
    rows = max(sum(len(side.cells[k].rows) for k in side.cells if k in a.cells and k in b.cells) for side in (a, b))
    return notes + [f"{pairs} of {rows} examples were answered by both; the others are left out"] * (pairs < rows)


def _held(side: Side) -> str:
    return f"{side.name} has {_keys(list(side.cells))}"


def _keys(keys: Sequence[Key]) -> str:
    shown = ", ".join(f"{task} at {length}" for task, length in keys[:_SHOWN])
    return shown + (f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else "")


def _brief(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:39]}…"
