"""`rulerkit gate`: is a candidate worse than a baseline? Asks as much as the answer needs."""

import json
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rulerkit as rk
from rulerkit.cli.app import LOOK
from rulerkit.cli.given import EXAMPLES, Given, is_checkpoint, is_folder_of_answers, models_of
from rulerkit.cli.options import (
    ONE_MODEL,
    AsJson,
    Files,
    Lengths,
    NumExamples,
    PairedBy,
    Settings,
    Tasks,
)
from rulerkit.cli.printing import echo
from rulerkit.common.errors import UserError, check_known, shortened
from rulerkit.common.paths import home_text

if TYPE_CHECKING:
    from rulerkit.common.settings import JSON
    from rulerkit.evaluation.study import Study
    from rulerkit_gate.rounds import Gate, GateResult, Limits, Party

app = typer.Typer()
QUICK, RULER = "quick", "ruler"
_QUICK_LENGTHS = [4096, 8192]
_ALL_LENGTHS = [4096 * 2**power for power in range(6)]
_EXAMPLES = 500


Suite = Annotated[
    str,
    typer.Option(
        help="What is asked where --tasks, --lengths and -n do not say: quick (the thirteen at "
        "4K and 8K), ruler (the thirteen from 4K to 128K), or another suite of tasks, such as "
        "frontier. At most 500 examples of each."
    ),
]
Margin = Annotated[float, typer.Option(help="How many points the candidate may be below.")]
Noise = Annotated[
    str | None,
    typer.Option(help="Points, or the JSON of `rulerkit gate A A`: no smaller loss counts as one."),
]
MaxExamples = Annotated[
    int | None, typer.Option(min=1, help="The most examples in all tasks and lengths.")
]
Budget = Annotated[
    str | None, typer.Option(help="Tokens (500K, 20M) or dollars ($5), of both models.")
]
Minutes = Annotated[float | None, typer.Option(min=0, help="The time it may take.")]
Format = Annotated[str, typer.Option(help="text, or github: Markdown for GitHub and GitLab.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with the last gate of these two that was stopped; else all is asked anew.",
    ),
]
PageFile = Annotated[
    Path | None,
    typer.Option(
        help="The HTML page with the answers that changed, side by side; default: in outputs/pages."
    ),
]


_USES = (*EXAMPLES, *["num_examples", "max_examples", "max_failures", "run", "outputs"])
"""The parameters of a study that a gate uses: its verdict is always of 95 %, over one answer to
each example."""


@app.command(rich_help_panel=LOOK)
def gate(
    baseline: Annotated[
        str,
        typer.Argument(
            metavar="BASELINE", help=f"{ONE_MODEL} Or answers: a folder of predictions, RUN/MODEL."
        ),
    ],
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help="The same.")],
    tasks: Tasks = None,
    lengths: Lengths = None,
    num_examples: NumExamples = None,
    files: Files = None,
    settings: Settings = None,
    suite: Suite = QUICK,
    margin: Margin = 1.0,
    noise: Noise = None,
    max_examples: MaxExamples = None,
    budget: Budget = None,
    minutes: Minutes = None,
    by: PairedBy = "digest",
    as_json: AsJson = False,
    format: Format = "text",
    page: PageFile = None,
    resume: Resume = False,
) -> None:
    """Is CANDIDATE worse than BASELINE? Asks both in rounds, from few to many examples, until the
    verdict is certain or a limit is reached.

    Ends with 0: not worse by more than the margin; 1: worse; 3: cannot tell; 2: wrong use. Answers
    of an earlier gate are used only with --resume. docs/gate.md tells more.

    Example: rulerkit gate http://localhost:8000 http://localhost:8001 --minutes 30
    """
    check_known("format", format, ("text", "github"))
    given = Given(None, tasks, lengths, num_examples, files, settings)
    limits = _limits_of(max_examples, budget, minutes)
    planned = _planned((baseline, candidate), given, suite, margin, noise, by, limits, resume)
    result = _run(planned)
    _report(result, as_json, format, page)
    raise typer.Exit(result.verdict.status)


# --- what is asked --------------------------------------------------------------------------------


def _planned(
    names: tuple[str, str],
    given: Given,
    suite: str,
    margin: float,
    noise: str | None,
    by: str,
    limits: "Limits",
    resume: bool,
) -> "Gate":
    """The study, the two parties and the design; checked, and nothing asked but how the two make
    their prompts."""
    from rulerkit.analysis.compare import PAIRINGS, check_margin
    from rulerkit_gate import rounds as parts
    from rulerkit_gate.sequential import Design

    check_margin(margin)
    check_known("way to pair examples", by, PAIRINGS)
    values, changes = given.parameters(_USES)
    is_named = "tasks" in values or "lengths" in values
    study = _study_of(values, suite)
    a, b = _parties(names, study, changes)
    study = _in_its_run(study, a, b, "run" in values, resume)
    parts.decide_runs(study, a, b)

    for party in (a, b):
        if not party.is_asked:
            study = parts.study_of_stored(study, party, is_named)
            is_named = True  # the other side must have what this one has
    named_lengths = "lengths" in values or not (a.is_asked and b.is_asked)
    study = parts.check_lengths(study, (a, b), named_lengths, _say)
    parts.check_pairing(study, a, b, by)
    if limits.dollars is not None and not (a.prices or b.prices):
        raise UserError(
            f"--budget ${limits.dollars:g} needs prices: -y 'prices: {{prompt: 0.5, completion: "
            "1.5}', dollars for a million tokens; or give the budget in tokens, such as 20M"
        )

    cells = tuple((t.name, n) for n in study.lengths for t in study.tasks)
    design = Design(cells, study.num_examples, margin, _noise_of(noise))
    stored = parts.stored_before(study, a, b)
    return parts.Gate(study, a, b, design, by, limits, stored)


def _in_its_run(study: "Study", a: "Party", b: "Party", is_named: bool, resume: bool) -> "Study":
    """The study in a run of its own: the one that was named, the last one of the two with
    `resume`, else a new one."""
    from rulerkit_gate.rounds import new_run, newest_run

    a.resumes = b.resumes = resume
    if is_named:
        return study
    run = newest_run(study, a, b) if resume else None
    if resume and run is None:
        names = " and ".join(p.name for p in (a, b) if p.is_asked)
        _say(f"no earlier gate of {names} is found to resume: begins a new one")
    return replace(study, run=run or new_run())


def _study_of(values: "JSON", suite: str) -> "Study":
    """What is asked: the parameters, and what the suite says where they say nothing."""
    from rulerkit.generation.tasks import suites, without_suites

    for key in ("model", "models"):
        if values.get(key) is not None:
            raise UserError(
                f"`{key}: {shortened(values[key])}` names a model in -y or -f; BASELINE and "
                "CANDIDATE are the two models"
            )
    check_known("suite", suite, [QUICK, *suites()])
    is_quick = suite == QUICK
    defaults: JSON = {
        "tasks": without_suites([RULER if is_quick else suite]),
        "lengths": _QUICK_LENGTHS if is_quick else _ALL_LENGTHS,
        "num_examples": _EXAMPLES,
    }
    if values.get("num_examples") == "adaptive":
        values["num_examples"] = values.pop("max_examples", _EXAMPLES)
    used = {key: values[key] for key in _USES if key in values}
    return rk.study({**defaults, **used, "model": None})


def _parties(names: tuple[str, str], study: "Study", changes: "JSON") -> list["Party"]:
    """The two: each a model that is asked, or answers that are stored."""
    from rulerkit.store.places import find_cells
    from rulerkit_gate.rounds import Party

    asked = [name for name in names if not _is_stored(name, study)]
    described = iter(models_of(asked, changes))
    parties = []
    for name in names:
        if name in asked:
            (model,) = rk.study(model=next(described)).models
            parties.append(Party(model))
        else:
            parties.append(Party(None, find_cells([name], outputs=study.outputs, scan=True), name))
    return parties


def _is_stored(name: str, study: "Study") -> bool:
    """Whether a name means answers that are stored, and not a model."""
    from rulerkit.common.model_files import is_known_model

    return is_folder_of_answers(name, str(study.outputs)) or (
        "/" not in name
        and (study.predictions / name).is_dir()
        and not is_known_model(name)
        and not is_checkpoint(name)
    )


def _limits_of(max_examples: int | None, budget: str | None, minutes: float | None) -> "Limits":
    from rulerkit_gate.rounds import Limits

    if budget is None:
        return Limits(max_examples, None, None, minutes)
    match = re.fullmatch(
        r"(\$?)\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?)\s*(\$|tokens|dollars)?", budget.strip()
    )
    if not match:
        raise UserError(
            f"--budget {budget!r}: give tokens, such as 500K or 20M, or dollars, such as '$5'"
        )
    number = float(match[2]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[match[3].upper()]
    if match[1] or match[4] in ("$", "dollars"):
        return Limits(max_examples, None, number, minutes)
    return Limits(max_examples, int(number), None, minutes)


def _noise_of(text: str | None) -> dict[str, float]:
    """The noise of serving by level, in points: a number, or what `gate A A` has measured."""
    if text is None:
        return {}
    levels = ("cell", "task", "length", "all")
    with suppress(ValueError):
        points = float(text)
        if not 0 <= points <= 100:
            raise UserError(f"--noise {text}: points are between 0 and 100")
        return dict.fromkeys(levels, points)
    try:
        noise = json.loads(Path(text).read_text(encoding="utf-8"))["noise"]
        return {level: float(noise[level]) for level in levels if level in noise}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"--noise {text}: give points, such as 0.5, or the file that `rulerkit gate A A --json`"
            " has written"
        ) from None


# --- running and telling --------------------------------------------------------------------------


def _say(text: str) -> None:
    """Progress goes to stderr: stdout is the result."""
    echo(text, err=True)


def _run(planned: "Gate") -> "GateResult":
    from rulerkit_gate.rounds import run_gate

    design = planned.design
    least, most = (
        planned.cost(dict.fromkeys(design.cells, size)).text()
        for size in (design.sizes[0], design.most)
    )
    _say(
        f"{planned.b.name} against {planned.a.name}, run {planned.study.run}: at least {least}, at "
        f"most {most}. {planned.stored_text}"
    )
    if text := home_text():
        _say(text)
    return run_gate(planned, _say)


def _report(result: "GateResult", as_json: bool, format: str, page: Path | None) -> None:
    """Print the result, and write its page."""
    from rulerkit.report.comparison import difference_table, flips_text
    from rulerkit_gate.report import Facts, markdown, write_page

    found, verdict = result.comparison, result.verdict
    command = shlex.join(["rulerkit", *sys.argv[1:]])
    asked = f"Asked {result.cost.text()}. {result.gate.stored_text}"
    facts = Facts(command, asked, _notes(result))
    if found is not None:
        place = page or _page_of(result)
        facts = facts._replace(page=str(write_page(place, found, verdict, facts)))

    if as_json:
        echo(_json(result, facts.page), nl=False)
    elif format == "github":
        echo(markdown(found, verdict, facts), nl=False)
    else:
        if found is not None:
            table = difference_table(found, verdict=verdict)
            echo(f"{table}\nexamples that flipped:\n{flips_text(found)}")
            echo(f"{facts.asked}. Page: {facts.page}")
        echo(f"\n{verdict.text}")


def _notes(result: "GateResult") -> tuple[str, ...]:
    """What a reader must know: differing settings, and the noise that was allowed for."""
    notes = list(result.comparison.notes) if result.comparison else []
    noise = {level: points for level, points in result.gate.design.noise.items() if points}
    if noise:
        levels = ", ".join(f"{level} {points:g}" for level, points in noise.items())
        notes.append(f"noise of serving that counts as no loss, in points: {levels}")
    if result.noise:
        levels = ", ".join(f"{k} {v:g}" for k, v in result.noise.items())
        notes.append(f"one model, asked twice: the largest losses by level, in points: {levels}")
    return tuple(notes)


def _page_of(result: "GateResult") -> Path:
    study = result.gate.study
    names = f"{result.gate.a.name}-{result.gate.b.name}"
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", names).strip("-.")[:120]
    run = study.run if study.run.startswith("gate-") else f"gate-{study.run}"
    return study.outputs / "pages" / f"{run}-{slug}.html"


def _json(result: "GateResult", page: str) -> str:
    """All of the result; docs/commands.md lists the keys."""
    from rulerkit.report.comparison import json_content

    content: JSON = {}
    if result.comparison is not None:
        content = json_content(result.comparison, result.verdict)
    verdict = result.verdict
    content |= {
        "verdict": {**verdict._asdict(), "status": int(verdict.status)},
        "stopped_by": result.stopped,
        "asked": {
            "examples": result.cost.examples,
            "tokens": result.cost.tokens,
            "dollars": result.cost.dollars or 0.0,
        },
        "stored_before": dict(result.gate.stored),
        "examples": [
            {"task": task, "length": length, "examples": size}
            for (task, length), size in result.reached.items()
        ],
        "noise": result.noise,
        "page": page,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"
