"""Writes tests/data/golden/: what must stay the same while the code changes.

    RULERKIT_DATA=FOLDER python scripts/make_golden.py

- `prompts.csv`: a digest of three prompts for each task, at two lengths, under three protocols.
- `demo.csv`: scores and intervals of the demo's readers.
- `comparisons.csv`: what `compare` says about some of them.

A commit that changes one of these files says why; tests/test_golden.py compares them.
"""

import csv
import os
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import rulerkit as rk
from rulerkit.generation.tasks import all_tasks
from rulerkit.store.cells import Cell

GOLDEN = Path(__file__).resolve().parent.parent / "tests/data/golden"


# --- prompts --------------------------------------------------------------------------------------


class Form(NamedTuple):
    """A tokenizer, the template around its prompts, and the corpora that they are made of."""

    tokenizer: str
    template: str
    corpora: str


FORMS = (
    Form("builtin", "llama3", "builtin"),
    Form("llama-2", "base", "builtin"),
    Form("qwen2.5", "auto", "original"),
)
"""All but `builtin` are read from RULERKIT_DATA."""
PROTOCOLS = ("clean", "paper", "upstream")
LENGTHS = (2048, 4096)
NUM_EXAMPLES = 3
PROMPT_COLUMNS = ("tokenizer", "task", "length", *PROTOCOLS)


def prompt_rows(form: Form) -> Iterator[dict[str, str]]:
    """The rows of prompts.csv for one form: a task at a length, with a digest for each protocol."""
    name = form.tokenizer
    if name != "builtin":
        name = f"{os.environ['RULERKIT_DATA']}/tokenizers/{name}"
    prompt_format = rk.PromptFormat(name, template=form.template)
    for task in all_tasks():
        for length in LENGTHS:
            row = {"tokenizer": form.tokenizer, "task": task, "length": str(length)}
            for protocol in PROTOCOLS:
                asked = rk.task(task, protocol).with_corpora(form.corpora)
                row[protocol] = _digest(asked, length, prompt_format)
            yield row


def _digest(task, length: int, prompt_format: rk.PromptFormat) -> str:
    """A digest of the text, tokens, references and answer tokens of a task's first examples."""
    digest = sha256()
    try:
        for example in rk.generate(task, length, NUM_EXAMPLES, 42, prompt_format):
            parts = [example.prompt, *example.references]
            parts += [example.max_new_tokens, example.num_tokens]
            digest.update(repr(parts).encode("utf-8", "surrogatepass"))
            # Ids of the built-in tokenizer mean something within one process only.
            if prompt_format.tokenizer.name != "builtin":
                digest.update(example.ids.astype("<i4").tobytes())
    except rk.UserError:
        return "does not fit"
    return digest.hexdigest()[:16]


def original_corpora() -> str:
    """A digest of names and sizes of the original corpora in RULERKIT_DATA."""
    data = Path(os.environ["RULERKIT_DATA"])
    digest = sha256()
    for folder in ("essays", "squad", "hotpotqa"):
        for file in sorted(data.glob(f"{folder}/**/*.*")):
            digest.update(f"{file.relative_to(data)} {file.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


# --- the demo -------------------------------------------------------------------------------------

DEMO = {
    "plugins": ["tests.planted_readers"],
    "models": ["reader-4096", "reader-8192", "reader-16384", "perfect", "mute", "reader-dropping"],
    "lengths": [4096, 8192, 16384, 32768],
    "num_examples": 4,
    "seed": 42,
    "corpora": "builtin",
}
"""The readers and lengths of params/batches/demo.yaml with fewer examples, and the candidate of
notebook 13."""
DEMO_COLUMNS = ("table", "model", "what", "length", "score", "low", "high", "effective")
COMPARED = (
    ("reader-8192", "reader-4096", 1.0),
    ("reader-8192", "reader-dropping", 1.0),
    ("reader-8192", "reader-dropping", 15.0),
    ("perfect", "reader-16384", 1.0),
    ("reader-4096", "reader-16384", 1.0),
    ("perfect", "mute", 1.0),
)
"""Baseline, candidate, margin in points."""
COMPARISON_COLUMNS = ("baseline", "candidate", "margin", "verdict", "difference", "low", "high")


def demo_cells(outputs: str | Path, lengths: Sequence[int] = DEMO["lengths"]) -> list[Cell]:
    """The answers of the demo's readers at some of its lengths."""
    study = rk.study(DEMO, lengths=lengths, outputs=outputs)
    return rk.evaluate(study, progress=False)


def comparison_rows(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """The rows of comparisons.csv."""
    rows = []
    for baseline, candidate, margin in COMPARED:
        a = [cell for cell in cells if cell.model == baseline]
        b = [cell for cell in cells if cell.model == candidate]
        found = rk.compare(a, b, margin)
        values = [baseline, candidate, f"{margin:g}", found.verdict.word]
        values += [f"{found.mean[name]:.2f}" for name in ("difference", "low", "high")]
        rows.append(dict(zip(COMPARISON_COLUMNS, values, strict=True)))
    return rows


def demo_rows(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """The rows of demo.csv: of each cell, of each length and category, of each model and
    category."""
    summary = rk.summarize(rk.score(cells))
    rows = []

    def add(table, row, what, length, score, low, high, effective=""):
        numbers = [f"{row[name]:.2f}" for name in (score, low, high)]
        values = [table, row["model"], row[what], length, *numbers, effective]
        rows.append(dict(zip(DEMO_COLUMNS, map(str, values), strict=True)))

    for _, row in summary.cells.iterrows():
        add("cell", row, "task", row["length"], "score", "low", "high")
    for _, row in summary.lengths.iterrows():
        add("length", row, "category", row["length"], "score", "low", "high")
    for _, row in summary.models.iterrows():
        effective = row["effective_length"]
        add("model", row, "category", "", "avg", "avg_low", "avg_high", effective)
    return rows


# --- files ----------------------------------------------------------------------------------------


def read(name: str) -> list[dict[str, str]]:
    with open(GOLDEN / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(name: str, columns: tuple[str, ...], rows: list[dict[str, str]]) -> None:
    with open(GOLDEN / name, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    if "RULERKIT_DATA" not in os.environ:
        raise SystemExit("RULERKIT_DATA is not set: prompts.csv needs real tokenizers and corpora")
    GOLDEN.mkdir(parents=True, exist_ok=True)
    prompts = [row for form in FORMS for row in prompt_rows(form)]
    write("prompts.csv", PROMPT_COLUMNS, prompts)
    (GOLDEN / "original_corpora.txt").write_text(original_corpora() + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as outputs:
        cells = demo_cells(outputs)
        write("demo.csv", DEMO_COLUMNS, demo_rows(cells))
        write("comparisons.csv", COMPARISON_COLUMNS, comparison_rows(cells))


if __name__ == "__main__":
    main()
