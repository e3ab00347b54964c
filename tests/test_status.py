"""How far a batch is, from its files alone: before it, while it runs, after it was killed, after it
has ended."""

import re
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.jobs import Status
from rulerkit.batch.status import exit_code, report, statuses
from tests.batches import Project, told, wait_until

pytestmark = pytest.mark.slow


class Seen(NamedTuple):
    """What status shows at one moment."""

    steps: dict[str, Status]
    text: list[str]
    exit_code: int

    @property
    def states(self):
        return {title: step.state for title, step in self.steps.items()}

    def line(self, title):
        (line,) = (line for line in self.text if re.match(rf"\w+ +{title}( |$)", line))
        return line


def look(project, batch):
    before = files(project.root)
    jobs = read_batch(batch).jobs
    found = statuses(jobs)
    assert files(project.root) == before, "status writes nothing"
    return Seen({s.job.title: s for s in found}, report(found), exit_code(found))


def files(root):
    """All files but locks, which are touched while their owners live."""
    paths = [p for p in root.rglob("*") if ".lock" not in p.name and "tmp" not in p.parts[-2:]]
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in paths if p.is_file()}


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """`quick` and `slow` answer, `broken` fails, `short` cannot be given 2048 tokens; killed while
    `slow` answers."""
    project = Project(tmp_path_factory.mktemp("status") / "project")
    asked = {"lengths": [1024, 2048], "num_examples": 3, "tasks": ["vt"]}
    own = [{"notebook": "50_own", "models": [told("broken")]}]
    steps = {"notebooks": own, "together": ["51_all"], "parameters": asked}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RULERKIT_HOME", str(project.root))
        project.notebook("50_own")
        project.notebook("51_all")
        batch = project.batch({"models": [told(name) for name in MODELS], **steps})
        before = look(project, batch)
        project.set("slow", "pace", 0.2)
        project.set("broken", "broken", 1)
        project.set("short", "longest", 5000)
        with project.started("batch", batch) as killed:
            project.wait_for("slow")
            wait_until("it has answered something", lambda: project.rows().get("slow/vt/1024"))
            project.set("slow", "meets", "go")
            wait_until("it stands", (project.root / "slow.waits").exists)
            during = look(project, batch)
            killed.kill_everything()
        killed_ = look(project, batch)
        project.go()
        ended = [project.call("batch", batch)]
        after = look(project, batch)
        rows = project.root / "outputs/predictions/main/slow/vt/1024.jsonl"
        first, second, *_ = rows.read_bytes().splitlines(keepends=True)
        rows.write_bytes(first + second[: len(second) // 2])
        (project.root / "outputs/predictions/main/quick/vt/2048.jsonl").unlink()
        cut = look(project, batch)
        (project.root / "broken.broken").unlink()
        ended.append(project.call("batch", batch))
        repaired = look(project, batch)
        seen = {"before": before, "during": during, "killed": killed_, "after": after}
        seen |= {"cut": cut, "repaired": repaired}
        yield SimpleNamespace(project=project, batch=batch, ended=ended, **seen)


MODELS = ("quick", "slow", "broken", "short")
ALL = [*(f"{name} predictions" for name in MODELS), "broken 50_own", "all 51_all"]


def test_before_anything_was_begun_all_is_missing(story):
    assert story.before.states == dict.fromkeys(ALL, "missing")
    left = " 0/2 cells, 0/6 examples; 9,216 tokens left"  # 3 x (1K + 2K)
    assert story.before.line("slow predictions").endswith(left)
    assert story.before.text[-1] == "6 steps: 6 missing; 36,864 tokens left"


def test_while_it_runs(story):
    seen = story.during
    assert seen.states == {
        "quick predictions": "done",
        "slow predictions": "running",
        "broken predictions": "incomplete",
        "broken 50_own": "missing",
        "short predictions": "missing",
        "all 51_all": "waiting",
    }
    slow = r" 0/2 cells, 1/6 examples; 8,192 tokens left; about [\d:]+; process \d+ on host \S+$"
    assert re.search(slow, seen.line("slow predictions"))
    assert seen.line("all 51_all").split(maxsplit=3)[3] == "for slow"


def test_after_a_power_cut(story):
    changed = {t: s for t, s in story.killed.states.items() if s != story.during.states[t]}
    assert changed == {"slow predictions": "interrupted", "all 51_all": "missing"}
    place = story.killed.text.index(story.killed.line("slow predictions"))
    assert story.killed.text[place].endswith("its process is gone; what it wrote is kept")
    log, again = story.killed.text[place + 1 : place + 3]
    assert log.startswith("    log: ")
    assert again == f"    again: rulerkit batch {story.batch} --only slow"


def test_after_it_has_ended(story):
    """A model that fails stops no other; a notebook that compares them shows what there is and says
    what is missing; a length that a model cannot be given counts as done."""
    assert (story.ended[0].returncode, story.ended[1].returncode) == (1, 0)
    assert story.after.states == {
        **dict.fromkeys(("quick predictions", "slow predictions", "short predictions"), "done"),
        "broken predictions": "incomplete",
        "broken 50_own": "missing",
        "all 51_all": "incomplete",
    }
    first = "cells are incomplete, the first is broken vt at 1024: 0 of 3 examples (3 failed: "
    first += "example 0: the function raised RuntimeError: broken is out of order "
    assert story.after.steps["all 51_all"].message.startswith(f"2 of 7 {first}")
    said = re.sub(" {2,}", " ", story.ended[0].stdout)
    for line in (
        f"\nincomplete all 51_all 2 of 7 {first}",
        "\nmissing broken 50_own none of its 2 cells has an answer yet\n",
        "\nincomplete broken predictions 0/2 cells, 0/6 examples; 9,216 tokens left; 2 of 2 cells ",
    ):
        assert line in said
    assert story.ended[0].stderr.startswith(
        "3 steps are not done: broken predictions (incomplete), "
    )
    assert story.after.line("short predictions").endswith(" 1/1 cells, 3/3 examples; not run: 2K")
    assert not story.project.rows().get("short/vt/2048")
    place = story.after.text.index(story.after.line("broken predictions"))
    assert story.after.text[place + 2].endswith(" --only broken")


def test_after_rows_were_lost(story):
    """One file is gone, the other is cut in the middle of its second row."""
    lost = dict.fromkeys(("quick predictions", "slow predictions"), "incomplete")
    assert story.cut.states == story.after.states | lost
    assert "3/6 examples" in story.cut.line("quick predictions")
    assert f"{2 * 1024:,} tokens left" in story.cut.line("slow predictions")
    assert story.project.asked("slow").total() == 6 + 2, "the others are not asked again"


def test_when_all_is_repaired(story):
    assert story.repaired.states == dict.fromkeys(ALL, "done")
    assert story.repaired.text[-1] == "6 steps: 6 done"
    assert "quick+slow+broken+short 21 rows" in story.project.said("all/51_all")


def test_the_exit_code_is_0_where_all_is_done_1_where_something_stopped_and_else_3(story):
    moments = (story.before, story.during, story.killed, story.after, story.repaired)
    assert [seen.exit_code for seen in moments] == [3, 1, 1, 1, 0]
