"""Exports for sites that collect results: both schemas of Every Eval Ever hold, what is written
agrees with the summary, and a second export changes no byte. The schemas are those of
every-eval-ever 0.3.0 (MIT), without their explanations."""

import json
import math
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import jsonschema
import pytest
import yaml

import rulerkit as rk
from rulerkit.generation.tasks import THIRTEEN

SCHEMAS = Path(__file__).parent / "data/every_eval_ever"
WHO = ("--organization", "Lab", "--relationship", "third_party")


def validator(name):
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return jsonschema.Draft7Validator(schema)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """A run of three models; one of another run thinks, and has two references a question."""
    outputs = tmp_path_factory.mktemp("exchange") / "outputs"
    asked = {"lengths": [1024, 2048], "num_examples": 3, "outputs": str(outputs)}
    models = ["reader-1024", "perfect", "mute"]
    for more in (
        {"models": models, "tasks": ["vt", "niah_single_2", "qa_1"]},
        {"model": "reader-thinking", "tasks": ["vt", "qa_1"], "run": "thinks"},
    ):
        rk.evaluate(rk.study(**asked | more), progress=False)
    return outputs


def files_in(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_both_schemas_hold_and_a_second_export_changes_no_byte(tmp_path, outputs, rulerkit):
    places = [tmp_path / name / "data" for name in "ab"]
    for place in places:
        command = ["export", outputs, "-o", place, "--format", "eee", *WHO]
        ended = rulerkit(*command, "--samples")
        assert ended.status == 0
    files = files_in(places[0])
    assert files == files_in(places[1])
    # Over what is there already, too.
    rulerkit(*command, "--samples")
    assert files == files_in(places[1])
    assert len(files) == 8

    for path, content in files.items():
        collection, developer, model, name = Path(path).parts
        assert (collection, developer) == ("ruler", "rulerkit")
        assert UUID(name[:36]).version == 4
        if name.endswith(".json"):
            aggregate = json.loads(content, parse_constant=pytest.fail)
            validator("eval").validate(aggregate)
            assert aggregate["model_info"]["id"] == f"rulerkit/{model}"
            check_samples(path, aggregate, files)
        else:
            assert path.replace("_samples.jsonl", ".json") in files


def check_samples(path, aggregate, files):
    """The lines beside an aggregate belong to it, and their mean is its score."""
    details = aggregate["detailed_evaluation_results"]
    beside = path.replace(".json", "_samples.jsonl")
    assert details["file_path"] == f"data/{beside}"
    content = files[beside]
    assert details["checksum"] == sha256(content).hexdigest()
    lines = [json.loads(line) for line in content.splitlines()]
    assert details["total_rows"] == len(lines) > 0

    by_result = {}
    for line in lines:
        validator("instance_level_eval").validate(line)
        assert line["evaluation_id"] == aggregate["evaluation_id"]
        assert line["model_id"] == aggregate["model_info"]["id"]
        assert any(text in line["input"]["raw"] for text in ("VAR", "magic", "Q", "?"))
        by_result.setdefault(line["evaluation_result_id"], []).append(line["evaluation"]["score"])
    results = {
        one["evaluation_result_id"]: one["score_details"]["score"]
        for one in aggregate["evaluation_results"]
    }
    assert by_result
    for name, scores in by_result.items():
        assert results[name] == pytest.approx(sum(scores) / len(scores))


def test_scores_and_intervals_are_those_of_the_summary(tmp_path, outputs, rulerkit):
    rulerkit("export", outputs, "-o", tmp_path, "--format", "eee", *WHO)
    (file,) = tmp_path.glob("ruler/rulerkit/reader-1024/*.json")
    written = {
        one["evaluation_name"]: one for one in json.loads(file.read_text())["evaluation_results"]
    }
    cells = rk.read_cells(outputs / "predictions/main/reader-1024")
    summary = rk.summarize(rk.score(cells))
    rows = [
        (f"ruler.{row.task}.{row.length}", row)
        for row in summary.cells.itertuples()
        if not math.isnan(row.score)
    ]
    assert len(rows) == 6
    for name, row in rows:
        details = written[name]["score_details"]
        interval = details["uncertainty"]["confidence_interval"]
        assert details["score"] == pytest.approx(row.score / 100)
        assert interval["lower"] == pytest.approx(row.low / 100)
        assert interval["upper"] == pytest.approx(row.high / 100)
        assert interval["confidence_level"] == summary.confidence
        assert details["uncertainty"]["num_samples"] == row.n == 3
    # Three of thirteen tasks have no mean of the benchmark.
    assert not any("average" in name for name in written)
    assert "stand-in" in written["ruler.qa_1.1024"]["source_data"]["dataset_name"]
    assert "detailed_evaluation_results" not in json.loads(file.read_text())


def test_what_is_not_known_is_asked_for_and_nothing_is_overwritten(tmp_path, outputs, rulerkit):
    place = ["export", outputs, "-o", tmp_path, "--format", "eee"]
    ended = rulerkit(*place)
    assert ended.status == 2
    assert "--organization" in ended.err
    ended = rulerkit(*place, "--organization", "Lab", "--relationship", "friend")
    assert "third_party" in ended.err
    ended = rulerkit(*place, *WHO, "--model-id", "org/m")
    assert "mute" in ended.err
    ended = rulerkit("export", outputs, "--organization", "Lab")
    assert "--format" in ended.err
    assert not list(tmp_path.iterdir())

    ended = rulerkit(*place, *WHO, "--model-id", "mute=org/silent")
    assert ended.status == 0
    (file,) = tmp_path.glob("ruler/org/silent/*.json")
    content = json.loads(file.read_text())
    assert content["model_info"]["developer"] == "org"
    assert content["evaluation_id"].startswith("ruler/org_silent/main.")
    file.write_text(json.dumps(content | {"evaluation_id": "another"}))
    ended = rulerkit(*place, *WHO, "--model-id", "mute=org/silent")
    assert ended.status == 2
    assert "holds another evaluation (another)" in ended.err


@pytest.mark.slow
def test_the_hub_gets_an_entry_for_each_complete_length(tmp_path, rulerkit):
    outputs = tmp_path / "outputs"
    study = rk.study(model="perfect", lengths=[2048, 4096], num_examples=1, outputs=str(outputs))
    cells = rk.evaluate(study, progress=False)
    assert len(cells) == 2 * len(THIRTEEN)
    (outputs / "predictions/main/perfect/vt/4096.jsonl").unlink()
    command = ["export", outputs, "--format", "hf", "-o", tmp_path / "hub"]
    assert "--dataset" in rulerkit(*command).err
    command += ["--dataset", "org/ruler", "--source", "https://example.org/a"]
    assert rulerkit(*command).status == 0
    file = tmp_path / "hub/rulerkit/perfect/.eval_results/ruler.yaml"
    (entry,) = yaml.safe_load(file.read_text())
    assert entry["dataset"] == {"id": "org/ruler", "task_id": "ruler_2k"}
    assert entry["value"] == 100.0
    assert isinstance(entry["date"], str)
    assert set(entry) <= {"dataset", "value", "date", "source", "notes"}
    assert "95 % interval" in entry["notes"]
    assert "stand-in texts" in entry["notes"]
    before = file.read_bytes()
    rulerkit(*command)
    assert file.read_bytes() == before

    folder = tmp_path / "data"
    rulerkit("export", outputs, "--format", "eee", "-o", folder, *WHO)
    (aggregate,) = folder.glob("ruler/*/*/*.json")
    means = [
        one
        for one in json.loads(aggregate.read_text())["evaluation_results"]
        if "average" in one["evaluation_name"]
    ]
    assert [one["evaluation_name"] for one in means] == ["ruler.average.2048"]
    assert means[0]["score_details"]["details"]["tasks"] == "13"
