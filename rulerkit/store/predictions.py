"""Files of predictions, whoever wrote them: ours as `cells` reads them, those of other programs by
the `readers` of plug-ins."""

from collections.abc import Callable
from pathlib import Path

from rulerkit.common.errors import UserError, remark
from rulerkit.common.plugins import by_name
from rulerkit.store.cells import Cell, Report, read_cells

Reader = Callable[[Path, Report], list[Cell]]
"""The cells of a file. Several files may give the same ones, where they hold them together."""

PLAIN = "*.jsonl"
"""The pattern of files that are named as ours are. Logs and tables are, too: so these are read
where they are named, or where nothing else is in their folder."""


def read_predictions(path: str | Path, report: Report = remark) -> list[Cell]:
    """All cells of a prediction file or of a folder, ours and those of other programs.

    Of a folder, files of ours (those with a record beside them) and those of others at any depth
    are read, or else the `.jsonl` files in it; a damaged file is left out and passed to `report`.
    Rows of ours are checked when they are first read. Raises UserError for a path without
    predictions, and for a file that its reader refuses where there are no others.
    """
    path = Path(path)
    if path.is_file() and path.with_suffix(".json").is_file():
        return read_cells(path)

    readers: dict[str, Reader] = by_name("readers", (), "reader of")
    named = [pattern for pattern in readers if pattern != PLAIN]

    cells, files = list[Cell](), [path]
    if not path.is_file():
        cells = read_cells(path, report)
        found = {file for pattern in named for file in path.rglob(pattern)}
        if not found and not cells:
            found.update(path.glob(PLAIN))
        files = sorted(file for file in found if not _is_ours(file))

    errors = list[UserError]()
    for file in files:
        # The files without a name of their own come last.
        patterns = [pattern for pattern in (*named, PLAIN) if file.absolute().match(pattern)]
        reader = readers.get(patterns[0]) if patterns else None
        try:
            others = reader(file, report) if reader else []
        except UserError as error:
            errors.append(error)
            continue
        known = {(cell.path, cell.run, cell.task, cell.length) for cell in cells}
        cells += [c for c in others if (c.path, c.run, c.task, c.length) not in known]

    if not cells:
        # Why the first file was refused says more than that there is nothing.
        readable = f"that a plug-in reads ({', '.join(named) or 'none is here'})"
        nothing = f"no predictions in {path}: no file of ours, and none {readable}"
        raise errors[0] if errors else UserError(nothing)
    for problem in errors:
        report(f"left out: {problem}")
    return cells


def _is_ours(file: Path) -> bool:
    """Whether a file is one of ours: a record stands beside it."""
    return file.suffix == ".jsonl" and file.with_suffix(".json").is_file()
