"""`rulerkit gate`: is a candidate worse than a baseline, or a server worse from its cache than
cold? Asks as much as the answer needs."""

import json
import math
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rulerkit as rk
from rulerkit.cli.app import LOOK
from rulerkit.cli.given import models_of, parameters_of
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
from rulerkit.common.errors import UserError, check_known, counted, remark
from rulerkit.common.lengths import length_name
from rulerkit.common.paths import holds_checkpoint, home_text, resolve_file
from rulerkit.common.urls import is_address

if TYPE_CHECKING:
    from rulerkit.analysis.compare import Comparison
    from rulerkit.common.settings import JSON
    from rulerkit.evaluation.study import Study
    from rulerkit_gate.rounds import Gate, GateResult, Party
    from rulerkit_gate.serving import Result

Given = Callable[[Collection[str]], "tuple[JSON, JSON]"]
"""Parameters that are used -> those that were given, and the keys of a model among them."""

app = typer.Typer(rich_markup_mode="markdown")
_say = partial(echo, err=True)  # progress: stdout is the result

Baseline = Annotated[
    str,
    typer.Argument(
        metavar="BASELINE", help=f"{ONE_MODEL} Or answers: a folder of predictions, RUN/MODEL."
    ),
]
Candidate = Annotated[
    str | None, typer.Argument(metavar="[CANDIDATE]", help="The same; none with --serving.")
]
Margin = Annotated[float, typer.Option(help="How many points the candidate may be below.")]
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
BaselineKey = Annotated[
    str | None,
    typer.Option(help="The environment variable that holds the key of the baseline's server."),
]
CandidateKey = Annotated[str | None, typer.Option(help="The same for the candidate's server.")]

_USES = [
    *("plugins", "tasks", "lengths", "seed", "corpora", "protocol"),
    *("num_examples", "max_examples", "max_failures", "run", "outputs"),
]
"""The parameters of a study that a gate uses: its verdict is always of 95 %."""


@app.command(rich_help_panel=LOOK)
def gate(
    baseline: Baseline,
    candidate: Candidate = None,
    serving: Serving = False,
    tasks: Tasks = None,
    lengths: Lengths = None,
    num_examples: NumExamples = None,
    files: Files = None,
    settings: Settings = None,
    margin: Margin = 1.0,
    budget: Budget = None,
    minutes: Minutes = None,
    by: PairedBy = "digest",
    as_json: AsJson = False,
    format: Format = "text",
    page: PageFile = None,
    resume: Resume = False,
    baseline_key: BaselineKey = None,
    candidate_key: CandidateKey = None,
    requests: Requests = 200,
    pressure: Pressure = "200K",
) -> None:
    """Is CANDIDATE worse than BASELINE? Asks both in rounds, from few to many examples (at most
    500 of each of the thirteen tasks at 4K and 8K, where nothing else is said), until the verdict
    is certain or a limit is reached. With --serving: does one server answer worse from its cache
    than cold?

    Ends with 0: not worse by more than the margin; 1: worse; 3: cannot tell; 2: wrong use. Answers
    of an earlier gate are used only with --resume. docs/gate.md tells more.

    Example: rulerkit gate http://localhost:8000 http://localhost:8001 --minutes 30

    Example: rulerkit gate http://localhost:8000 --serving
    """
    started = time.monotonic()
    check_known("format", format, ("text", "github"))
    end_in_order()
    given = partial(parameters_of, tasks, lengths, num_examples, files, settings)
    described = [_with_key(baseline, baseline_key)]
    if serving:
        is_of_two = margin != 1 or by != "digest" or resume
        if candidate or candidate_key or tasks or num_examples or is_of_two:
            raise UserError(
                "--serving checks one server against itself: leave out CANDIDATE, "
                "--candidate-key, --tasks, -n, --margin, --by and --resume"
            )
        checked = _check_serving(described[0], given, budget, minutes, requests, pressure)
        _report_serving(checked, as_json, format, page)
        raise typer.Exit(checked.status)

    if candidate is None:
        raise UserError(
            "Missing argument 'CANDIDATE': the second model, or --serving to check one server "
            "against itself; `rulerkit gate --help` tells more"
        )
    if requests != 200 or pressure != "200K":
        raise UserError("--requests and --pressure need --serving: -n and --budget limit a gate")
    described.append(_with_key(candidate, candidate_key))
    planned = _planned(described, given, margin, by, budget, resume)
    result = _asked(replace(planned, minutes=minutes, started=started))
    _report(result, as_json, format, page)
    raise typer.Exit(result.verdict.status)


def _with_key(name: str, key: str | None) -> str | dict[str, Any]:
    """A model with the environment variable that holds the key of its server."""
    from rulerkit.common.yaml_files import parse_yaml

    if key is None:
        return name
    if name.lstrip().startswith("{"):
        return {**parse_yaml(name, f"MODEL {name!r}"), "api_key_env": key}
    return {"base": name, "api_key_env": key}


def _tokens_of(budget: str | None) -> float:
    """What --budget allows."""
    if budget is None:
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)", budget.strip())
    if not match:
        raise UserError(f"--budget {budget!r}: give tokens, such as 500K or 20M")
    return float(match[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[match[2].upper()]


# --- what is asked --------------------------------------------------------------------------------


def _planned(
    described: list[Any], given: Given, margin: float, by: str, budget: str | None, resume: bool
) -> "Gate":
    """The study, the two parties and the design; checked, and nothing asked but how the two make
    their prompts."""
    from rulerkit.analysis.compare import PAIRINGS, check_margin
    from rulerkit.generation.tasks import without_suites
    from rulerkit_gate import rounds as parts
    from rulerkit_gate.sequential import Design

    check_margin(margin)
    check_known("way to pair examples", by, PAIRINGS)
    tokens = _tokens_of(budget)
    values, changes = given(_USES)
    is_named = "tasks" in values or "lengths" in values
    defaults: JSON = {"tasks": without_suites(["ruler"]), "lengths": [4096, 8192]}
    defaults |= {"num_examples": 500}
    used = {key: values[key] for key in _USES if key in values}
    study = replace(rk.study({**defaults, **used, "model": None}), adaptive=None)

    a, b = _parties(described, study, changes, resume)
    study = parts.in_its_run(study, a, b, "run" in values, _say)
    for party in (a, b):
        if not party.is_asked:
            study = parts.study_of_stored(study, party, is_named)
            is_named = True  # the other side must have what this one has
    parts.check_lengths(study, (a, b))
    # Two stored sides are checked where they are paired.
    if by == "digest" and (a.is_asked or b.is_asked):
        parts.check_pairing(study, a, b)

    cells = tuple((t.name, n) for n in study.lengths for t in study.tasks)
    return parts.Gate(study, a, b, Design(cells, study.num_examples, margin), by, tokens)


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
            # Mappings and addresses may hold secrets; two folders may hold models of one name.
            is_plain = isinstance(one, str) and not re.search("{|://", one)
            parties.append(Party(one if is_plain else model.label, mapping, model, resumes=resume))
        else:
            stored = readable(find_cells([one], outputs=study.outputs), remark)
            parties.append(Party(one, stored=stored))
    return parties


def _loaded(described: list[Any], changes: "JSON") -> list[tuple[Any, Any]]:
    """Models that are asked, each as it is described, and loaded."""
    from rulerkit_gate.served import with_tokenizers

    # The tokenizer that a server names need not be here, but one that is given must be.
    are_named = []
    for one in described:
        text = str(one)
        is_served = "://" in text or is_address(one)
        are_named.append("tokenizer" in changes or "tokenizer" in text or not is_served)
    mappings = [rk.study(model=one).models[0] for one in models_of(described, changes)]
    return with_tokenizers(mappings, are_named, _say)


def _is_stored(name: Any, study: "Study") -> bool:
    """Whether a name means answers that are stored, as a folder, as RUN/MODEL or as a model of this
    run, and not a model that may be asked."""
    from rulerkit.common.model_files import is_known_model

    if not isinstance(name, str):
        return False
    place = resolve_file(name)
    if "/" in name:
        is_run = (study.outputs / "predictions" / name).is_dir()
    else:
        is_run = (study.predictions / name).is_dir() and not is_known_model(name)
    return not holds_checkpoint(place) and (is_run or any(place.glob("**/*.jsonl")))


def _asked(planned: "Gate") -> "GateResult":
    """Say what it takes, and ask."""
    from rulerkit_gate.rounds import run_gate

    design = planned.design
    least, most = (
        planned.cost(dict.fromkeys(design.cells, size)).text()
        for size in (design.sizes[0], design.most)
    )
    _say(
        f"{planned.b.name} against {planned.a.name}, run {planned.study.run}: at least {least}, at "
        f"most {most}"
    )
    if text := home_text():
        _say(text)
    try:
        return run_gate(planned, _say)
    except (KeyboardInterrupt, SystemExit) as end:
        text = "stopped: the answers so far are kept, and the same command with --resume goes on"
        raise _stopped(end, text) from None


def _stopped(end: BaseException, text: str) -> SystemExit:
    """The end of a command that was stopped, after its own words: after Ctrl-C the command line
    would say that the same command resumes."""
    _say(text)
    return SystemExit(getattr(end, "code", 128 + signal.SIGINT))


# --- one server against itself --------------------------------------------------------------------

_SERVING_LENGTHS = (1024, 4096, 12288)
_CROWD_SIZE = 16  # requests that are under way at once, at most


def _check_serving(
    server: Any,
    given: Given,
    budget: str | None,
    minutes: float | None,
    requests: int,
    pressure: str,
) -> "Result":
    """The server is found, and asked."""
    from rulerkit.common.lengths import parse_length
    from rulerkit.common.model_files import read_spec
    from rulerkit.inference.model import engine_class, load_model
    from rulerkit.inference.servers import ServerEngine
    from rulerkit_gate.serving import Limits, run_serving

    values, changes = given(("lengths", "max_failures", "outputs", "plugins", "seed"))
    limits = Limits(
        requests=requests,
        pressure=parse_length(pressure, least=0),
        tokens=_tokens_of(budget),
        minutes=minutes,
        max_failures=values.get("max_failures", Limits.max_failures),
    )
    study = rk.study({"lengths": _SERVING_LENGTHS, **values, "model": None, "tasks": ["vt"]})
    if _is_stored(server, study):
        raise UserError(f"{server} is a folder of stored answers: --serving asks a server")
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

    now = datetime.now()
    seed = study.seed if "seed" in values else int(now.timestamp())
    journal = study.outputs / "serving" / f"{now:%Y%m%d-%H%M%S}-{checked.name}.jsonl"
    _say(f"asks {checked.label}: at most {requests} requests, seed {seed}")
    try:
        return run_serving(checked, study.lengths, limits, seed, journal, _say)
    except (KeyboardInterrupt, SystemExit) as end:
        text = f"stopped, without a verdict: the same command begins anew; requests: {journal}"
        raise _stopped(end, text) from None
    finally:
        checked.close()


def _report_serving(result: "Result", as_json: bool, format: str, page: Path | None) -> None:
    """Print what was found, and write the page where there is something to see."""
    from rulerkit_gate import serving_report as report

    place = ""
    run = result.run
    if page or run.losses or run.evidence.leaks:
        path = page or run.journal.with_suffix(".html")
        report.write_page(result, path)
        place = str(path)
    if as_json:
        echo(json.dumps(report.json_of(result, place), indent=2, allow_nan=False))
    elif format == "github":
        echo(report.markdown_of(result, place), nl=False)
    else:
        echo(report.text_of(result, place))


# --- telling --------------------------------------------------------------------------------------


def _report(result: "GateResult", as_json: bool, format: str, page: Path | None) -> None:
    """Print the result, and write the page of the answers that changed."""
    found, study = result.comparison, result.gate.study
    asked = f"Asked {result.cost.text()}."
    if found is not None and len(found.flips):
        place = _write_page(found, page or study.outputs / "pages" / f"{study.run}.html")
        asked += f" Page: {place}"
    if as_json:
        echo(_json(result), nl=False)
    elif format == "github":
        echo(_markdown(result, asked), nl=False)
    else:
        lines = _short_lines(found) if found is not None else []
        echo("\n".join([result.verdict.text, *lines, asked]))


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
        f"{row.task} at {length_name(row.length)} {row.difference:+.1f} "
        f"({counted(row.worse, 'answer')} worse, {row.better} better)"
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


def _write_page(found: "Comparison", path: Path) -> Path:
    """The answers that changed, to browse, one side beside the other."""
    import pandas as pd

    example = ["task", "length", "index"]
    both = pd.concat([found.a.scores, found.b.scores], ignore_index=True)
    return rk.browse(both.merge(found.flips[example], on=example)).save(path)


def _markdown(result: "GateResult", asked: str) -> str:
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
    lines += ["", f"- {escape.markdown(asked)}", "", "```", command, "```"]
    return "\n".join(lines) + "\n"


def _json(result: "GateResult") -> str:
    """All of the result; docs/commands.md lists the keys."""
    from rulerkit.report.comparison import json_text

    cost, verdict = result.cost, result.verdict
    asked = {"examples": cost.examples, "tokens": cost.tokens}
    more: JSON = {"stopped_by": result.stopped, "asked": asked}
    if result.comparison is not None:
        return json_text(result.comparison, verdict, **more)
    more["verdict"] = {**verdict._asdict(), "status": verdict.status}
    return json.dumps(more, indent=2, allow_nan=False) + "\n"
