"""`rulerkit gate`: is a candidate worse than a baseline, or a server worse from its cache than
cold? Asks as much as the answer needs."""

import json
import re
import shlex
import sys
from contextlib import suppress
from datetime import datetime
from functools import partial
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
from rulerkit.cli.printing import echo, end_in_order
from rulerkit.common.errors import UserError, check_known, shortened
from rulerkit.common.paths import home_text

if TYPE_CHECKING:
    from rulerkit.analysis.compare import Comparison
    from rulerkit.common.settings import JSON
    from rulerkit.evaluation.study import Study
    from rulerkit_gate.rounds import Gate, GateResult, Party
    from rulerkit_gate.serving import Result

app = typer.Typer()
_say = partial(echo, err=True)  # progress: stdout is the result
QUICK, RULER = "quick", "ruler"
_LENGTHS = [4096 * 2**power for power in range(6)]
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
        help="The HTML page with the answers that changed, to browse; default: in outputs/pages."
    ),
]

Serving = Annotated[
    bool,
    typer.Option(
        "--serving",
        help="Check one server against itself: cold, from its cache, after eviction, in a crowd.",
    ),
]
Requests = Annotated[
    int, typer.Option(min=20, help="With --serving: how many requests are asked at most.")
]
Pressure = Annotated[
    str, typer.Option(help="With --serving: tokens that may be asked to fill its cache, at most.")
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="With --serving: the same seed asks the same prompts.")
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
    candidate: Annotated[
        str | None, typer.Argument(metavar="[CANDIDATE]", help="The same; none with --serving.")
    ] = None,
    serving: Serving = False,
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
    requests: Requests = 200,
    pressure: Pressure = "200K",
    seed: Seed = None,
) -> None:
    """Is CANDIDATE worse than BASELINE? Asks both in rounds, from few to many examples, until the
    verdict is certain or a limit is reached. With --serving: does one server answer worse from its
    cache than cold?

    Ends with 0: not worse by more than the margin; 1: worse; 3: cannot tell; 2: wrong use. Answers
    of an earlier gate are used only with --resume. docs/gate.md tells more.

    Example: rulerkit gate http://localhost:8000 http://localhost:8001 --minutes 30

    Example: rulerkit gate http://localhost:8000 --serving
    """
    from rulerkit_gate.rounds import run_gate

    check_known("format", format, ("text", "github"))
    end_in_order()
    given = Given(None, tasks, lengths, num_examples, files, settings)
    if serving:
        for name, value in (("CANDIDATE", candidate), ("--tasks", tasks), ("-n", num_examples)):
            if value is not None:
                raise UserError(
                    f"--serving checks one server against itself: leave out {name} {value}"
                )
        limits = _limits_of(None, budget)
        checked = _check_serving(baseline, given, limits, minutes, requests, pressure, seed)
        _report_serving(checked, as_json, format, page)
        raise typer.Exit(checked.status)
    if candidate is None:
        raise UserError(
            "Missing argument 'CANDIDATE': the second model, or --serving to check one server "
            "against itself; `rulerkit gate --help` tells more"
        )
    limits = _limits_of(max_examples, budget)
    names = (baseline, candidate)
    planned = _planned(names, given, suite, margin, noise, by, limits, minutes, resume)
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
    result = run_gate(planned, _say)
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
    limits: dict[str, tuple[str, float]],
    minutes: float | None,
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
    a, b = _parties(names, study, changes, resume)
    has_prices = any(getattr(party.model, "spec", {}).get("prices") for party in (a, b))
    if "dollars" in limits and not has_prices:
        raise UserError(
            f"{limits['dollars'][0]} needs prices: -y 'prices: {{prompt: 0.5, completion: 1.5}}', "
            "dollars for a million tokens; or give the budget in tokens, such as 20M"
        )
    study = parts.in_its_run(study, a, b, "run" in values, _say)

    for party in (a, b):
        if not party.is_asked:
            study = parts.study_of_stored(study, party, is_named)
            is_named = True  # the other side must have what this one has
    named_lengths = "lengths" in values or not (a.is_asked and b.is_asked)
    study = parts.check_lengths(study, (a, b), named_lengths, _say)
    # Two stored sides are checked where they are paired.
    if by == "digest" and (a.is_asked or b.is_asked):
        parts.check_pairing(study, a, b)

    cells = tuple((t.name, n) for n in study.lengths for t in study.tasks)
    design = Design(cells, study.num_examples, margin, _noise_of(noise))
    stored = parts.stored_before(study, a, b)
    return parts.Gate(study, a, b, design, by, limits, minutes, stored)


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
        "lengths": _LENGTHS[:2] if is_quick else _LENGTHS,
        "num_examples": _EXAMPLES,
    }
    if values.get("num_examples") == "adaptive":
        values["num_examples"] = values.pop("max_examples", _EXAMPLES)
    used = {key: values[key] for key in _USES if key in values}
    return rk.study({**defaults, **used, "model": None})


def _parties(
    names: tuple[str, str], study: "Study", changes: "JSON", resume: bool
) -> list["Party"]:
    """The two: each a model that is asked, or answers that are stored."""
    from rulerkit.inference.model import load_model
    from rulerkit.store.places import find_cells
    from rulerkit_gate.rounds import Party

    asked = [name for name in names if not _is_stored(name, study)]
    described = iter(models_of(asked, changes))
    parties = []
    for name in names:
        if name in asked:
            (one,) = rk.study(model=next(described)).models
            model = load_model(one)
            parties.append(Party(model.label, one, model, resumes=resume))
        else:
            parties.append(Party(name, stored=find_cells([name], outputs=study.outputs, scan=True)))
    # Two folders may hold models of one name. Mappings and addresses may hold secrets.
    is_plain = not any("{" in name or "://" in name for name in names)
    if parties[0].name == parties[1].name and names[0] != names[1] and is_plain:
        for party, name in zip(parties, names, strict=True):
            party.name = name
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


def _limits_of(max_examples: int | None, budget: str | None) -> dict[str, tuple[str, float]]:
    """What --max-examples and --budget allow, as `Gate.limits`."""
    limits: dict[str, tuple[str, float]] = {}
    if max_examples is not None:
        limits["examples"] = (f"--max-examples {max_examples}", max_examples)
    if budget is not None:
        pattern = r"(\$?)\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?)\s*(\$|tokens|dollars)?"
        match = re.fullmatch(pattern, budget.strip())
        if not match:
            raise UserError(
                f"--budget {budget!r}: give tokens, such as 500K or 20M, or dollars, such as '$5'"
            )
        number = float(match[2]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[match[3].upper()]
        is_dollars = match[1] or match[4] in ("$", "dollars")
        limits["dollars" if is_dollars else "tokens"] = (f"--budget {budget}", number)
    return limits


def _noise_of(text: str | None) -> dict[str, float]:
    """The noise of serving by level, in points: a number, or what `gate A A` has measured."""
    from rulerkit.analysis.differences import LEVELS

    if text is None:
        return {}
    with suppress(ValueError):
        points = float(text)
        if not 0 <= points <= 100:
            raise UserError(f"--noise {text}: points are between 0 and 100")
        return dict.fromkeys(LEVELS, points)
    try:
        noise = json.loads(Path(text).read_text(encoding="utf-8"))["noise"]
        return {level: float(noise[level]) for level in LEVELS}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"--noise {text}: give points, such as 0.5, or the file that `rulerkit gate A A --json`"
            " has written"
        ) from None


# --- one server against itself --------------------------------------------------------------------

_SERVING_LENGTHS = (1024, 4096, 12288)
_CROWD_SIZE = 16  # requests that are under way at once, at most


def _check_serving(
    server: str,
    given: Given,
    limits: dict[str, tuple[str, float]],
    minutes: float | None,
    requests: int,
    pressure: str,
    seed: int | None,
) -> "Result":
    """The server is found, and asked."""
    from rulerkit.common.lengths import parse_length
    from rulerkit.common.model_files import read_spec
    from rulerkit.inference.model import engine_class, load_model
    from rulerkit.inference.servers import ServerEngine
    from rulerkit_gate.serving import Limits, run_serving

    values, changes = given.parameters(("lengths", "max_failures", "outputs", "plugins", "seed"))
    study = rk.study({**values, "model": None, "tasks": ["vt"]} | {"lengths": [4096]})
    if _is_stored(server, study):
        raise UserError(f"{server} is a folder of stored answers: --serving asks a server")
    (described,) = models_of([server], changes)
    one = read_spec(described)
    if not issubclass(engine_class(one["engine"]), ServerEngine):
        raise UserError(
            f"{server} has the engine {one['engine']}: --serving checks a server, by its address "
            "or by a model of the engines openai and vllm"
        )
    # What is sent twice is in the cache the second time.
    model = load_model({**one, "max_retries": 0, "concurrency": _CROWD_SIZE})

    seed = seed if seed is not None else int(datetime.now().timestamp())
    most = {name: number for name, (_, number) in limits.items()}
    asked = Limits(
        requests=requests,
        pressure=parse_length(pressure, least=0),
        tokens=most.get("tokens"),
        dollars=most.get("dollars"),
        minutes=minutes,
        max_failures=values.get("max_failures", Limits.max_failures),
    )
    lengths = values.get("lengths", _SERVING_LENGTHS)
    journal = study.outputs / "serving" / f"{datetime.now():%Y%m%d-%H%M%S}-{model.name}.jsonl"
    _say(f"asks {model.label}: at most {requests} requests, seed {seed}")
    try:
        return run_serving(model, lengths, asked, seed, journal, _say)
    finally:
        model.close()


def _report_serving(result: "Result", as_json: bool, format: str, page: Path | None) -> None:
    """Print what was found, and write the page where there is something to see."""
    from rulerkit_gate import serving_report as report

    place = ""
    run = result.run
    if page or run.losses or run.leaks:
        path = page or run.journal.with_suffix(".html")
        report.write_page(result, path)
        place = str(path)
    if as_json:
        echo(json.dumps(report.json_of(result, place), indent=2, allow_nan=False))
    elif format == "github":
        echo(report.markdown_of(result, place), nl=False)
    else:
        echo(report.text_of(result, place))


# --- running and telling --------------------------------------------------------------------------


def _report(result: "GateResult", as_json: bool, format: str, page: Path | None) -> None:
    """Print the result, and write the page of the answers that changed."""
    from rulerkit.report.comparison import difference_table, flips_text

    found, verdict = result.comparison, result.verdict
    notes = _noise_notes(result)
    asked = f"Asked {result.cost.text()}. {result.gate.stored_text}."
    if found is not None and len(found.flips):
        study = result.gate.study
        place = _write_page(found, page or study.outputs / "pages" / f"{study.run}.html")
        asked += f" Page: {place}"
    if as_json:
        echo(_json(result), nl=False)
    elif format == "github":
        echo(_markdown(result, [asked, *notes]), nl=False)
    elif found is None:
        echo(f"\n{verdict.text}")
    else:
        table = difference_table(found, verdict=verdict)
        echo(f"{table}\nexamples that flipped:\n{flips_text(found)}")
        echo("\n".join([asked, *notes]))


def _noise_notes(result: "GateResult") -> list[str]:
    """The noise that was allowed for, and that was measured."""
    kinds = {
        "noise of serving that counts as no loss": result.gate.design.noise,
        "one model, asked twice: the largest losses by level": result.noise or {},
    }
    notes = []
    for what, noise in kinds.items():
        if noise:
            levels = ", ".join(f"{level} {points:g}" for level, points in noise.items())
            notes.append(f"{what}, in points: {levels}")
    return notes


def _write_page(found: "Comparison", path: Path) -> Path:
    """The answers that changed, to browse, one side beside the other."""
    import pandas as pd

    example = ["task", "length", "index"]
    both = pd.concat([found.a.scores, found.b.scores], ignore_index=True)
    return rk.browse(both.merge(found.flips[example], on=example)).save(path)


def _markdown(result: "GateResult", notes: list[str]) -> str:
    """The result as GitHub and GitLab show it: the verdict, the differences, what changed."""
    from rulerkit.common import escape
    from rulerkit.report.comparison import difference_table, flips_text

    found, verdict = result.comparison, result.verdict
    mark = {"worse": "❌", "not worse": "✅"}.get(verdict.word, "❔")
    lines = [f"## {mark} {verdict.word}", ""]
    if found is None:
        lines += [escape.markdown(verdict.text), ""]
    else:
        lines += [difference_table(found, "markdown", verdict), "", "Examples that flipped:", ""]
        lines += [f"- {escape.markdown(line)}" for line in flips_text(found).splitlines()]
    command = escape.one_line(shlex.join(["rulerkit", *sys.argv[1:]]))
    lines += ["", *(f"- {escape.markdown(note)}" for note in notes), "", "```", command, "```"]
    return "\n".join(lines) + "\n"


def _json(result: "GateResult") -> str:
    """All of the result; docs/commands.md lists the keys."""
    from rulerkit.report.comparison import json_text

    cost, verdict = result.cost, result.verdict
    dollars = cost.dollars or 0.0
    more: JSON = {
        "stopped_by": result.stopped,
        "asked": {"examples": cost.examples, "tokens": cost.tokens, "dollars": dollars},
        "stored_before": dict(result.gate.stored),
        "examples": [
            {"task": task, "length": length, "examples": size}
            for (task, length), size in result.reached.items()
        ],
        "noise": result.noise,
    }
    if result.comparison is not None:
        return json_text(result.comparison, verdict, **more)
    more["verdict"] = {**verdict._asdict(), "status": verdict.status}
    return json.dumps(more, indent=2, allow_nan=False) + "\n"
