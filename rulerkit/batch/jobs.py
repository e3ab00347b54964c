"""Jobs: what one process of a batch does, and how far it is, by its files.

A job is the answers of one model, or the execution of one notebook. Its files lie beside the
executed notebooks: a record of how it went (`predictions.json`, `<notebook>.json`), a `.log`, and a
`.lock` that exists while it runs. `batch_file` plans jobs, `execution` does them.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rulerkit.common.errors import listed
from rulerkit.common.hidden import hide
from rulerkit.common.json_text import digest
from rulerkit.common.paths import resolve
from rulerkit.common.settings import JSON, NEUTRAL_KEYS, Spec
from rulerkit.evaluation.rounds import wanted
from rulerkit.evaluation.study import Study, StudyCell
from rulerkit.inference.model import gpus_and_nodes
from rulerkit.store.cells import answered
from rulerkit.store.files import write_whole
from rulerkit.store.records import plain


class Need(NamedTuple):
    """A cell that a job has to complete or to read, as it is on disk."""

    model: str
    path: Path
    task: str
    length: int
    wanted: int
    """The number of examples; of an adaptive run those of the open round, or of the last."""
    have: int
    """How many of its examples are answered."""
    problem: str
    """What is wrong with it, such as failed requests or a damaged row; "" for nothing."""

    @property
    def tokens_left(self) -> int:
        """The tokens of prompts and answers that are left."""
        return (self.wanted - self.have) * self.length

    def __str__(self) -> str:
        return f"{self.model} {self.task} at {self.length}"


@dataclass(frozen=True)
class Job:
    """What one process does: a model answers, or a notebook is executed on stored answers."""

    name: str
    """The model's, also of the notebooks about it; of any other notebook its own. A scheduler does
    jobs of one name together."""
    title: str
    record: Path
    studies: tuple[Study, ...]
    """What the model is asked, or the notebook reads."""
    command: str = ""
    """The command that does it again."""
    model: JSON | None = None
    notebook: Path | None = None
    parameters: JSON = field(default_factory=dict)
    """Those of the notebook."""
    is_planned: bool = True
    """Whether it is known what the notebook asks; one that is not asks its models itself."""
    reads_all: bool = False
    """Whether the notebook asks nobody and reads whatever the others have asked."""
    after: tuple[str, ...] = ()
    """The models whose answers the notebook reads."""
    reads: tuple[Path, ...] = ()
    """The records of other jobs that the notebook shows."""

    @property
    def log(self) -> Path:
        return self.record.with_suffix(".log")

    @property
    def lock(self) -> Path:
        """The file that exists while a process does the job: the same for every batch."""
        return self.record.with_suffix(".lock")

    @property
    def output(self) -> Path:
        """The executed notebook."""
        return self.record.with_suffix(".ipynb")

    @property
    def is_page(self) -> bool:
        """Whether its notebook shows how far its batch is: it runs whatever the others did."""
        return "batch" in self.parameters

    @property
    def resources(self) -> tuple[int, int]:
        """GPUs on each node, and nodes."""
        return gpus_and_nodes(self.model) if self.model else (0, 1)

    @property
    def given(self) -> JSON:
        """The parameters of its execution. A notebook whose questions were planned shows what its
        models have answered before, and needs no key."""
        given: JSON = plain(self.parameters)
        return hide(given) | {"ask": False} if self.is_planned else given

    @property
    def shown(self) -> str:
        """Its parameters as `-y` takes them, without keys."""
        return one_line(hide(self.given))

    def source(self) -> str:
        """A digest of what is executed: the notebook and its parameters."""
        content = self.notebook.read_bytes() if self.notebook else b""
        return digest(content + self.shown.encode())

    def answers(self) -> str:
        """A digest of size and time of the stored answers, by which a notebook knows that it has
        read them."""
        cells = [cell.path for study in self.studies for cell in study.cells()]
        stamps = []
        for path in dict.fromkeys([*cells, *self.reads]):
            with suppress(OSError):
                status = path.stat()
                stamps.append([path.name, status.st_mtime_ns, status.st_size])
        return digest(stamps)

    def predictions(self, model: str) -> Path:
        """The record of a model's predictions."""
        return self.record.parents[1] / model / "predictions.json"

    def not_run(self, model: str) -> dict[str, str]:
        """What was left out when a model ran last, with the reasons: a length that it could not be
        given (`2048`), a task that did not fit into a length (`300 vt`)."""
        return dict(read_record(self.predictions(model)).get("not_run", {}))

    def needs(self) -> list[Need]:
        """Every cell that it is to answer or to read and that can be asked, as it is now: each cell
        is read."""
        models = [self.name] if self.model else self.after
        return needs_of(self.studies, {name: self.not_run(name) for name in models})

    def changed(self) -> str:
        """Which of its models has other settings or files than when it gave its answers; "" for
        none."""
        changed = []
        for name in [self.name] if self.model else self.after:
            record = read_record(self.predictions(name))
            if "answered_by" in record:
                settings, changed_at = version_of(self.model or record.get("model", {}))
                settings_before, changed_before = record["answered_by"]
                # Files that cannot be seen from here are taken to be as they were.
                is_other = (changed_at or changed_before) != changed_before
                if settings != settings_before or is_other:
                    changed.append(name)
        if not changed:
            return ""
        return f"the checkpoint or the settings of {listed(changed, 3)} changed after it answered"

    def status(self) -> "Status":
        """What its files say, whether or not a process is at it: `done`, `missing`, `incomplete` or
        `outdated`, and what has changed."""
        if self.model:
            needs = tuple(self.needs())
            if any(need.tokens_left for need in needs):
                has_some = any(need.have for need in needs)
                return Status(self, "incomplete" if has_some else "missing", "", needs)
            reason = self.changed()
            return Status(self, "outdated" if reason else "done", reason, needs)

        record = read_record(self.record)
        if record.get("state") != "done" or not self.output.exists():
            return Status(self, "missing")
        if record.get("source") != self.source():
            return Status(self, "outdated", "the notebook or its parameters have changed since")
        if record.get("answers") != self.answers():
            return Status(self, "outdated", "its answers have changed since")
        return Status(self, "done", str(self.output))

    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.status().state == "done"


class Status(NamedTuple):
    """How far a job is. While it is done here: `running`, then `done`, `done before`, `failed`,
    `incomplete` (a model that left examples unanswered, or a notebook that read less than it asked
    for), `missing` (a notebook without answers to read; it did not run), or `locked` by another
    process. As its files show it: also `interrupted`, `waiting`, or `outdated` (what it was done
    with has changed)."""

    job: Job
    state: str
    message: str = ""
    needs: tuple[Need, ...] = ()
    """The cells of a model's job, as they were read for this."""


def needs_of(
    studies: Iterable[Study], not_run: Mapping[str, Collection[str]] | None = None
) -> list[Need]:
    """The cells that studies ask for, each read once, with the largest number of examples; by model
    without those that are `not_run` (see `Job.not_run`)."""
    left_out = not_run or {}

    def lengths(model: str) -> list[int]:
        return [int(key) for key in left_out.get(model, ()) if key.isdigit()]

    asked: dict[Path, tuple[StudyCell, int]] = {}
    for study in studies:
        # What an adaptive run asks for depends on its rows.
        counts = wanted(study, lengths) if study.adaptive else {}
        for cell in study.cells():
            keys = {f"{cell.length}", f"{cell.length} {cell.task.name}"}
            if keys.isdisjoint(left_out.get(cell.model, ())):
                count = counts.get(cell.path, study.num_examples)
                _, before = asked.get(cell.path, (cell, 0))
                asked[cell.path] = cell, max(count, before)

    needs = []
    for cell, count in asked.values():
        have, problem = answered(cell.path, count)
        place = cell.model, cell.path, cell.task.name, cell.length
        needs.append(Need(*place, count, have, problem))
    return needs


def version_of(model: Spec) -> tuple[JSON, float]:
    """The settings of a model that may change its answers, and when the files at its path changed
    last; 0 where none are there. No weights are read: they may be the same."""
    settings = {
        key: value for key, value in hide(plain({**model})).items() if key not in NEUTRAL_KEYS
    }
    with suppress(OSError, KeyError):
        folder = resolve(model["path"])
        files = [file.stat() for file in folder.glob("*") if file.is_file()]
        # The folder itself may be a link, such as `latest`, that points elsewhere now.
        return settings, max(file.st_ctime for file in [folder.lstat(), *files])
    return settings, 0


def read_record(path: Path) -> dict[str, Any]:
    """A record of a job; {} where there is none that can be read."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def update_record(path: Path, **fields: Any) -> None:
    """Set fields of a record, which is replaced as a whole."""
    write_whole(path, json.dumps(read_record(path) | fields, indent=2) + "\n")


def one_line(values: Mapping[str, Any]) -> str:
    """Parameters as `-y` takes them."""
    text: str = yaml.safe_dump(dict(values), default_flow_style=True, width=10**6, sort_keys=False)
    return text.strip()
