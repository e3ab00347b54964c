"""RULER as a research kit: how much of its context a language model really uses, with error bars.

The program in five lines::

    examples = generate(task, length, num_examples, seed, prompt_format)  # lazily, any index on its own
    predictions = predict(model, examples, folder)                        # streams, resumes
    scores = score([predictions])                                         # DataFrame, one row per example
    table = summarize(scores)                                             # task x length, averages, effective length
    axes = plots.score_by_length(table.lengths)                           # matplotlib

Names are imported when they are first used, so that `import rulerkit` is light.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "UserError": "errors",
    "load_tokenizer": "tokenizers",
    "PromptFormat": "prompt_format",
    "TASKS": "tasks",
    "THIRTEEN": "tasks",
    "task": "tasks",
    "generate": "generation",
    "load_model": "models",
    "model": "models",
    "study": "studies",
    "predict": "evaluation",
    "evaluate": "evaluation",
    "close": "evaluation",
    "read_cells": "store",
    "score": "scoring",
    "summarize": "summary",
    "assert_not_worse": "compare",
    "by_label": "claims",
    "show": "view",
}
_MODULES = {
    "claims": "claims",
    "paper": "paper",
    "plots": "plots",
    "published": "paper",
    "tables": "tables",
    "view": "view",
}

__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"rulerkit.{_MODULES[name]}")
    if name in _HOME:
        return getattr(import_module(f"rulerkit.{_HOME[name]}"), name)
    raise AttributeError(f"module 'rulerkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
