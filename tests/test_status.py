"""How far a batch is, from its files alone: before it, while it runs, after it was killed, after it
has ended."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rulerkit.batch import read_batch
from rulerkit.batch.status import Step, duration, grid, jobs_in, steps, told
from rulerkit.errors import UserError
from tests.batches import Project, wait_until
from tests.batches import told as model

pytestmark = pytest.mark.xdist_group("status")


class Seen(NamedTuple):
    """What was told at one moment."""

    steps: dict[str, Step]
    told: list[str]
    from_folder: list[str] | None
    cells: dict[str, list[str]]

    def line(self, title: str) -> str:
        """The line about a step."""
        (line,) = (line for line in self.told if re.match(rf"\w+ +{title}( |$)", line))
        return line


def look(project: Project, batch: Path) -> Seen:
    before = files(project.root)
    jobs = read_batch(batch).jobs
    found = steps(jobs)
    folder = project.root / "outputs/notebooks/main"
    from_folder = told(steps(jobs_in(folder))) if folder.is_dir() else None
    cells = {job.name: grid(job) for job in jobs if job.model}
    assert files(project.root) == before
    assert len({step.title for step in found}) == len(found)
    return Seen({step.title: step for step in found}, told(found), from_folder, cells)


def files(root: Path) -> dict[Path, tuple[int, int]]:
    """All files but locks, which are touched while their owners live."""
    found = [
        file
        for file in root.rglob("*")
        if file.suffix != ".lock" and "tmp" not in file.relative_to(root).parts
    ]
    return {
        file: (file.stat().st_mtime_ns, file.stat().st_size) for file in found if file.is_file()
    }


class Story(NamedTuple):
    """A batch of four models at six moments."""

    project: Project
    batch: Path
    before: Seen
    during: Seen
    killed: Seen
    after: Seen
    cut: Seen
    mended: Seen
    ended: list["subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """`quick` and `slow` answer, `broken` fails, `short` cannot be given 2048 tokens; killed while
    `slow` answers."""
    project = Project(tmp_path_factory.mktemp("status") / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RULERKIT_HOME", str(project.root))
        project.notebook("50_own")
        project.notebook("51_all")
        batch = project.batch(
            {
                "models": [model(name) for name in ("quick", "slow", "broken", "short")],
                "notebooks": [{"notebook": "50_own", "models": [model("broken")]}],
                "together": ["51_all"],
                "parameters": {"lengths": [1024, 2048], "num_examples": 3, "tasks": ["vt"]},
            }
        )
        before = look(project, batch)
        project.set("slow", "pace", 0.2)
        project.set("broken", "broken", 1)
        project.set("short", "longest", 5000)
        with project.started("batch", batch, "--jobs", 1) as killed:
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
        cut_half_way(project.root / "outputs/predictions/main/slow/vt/1024.jsonl")
        (project.root / "outputs/predictions/main/quick/vt/2048.jsonl").unlink()
        cut = look(project, batch)
        (project.root / "broken.broken").unlink()
        ended.append(project.call("batch", batch))
        yield Story(
            project, batch, before, during, killed_, after, cut, look(project, batch), ended
        )


def cut_half_way(file: Path) -> None:
    """One row of three is left, and half of the next."""
    first, second, *_ = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + second[: len(second) // 2])


MODELS = ("quick", "slow", "broken", "short")
ALL = {*(f"{name} predictions" for name in MODELS), "broken 50_own", "all 51_all"}


def states(seen: Seen) -> dict[str, str]:
    return {title: step.state for title, step in seen.steps.items()}


def test_before_anything_was_begun_all_is_missing(story: Story) -> None:
    assert states(story.before) == dict.fromkeys(ALL, "missing")
    assert story.before.line("slow predictions").endswith(
        " 0/2 cells, 0/6 examples; 9,216 tokens left"
    )  # 3 x (1K + 2K)
    assert story.before.told[-1] == "6 steps: 6 missing; 36,864 tokens left, at most"
    assert story.before.from_folder is None, "there is no folder yet"


def test_while_it_runs(story: Story) -> None:
    seen = story.during
    assert states(seen) == {
        "quick predictions": "done",
        "slow predictions": "running",
        "broken predictions": "failed",
        "broken 50_own": "missing",
        "short predictions": "missing",
        "all 51_all": "waiting",
    }
    slow = seen.steps["slow predictions"]
    assert (slow.cells, slow.examples) == ((0, 2), (1, 6))
    assert slow.tokens_left == 2 * 1024 + 3 * 2048
    assert slow.seconds_left is not None
    assert 0 < slow.seconds_left < 3600
    assert re.search(
        r" 0/2 cells, 1/6 examples; 8,192 tokens left; about \d+ (s|min); on \S+$",
        seen.line(slow.title),
    )
    assert seen.line("all 51_all").split(maxsplit=3)[3] == "for slow"
    left = sum(step.tokens_left for step in seen.steps.values())
    assert seen.told[-1].endswith(f"; {left:,} tokens left, at most")


def test_after_a_power_cut(story: Story) -> None:
    changed = {t: s for t, s in states(story.killed).items() if s != states(story.during)[t]}
    assert changed == {"slow predictions": "interrupted", "all 51_all": "missing"}
    slow = story.killed.steps["slow predictions"]
    assert (slow.examples, slow.seconds_left) == ((1, 6), None)
    place = story.killed.told.index(story.killed.line("slow predictions"))
    assert story.killed.told[place].endswith("its process is gone; what it wrote is kept")
    folder = story.project.root / "outputs/notebooks/main/slow"
    assert story.killed.told[place + 1] == f"    again: rulerkit run {folder}/mine.job.yaml"


def test_after_it_has_ended(story: Story) -> None:
    """A model that fails stops no other; a notebook that compares them shows what there is and says
    what is missing."""
    assert (story.ended[0].returncode, story.ended[1].returncode) == (1, 0)
    assert states(story.after) == {
        **dict.fromkeys(("quick predictions", "slow predictions", "short predictions"), "done"),
        "broken predictions": "failed",
        "broken 50_own": "missing",
        "all 51_all": "incomplete",
    }
    less = "2 of 8 cells are incomplete, the first is broken vt at 1024: 0 of 3 examples"
    assert story.after.steps["all 51_all"].says == less
    said = story.ended[0].stdout
    assert re.search(rf"^incomplete all 51_all: {less}$", said, re.MULTILINE)
    assert re.search(
        "^missing +broken 50_own: none of its 2 cells has an answer yet$", said, re.MULTILINE
    )
    assert re.search(
        "^FAILED +broken predictions: exit status 1: RuntimeError: broken is out of order$",
        said,
        re.MULTILINE,
    )
    line = "3 steps are not done: broken predictions (failed), broken 50_own (missing), all 51_all (incomplete)"
    assert story.ended[0].stderr.splitlines() == [line]


def test_what_failed_shows_its_last_lines_and_the_command_to_repeat_it(story: Story) -> None:
    place = story.after.told.index(story.after.line("broken predictions"))
    assert story.after.told[place].endswith("; exit status 1: RuntimeError: broken is out of order")
    *last, again = story.after.told[place + 1 : place + 7]
    assert last[-1] == "    | RuntimeError: broken is out of order"
    assert all(line.startswith("    | ") for line in last)
    assert (
        again
        == f"    again: rulerkit run {story.project.root}/outputs/notebooks/main/broken/mine.job.yaml"
    )


def test_a_length_that_a_model_cannot_be_given_counts_as_done(story: Story) -> None:
    short = story.after.steps["short predictions"]
    assert (short.cells, short.examples, short.tokens_left) == ((1, 1), (3, 3), 0)
    assert story.after.line("short predictions").endswith(" 1/1 cells, 3/3 examples; not run: 2K")
    assert not story.project.rows().get("short/vt/2048")


def test_after_rows_were_lost(story: Story) -> None:
    """One file is gone, the other is cut in the midst of its second row."""
    assert states(story.cut) == states(story.after) | dict.fromkeys(
        ("quick predictions", "slow predictions"), "incomplete"
    )
    assert story.cut.steps["quick predictions"].examples == (3, 6)
    assert story.cut.steps["slow predictions"].examples == (4, 6)
    assert story.cut.steps["slow predictions"].tokens_left == 2 * 1024
    assert story.project.asked("slow").total() == 6 + 2, "the others are not asked again"


def test_when_all_is_mended(story: Story) -> None:
    assert states(story.mended) == dict.fromkeys(ALL, "done")
    assert story.mended.told[-1] == "6 steps: 6 done"
    assert (
        story.mended.line("all 51_all").split()[-1]
        == f"{story.project.root}/outputs/notebooks/main/all/51_all.ipynb"
    )
    cells = {f"{name}/vt/{length}": [0, 1, 2] for name in MODELS for length in (1024, 2048)}
    del cells["short/vt/2048"]
    assert {cell: rows for cell, rows in story.project.rows().items() if rows} == cells
    assert "quick+slow+broken+short 21 rows" in story.project.said("all/51_all")


def test_cells(story: Story) -> None:
    def rows(seen: Seen, name: str) -> list[list[str]]:
        return [line.split() for line in seen.cells[name] if "---" not in line]

    assert rows(story.during, "slow") == [["slow", "1K", "2K"], ["vt", "1/3", "0/3"]]
    assert rows(story.cut, "quick") == [["quick", "1K", "2K"], ["vt", "3", "0/3"]]
    assert rows(story.after, "short") == [["short", "1K", "2K"], ["vt", "3", "not", "run"]]


def test_the_folder_tells_what_the_batch_file_tells(story: Story) -> None:
    for seen in (story.during, story.killed, story.after, story.cut, story.mended):
        assert seen.from_folder is not None
        plain = [re.sub(r"about \d+ \w+", "about", line) for line in seen.from_folder[:-1]]
        assert sorted(plain) == sorted(
            re.sub(r"about \d+ \w+", "about", line) for line in seen.told[:-1]
        )


def test_the_command_works_where_nothing_can_be_written(story: Story) -> None:
    """All tests above hold that no file is made or changed."""
    root = story.project.root
    try:
        for call in (["mount", "--bind", root, root], ["mount", "-o", "remount,ro,bind", root]):
            subprocess.run(call, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a folder can be made read-only for root by root only")
    try:
        with pytest.raises(OSError, match="Read-only"):
            (root / "outputs/new").touch()
        shown = [
            story.project.call("status", place, "--cells")
            for place in (story.batch, root / "outputs/notebooks/main")
        ]
    finally:
        subprocess.run(["umount", root], check=True)
    for ended in shown:
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.endswith("6 steps: 6 done\n")


def test_a_folder_without_jobs_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="holds no job: give a batch file, or outputs/notebooks/RUN"
    ) as error:
        jobs_in(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "59 min"), (19260, "5 h 21 min")],
)
def test_durations(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said
