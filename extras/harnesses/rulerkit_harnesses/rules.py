"""Other harnesses' scorers: what the same stored answers score by their rules.

Every harness that has RULER carries a scorer of its own, and they differ in what of the answer they
judge, whether they take a thought out, and what of several references is enough. So two published
numbers may differ by points although the models wrote the same. `score_as` says how many points.

Each rule was written from the harness' source; `docs/scorers.md` names files and commits.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rulerkit.common.errors import UserError, check_known, listed, shorten
from rulerkit.generation.prompt_format import without_thought
from rulerkit.generation.tasks.base import string_match_all, string_match_part
from rulerkit.scoring.scores import clean, score
from rulerkit.scoring.summary import texts_words
from rulerkit.store.places import as_cells

if TYPE_CHECKING:
    import pandas as pd

PLACE = ["run", "model", "task", "length", "index"]
"""The columns that say which answer was judged."""
LM_EVAL = "lm-eval"

_END = "</think>"


# --- what is judged -------------------------------------------------------------------------------


def _our_answer(answer: str) -> str:
    return clean(without_thought(answer) or "")


def _behind_last_end(answer: str) -> str:
    """What follows the last end of a thought; everything where there is none."""
    return answer.rpartition(_END)[2]


def _nemo_skills_answer(answer: str) -> str:
    # A text without a mark counts as a thought that never ended, whatever it says.
    return _behind_last_end(answer).strip() if _END in answer else ""


def _without_pairs(answer: str) -> str:
    """Every closed thought is cut out; one that is only opened stays, and so does what is only
    ended."""
    return re.sub(r"<think>.*?</think>", "", answer, flags=re.DOTALL).strip()


def _opencompass_answer(answer: str) -> str:
    if "<think>" not in answer:
        return _behind_last_end(answer).strip()
    return _without_pairs(answer)


SCORERS: dict[str, Callable[[str], str]] = {
    "rulerkit": clean,
    "upstream": clean,
    "lm-eval": clean,
    "nemo-skills": str,
    "nemo-gym": str.strip,
    "opencompass": str,
    "sieval": lambda answer: answer if answer.strip() else "",
    "rulerkit:think": _our_answer,
    "lm-eval:think": lambda answer: clean(_behind_last_end(answer)),
    "nemo-skills:think": _nemo_skills_answer,
    "nemo-gym:think": _without_pairs,
    "opencompass:think": _opencompass_answer,
}
"""What `--as` takes, and the text that each scorer judges; `NAME:think` is the same harness told to
take thoughts out."""
NAMES = tuple(SCORERS)


def score_answer(name: str, match: str, answer: str, references: Sequence[str]) -> float:
    """0..1: what one answer scores by a scorer of NAMES; `match` is the task's rule, `all` or
    `part`."""
    check_known("scorer", name, NAMES)
    text = SCORERS[name](answer)
    # In lm-eval a question of qa scores the share of its alternative references, not whether any is
    # found: its maximum is taken over a list that holds one document.
    if match == "part" and not name.startswith(LM_EVAL):
        return string_match_part(text, references)
    return string_match_all(text, references)


def score_as(cells: Any, names: str | Sequence[str] = "all") -> "pd.DataFrame":
    """The same stored answers by several scorers: one row per example with run, model, task,
    length, index, `score` (ours, 0..1) and a column for each of `names` (NAMES), one name or
    `all`. `cells` are cells, places or rows, as `score` takes them.

    Cells of tasks that other harnesses do not have are refused, as is a file of lm-eval whose own
    scores are not those of our copy of its rule.
    """
    import pandas as pd

    if isinstance(names, str):
        names = NAMES if names == "all" else [names]
    for name in names:
        check_known("scorer", name, NAMES)
    cells = as_cells(cells, "score_as")
    matches = [str(cell.record["result"]["task"]["match"]) for cell in cells]
    strange = set()
    for cell, match in zip(cells, matches, strict=True):
        if match not in ("all", "part"):
            strange.add(cell.task)
    if strange:
        raise UserError(
            f"--as: the other harnesses have no rule for {listed(sorted(strange), 5)}; name "
            "files or folders of RULER's own tasks"
        )

    ours = score(cells)
    rows = []
    for cell, match in zip(cells, matches, strict=True):
        for row in sorted(cell.stream(), key=lambda row: row["index"]):
            answer, references = row["pred"], row["outputs"]
            place = (cell.run, cell.model, cell.task, cell.length, row["index"])
            scored = [score_answer(name, match, answer, references) for name in names]
            rows.append((*place, *scored))

            # Files of lm-eval hold the scores that it gave: our copy of its rule must give the same
            own = score_answer(LM_EVAL, match, answer, references)
            said = row.get("harness_score")
            if said is not None and abs(said - own) > 1e-6:
                raise UserError(
                    f"{cell.path}: example {row['index']} ({shorten(answer)}) has the score "
                    f"{said:g} in the file, and lm-eval's rule gives {own:g}: the file was made by "
                    "another version of lm-eval, whose rule is not known here"
                )

    judged = ours[[*PLACE, "score"]]
    if rows:
        others = pd.DataFrame(rows, columns=[*PLACE, *names])
        judged = judged.merge(others, on=PLACE)
    judged.attrs["texts"] = texts_words(ours)
    return judged
