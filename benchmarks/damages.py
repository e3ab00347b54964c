"""Does a damaged file change a number unseen? `python benchmarks/damages.py --damages 1000 --seed 0`

Makes a small run with the code of the package: three models on tasks of RULER and of the frontier
suite, with failed requests, a drawn seed, the caches of scores and a seal. Then it
damages one file or two at random (a byte, a range, lines, whole files exchanged), asks `verify`,
`score` and one command more, and puts the files back. Of each damage it checks:

- verify: the command names each damaged file.
- numbers: where the rows of `score`, or what a command prints, are not those of before, a line names
  the damaged cell.
- others: the rows of every cell that was not damaged are those of before.
- traceback: a command ends with its result or with one line.

Half of the damages leave the time of the file as it was, as a failing disk does. A damage that
changes no byte is drawn again. Prints how many damages of each kind of file and of damage there
were, and each violation; ends with status 1 if there is any.
"""

import argparse
import contextlib
import io
import itertools
import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import rulerkit as rk
from rulerkit.cli import main as rulerkit
from rulerkit.common.errors import UserError
from rulerkit.generation.tasks import read_answer
from rulerkit.report.tables import render
from rulerkit.scoring import scores as scoring

if TYPE_CHECKING:
    import pandas as pd

MODELS = ("steady", "failing", "short")
TASKS = ("niah_multikey_1", "vt", "qa_1", "count_64")
LENGTHS = (1024, 2048)
NUM_EXAMPLES = 4


# --- the run --------------------------------------------------------------------------------------


def reader(name: str, sees: int, fails: bool) -> Any:
    """A model that answers from the last so many letters of a prompt. One that `fails` does so at
    every second prompt."""
    # How often it was called is no part of what a model is.
    calls = itertools.count()

    def answer(prompts: list[str]) -> list[str | None]:
        return [
            None if next(calls) % 2 and fails else read_answer(prompt[-sees:]) or ""
            for prompt in prompts
        ]

    return rk.model(answer, name=name, tokenizer="builtin")


def make_run(outputs: Path) -> Path:
    """The predictions of the small run, sealed."""
    failing = reader("failing", 10**6, True)
    models = [reader("steady", 10**6, False), failing, reader("short", 3000, False)]
    asked = {
        "tasks": list(TASKS),
        "lengths": list(LENGTHS),
        "num_examples": NUM_EXAMPLES,
        "seed": "fresh",
        "outputs": str(outputs),
    }
    with contextlib.redirect_stderr(io.StringIO()):
        # Of what failed first half is answered now, and half fails again.
        for _ in range(2):
            rk.evaluate(rk.study(asked, models=models), progress=False)
    run = outputs / "predictions" / "main"
    rk.score(rk.read_cells(run))
    call("seal", str(run))
    return run


# --- damages --------------------------------------------------------------------------------------


def one_byte(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + rng.randbytes(1) + content[place + 1 :]


def one_bit(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _range(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(content))
    most = rng.choice((1, 10, 100, len(content)))
    return start, min(len(content), start + rng.randint(1, most))


def cut_range(content: bytes, rng: random.Random) -> bytes:
    start, stop = _range(content, rng)
    return content[:start] + content[stop:]


def zeros(content: bytes, rng: random.Random) -> bytes:
    start, stop = _range(content, rng)
    return content[:start] + bytes(stop - start) + content[stop:]


def repeated_range(content: bytes, rng: random.Random) -> bytes:
    start, stop = _range(content, rng)
    return content[:stop] + content[start:]


def inserted(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.randbytes(rng.randint(1, 8)) + content[place:]


def cut_anywhere(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def _lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


def cut_at_line(content: bytes, rng: random.Random) -> bytes:
    lines = _lines(content)
    return b"".join(lines[: rng.randrange(len(lines))])


def lost_line(content: bytes, rng: random.Random) -> bytes:
    lines = _lines(content)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def doubled_line(content: bytes, rng: random.Random) -> bytes:
    lines = _lines(content)
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return b"".join(lines)


def exchanged_lines(content: bytes, rng: random.Random) -> bytes:
    lines = _lines(content)
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def emptied(content: bytes, _: random.Random) -> bytes:
    return b""


def body_replaced(content: bytes, rng: random.Random) -> bytes:
    """All but the first line."""
    head, end, body = content.partition(b"\n")
    other = rng.choice((bytes(len(body)), rng.randbytes(len(body))))
    return head + end + other


ONE_FILE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a byte": one_byte,
    "a bit": one_bit,
    "a range cut": cut_range,
    "a range of zeros": zeros,
    "a range twice": repeated_range,
    "bytes put in": inserted,
    "cut anywhere": cut_anywhere,
    "cut at a line": cut_at_line,
    "a line lost": lost_line,
    "a line twice": doubled_line,
    "two lines exchanged": exchanged_lines,
    "emptied": emptied,
    "body replaced": body_replaced,
}
TWO_FILES = ("two files exchanged", "another's content", "two cells exchanged")
KINDS = (*ONE_FILE, *TWO_FILES)
WEIGHTS = (*([3] * len(ONE_FILE)), 6, 6, 2)


class Damage(NamedTuple):
    """What is damaged, how, and the content of each damaged file."""

    file: str
    kind: str
    contents: dict[Path, bytes]


def kind_of(file: Path) -> str:
    """What a file of a run is called in the table of counts."""
    if file.suffix == ".rows":
        return "cache"
    if file.suffix == ".json":
        return "record" if file.stem.isdigit() else "seal"
    if file.suffix == ".txt":
        return "drawn seed"
    return file.stem.partition(".")[2] or "rows"


def draw(files: dict[Path, bytes], rng: random.Random) -> Damage:
    """A damage that changes at least one byte. Each kind of file is as likely as another."""
    by_kind: dict[str, list[Path]] = {}
    for file in files:
        by_kind.setdefault(kind_of(file), []).append(file)
    while True:
        name = rng.choice(sorted(by_kind))
        file, other = (rng.choice(by_kind[name]) for _ in range(2))
        (kind,) = rng.choices(KINDS, WEIGHTS)
        if kind in ONE_FILE:
            contents = {file: ONE_FILE[kind](files[file], rng)}
        elif kind == "two cells exchanged":
            contents = {}
            for suffix in (".jsonl", ".json"):
                one, two = file.with_suffix(suffix), other.with_suffix(suffix)
                if one in files and two in files:
                    contents |= {one: files[two], two: files[one]}
        else:
            contents = {file: files[other]}
            if kind == "two files exchanged":
                contents[other] = files[file]
        contents = {p: new for p, new in contents.items() if new != files[p]}
        if contents:
            return Damage(name, kind, contents)


def place_of(file: Path) -> str:
    """`MODEL/TASK/LENGTH.` of a file of a cell, and of its cache."""
    return f"{'/'.join(file.parts[-3:-1])}/{file.name.partition('.')[0]}."


# --- commands -------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What a command printed, the file that it wrote, and "" or an error that is no line."""

    out: str
    err: str
    written: str = ""
    trace: str = ""


def call(*words: str, written: Path | None = None) -> Said:
    """A command in this process."""
    out, err, trace, text = io.StringIO(), io.StringIO(), "", ""
    sys.argv = ["rulerkit", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            rulerkit()
        except SystemExit:
            pass
        except BaseException:
            trace = traceback.format_exc()
    if written and written.exists():
        text = written.read_text(encoding="utf-8", errors="replace")
        written.unlink()
    return Said(out.getvalue(), err.getvalue(), text, trace)


class Command(NamedTuple):
    """A command that reads a run. One that `shows` numbers prints them, or writes them to a
    file."""

    words: list[str]
    written: Path | None = None
    shows: bool = True

    def __call__(self) -> Said:
        return call(*self.words, written=self.written)


def commands(run: Path, to: Path) -> dict[str, Command]:
    """The commands that are asked after a damage; what they write goes into a folder."""
    place, steady, _, short = str(run), *(f"{run}/{m}" for m in MODELS)
    table, page, seal = to / "all.csv", to / "all.html", to / "seal.json"
    merged = ["merge", str(run.parent), "-o", str(to / "merged")]
    return {
        "report": Command(["report", place]),
        "report csv": Command(["report", place, "--format", "csv"]),
        "score": Command(["score", place]),
        "compare": Command(["compare", steady, short]),
        "export": Command(["export", place, "-o", str(table)], table),
        "browse": Command(["browse", place, "-o", str(page)], page),
        "merge": Command(merged, shows=False),
        "seal": Command(["seal", place, "-o", str(seal)], seal, shows=False),
    }


def rows_of(run: Path) -> tuple["pd.DataFrame", str]:
    """The rows of `score`, and the lines about files that were left out or lack answers."""
    lines: list[str] = []
    cells = rk.read_cells(run, report=lines.append, scan=False)
    scores = rk.score(cells, lines.append)
    lines += [warning for cell in cells for warning in cell.warnings]
    return scores, "\n".join([*lines, scoring.lacking_line(cells, scores)])


def by_cell(scores: "pd.DataFrame") -> dict[str, list[str]]:
    """The rows of each cell by `MODEL/TASK/LENGTH.`, without the digest, which is no number."""
    cells: dict[str, list[str]] = {}
    rows = scores.drop(columns="seal").sort_values("index")
    for row in rows.itertuples(index=False):
        cells.setdefault(place_of(Path(str(row.path))), []).append(repr(row))
    return cells


# --- what must hold -------------------------------------------------------------------------------


class Run:
    """A run, as it was made, and what commands say of it."""

    def __init__(self, folder: Path) -> None:
        self.outputs = folder / "outputs"
        self.folder = make_run(self.outputs)
        self.to = folder / "written"
        self.to.mkdir()
        self.files = {
            file: file.read_bytes() for file in sorted(self.outputs.rglob("*")) if file.is_file()
        }
        self.times = {file: file.stat().st_mtime_ns for file in self.files}
        self.commands = commands(self.folder, self.to)
        self.rows = by_cell(rows_of(self.folder)[0])
        self.said = {name: ask() for name, ask in self.commands.items()}
        self.restore()

    def restore(self, damaged: Collection[Path] = ()) -> None:
        """Put every file back as it was, and take away what commands left."""
        for file in self.outputs.rglob("*.*"):
            if file not in self.files:
                file.unlink()
        for file, content in self.files.items():
            then = self.times[file]
            # Caches are written again by commands.
            if file in damaged or file.stat().st_mtime_ns != then:
                file.write_bytes(content)
                os.utime(file, ns=(then, then))
        shutil.rmtree(self.to / "merged", ignore_errors=True)

    def damage(self, damage: Damage, keeps_time: bool) -> None:
        """Write what a damage makes of the files."""
        for file, content in damage.contents.items():
            file.write_bytes(content)
            if keeps_time:
                os.utime(file, ns=(self.times[file], self.times[file]))

    def violations(self, damage: Damage, rng: random.Random) -> Iterator[str]:
        """What does not hold of a damage that was done."""
        said = call("verify", str(self.folder), "--no-prompts")
        if said.trace:
            yield f"traceback of verify: {said.trace}"
        for file in damage.contents:
            if str(file) not in said.out + said.err:
                yield f"verify does not name {file}"

        damaged = {place_of(file) for file in damage.contents}
        yield from self._rows(damaged)

        # One of the commands a damage: all of them are asked often enough.
        name = rng.choice(sorted(self.commands))
        now, before = self.commands[name](), self.said[name]
        if now.trace:
            yield f"traceback of {name}: {now.trace}"
        is_changed = (now.out, now.written) != (before.out, before.written)
        is_named = any(place in now.out + now.err for place in damaged)
        if self.commands[name].shows and is_changed and not is_named:
            yield f"{name} shows something else, and names no file: {now.err}"

    def _rows(self, damaged: set[str]) -> Iterator[str]:
        try:
            scores, lines = rows_of(self.folder)
        except UserError as error:
            yield f"one file keeps all others from being scored: {error}"
            return
        except Exception:
            yield f"traceback of score: {traceback.format_exc()}"
            return
        now = by_cell(scores)
        for place, rows in self.rows.items():
            if now.pop(place, None) == rows:
                continue
            if place not in damaged:
                yield f"the rows of {place}, which was not damaged, are others"
            elif place not in lines:
                yield f"the rows of {place} are others, and no line names it: {lines}"
        if now:
            yield f"rows of {list(now)} that nobody asked"


def main() -> None:
    """Counts by kind of file and of damage, and every violation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--damages", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    options = parser.parse_args()

    counts, failed = Counter[tuple[str, str]](), 0
    with TemporaryDirectory() as name:
        run = Run(Path(name).resolve())
        print(f"{len(run.files)} files, {len(run.rows)} cells with rows", flush=True)
        start = time.perf_counter()
        for number in range(options.first, options.first + options.damages):
            # A violation is done again alone by its number.
            rng = random.Random(f"{options.seed} {number}")
            damage = draw(run.files, rng)
            run.damage(damage, keeps_time=rng.random() < 0.5)
            counts[damage.file, damage.kind] += 1
            for violation in run.violations(damage, rng):
                failed += 1
                files = ", ".join(map(place_of, damage.contents))
                print(f"{number}: {damage.kind}, {damage.file} {files}: {violation}")
            sys.stdout.flush()
            if number % 500 == 499:
                print(f"{number + 1} ...", file=sys.stderr, flush=True)
            run.restore(damage.contents)
        seconds = time.perf_counter() - start

    kinds = sorted({file for file, _ in counts})
    rows = [[kind, *(str(counts[file, kind]) for file in kinds)] for kind in KINDS]
    print(render(["damage", *kinds], rows), end="")
    each = seconds / options.damages
    print(f"{options.damages} damages, {each:.2f} s each, {failed} violations")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
