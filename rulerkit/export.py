"""Examples as files in upstream's form, a cell or a whole grid of them, on as many cores as there
are."""

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.generation import Examples, generate
from rulerkit.prompt_format import PromptFormat
from rulerkit.tasks import Task

_CHUNK = 16
"""How many examples a worker makes at a time."""


@dataclass(frozen=True)
class Order:
    """A cell to be written: what `generate` takes, in a form that travels to other processes."""

    task: Task
    length: int
    num_examples: int
    seed: int
    tokenizer: str
    template: str

    def examples(self) -> Examples:
        """The examples of this cell."""
        return generate(
            self.task,
            self.length,
            self.num_examples,
            self.seed,
            _format(self.tokenizer, self.template),
        )


def to_json(example: Example) -> dict[str, Any]:
    """One line of upstream's JSONL (`index, input, outputs, length, answer_prefix`) with a few
    fields more."""
    return {
        "index": example.index,
        "input": example.input,
        "outputs": list(example.references),
        "length": example.num_tokens + example.max_new_tokens,
        "answer_prefix": example.answer_prefix,
        "context": example.context_text,
        "question": example.text_of("question"),
        "task": example.task,
        "max_new_tokens": example.max_new_tokens,
    }


def write_grid(
    orders: Sequence[Order], paths: Sequence[Path], workers: int = 1, progress: bool = True
) -> None:
    """Write each cell to its file, whole or not at all, with `workers` processes; the files do not
    depend on how many."""
    from tqdm import tqdm

    if workers < 1:
        raise UserError(f"workers is {workers}: it must be 1 or more")
    for order in orders:
        order.examples()[0]  # what does not fit is said before anything is written
    total = sum(order.num_examples for order in orders)
    spawned = (
        ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
        if workers > 1
        else nullcontext()
    )
    with (
        spawned as pool,
        tqdm(total=total, unit=" examples", disable=None if progress else True) as bar,
    ):
        chunks = [
            (o, i, min(i + _CHUNK, o.num_examples))
            for o in orders
            for i in range(0, o.num_examples, _CHUNK)
        ]
        made = (
            _in_order(pool, chunks, 4 * workers) if pool else (_lines(*chunk) for chunk in chunks)
        )
        for order, path in zip(orders, paths, strict=True):
            _write(path, islice(made, -(-order.num_examples // _CHUNK)), bar)


def _in_order(pool: ProcessPoolExecutor, chunks: Iterable[Any], ahead: int) -> Iterator[list[str]]:
    """The chunks' lines in order, a bounded number of chunks under way."""
    waiting: list[Any] = []
    for chunk in chunks:
        waiting.append(pool.submit(_lines, *chunk))
        if len(waiting) >= ahead:
            yield waiting.pop(0).result()
    yield from (future.result() for future in waiting)


def _lines(order: Order, start: int, stop: int) -> list[str]:
    examples = order.examples()
    return [json.dumps(to_json(examples[i]), ensure_ascii=False) + "\n" for i in range(start, stop)]


def _write(path: Path, chunks: Iterable[list[str]], bar: Any) -> None:
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", errors="surrogatepass") as file:
            for lines in chunks:
                file.writelines(lines)
                bar.update(len(lines))
        part.replace(path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; choose another --output"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@lru_cache(maxsize=4)
def _format(tokenizer: str, template: str) -> PromptFormat:
    from rulerkit.tokenizers import load_tokenizer

    return PromptFormat(load_tokenizer(tokenizer), template=template)
