"""RULER as a research kit: how much of its context a language model really uses, with error bars.

The program in five lines::

    study   = rk.study(model="llama-3.1-8b", lengths=["4K", "128K"], num_examples=100)
    cells   = rk.evaluate(study)          # generates, asks the model, appends to disk, resumes
    scores  = rk.score(cells)             # DataFrame, one row per example
    summary = rk.summarize(scores)        # task x length, averages, effective length, intervals
    axes    = rk.plots.score_by_length(summary.lengths)

The same functions take what is at hand: `rk.evaluate("reader-4096", tasks=["vt"], lengths=["4K"])`,
`rk.score("outputs")`, `rk.summarize(rk.load("outputs"))`. `rk.load` reads all results that are
there, `rk.browse` opens the answers behind them, and `rk.example_of(row)` is the prompt of one.

The public names stand in `__init__.pyi`, with their types. Each is imported when it is first used,
so that `import rulerkit` is light.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
