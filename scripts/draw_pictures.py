"""Draws the pictures of README.md and docs/ that need no language model again; docs/browser.png is
a photograph of a page.

    python scripts/draw_pictures.py
    python scripts/draw_pictures.py figure_2 figure_4 frontier
    RULERKIT_DATA=FOLDER python scripts/draw_pictures.py scorers
    python scripts/draw_pictures.py the_paper

The first draws docs/effective_length.png, in seconds; the second three pictures of reference
readers, in minutes; the third docs/scorers.png, from the references of SQuAD's questions; the last
photographs notebooks/00_the_paper.ipynb with chromium.
"""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

import rulerkit as rk
from rulerkit.report.plots.canvas import add_legend, color_of, draw_in, properties_of
from rulerkit_harnesses.judged import scorers_text
from rulerkit_harnesses.rules import NAMES, PLACE, score_as

DOCS = Path(__file__).resolve().parent.parent / "docs"
PART_OF_THE_PAPER = (90, 2711, 970, 3605)  # left, upper, right and lower border in pixels


def effective_length() -> None:
    """Claimed and effective length of the models with published scores."""
    panels = rk.plots.claimed_and_effective()
    panels[0].figure.savefig(DOCS / "effective_length.png")


def figure_2() -> None:
    """Figure 2 by its notebook, with a reference reader that finds less the further it looks."""
    import papermill

    with TemporaryDirectory() as folder:
        parameters = {
            "model": "reader-fading",
            "plugins": ["tests.planted_readers"],
            "lengths": [4096, 8192, 16384, 32768, 65536, 131072],
            "num_examples": 10,
            "outputs": folder,
        }
        notebook = DOCS.parent / "notebooks/19_paper_figures.ipynb"
        papermill.execute_notebook(notebook, None, parameters, progress_bar=False)
        (picture,) = Path(folder).rglob("*figure_2.png")
        shutil.copy(picture, DOCS / "figure_2.png")


def figure_4() -> None:
    """The left half of Figure 4: a reference reader over two models of the paper."""
    study = rk.study(
        model="reader-32768",
        lengths=["4K", "8K", "16K", "32K", "64K", "128K"],
        num_examples=10,
        run="pictures",
    )
    summary = rk.summarize(rk.score(rk.evaluate(study)))
    rows = summary.lengths.query("category == 'all'")
    axes = rk.plots.series_by_length(
        rows,
        "label",
        dashed_beyond=rk.plots.training_lengths(rows),
        note=rk.plots.remarks(summary.cells),
        published={"": rk.paper.published_scores(["lwm-7b-chat-1m", "lwm-7b-base-1m"])},
    )
    axes[0].figure.savefig(DOCS / "figure_4.png")
    axes[0].figure.savefig(DOCS / "figure_4.pdf", metadata={"CreationDate": None})


def scorers() -> None:
    """500 questions of qa_1, answered in three ways with their first reference, by all scorers."""
    task = rk.task("qa_1").with_corpora("original")
    examples = rk.generate(task, 4096, 500, 42, rk.PromptFormat("builtin"))
    first = [example.references[0] for example in examples]
    answers = {
        "answers the first reference": first,
        "names it in a thought, answers otherwise": [
            f"<think>Maybe {text}.</think>I do not know." for text in first
        ],
        "names it in a thought that never ends": [f"<think>Maybe {text}. But" for text in first],
    }

    with TemporaryDirectory() as folder:
        for name, texts in answers.items():
            file = Path(folder, name, "synthetic", "4096", "pred", "qa_1.jsonl")
            file.parent.mkdir(parents=True)
            rows = [
                {"pred": text, "outputs": list(example.references)}
                for text, example in zip(texts, examples, strict=True)
            ]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            file.write_text(text, encoding="utf-8")
        judged = score_as(folder, NAMES)

    print(scorers_text(judged))
    judged = judged.drop(columns="score").rename(columns={"rulerkit": "score"})
    axes = scores_by_scorer(judged, "500 questions of qa_1 (SQuAD), references of its authors")
    axes.figure.savefig(DOCS / "scorers.png")


def scores_by_scorer(judged: pd.DataFrame, note: str) -> Axes:
    """A row per scorer, a mark per model; the thin lines are the scores of this kit."""
    names = [name for name in judged.columns if name not in PLACE]
    scores = judged.groupby(["model", "task", "length"], sort=False)[names]
    means = 100 * scores.mean().groupby("model", sort=False).mean()
    labels = {"score": "this kit"}
    with draw_in(1, 1, 0.17 * len(names), note) as (axes,):
        for i, (model, row) in enumerate(means.iterrows()):
            # Marks of equal scores stand side by side, not one on the other.
            y = np.arange(len(names)) + 0.22 * (i - (len(means) - 1) / 2)
            properties = properties_of(i) | {"linestyle": "", "markersize": 3.6}
            axes.plot(row.to_numpy(), y, label=str(model), clip_on=False, **properties)
            axes.axvline(row["score"], color=color_of(i), linewidth=0.5, zorder=0)
        axes.set_yticks(range(len(names)), [labels.get(name, name) for name in names])
        axes.set(xlim=(0, 100), xlabel="Score (%)", ylim=(len(names) - 0.4, -0.6))
        axes.grid(axis="y", visible=False)
        add_legend(axes)
    return axes


def frontier() -> None:
    """Both suites on two reference readers: one with a window of 16K, one that fades."""
    readers = {
        "plugins": ["tests.planted_readers"],
        "models": ["reader-16384", "reader-fading"],
        "lengths": ["4K", "8K", "16K", "32K"],
        "num_examples": 20,
        "run": "pictures",
    }
    studies = [rk.study(tasks=tasks, **readers) for tasks in ("frontier", "ruler")]
    scores = rk.score([cell for study in studies for cell in rk.evaluate(study)])
    panels = rk.plots.of_suite(scores, "frontier")
    panels[0].figure.savefig(DOCS / "frontier.png")


def the_paper() -> None:
    """The figure of Section 4 and the first claims below it, as a browser shows the notebook."""
    import subprocess

    from PIL import Image

    notebook = DOCS.parent / "notebooks" / "00_the_paper.ipynb"
    with TemporaryDirectory() as folder:
        page, shot = Path(folder, "00_the_paper.html"), Path(folder, "shot.png")
        convert = ["jupyter", "nbconvert", "--to", "html", "--output-dir", folder, str(notebook)]
        subprocess.run(convert, check=True)
        subprocess.run(
            [
                *("chromium", "--headless", "--no-sandbox", "--hide-scrollbars"),
                *("--window-size=1000,4200", "--virtual-time-budget=20000"),
                *(f"--screenshot={shot}", page.as_uri()),
            ],
            check=True,
        )
        Image.open(shot).crop(PART_OF_THE_PAPER).save(DOCS / "the_paper.png", optimize=True)


PICTURES = {
    "effective_length": effective_length,
    "figure_2": figure_2,
    "figure_4": figure_4,
    "scorers": scorers,
    "frontier": frontier,
    "the_paper": the_paper,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or ["effective_length"]:
        PICTURES[name]()
