"""What a report says of cells that are not complete, and of a service's versions of a model."""

import json

import pandas as pd
import pytest

from rulerkit.analysis.compare import compare
from rulerkit.common.errors import UserError
from rulerkit.common.render import Field, render
from rulerkit.report.tables import footnotes
from rulerkit.scoring.scores import score
from rulerkit.scoring.summary import summarize
from rulerkit.store.cells import read_cells
from tests.records import lines_of, record_of, write_record


def write_cell(outputs, length=1024, have=4, model="m", name="vt", **record):
    """A cell of 4 examples, of which `have` are answered and the others failed; the first was
    refused."""
    path = outputs / "predictions" / "main" / model / name / f"{length}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = record_of(model, length=length, **record)
    write_record(path, about)
    path.write_bytes(lines_of(about, (row(index) | {"task": name} for index in range(4 - have, 4))))
    failures = [
        {"index": n, "time": "", "reason": "it broke", "refused": n == 0} for n in range(4 - have)
    ]
    path.with_name(f"{length}.failures.jsonl").write_bytes(lines_of(about, failures))
    return path


def row(index, version="m-1", pred="A"):
    usage = {"server_model": version, "system_fingerprint": None}
    row = {"index": index, "pred": pred, "outputs": ["A"], "task": "vt", "digest": f"{index:x}"}
    row |= {"length": 1020, "num_prompt_tokens": 1000, "finish_reason": "stop"}
    return row | {"depths": [], "usage": usage}


def scored(outputs):
    cells = read_cells(outputs / "predictions")
    return cells, score(cells)


def test_versions_of_a_service_are_named(tmp_path):
    write_cell(tmp_path)
    write_cell(tmp_path, 4096)
    assert footnotes(scored(tmp_path)[0]) == []
    rows = [row(0), row(1, "m-2")]
    write_cell(tmp_path, 2048).write_bytes(lines_of(record_of("m", length=2048), rows))
    assert footnotes(scored(tmp_path)[0]) == [
        "The service answered with several versions of m: m-1 (3 cells), m-2 (1 cell)."
    ]


def test_failed_requests_are_counted_and_means_are_over_the_rest_where_allowed(tmp_path, rulerkit):
    for allowed, second in ((0, ""), (1, ""), (0.5, 100.0), (0.49, ""), (2, 100.0)):
        for length, have in ((1024, 4), (2048, 2), (4096, 0)):
            write_cell(tmp_path, length, have, max_failures=allowed)
        table = summarize(scored(tmp_path)[0], ["vt"], [1024, 2048, 4096]).cells
        lacks = "" if second else "2/4, 1 refused by the service, 1 failed"
        assert list(table["have"]) == ["", lacks, "0/4, 1 refused by the service, 3 failed"]
        assert list(table["complete"]) == [True, bool(second), False]
    folder = str(tmp_path / "predictions")
    words = "0/4, 1 refused by the service, 3 failed"
    assert words in rulerkit("report", folder, "--format", "csv").out
    said = rulerkit("report", "--by", "task", folder).out
    assert words in said
    assert "m on vt at 2K: 2/4, 1 refused by the service, 1 failed" in " ".join(said.split())
    write_cell(tmp_path / "half", have=2)
    said = rulerkit("report", str(tmp_path / "half")).out
    assert "vt  2/4, 1 refused" in said
    assert "bracket" not in said, "there is no interval"


def test_a_model_without_any_answer_is_named(tmp_path):
    write_cell(tmp_path)
    write_cell(tmp_path, model="silent", have=0)
    cells, scores = scored(tmp_path)
    assert footnotes(cells) == ["silent has no answer: 4 requests failed, the first: it broke."]
    with pytest.raises(UserError, match=r"nothing to summarize.*4 requests failed"):
        summarize(scores[scores["model"] == "silent"])
    with pytest.raises(UserError) as told:
        summarize(scores, ["cwe"])
    assert "failed" not in str(told.value), "requests of other tasks say nothing of this one"


def test_a_comparison_leaves_out_what_failed(tmp_path):
    for model in ("one", "two"):
        write_cell(tmp_path, 1024, 4, model)
        write_cell(tmp_path, 2048, 4 if model == "one" else 3, model)
    sides = [tmp_path / "predictions" / "main" / model for model in ("one", "two")]
    found = compare(*sides)
    assert list(found.rows.loc[found.rows["level"] == "cell", "length"]) == [1024]
    assert [note for note in found.notes if "4 of 8 examples were answered by both" in note]
    with pytest.raises(UserError, match="nothing is left to compare"):
        compare(*sides, lengths=[2048])
    write_cell(tmp_path, 2048, 3, "two", max_failures=1)
    allowed = compare(*sides)
    assert list(allowed.rows.loc[allowed.rows["level"] == "cell", "n"]) == [4, 3]


def test_one_frame_in_each_format():
    scores = [Field("80.0", marked=True, small="±1"), Field("7.0")]
    table = pd.DataFrame({"model": [Field("a_b", bold=True), Field("c")], "4K": scores})
    for form, words in {
        "text": "\na_b    80.0* ±1\nc          7.0\n---------------\nn = 2.",
        "markdown": "| **a_b** | **80.0** ±1 |\n| c | 7.0 |\n\n- n = 2.",
        "html": "<tr><td><b>a_b</b></td><td><u>80.0</u> <small>±1</small></td></tr>",
        "latex": "\\textsubscript{$\\pm$1} \\\\\nc & 7.0 \\\\\n\\bottomrule",
    }.items():
        assert words in render(table, form, ["n = 2."])
    assert "\\midrule\nc & 7.0" in render(table, "latex", groups=["chat", "base"])

    data = pd.DataFrame({"task": ["vt", "=1"], "score": [0.123456, None], "n": [1, 2]})
    assert render(data, "csv") == "task,score,n\nvt,0.1235,1\n'=1,,2\n"
    assert json.loads(render(data, "json"))[1] == {"task": "=1", "score": None, "n": 2}
    assert render(data, "markdown").splitlines()[2:4] == ["| vt | 0.123 | 1 |", "| =1 |  | 2 |"]
    with pytest.raises(UserError, match="unknown format 'xls'"):
        render(data, "xls")
