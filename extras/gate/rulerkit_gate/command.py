"""`rulerkit gate`: is a candidate worse than a baseline, or a server worse from its cache than
cold? Asks as much as the answer needs."""

import json
import re
import shlex
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rulerkit as rk
from rulerkit.cli.app import LOOK
from rulerkit.cli.given import EXAMPLES, Given, models_of
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
from rulerkit.common.errors import UserError, check_known, counted, remark, shortened
from rulerkit.common.hidden import hide_address
from rulerkit.common.lengths import length_name
from rulerkit.common.paths import holds_checkpoint, home_text, resolve_file
from rulerkit.common.urls import is_address

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
Budget = Annotated[str | None, typer.Option(help="Tokens of both models, such as 20M.")]
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
BaselineKey = Annotated[
    str | None,
    typer.Option(help="The environment variable that holds the key of the baseline's server."),
]
CandidateKey = Annotated[str | None, typer.Option(help="The same for the candidate's server.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Also the table of all places, and each answer that changed."),
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
    baseline_key: BaselineKey = None,
    candidate_key: CandidateKey = None,
    verbose: Verbose = False,
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
    started = time.monotonic()
    check_known("format", format, ("text", "github"))
    end_in_order()
    given = Given(None, tasks, lengths, num_examples, files, settings)
    if serving:
        for name, value in (
            ("CANDIDATE", candidate),
            ("--candidate-key", candidate_key),
            ("--tasks", tasks),
            ("-n", num_examples),
        ):
            if value is not None:
                raise UserError(
                    f"--serving checks one server against itself: leave out {name} {value}"
                )
        server = _with_key(baseline, baseline_key)
        limits = _limits_of(None, budget)
        checked = _check_serving(server, given, limits, minutes, requests, pressure, seed)
        _report_serving(checked, as_json, format, page, verbose)
        raise typer.Exit(checked.status)
    if candidate is None:
        raise UserError(
            "Missing argument 'CANDIDATE': the second model, or --serving to check one server "
            "against itself; `rulerkit gate --help` tells more"
        )
    _say_where(baseline, candidate)
    limits = _limits_of(max_examples, budget)
    keys = (baseline_key, candidate_key)
    described = [_with_key(one, key) for one, key in zip((baseline, candidate), keys, strict=True)]
    planned = _planned(described, given, suite, margin, noise, by, limits, resume)
    planned = replace(planned, minutes=minutes, started=started)
    _ask_and_report(planned, as_json, format, page, verbose)


def _with_key(name: str, key: str | None) -> str | dict[str, Any]:
    """A model with the environment variable that holds the key of its server."""
    from rulerkit.common.yaml_files import parse_yaml

    if key is None:
        return name
    if name.lstrip().startswith("{"):
        return {**parse_yaml(name, f"MODEL {name!r}"), "api_key_env": key}
    return {"base": name, "api_key_env": key}


def _say_where(*described: Any) -> None:
    """Name the servers that are to be found, which may take a while. Of a mapping, which may hold
    secrets, the address is shown alone."""
    places = [place for place in map(_address_in, described) if is_address(place)]
    if places:
        _say(f"looks at {' and '.join(map(hide_address, places))}")


def _ask_and_report(
    planned: "Gate", as_json: bool, format: str, page: Path | None, verbose: bool
) -> None:
    """Say what it takes, ask, and end with the verdict and its status."""
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
    for text in (planned.too_few(), home_text()):
        if text:
            _say(text)
    try:
        result = run_gate(planned, _say)
    except (KeyboardInterrupt, SystemExit):
        _say("stopped: the answers so far are kept, and the same command with --resume goes on")
        raise
    _report(result, as_json, format, page, verbose)
    raise typer.Exit(result.verdict.status)


# --- what is asked --------------------------------------------------------------------------------


def _planned(
    described: list[Any],
    given: Given,
    suite: str,
    margin: float,
    noise: str | None,
    by: str,
    limits: dict[str, tuple[str, float]],
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
    a, b = _parties(described, study, changes, resume)
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
    return parts.Gate(study, a, b, design, by, limits, None, stored)


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


def _parties(described: list[Any], study: "Study", changes: "JSON", resume: bool) -> list["Party"]:
    """The two: each a model that is asked, or answers that are stored."""
    from rulerkit.store.cells import readable
    from rulerkit.store.places import find_cells
    from rulerkit_gate.rounds import Party

    asked = [one for one in described if not _is_stored(one, study)]
    loaded = iter(_loaded(asked, changes))
    parties = []
    for one in described:
        if one in asked:
            mapping, model = next(loaded)
            parties.append(Party(model.label, mapping, model, resumes=resume))
        else:
            stored = readable(find_cells([one], outputs=study.outputs), remark)
            parties.append(Party(one, stored=stored))
    # Two folders may hold models of one name. Mappings and addresses may hold secrets.
    is_plain = all(isinstance(one, str) and not re.search("{|://", one) for one in described)
    if parties[0].name == parties[1].name and described[0] != described[1] and is_plain:
        for party, name in zip(parties, described, strict=True):
            party.name = name
    return parties


def _loaded(described: list[Any], changes: "JSON") -> list[tuple[Any, Any]]:
    """Models that are asked, each as it is described, and loaded."""
    from rulerkit_gate.served import with_tokenizers

    # The tokenizer that a server names need not be here, but one that is given must be.
    are_named = [
        "tokenizer" in changes or "tokenizer" in str(one) or not is_address(_address_in(one))
        for one in described
    ]
    mappings = [rk.study(model=one).models[0] for one in models_of(described, changes)]
    return with_tokenizers(mappings, are_named, _say)


def _address_in(described: Any) -> Any:
    """What may be an address in a model as it is given."""
    from rulerkit.common.yaml_files import parse_yaml

    if isinstance(described, str) and described.lstrip().startswith("{"):
        described = parse_yaml(described, f"MODEL {described!r}")
    if isinstance(described, dict):
        return described.get("base", described.get("base_url"))
    return described


def _is_stored(name: Any, study: "Study") -> bool:
    """Whether a name means answers that are stored, as a folder, as RUN/MODEL or as a model of this
    run, and not a model that may be asked."""
    from rulerkit.common.model_files import is_known_model

    if not isinstance(name, str) or holds_checkpoint(resolve_file(name)):
        return False
    if "/" in name and (study.outputs / "predictions" / name).is_dir():
        return True
    if "/" not in name and (study.predictions / name).is_dir() and not is_known_model(name):
        return True
    place = resolve_file(name)
    files = (place.glob(pattern) for pattern in ("*.jsonl", "*/*.jsonl", "*/*/*.jsonl"))
    return place.is_dir() and any(next(found, None) for found in files)


def _limits_of(max_examples: int | None, budget: str | None) -> dict[str, tuple[str, float]]:
    """What --max-examples and --budget allow, as `Gate.limits`."""
    limits: dict[str, tuple[str, float]] = {}
    if max_examples is not None:
        limits["examples"] = (f"--max-examples {max_examples}", max_examples)
    if budget is not None:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)", budget.strip())
        if not match:
            raise UserError(f"--budget {budget!r}: give tokens, such as 500K or 20M")
        number = float(match[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[match[2].upper()]
        limits["tokens"] = (f"--budget {budget}", number)
    return limits


def _noise_of(text: str | None) -> dict[str, float]:
    """The noise of serving by level, in points: a number, or what `gate A A` has measured."""
    from rulerkit.analysis.compare import LEVELS

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
    server: Any,
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
    _say_where(server)
    ((mapping, model),) = _loaded([server], changes)
    one = read_spec(mapping)
    if not issubclass(engine_class(one["engine"]), ServerEngine):
        raise UserError(
            f"{server} has the engine {one['engine']}: --serving checks a server, by its address "
            "or by a model of the engines openai and vllm"
        )
    # What is sent twice is in the cache the second time.
    checked: Any = load_model({**one, "max_retries": 0, "concurrency": _CROWD_SIZE})
    checked.is_approximate = getattr(model, "is_approximate", False)

    seed = seed if seed is not None else int(datetime.now().timestamp())
    most = {name: number for name, (_, number) in limits.items()}
    asked = Limits(
        requests=requests,
        pressure=parse_length(pressure, least=0),
        tokens=most.get("tokens"),
        minutes=minutes,
        max_failures=values.get("max_failures", Limits.max_failures),
    )
    lengths = values.get("lengths", _SERVING_LENGTHS)
    journal = study.outputs / "serving" / f"{datetime.now():%Y%m%d-%H%M%S}-{checked.name}.jsonl"
    _say(f"asks {checked.label}: at most {requests} requests, seed {seed}")
    try:
        return run_serving(checked, lengths, asked, seed, journal, _say)
    finally:
        checked.close()


def _report_serving(
    result: "Result", as_json: bool, format: str, page: Path | None, verbose: bool
) -> None:
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
        echo(report.text_of(result, place, verbose))


# --- running and telling --------------------------------------------------------------------------


def _report(
    result: "GateResult", as_json: bool, format: str, page: Path | None, verbose: bool
) -> None:
    """Print the result, and write the page of the answers that changed."""
    from rulerkit.report.comparison import difference_table, flips_text

    found, verdict = result.comparison, result.verdict
    notes = _noise_notes(result)
    asked = f"Asked {result.cost.text()}. {result.gate.stored_text}."
    if found is not None and len(found.flips):
        study = result.gate.study
        place = _write_page(found, page or study.outputs / "pages" / f"{study.run}.html")
        asked += f" Page: {place}"
    notes = [asked, *notes]
    if as_json:
        echo(_json(result), nl=False)
    elif format == "github":
        echo(_markdown(result, notes), nl=False)
    elif found is None:
        echo("\n".join([verdict.text, *notes]))
    elif verbose:
        table = difference_table(found, verdict=verdict)
        echo(f"{table}\nexamples that flipped:\n{flips_text(found)}")
        echo("\n".join(notes))
    else:
        more = "--verbose shows all tasks and lengths, and which examples changed."
        echo("\n".join([verdict.text, *_short_lines(found), *notes, more]))


_MOST_PLACES = 3  # with the largest losses


def _short_lines(found: "Comparison") -> list[str]:
    """What was asked, where most was lost, and what changed, in four lines at most."""
    from rulerkit.report.tables.notes import number_range

    rows = found.rows
    cells = rows[rows["level"] == "cell"]
    mean = rows.iloc[-1]
    lines = [
        f"A: {found.a.name}, {mean['a']:.1f}; B: {found.b.name}, {mean['b']:.1f}; "
        f"{counted(number_range(cells['n']), 'pair')} of each task and length"
    ]
    lost = cells[cells["difference"] < 0].sort_values("difference")
    largest: Any = lost.head(_MOST_PLACES).itertuples()
    places = [
        f"{row.task} at {length_name(row.length)} {row.difference:+.1f} ({row.worse} answers "
        f"worse, {row.better} better)"
        for row in largest
    ]
    if places:
        lines.append(f"Lost most: {', '.join(places)}")
    lines.append(
        f"{len(found.flips)} of {cells['n'].sum()} answers changed their score: "
        f"{cells['worse'].sum()} worse, {cells['better'].sum()} better"
    )
    if found.notes:
        lines.append(f"Note: {'; '.join(found.notes)}")
    return lines


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
    more: JSON = {
        "stopped_by": result.stopped,
        "asked": {"examples": cost.examples, "tokens": cost.tokens},
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
