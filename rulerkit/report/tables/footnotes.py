"""What differs between the runs of a table: environments, versions of a service, failures, tokens
thought."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from rulerkit.common.errors import counted, listed
from rulerkit.common.lengths import length_name
from rulerkit.report.tables.notes import names_of
from rulerkit.scoring.summary import tally
from rulerkit.store.cells import Cell
from rulerkit.store.comparable import snapshot_notes

_FACTS = "gpu tensor_parallel_size pipeline_parallel_size device rulerkit commit python"
"""What of an environment footnotes mention, before the versions of packages."""

_SMALL_FRAME = 0.02
"""The share of a length that a server may add to a prompt without a word: its chat template."""

_FEW = 4  # values of a field that a footnote lists


def footnotes(cells: Sequence[Cell], scores: pd.DataFrame | None = None) -> list[str]:
    """Lines below a table of cells: environments that differ, services that answered with several
    versions of a model, models whose requests all failed and, of the rows of `score`, what
    `usage_notes` says.

    Of environments only what differs, and which model had it; hosts are left out. A cell that was
    answered in several environments counts in each. What is not known of an environment (a service:
    its GPU) is no difference.
    """
    # The names of the table, so that a note can be held against its rows.
    models = [(cell.run, cell.model, cell.about.label or cell.model) for cell in cells]
    names = names_of(pd.DataFrame(models, columns=["run", "model", "label"]))
    by_name: dict[str, list[Cell]] = {}
    for name, cell in zip(names, cells, strict=True):
        by_name.setdefault(name, []).append(cell)

    answered = [cell for cell in cells if cell.coverage.have]
    notes = _environment_notes(by_name) + snapshot_notes(answered)
    for name, of_model in by_name.items():
        notes += _server_notes(name, of_model)

    # A model without any answer has no row: its failures must not go unseen.
    for name, of_model in by_name.items():
        failures = [failure for cell in of_model for failure in cell.coverage.failed.values()]
        if failures and not any(cell.coverage.have for cell in of_model):
            notes.append(
                f"{name} has no answer: {len(failures)} requests failed, the first: "
                f"{failures[0].reason}."
            )
    return notes if scores is None else notes + usage_notes(scores)


def _server_notes(name: str, cells: list[Cell]) -> list[str]:
    """What the counts of a model's server leave open, and where it adds more to prompts than a chat
    template does: about the shortest length, where it counts most."""
    shortest = min(cells, key=lambda cell: cell.length)
    server = shortest.record["environment"].get("server") or {}
    notes = []
    if not server.get("counts", True):
        notes.append(
            f"The server of {name} does not say how many tokens it read: a cut prompt would go "
            "unseen."
        )
    elif not server.get("exact_tokenizer", True) and not server.get("max_model_len"):
        notes.append(
            f"The server of {name} has another tokenizer: a prompt that it cut by less than a "
            "quarter would go unseen; with its own as `tokenizer`, none would."
        )
    frame = server.get("frame_tokens", 0)
    if frame > _SMALL_FRAME * shortest.length:
        notes.append(
            f"The server of {name} adds {frame:,} tokens to each prompt, beyond its length: of "
            f"{length_name(shortest.length)} it reads up to {shortest.length + frame:,}, answer "
            "included."
        )
    return notes


def _environment_notes(cells_by_name: dict[str, list[Cell]]) -> list[str]:
    """A line on what differs between environments: by field, its values and who had each of
    them, in the order of the cells."""
    seen = [
        (field, value, name)
        for name, cells in cells_by_name.items()
        for cell in cells
        if cell.coverage.have
        for field, value in _facts(cell)
    ]
    differ = []
    facts: Any = pd.DataFrame(seen, columns=["field", "value", "name"]).drop_duplicates()
    for field, of_field in facts.groupby("field", sort=False):
        values = of_field.groupby("value", sort=False)["name"]
        # What is the same everywhere needs no footnote.
        if len(values) > 1:
            texts = [f"{value} ({listed(names, _FEW)})" for value, names in values]
            differ.append(f"{field} {listed(texts, _FEW)}")
    return [f"Environments differ: {'; '.join(differ)}."] if differ else []


def _facts(cell: Cell) -> Iterator[tuple[str, str]]:
    """What footnotes mention of the environments that a cell was answered in: field and value."""
    record = cell.record
    for environment in record.get("environments") or [record["environment"]]:
        packages = environment["packages"]
        commit = re.sub(r"^([0-9a-f]{7})[0-9a-f]+", r"\1", environment.get("git") or "")
        known = environment | packages | {"commit": commit}
        # cuda:0 and cuda:1 are alike.
        known["device"] = str(environment.get("device") or "").partition(":")[0]
        for name in (*_FACTS.split(), *packages):
            if known.get(name):
                yield name, str(known[name])


def usage_notes(scores: pd.DataFrame) -> list[str]:
    """Lines below a table of rows of `score`, or of `tally`: the mean tokens thought at each
    length, and what is wrong with all answers."""
    notes = []
    for (_, _, label), cells in tally(scores).groupby(["run", "model", "label"], sort=False):
        sums = cells.groupby("length")[["thought", "n", "unasked", "empty"]].sum()
        thought = (sums["thought"] / sums["n"].clip(1)).round()
        if thought.any():
            means = [f"{thought[n]:,.0f} at {length_name(n)}" for n in thought.index.tolist()]
            notes.append(f"Tokens thought by {label}, on average: {', '.join(means)}.")

        # A model that was given no room for a thought, and thinks.
        unasked = sums["unasked"].sum()
        if unasked:
            notes.append(
                f"{counted(unasked, 'answer')} of {label} ended in a thought that nobody "
                "asked for, and score 0: give it room with `thinking_tokens: 4096`, or turn it off "
                "with `enable_thinking: false`."
            )

        if 0 < sums["n"].sum() == sums["empty"].sum():
            notes.append(f"Every answer of {label} is empty: check its template and stop tokens.")
    return notes
