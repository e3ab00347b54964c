"""Jobs: what one process of a batch does, and how far it is, by its files.

A job is the answers of one model, or the execution of one notebook. Its files lie beside the
executed notebooks: a record of how it went (`predictions.json`, `<notebook>.json`), a `.log`, and a
`.lock` that exists while it runs. `batch_file` plans jobs, `execution` does them.
"""

import json
import shlex
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rulerkit.common.errors import listed
from rulerkit.common.hidden import hide
from rulerkit.common.json_text import digest
from rulerkit.common.paths import resolve
from rulerkit.common.settings import JSON, NEUTRAL_KEYS, Spec
from rulerkit.evaluation.rounds import wanted
from rulerkit.evaluation.study import Study, StudyCell
from rulerkit.store.cells import answered
from rulerkit.store.files import write_whole


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

    folder: Path
    """That of the batch's run, in outputs/notebooks."""
    subject: str
    """The model that it is about, else `all`."""
    step: str
    """`predictions`, or the name of the notebook."""
    studies: tuple[Study, ...]
    """What the model is asked, or the notebook reads."""
    batch: str = ""
    """The command that does its batch again."""
    model: JSON | None = None
    notebook: Path | None = None
    parameters: JSON = field(default_factory=dict)
    """Those of the notebook."""
    after: tuple["Job", ...] = ()
    """Those whose answers the notebook reads, or whose outcome it shows."""

    @property
    def title(self) -> str:
        return f"{self.subject} {self.step}"

    @property
    def name(self) -> str:
        """The model's, also of notebooks about it alone; of any other notebook its own. A scheduler
        does jobs of one name together."""
        if [job.subject for job in self.models] == [self.subject]:
            return self.subject
        return self.step if self.subject == "all" else f"{self.subject}-{self.step}"

    @property
    def record(self) -> Path:
        return self.folder / self.subject / f"{self.step}.json"

    @property
    def command(self) -> str:
        """The command that does it again."""
        return f"{self.batch} --only {shlex.quote(self.name)}"

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
    def given(self) -> str:
        """The parameters of the notebook's execution, as `-y` takes them. It shows what its models
        have answered before, and needs no key."""
        own: JSON = {} if self.is_page else {"ask": False}
        return json.dumps(hide(self.parameters) | own, ensure_ascii=False)

    @property
    def models(self) -> list["Job"]:
        """Itself, or those whose answers the notebook reads."""
        return [self] if self.model else [job for job in self.after if job.model]

    def made_from(self) -> str:
        """A digest by which a job that is done knows that nothing has changed since: the notebook
        and its parameters, or how much a model is asked, and size and time of the answers."""
        content = self.notebook.read_bytes() if self.notebook else b""
        asked = [[study.num_examples, str(study.adaptive)] for study in self.studies]
        read = list[Path]()
        for study in self.studies:
            for cell in study.cells():
                read += [cell.path, cell.path.with_suffix(".json")]
        if self.is_page:
            read += [job.record for job in self.after]
        stamps = []
        for path in dict.fromkeys(read):
            with suppress(OSError):
                status = path.stat()
                stamps.append([path.name, status.st_mtime_ns, status.st_size])
        return digest([digest(content), self.given, asked, stamps])

    def not_run(self) -> list[tuple[int, str]]:
        """What was left out when the model ran last: a length that it could not be given, `(2048,
        "")`, or a task that did not fit into a length, `(300, "vt")`."""
        said = read_record(self.record).get("not_run")
        return [(length, task) for length, task in said] if isinstance(said, list) else []

    def needs(self, read: bool = True) -> list[Need]:
        """Every cell that it is to answer or to read and that can be asked, as it is now: each cell
        is read. Without `read` all of them count as answered."""
        return needs_of(self.studies, {job.name: job.not_run() for job in self.models}, read)

    def changed(self) -> str:
        """Which of its models has other settings or files than when it gave its answers; "" for
        none."""
        changed = []
        for job in self.models:
            before = read_record(job.record).get("answered_by")
            if not before:
                continue
            settings, changed_at = version_of(job.model or {})
            # Files that cannot be seen from here are taken to be as they were.
            if [settings, changed_at or before[1]] != before:
                changed.append(job.name)
        if not changed:
            return ""
        return f"the checkpoint or the settings of {listed(changed, 3)} changed after it answered"

    def status(self) -> "Status":
        """What its files say, whether or not a process is at it: `done`, `missing`, `incomplete` or
        `outdated`, and what has changed."""
        record = read_record(self.record)
        is_done = record.get("state") == "done"
        is_current = is_done and record.get("made_from") == self.made_from()
        if self.model:
            # Answers that are as they were when all were there need not be read.
            needs = tuple(self.needs(read=not is_current))
            if any(need.tokens_left for need in needs):
                has_some = any(need.have for need in needs)
                return Status(self, "incomplete" if has_some else "missing", "", needs)
            reason = self.changed()
            return Status(self, "outdated" if reason else "done", reason, needs)

        if not is_done or not self.output.exists():
            return Status(self, "missing")
        if not is_current:
            reason = "the notebook, its parameters or its answers have changed since"
            return Status(self, "outdated", reason)
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
    studies: Iterable[Study],
    not_run: Mapping[str, Collection[tuple[int, str]]] | None = None,
    read: bool = True,
) -> list[Need]:
    """The cells that studies ask for, each read once, with the largest number of examples; by model
    without those that are `not_run` (see `Job.not_run`). Without `read` all count as answered."""
    left_out = not_run or {}

    def lengths(model: str) -> list[int]:
        return [length for length, task in left_out.get(model, ()) if not task]

    asked: dict[Path, tuple[StudyCell, int]] = {}
    for study in studies:
        # What an adaptive run asks for depends on its rows.
        counts = wanted(study, lengths) if study.adaptive else {}
        for cell in study.cells():
            skipped = left_out.get(cell.model, ())
            if (cell.length, "") in skipped or (cell.length, cell.task.name) in skipped:
                continue
            count = counts.get(cell.path, study.num_examples)
            _, before = asked.get(cell.path, (cell, 0))
            asked[cell.path] = cell, max(count, before)

    needs = []
    for cell, count in asked.values():
        have, problem = answered(cell.path, count) if read else (count, "")
        place = cell.model, cell.path, cell.task.name, cell.length
        needs.append(Need(*place, count, have, problem))
    return needs


def version_of(model: Spec) -> list[Any]:
    """A digest of the settings of a model that may change its answers, and when the files at its
    path changed last; 0 where none are there. No weights are read: they may be the same."""
    given = hide(model)
    settings = digest({key: given[key] for key in given if key not in NEUTRAL_KEYS})
    with suppress(OSError, KeyError):
        folder = resolve(model["path"])
        files = [file.stat() for file in folder.glob("*") if file.is_file()]
        # The folder itself may be a link, such as `latest`, that points elsewhere now.
        return [settings, max(file.st_ctime for file in [folder.lstat(), *files])]
    return [settings, 0]


def read_record(path: Path) -> dict[str, Any]:
    """A record of a job; {} where there is none that can be read."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def update_record(path: Path, **fields: Any) -> None:
    """Set fields of a record, which is replaced as a whole."""
    write_whole(path, json.dumps(read_record(path) | fields, indent=2) + "\n")
