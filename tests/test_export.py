"""Examples as upstream's files: what a line holds, grids, and files that do not depend on the
number of processes."""

from rulerkit import PromptFormat, generate
from rulerkit.generation.tasks import task
from rulerkit.store.other_formats import write_grid


def test_files_do_not_depend_on_the_number_of_processes(tmp_path):
    form = PromptFormat(template="base")
    asked = (task(name).with_corpora("builtin") for name in ("fwe", "qa_2"))
    cells = [generate(each, 1024, 40, prompt_format=form) for each in asked]
    for workers in (1, 2):
        paths = [tmp_path / str(workers) / f"{cell.task.name}.jsonl" for cell in cells]
        write_grid(cells, paths, workers)
    one, two = (sorted((tmp_path / workers).iterdir()) for workers in ("1", "2"))
    assert len(one) == 2
    for a, b in zip(one, two, strict=True):
        assert a.read_bytes() == b.read_bytes()
        assert len(a.read_text(encoding="utf-8").splitlines()) == 40
