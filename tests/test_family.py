"""A new family of tasks is one file, an entry of FAMILIES and a line for each task: everything else
works for it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "rulerkit"
FAMILY = '''
import re
from pydantic.dataclasses import dataclass
from functools import partial

from rulerkit.generation.example import Draft, Piece
from rulerkit.generation.tasks.base import Reading, Rule, Task
from rulerkit.generation.tasks.haystacks import fill_with_sentences

NAMES, COLOURS = ("Ada", "Bo", "Cy", "Di"), ("ochre", "teal", "puce", "mauve", "azure", "coral")
OPENING = "Remember the colours of all names.\\n"


def colour_of_another_name(answer):
    others = [str(piece.value) for piece, _ in answer.needles if piece.role == "distractor"]
    return next((colour for colour in others if colour in answer.words), None)


@dataclass(frozen=True, kw_only=True)
class Colours(Task):
    """Say which two colours one of four names has."""

    family = "colours"
    category = "memory"
    short_name = "colours"
    match = "part"
    separator = " "
    new_tokens = (16, 1)
    question_form = r"What about (\\w+)\\?"
    failure_rules = (Rule("other name", "A colour of another name.", colour_of_another_name),)

    demonstration: bool = True

    def make(self, stream, length):
        lines, pairs = [], {}
        for name in NAMES:
            pairs[name] = stream.random.sample(COLOURS, 2) if name == "Ada" else ["grey", "white"]
            lines += [
                Piece(
                    f"{name} has the colour {colour}.\\n",
                    "needle" if name == "Ada" else "distractor",
                    key=name,
                    value=colour,
                    depth=stream.random.random(),
                )
                for colour in pairs[name]
            ]
        example = f"{OPENING}Eve has the colour red.\\nWhat about Eve? Eve has the colours: red tan\\n\\n"
        return Draft(
            OPENING,
            "What about Ada?",
            " Ada has the colours:",
            tuple(pairs["Ada"]),
            demonstration=example if self.demonstration else "",
            hidden=lines,
        )

    def fill(self, draft, budget):
        return fill_with_sentences(draft.hidden, budget)

    @staticmethod
    def read_context(text, question):
        line = re.compile(r"(?P<name>\\w+) has the colour (?P<item>\\w+)\\.")
        colours = [(match["name"], match["item"]) for match in line.finditer(text)]
        return Reading(
            "colours",
            items=[colour for name, colour in colours if name == question[1]],
            others=[colour for name, colour in colours if name != question[1]],
            occurrences=partial(line.finditer, text),
            demonstration="".join(re.findall(r"has the colours: (.*)", text)[-1:]),
        )
'''
SCRIPT = """
import json
from pathlib import Path
import rulerkit as rk
from rulerkit.analysis import failures
from rulerkit.cli import app

effects = {"reader": {}, "confused": {"confuse": 1.0}, "copying": {"copy": 1.0}}
effects |= {"window": {"window": 200}}
models = [{"engine": "planted", "name": name} | effect for name, effect in effects.items()]
plugins = ["tests.planted_readers"]
study = rk.study(plugins=plugins, models=models, tasks=["colours"], lengths=["1K"], num_examples=12)
cells = rk.evaluate(study, progress=False)
scores = rk.score(cells)
means = scores.groupby("model")["score"].mean()
assert rk.paper.against_paper(rk.summarize(scores)).empty
labels = failures.label(cells).groupby("model")["label"].unique().map(list).to_dict()
print(json.dumps([means.to_dict(), labels]))


def command(line):
    try:
        app(line.split(), standalone_mode=False)
    except SystemExit:
        pass


more = rk.study(models=models[:1], tasks=["vt"], lengths=["1K"], num_examples=1)
rk.evaluate(more, progress=False)
command("report outputs/predictions/main --category memory")
command("generate --tasks colours --lengths 4K -o colours.jsonl -n 9")
rows = [json.loads(line) for line in Path("colours.jsonl").read_text().splitlines()]
for row in rows:
    row["pred"] = row["outputs"][0]
Path("colours.jsonl").write_text("".join(json.dumps(row) + chr(10) for row in rows))
command("report colours.jsonl --length 4K")
"""


def test_everything_works_for_a_new_family(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "rulerkit", ignore=shutil.ignore_patterns("__pycache__"))
    tasks = tmp_path / "rulerkit/generation/tasks"
    (tasks / "colours.py").write_text(FAMILY)
    text = (tasks / "__init__.py").read_text()
    for line, new in (
        (
            "from rulerkit.generation.tasks.common_words",
            "from rulerkit.generation.tasks.colours import Colours\n",
        ),
        ("    QuestionAnswering,\n", "    Colours,\n"),
        ('    Needles(name="niah_single_words"', '    Colours(name="colours"),\n'),
    ):
        text = text.replace(line, new + line)
    (tasks / "__init__.py").write_text(text)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{PACKAGE.parent}",
        "RULERKIT_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    first, _, text = done.stdout.partition("\n")
    means, labels = json.loads(first)
    assert (means["reader"], means["confused"], means["copying"]) == (1, 0, 0)
    assert 0 < means["window"] < 1
    assert labels["confused"] == ["other name"]
    assert labels["copying"] == ["copied demonstration"]

    report, _, text = text.partition("1 x 9 examples")
    assert "mean of 1 task (" in report
    assert report.count("No effective length") == 1
    assert "reader (copies 100%): neither the paper nor the family has" in report
    assert "100.0 [" in text, "one of two references"
