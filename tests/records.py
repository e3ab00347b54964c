"""Records as `predict` writes them, for tests that write predictions themselves."""


def record_of(name="m", **fields):
    """The record of a cell of the model `name`; a field given replaces that of the record or of its `result`."""
    result = {
        "task": {
            "name": "vt",
            "family": "variable_tracking",
            "category": "vt",
            "match": "all",
        }
        | {"edition": "2025", "num_hops": 4},
        "length": 1024,
        "seed": 42,
        "protocol": "clean",
        "prompt_version": 1,
        "sources": {
            "essays": {
                "name": "prose",
                "fingerprint": "f",
                "stand_in": True,
                "note": "built-in",
            }
        },
        "prompt_format": {
            "template": "base",
            "thinking_tokens": 0,
            "before": "",
            "after": "",
        },
        "tokenizer": {"name": "builtin", "fingerprint": "f00"},
        "model": {"name": name, "engine": "reader"},
    }
    record = {
        "format": 2,
        "result": {key: fields.pop(key, value) for key, value in result.items()},
        "run": "main",
        "label": name,
        "claimed_length": 4096,
        "aligned": "chat",
        "max_failures": 0,
        "adaptive": None,
        "num_examples": 4,
        "environment": {"python": "3.11", "packages": {"numpy": "2"}},
        "floors": {},
    }
    assert fields.keys() <= record.keys() | {"environments"}
    return record | fields
