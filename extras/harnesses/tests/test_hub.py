"""What `rulerkit report --format hf` writes."""

import yaml

from rulerkit.generation.tasks import THIRTEEN, task
from tests.test_report import write_cell


def test_the_hub_gets_an_entry_for_each_complete_length(tmp_path, rulerkit):
    cells = [("m", 2048, name) for name in THIRTEEN] + [("n", 2048, "vt")]
    for model, length, name in [*cells, *(("m", 4096, name) for name in THIRTEEN[:-1])]:
        about = {"name": name, "family": task(name).family, "category": task(name).category}
        write_cell(tmp_path, length, model=model, name=name, task=about | {"match": "all"})

    command = ["report", tmp_path / "predictions/main/m", "--format", "hf"]
    assert "--dataset" in rulerkit(*command).err
    command += ["--dataset", "org/ruler"]
    said = rulerkit(*command)
    (entry,) = yaml.safe_load(said.out)
    assert entry["dataset"] == {"id": "org/ruler", "task_id": "ruler_2k"}
    assert entry["value"] == 100.0
    assert isinstance(entry["date"], str)
    assert set(entry) <= {"dataset", "value", "date", "source", "notes"}
    for words in ("RULER, 13 tasks, 2K (2048 tokens", "95 % interval", "reference readers, synt"):
        assert words in entry["notes"]
    assert rulerkit(*command).out == said.out

    for place, words in (("", "one model in one run"), ("main/n", "no length")):
        said = rulerkit("report", tmp_path / "predictions" / place, *command[2:])
        assert said.status == 2
        assert words in said.err
    said = rulerkit("report", tmp_path / "predictions/main/n", "--dataset", "org/ruler")
    assert "--dataset is for --format hf" in said.err
