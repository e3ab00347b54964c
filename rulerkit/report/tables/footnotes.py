"""What happened while the cells of a table were answered: versions of a service, what servers
count, failures, tokens thought."""

from collections.abc import Sequence

import pandas as pd

from rulerkit.common.errors import counted
from rulerkit.common.lengths import length_name
from rulerkit.report.tables.notes import names_of
from rulerkit.scoring.summary import tally
from rulerkit.store.cells import Cell
from rulerkit.store.comparable import snapshot_notes

_SMALL_FRAME = 0.02
"""The share of a length that a server may add to a prompt without a word: its chat template."""


def footnotes(cells: Sequence[Cell], scores: pd.DataFrame | None = None) -> list[str]:
    """Lines below a table of cells: services that answered with several versions of a model,
    servers that leave open what they read, models whose requests all failed and, of the rows of
    `score`, what `usage_notes` says."""
    # The names of the table, so that a note can be held against its rows.
    models = [(cell.run, cell.model, cell.about.label or cell.model) for cell in cells]
    names = names_of(pd.DataFrame(models, columns=["run", "model", "label"]))
    by_name: dict[str, list[Cell]] = {}
    for name, cell in zip(names, cells, strict=True):
        by_name.setdefault(name, []).append(cell)

    notes = snapshot_notes(cell for cell in cells if cell.coverage.have)
    for name, of_model in by_name.items():
        notes += _server_notes(name, of_model)
        # A model without any answer has no row: its failures must not go unseen.
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


def usage_notes(scores: pd.DataFrame) -> list[str]:
    """Lines below a table of rows of `score`, or of `tally`: the mean tokens thought at each
    length, and what is wrong with all answers."""
    notes = []
    tallies = tally(scores)
    for name, cells in tallies.groupby(names_of(tallies), sort=False):
        sums = cells.groupby("length")[["thought", "n", "unasked", "empty"]].sum()
        thought = (sums["thought"] / sums["n"].clip(1)).round()
        if thought.any():
            means = [f"{thought[n]:,.0f} at {length_name(n)}" for n in thought.index.tolist()]
            notes.append(f"Tokens thought by {name}, on average: {', '.join(means)}.")

        # A model that was given no room for a thought, and thinks.
        unasked = sums["unasked"].sum()
        if unasked:
            notes.append(
                f"{counted(unasked, 'answer')} of {name} ended in a thought that nobody "
                "asked for, and score 0: give it room with `thinking_tokens: 4096`, or turn it off "
                "with `enable_thinking: false`."
            )

        if 0 < sums["n"].sum() == sums["empty"].sum():
            notes.append(f"Every answer of {name} is empty: check its template and stop tokens.")
    return notes
