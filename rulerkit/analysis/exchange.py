"""Results in the formats of others: Every Eval Ever (schema 0.3.0, with intervals), and the
`.eval_results` of a model's repository on the Hugging Face hub.

The same results always give the same bytes: identifiers come from what was asked, and times from
the files of predictions, never from the time of the export. Scores are proportions from 0 to 1 in
the first format and percents in the second, as each of the two wants.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

from rulerkit.analysis.remake import remaker
from rulerkit.common.errors import UserError, check_known
from rulerkit.common.hub import is_hub_id
from rulerkit.common.lengths import length_name
from rulerkit.common.paths import resolve
from rulerkit.common.settings import JSON
from rulerkit.generation.example import Example
from rulerkit.scoring.scores import answer_of, score
from rulerkit.scoring.summary import Summary, summarize
from rulerkit.store.cells import Cell, cell_files
from rulerkit.store.files import write_whole

if TYPE_CHECKING:
    import pandas as pd

RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")
"""How who evaluates stands to who made the model."""
_SCHEMA = "0.3.0"
_UPSTREAM = "https://github.com/NVIDIA/RULER"
_METHOD = "Wilson intervals joined by MOVER (rulerkit weighted_sum)"
_COUNTS = (
    *("wanted", "failed", "rest", "empty", "cut_off", "cut_thought"),
    *("strict", "exact", "floor"),
)
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""An id that is given for others to read: ORG/NAME."""
_OWN_WEIGHTS = ("vllm", "transformers", "rwkv", "function")
"""Engines that load the weights themselves."""


@dataclass(frozen=True)
class Evaluation:
    """One model in one run: its cells, and the id of the model as others know it."""

    run: str
    model: str
    cells: list[Cell]
    model_id: str

    @property
    def result(self) -> JSON:
        """The settings of its first cell: those of the model are the same in all."""
        found: JSON = self.cells[0].record["result"]
        return found

    @cached_property
    def evaluation_id(self) -> str:
        """The same for the same questions, settings and model, however many were answered."""
        results = [cell.record["result"] for cell in self.cells]
        texts = sorted(json.dumps(one, sort_keys=True) for one in results)
        digest = sha256(json.dumps(texts).encode()).hexdigest()[:12]
        return f"ruler/{self.model_id.replace('/', '_')}/{self.run}.{digest}"

    @property
    def uuid(self) -> UUID:
        """A UUID of version 4 by its bits, made from the id."""
        digest = sha256(self.evaluation_id.encode()).digest()
        return UUID(bytes=digest[:16], version=4)

    @cached_property
    def time(self) -> int:
        """When the last answer or record was written, in seconds of Unix."""
        files = [file for cell in self.cells for file in cell_files(cell.path)]
        return int(max(file.stat().st_mtime for file in files if file.exists()))

    @cached_property
    def summary(self) -> Summary:
        """The means of its cells and lengths, with their intervals."""
        return summarize(score(self.cells))


def evaluations(cells: Iterable[Cell], ids: Sequence[str] = ()) -> list[Evaluation]:
    """The cells by run and model, with the id of each model on the hub.

    `ids` name what a model's `path` does not: `NAME=ORG/MODEL`, or `ORG/MODEL` where there is one
    model only. Raises UserError where the id of a model is not known, rather than to guess.
    """
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.about.format is None:
            raise UserError(
                f"{cell.path} was written by another program and does not say how it was made: "
                "only answers of rulerkit are exported so"
            )
        groups.setdefault((cell.run, cell.model), []).append(cell)

    names = {model for _, model in groups}
    given = dict[str, str]()
    for text in ids:
        name, _, model_id = text.rpartition("=")
        if not name and len(names) == 1:
            (name,) = names
        check_known("model of --model-id NAME=ORG/MODEL", name, names)
        if not _HUB_ID.fullmatch(model_id):
            raise UserError(
                f"--model-id {text}: the id of a model reads ORG/MODEL, such as org/model-8b"
            )
        given[name] = model_id

    return [
        Evaluation(
            run,
            model,
            sorted(group, key=lambda cell: (cell.task, cell.length)),
            given.get(model) or _model_id(group[0]),
        )
        for (run, model), group in sorted(groups.items())
    ]


def _model_id(cell: Cell) -> str:
    """The id of a cell's model on the hub; reference readers are rulerkit's own."""
    model = cell.record["result"]["model"]
    if model["engine"] == "reader":
        return f"rulerkit/{model['name']}"
    path = str(model.get("path", ""))
    if is_hub_id(path) and not resolve(path).exists():
        return path
    raise UserError(
        f"model {cell.model} has no id of the hub (path: {path or 'none'}): name it with "
        f"--model-id '{cell.model}=ORG/MODEL'"
    )


# --- Every Eval Ever ------------------------------------------------------------------------------


def write_every_eval_ever(
    evaluations: Sequence[Evaluation],
    folder: Path,
    organization: str,
    relationship: str,
    samples: bool = False,
) -> list[Path]:
    """Write an aggregate file for each run and model below `folder`, which is the `data` of a
    repository of Every Eval Ever, and with `samples` a line for each example beside it; returns the
    files.

    Raises UserError where another evaluation's file is in the way, and where the prompts of the
    samples cannot be made again.
    """
    check_known("relationship", relationship, RELATIONSHIPS)
    written = []
    for evaluation in evaluations:
        inside = Path("ruler", evaluation.model_id, f"{evaluation.uuid}.json")
        file = folder / inside
        _check_free(file, evaluation.evaluation_id)
        content = aggregate(evaluation, organization, relationship)

        # The aggregate names the file of its samples, so they are written first.
        if samples:
            lines = _json_lines(_samples(evaluation))
            beside = file.with_name(f"{evaluation.uuid}_samples.jsonl")
            write_whole(beside, lines)
            written.append(beside)
            content["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": (Path("data") / inside.parent / beside.name).as_posix(),
                "hash_algorithm": "sha256",
                "checksum": sha256(lines).hexdigest(),
                "total_rows": lines.count(b"\n"),
            }
        write_whole(file, json.dumps(content, indent=1, allow_nan=False) + "\n")
        written.append(file)
    return written


def _check_free(file: Path, evaluation_id: str) -> None:
    if not file.exists():
        return
    try:
        there = json.loads(file.read_text(encoding="utf-8"))["evaluation_id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        there = f"unreadable ({type(error).__name__})"
    if there != evaluation_id:
        raise UserError(
            f"{file} holds another evaluation ({there}), not {evaluation_id}: move it away, or "
            "export into another folder"
        )


def aggregate(evaluation: Evaluation, organization: str, relationship: str) -> JSON:
    """The aggregate file of an evaluation, without its samples."""
    environment = evaluation.cells[0].record["environment"]
    packages = environment.get("packages", {})
    about = _texts(packages | {"git": environment.get("git")})

    return {
        "schema_version": _SCHEMA,
        "evaluation_id": evaluation.evaluation_id,
        "evaluation_timestamp": str(evaluation.time),
        "retrieved_timestamp": str(evaluation.time),
        "source_metadata": {
            "source_name": "rulerkit",
            "source_type": "evaluation_run",
            "source_organization_name": organization,
            "evaluator_relationship": relationship,
            "additional_details": {"run": evaluation.run},
        },
        "eval_library": {
            "name": "rulerkit",
            "version": str(environment.get("rulerkit") or "unknown"),
            "additional_details": about,
        },
        "model_info": _model_info(evaluation, environment),
        "evaluation_results": [*_cell_results(evaluation), *_length_results(evaluation)],
    }


def _model_info(evaluation: Evaluation, environment: JSON) -> JSON:
    model, record = evaluation.result["model"], evaluation.cells[0].record
    engine = model["engine"]
    is_local = engine in _OWN_WEIGHTS or "serve" in environment
    deployment = "self_deployed" if is_local else "unknown"
    address = environment.get("base_url")
    if address and not is_local:
        deployment = "externally_managed"

    # Weights on the hub, or loaded by an engine here.
    is_open = is_hub_id(str(model.get("path", ""))) or engine in _OWN_WEIGHTS
    details = {
        "deployment_type": deployment,
        "model_availability": "open_weights" if is_open else "unknown",
        "claimed_length": record["claimed_length"],
        "aligned": record["aligned"],
    } | {key: value for key, value in model.items() if key != "name"}

    version = environment.get("packages", {}).get(engine)
    info: JSON = {
        "name": record["label"],
        "id": evaluation.model_id,
        "developer": evaluation.model_id.partition("/")[0],
        "inference_engine": {"name": engine} | ({"version": version} if version else {}),
        "additional_details": _texts(details),
    }
    if address:
        first = address if isinstance(address, str) else address[0]
        info["inference_platform"] = str(urlsplit(first).hostname)
    return info


def _cell_results(evaluation: Evaluation) -> list[JSON]:
    """A result for each complete cell."""
    cells = {(cell.task, cell.length): cell for cell in evaluation.cells}
    results = []
    for row in _complete(evaluation.summary.cells):
        cell = cells.get((row["task"], row["length"]))
        if cell is None:
            continue

        task = cell.record["result"]["task"]
        match = task.get("match") or "its family's own rule"
        parameters = {"level": "cell", "task": cell.task}
        metric = (f"ruler.string_match_{match}", f"string match ({match})", "recall")
        details = {name: row[name] for name in _COUNTS if name in row}
        results.append(_result(evaluation, cell, row, metric, parameters, details))
    return results


def _length_results(evaluation: Evaluation) -> list[JSON]:
    """The mean over the tasks at each length where all are complete. There is none over lengths:
    readers would count parts of it twice."""
    results = []
    for row in _complete_lengths(evaluation):
        cell = next(one for one in evaluation.cells if one.length == row["length"])
        parameters = {"level": "length", "task": "average"}
        number = int(row["tasks"])
        metric = "ruler.mean", f"mean of {number} tasks", "mean"
        details = {"tasks": number, "complete": bool(row["complete"])}
        results.append(_result(evaluation, cell, row, metric, parameters, details))
    return results


def _result(
    evaluation: Evaluation,
    cell: Cell,
    row: Mapping[str, Any],
    metric: tuple[str, str, str],
    parameters: JSON,
    details: JSON,
) -> JSON:
    """One entry of `evaluation_results`; `row` is that of the summary, in percent."""
    name = f"{cell.about.suite}.{parameters['task']}.{cell.length}"
    metric_id, metric_name, kind = metric

    uncertainty: JSON = {"num_samples": int(row["n"])}
    if not math.isnan(row["low"]):
        uncertainty["confidence_interval"] = {
            "lower": _proportion(row["low"]),
            "upper": _proportion(row["high"]),
            "confidence_level": evaluation.summary.confidence,
            "method": _METHOD,
        }

    is_mean = parameters["level"] == "length"
    return {
        "evaluation_result_id": name,
        "evaluation_name": name,
        "evaluation_timestamp": str(evaluation.time),
        "source_data": _source_data(cell, bool(row["stand_in"]), is_mean),
        "metric_config": {
            "metric_id": metric_id,
            "metric_name": metric_name,
            "metric_kind": kind,
            "metric_unit": "proportion",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
            "metric_parameters": {**parameters, "length_tokens": cell.length, "scorer": "upstream"},
        },
        "score_details": {
            "score": _proportion(row["score"]),
            "uncertainty": uncertainty,
            "details": _texts(details),
        },
        "generation_config": _generation(cell, is_mean),
    }


def _source_data(cell: Cell, stand_in: bool, is_mean: bool) -> JSON:
    result = cell.record["result"]
    name = "RULER" if cell.about.suite == "ruler" else f"RULER, {cell.about.suite}"
    details = {
        "protocol": result["protocol"],
        "seed": result["seed"],
        "prompt_version": result["prompt_version"],
        "tokenizer": result["tokenizer"]["name"],
        "stand_in": stand_in,
    }
    if not is_mean:
        details |= {"corpora": result["sources"], "task": result["task"]}
    return {
        # Nobody is to join scores on stand-in texts with those on the real ones.
        "dataset_name": f"{name} (stand-in texts)" if stand_in else name,
        "source_type": "url",
        "url": [_UPSTREAM],
        "additional_details": _texts(details),
    }


def _generation(cell: Cell, is_mean: bool) -> JSON:
    result = cell.record["result"]
    form, model = result["prompt_format"], result["model"]
    sampling = model.get("sampling") or {}
    arguments: JSON = {
        "temperature": float(sampling.get("temperature", 0.0)),
        "reasoning": bool(form["thinking_tokens"]),
        "prompt_template": f"{form['before']}{{task}}{form['after']}",
    }
    arguments |= {key: sampling[key] for key in ("top_p", "top_k") if key in sampling}
    most = result["task"].get("max_new_tokens")
    if most and not is_mean:
        arguments["max_tokens"] = int(most) + int(form["thinking_tokens"])
    details = {key: form[key] for key in ("template", "prefix_in")}
    details["thinking_tokens"] = form["thinking_tokens"]
    return {"generation_args": arguments, "additional_details": _texts(details)}


def _samples(evaluation: Evaluation) -> Iterable[JSON]:
    """A line for each example of each cell, with its prompt, which is made again."""
    for cell in evaluation.cells:
        remake = remaker(cell)
        frame = score([cell])
        scores = dict(zip(frame["index"], frame["score"], strict=True))
        for row in cell.rows:
            value = float(scores[row["index"]])
            yield _sample(evaluation, cell, row, remake(row), value)


def _sample(evaluation: Evaluation, cell: Cell, row: JSON, example: Example, value: float) -> JSON:
    """The line of one example; `value` is its score."""
    name = f"{cell.about.suite}.{cell.task}.{cell.length}"
    place = (cell.task, cell.length, cell.record["result"]["seed"], row["index"])
    raw = example.input + example.answer_prefix
    what = {"raw": raw, "reference": list(row["outputs"])}
    # The digest is that of the text without blanks, whoever writes it.
    blank_free = json.dumps(what, sort_keys=True, separators=(",", ":"))
    answer, _ = answer_of(row["pred"], cell.record)

    line: JSON = {
        "schema_version": _SCHEMA,
        "evaluation_id": evaluation.evaluation_id,
        "model_id": evaluation.model_id,
        "evaluation_name": name,
        "evaluation_result_id": name,
        "sample_id": "/".join(map(str, place)),
        "sample_hash": sha256(blank_free.encode()).hexdigest(),
        "interaction_type": "single_turn",
        "input": what,
        "output": {"raw": [row["pred"]]},
        "answer_attribution": [
            {
                "turn_idx": 0,
                "source": "output.raw",
                "extracted_value": answer,
                "extraction_method": "rulerkit.answer_of",
                "is_terminal": True,
            }
        ],
        "evaluation": {"score": value, "is_correct": value == 1},
        "metadata": _texts(_about_sample(cell, row)),
    }

    usage = row.get("usage") or {}
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if None not in counts:
        line["token_usage"] = {
            "input_tokens": counts[0],
            "output_tokens": counts[1],
            "total_tokens": sum(counts),
        }
    return line


def _about_sample(cell: Cell, row: JSON) -> JSON:
    about = {"task": cell.task, "length": cell.length}
    names = ("index", "digest", "finish_reason", "depths")
    return about | {name: row[name] for name in names if name in row}


# --- the Hugging Face hub -------------------------------------------------------------------------


def hub_results(evaluation: Evaluation, dataset: str, source: str = "") -> list[JSON]:
    """What `.eval_results/ruler.yaml` of a model's repository holds: an entry for each length at
    which all tasks are complete, in percent. The interval goes into the notes: the format has no
    field for it."""
    day = datetime.fromtimestamp(evaluation.time, UTC).date()
    entries = []
    for row in _complete_lengths(evaluation):
        task = f"ruler_{length_name(int(row['length'])).lower()}"
        entry: JSON = {
            "dataset": {"id": dataset, "task_id": task},
            "value": round(float(row["score"]), 2),
            "date": day.isoformat(),
            "notes": _hub_notes(evaluation, row),
        }
        if source:
            entry["source"] = {"url": source, "name": "rulerkit answers and records"}
        entries.append(entry)
    return entries


def _hub_notes(evaluation: Evaluation, row: Mapping[str, Any]) -> str:
    """What was asked and how, and the interval of a length's mean, in one line."""
    result, length = evaluation.result, int(row["length"])
    environment = evaluation.cells[0].record["environment"]
    texts = ", stand-in texts" if row["stand_in"] else ""
    thinks = result["prompt_format"]["thinking_tokens"]
    return (
        f"RULER, {int(row['tasks'])} tasks, {length_name(length)} ({length} tokens with "
        f"{result['tokenizer']['name']}), {int(row['n'])} examples each, "
        f"{100 * evaluation.summary.confidence:g} % interval {row['low']:.1f} to "
        f"{row['high']:.1f}, protocol {result['protocol']}, seed {result['seed']}{texts}, "
        f"{'thinking' if thinks else 'no thinking'}, "
        f"rulerkit {environment.get('rulerkit') or 'unknown'}"
    )


def write_hub_results(
    evaluations: Sequence[Evaluation], folder: Path, dataset: str, source: str = ""
) -> list[Path]:
    """Write `<ORG>/<MODEL>/.eval_results/ruler.yaml` below a folder for each model, as its
    repository wants it.

    Raises UserError where one model has several runs, of which one is to be named, and where no
    length of a model is complete.
    """
    import yaml

    if not _HUB_ID.fullmatch(dataset):
        raise UserError(
            "--dataset names the benchmark's dataset on the hub, ORG/NAME, which holds an "
            f"eval.yaml; seen: {dataset or 'nothing'}"
        )
    runs: dict[str, list[str]] = {}
    for one in evaluations:
        runs.setdefault(one.model_id, []).append(one.run)
    for model_id, names in runs.items():
        if len(names) > 1:
            raise UserError(
                f"{model_id} has several runs ({', '.join(names)}): export one, "
                "outputs/predictions/RUN"
            )

    contents = {one.model_id: hub_results(one, dataset, source) for one in evaluations}
    for model_id, entries in contents.items():
        if not entries:
            raise UserError(
                f"{model_id} has no length at which all tasks are complete: nothing is exported"
            )
    written = []
    for model_id, entries in contents.items():
        file = folder / model_id / ".eval_results/ruler.yaml"
        write_whole(file, yaml.safe_dump(entries, sort_keys=False, allow_unicode=True))
        written.append(file)
    return written


# --- values ---------------------------------------------------------------------------------------


def _complete(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """The rows of a summary that have a score."""
    rows: Any = frame[frame["score"].notna()].to_dict("records")
    return list(rows)


def _complete_lengths(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The means over the tasks at the lengths where all are complete; of RULER's the thirteen."""
    lengths = evaluation.summary.lengths
    is_whole = (lengths["category"] == "all") & lengths["whole"]
    return _complete(lengths[is_whole])


def _proportion(percent: float) -> float:
    """From 0 to 1, of percents; ten digits, for the last ones are those of the arithmetic."""
    return min(1.0, max(0.0, round(float(percent) / 100, 10)))


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as texts, which the schema asks for; what is missing is left out."""
    texts = {}
    for name, value in values.items():
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        is_text = isinstance(value, str)
        texts[name] = value if is_text else json.dumps(_plain(value), sort_keys=True)
    return texts


def _plain(value: Any) -> Any:
    """Numbers of numpy as those of Python."""
    return value.item() if hasattr(value, "item") else value


def _json_lines(rows: Iterable[JSON]) -> bytes:
    """A line of ASCII for each row: a model may write half a surrogate pair, which UTF-8 lacks."""
    return b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
