"""Examples as upstream's files: what a line holds, grids, and files that do not depend on the
number of processes."""

from rulerkit.other_formats import Order, write_grid
from rulerkit.tasks import task


def order(name, length=1024, num_examples=3):
    return Order(task(name).with_corpora("builtin"), length, num_examples, 42, "builtin", "base")


def test_files_do_not_depend_on_the_number_of_processes(tmp_path):
    orders = [order(name, length, 40) for name in ("fwe", "qa_2") for length in (1024,)]
    for workers in (1, 2):
        paths = [tmp_path / str(workers) / f"{o.task.name}-{o.length}.jsonl" for o in orders]
        write_grid(orders, paths, workers, progress=False)
    one, two = (sorted((tmp_path / workers).iterdir()) for workers in ("1", "2"))
    assert len(one) == 2
    for a, b in zip(one, two, strict=True):
        assert a.read_bytes() == b.read_bytes()
        assert len(a.read_text(encoding="utf-8").splitlines()) == 40
