"""One step of a job in a process of its own: `python -m rulerkit.batch.step predictions JOB` or
`... notebook ARGUMENTS`.

Its standard input is a pipe from the process that runs the job: when that one is gone, even by
SIGKILL, the step ends itself with all that it started, so that nothing goes on writing unseen.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from rulerkit.batch.jobs import Job, read_job, read_record, write_record
from rulerkit.errors import UserError, remark


def _end_with_parent() -> None:
    while os.read(
        0, 1
    ):  # not sys.stdin, whose lock a thread must not hold when the interpreter ends
        pass
    os.killpg(0, signal.SIGKILL)


def predictions(job: Job) -> list[str]:
    """Let the model answer all that is asked of it, one study after the other; returns what went
    wrong in which."""
    from rulerkit.evaluation import evaluate

    wrong: list[str] = []

    def not_run(_: str, length: int, reason: str) -> None:
        known = read_record(job.record)
        write_record(
            job.record, known | {"not_run": known.get("not_run", {}) | {str(length): reason}}
        )

    for ask in job.asks:
        for study in job.part(ask):
            try:
                errors: list[UserError] = []
                evaluate(study, not_run=not_run, failed=errors.append)
            except UserError as error:  # the other notebooks can still have their answers
                errors.append(error)
            wrong += [f"{ask.notebook.stem}: {error}" for error in errors]
    return list(dict.fromkeys(wrong))


def main() -> int:
    """Run one step; returns its exit status."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    kind, *arguments = sys.argv[1:]
    if kind == "predictions":
        wrong = predictions(read_job(Path(arguments[0])))
        if wrong:
            remark("rulerkit: " + "; ".join(wrong))
        return 2 if wrong else 0
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # jsonschema's, optional: half of the start-up time
    from papermill.cli import papermill

    sys.argv = ["papermill", *arguments]
    papermill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
