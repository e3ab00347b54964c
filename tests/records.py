"""`predict` asks one cell; records and rows as it writes them, for tests that write predictions
themselves."""

import json
from types import SimpleNamespace

from rulerkit.common.progress import progress_bar
from rulerkit.evaluation.writer import ask_length
from rulerkit.store.cells import cell_files
from rulerkit.store.records import FORMAT, result_digest, row_line


def predict(model, examples, folder, fresh=False, progress=True):
    """Let a model answer the examples of one cell that have no answer yet."""
    tokens = len(examples) * examples.length
    with progress_bar(total=tokens, unit_scale=True, disable=not progress) as bar:
        about = {"predictions": folder, "run": folder.name, "max_failures": 0, "adaptive": None}
        study = SimpleNamespace(**about)
        return ask_length(model, [examples], study, fresh, bar)[0]


def record_of(name="m", **fields):
    """The record of a cell of the model `name`; a field given replaces that of the record or of its `result`."""
    result = {
        "task": {"name": "vt", "family": "variable_tracking", "category": "vt", "match": "all"}
        | {"num_hops": 4},
        "length": 1024,
        "seed": 42,
        "protocol": "clean",
        "prompt_version": 1,
        "sources": {
            "essays": {"name": "prose", "fingerprint": "f", "stand_in": True, "note": "built-in"}
        },
        "prompt_format": {"template": "base", "thinking_tokens": 0, "before": "", "after": ""},
        "tokenizer": {"name": "builtin", "fingerprint": "f00"},
        "model": {"name": name, "engine": "reader"},
    }
    record = {
        "format": FORMAT,
        "result": {key: fields.pop(key, value) for key, value in result.items()},
        "run": "main",
        "label": name,
        "claimed_length": 4096,
        "aligned": "chat",
        "suite": "ruler",
        "threshold": None,
        "max_failures": 0,
        "adaptive": None,
        "num_examples": 4,
        "environment": {"python": "3.11", "packages": {"numpy": "2"}},
    }
    assert fields.keys() <= record.keys() | {"environments"}
    return record | fields


def record_text(record):
    """A record as it stands on disk."""
    return json.dumps(record, indent=2) + "\n"


def lines_of(record, rows):
    """The lines of rows that were made under a record."""
    result = result_digest(record["result"])
    bare = [{key: row[key] for key in row if key != "check"} for row in rows]
    return b"".join(row_line(row, result) for row in bare)


def write_record(path, record):
    """Write the record beside a prediction file."""
    path.with_suffix(".json").write_text(record_text(record))


def change_record(path, how):
    """Write other things into the record beside a prediction file, and into the lines that name it,
    as another job would have."""
    rows_file, record_file, *side_files = cell_files(path)
    record = json.loads(record_file.read_text())
    how(record)
    record_file.write_text(record_text(record))
    for file in (rows_file, *side_files):
        if file.exists():
            file.write_bytes(lines_of(record, map(json.loads, file.open("rb"))))


def change_rows(path, **entries):
    """Write other things into every row of a prediction file, as its writer would have."""
    record = json.loads(path.with_suffix(".json").read_text())
    rows = [json.loads(line) | entries for line in path.open("rb")]
    path.write_bytes(lines_of(record, rows))
