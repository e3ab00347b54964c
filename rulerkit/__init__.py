"""RULER as a research kit: how much of its context a language model really uses, with error bars.

The program in five lines::

    study   = rk.study({"model": "llama-3.1-8b", "lengths": ["4K", "128K"], "num_examples": 100})
    cells   = rk.evaluate(study)                     # generates, asks the model, appends to disk, resumes
    scores  = rk.score(cells)                        # DataFrame, one row per example
    summary = rk.summarize(scores)                   # task x length, averages, effective length, intervals
    axes    = rk.plots.score_by_length(summary.lengths)

`rk.load("outputs")` reads all results that are there, and `rk.browse` opens the answers behind them.

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
    "load": "results",
    "answers_of": "results",
    "browse": "browser",
}
_MODULES = {
    "claims": "claims",
    "depth": "depth",
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
