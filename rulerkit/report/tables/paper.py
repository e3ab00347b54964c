"""Tables 2, 4 and 5 of the paper, which hold no scores: an example of each task, the models, and
the settings of the thirteen tasks."""

import textwrap
from typing import Any

import pandas as pd

from rulerkit.common.errors import check_known
from rulerkit.common.render import render
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import task as make_task
from rulerkit.report.paper import printed_table, printed_tasks

_EXAMPLES: dict[str, Any] = {
    "S-NIAH": "niah_single_2",
    "MK-NIAH": {"base": "niah_multikey_1", "num_keys": 2},
    "MV-NIAH": {"base": "niah_multivalue", "num_values": 2},
    "MQ-NIAH": {"base": "niah_multiquery", "num_keys": 2, "num_queries": 2},
    "VT": {"base": "vt_2_chains", "num_hops": 2},
    "CWE": "cwe",
    "FWE": "fwe",
    "QA": "qa_1",
}
"""The tasks of Table 2, with two of a thing where one can have several."""
_LENGTH = 1024  # tokens; the shortest with room for every task
_WIDTH = 80  # letters of a needle, a list or a document


def paper_table(number: int, format: str = "latex") -> str:
    """Table 2, 4 or 5 of the paper: an example of each task, made anew by this kit; the models; the
    settings of the thirteen tasks. The last two are as version 3 prints them.

    `format` is latex, markdown, html or text, or csv or json.
    """
    makers = {2: _examples, 4: _models, 5: _settings}
    check_known("table of the paper without scores", number, makers)
    frame, note = makers[number]()
    return render(frame, format, [note])


def _examples() -> tuple[pd.DataFrame, str]:
    rows = []
    for name, named in _EXAMPLES.items():
        task = make_task(named)
        example = generate(task, _LENGTH, 1, 42, corpora="builtin")[0]

        # What is hidden stands in its order; of a list of words, its beginning.
        blocks = example.context_blocks
        shown = [block.text for block in blocks if block.role in ("needle", "distractor")]
        shown = shown or [example.context_text]
        texts = [textwrap.shorten(text, _WIDTH, placeholder="") for text in shown]
        question = example.text_of("question").strip().rpartition("\n")[2]
        rows.append(
            {
                "task": name,
                "example": f"… {' … '.join(texts)} … {question}",
                "answer": textwrap.shorten(", ".join(example.references), _WIDTH, placeholder=" …"),
            }
        )
    return pd.DataFrame(rows), (
        f"Examples of {_LENGTH} tokens over synthetic texts, made by this kit, not those that the "
        "paper prints; of each what is hidden, or the beginning of its list, and the question."
    )


def _models() -> tuple[pd.DataFrame, str]:
    rows = printed_table("models")
    rows = rows[rows["paper_versions"].str.contains("v3")]
    rows = rows.assign(aligned=rows["aligned"].map({True: "✓", False: "✗"}))
    rows = rows[["model", "aligned", "parameters", "context_length", "checkpoint"]]
    titles = {"parameters": "size", "context_length": "context length"}
    return rows.rename(columns=titles), (
        "As printed in version 3 of the paper, but for a row per checkpoint of a series. Its "
        "tables of scores claim other lengths of Mixtral-8x22B, 64K, and DBRX, 32K."
    )


def _settings() -> tuple[pd.DataFrame, str]:
    rows = printed_tasks()
    settings = rows.loc[:, "type_haystack":"dataset"]
    texts = []
    for _, row in settings.iterrows():
        texts.append(", ".join(f"{name}={value}" for name, value in row.items() if value))
    columns = {
        "task": (rows["task"] + " " + rows["subtask"]).str.strip(),
        "known as": rows["known_as"],
        "settings": texts,
        "name here": rows["slug"].replace({"qa_squad": "qa_1", "qa_hotpotqa": "qa_2"}),
    }
    note = "As printed in version 3 of the paper; of a full haystack all lines are needles."
    return pd.DataFrame(columns), note
