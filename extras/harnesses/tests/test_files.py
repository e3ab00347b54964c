"""Files of upstream and of lm-evaluation-harness: their rows become ours, and damaged ones are
named."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.scoring.scores import score
from rulerkit.store.predictions import read_predictions
from rulerkit_harnesses.files import task_name
from tests.faults.faults import cases, damaged, result_or_line


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def upstream_row(index, pred, outputs):
    others = {"others": {}, "truncation": -1, "length": 4000}
    return {"index": index, "pred": pred, "input": "...", "outputs": outputs, **others}


def test_task_names():
    names = ["ruler_vt", "ruler_qa_squad", "ruler_qa_hotpot"]
    assert [task_name(name) for name in names] == ["vt", "qa_1", "qa_2"]
    with pytest.raises(UserError, match="unknown task"):
        task_name("vtt")


def test_an_empty_reference_is_refused(tmp_path):
    """It is in every answer, and so it would score 100."""
    file = tmp_path / "m/synthetic/4096/pred/vt.jsonl"
    write(file, [upstream_row(0, "a", ["a"]), upstream_row(1, "b", ["a", ""])])
    with pytest.raises(UserError, match="line 2: outputs: no references, or an"):
        read_predictions(file)


def test_one_example_has_one_answer(tmp_path):
    """Files of upstream repeat the index of other examples."""
    file = tmp_path / "m/synthetic/4096/pred/vt.jsonl"
    upstream = [upstream_row(0, "a", ["a"]), upstream_row(0, "b", ["b"])]
    write(file, upstream)
    assert score(read_predictions(file))["score"].tolist() == [1.0, 1.0]
    write(file, [*upstream, upstream_row(0, "c", ["a"])])
    with pytest.raises(UserError, match="line 3: another answer to the example of line 1"):
        read_predictions(file)


def test_upstream_tree(tmp_path):
    """Rows whose `index` repeats, and answers of a task in several files."""
    pred = tmp_path / "my-model/synthetic/4096/pred"
    preds = zip(["1", "2", "x"], "123", strict=True)
    rows = [upstream_row(0, said, [reference]) for said, reference in preds]
    write(pred / "niah_single_1.jsonl", rows)
    for part, city in enumerate(("Rome", "Oslo")):
        write(pred / f"qa_1-{part}.jsonl", [upstream_row(0, f"in {city}", ["rome", "Roma"])])
    found = score(read_predictions(tmp_path))
    means = found.groupby(["model", "task", "length"])["score"].agg(["mean", "size"])
    assert means.to_dict("index") == {
        ("my-model", "niah_single_1", 4096): {"mean": pytest.approx(2 / 3), "size": 3},
        ("my-model", "qa_1", 4096): {"mean": 0.5, "size": 2},
    }
    assert found["index"].tolist() == [0, 1, 2, 0, 1]
    # Each part stands for the task, and its rows are found again by the name of the first.
    for named in (["qa_1-0"], ["qa_1-1"], ["qa_1-0", "qa_1-1"]):
        whole = rk.load(*(pred / f"{name}.jsonl" for name in named))
        assert len(rk.answers_of(whole)) == 2


def test_lines_end_with_newlines_only(tmp_path):
    file = tmp_path / "4096/pred/vt.jsonl"
    file.parent.mkdir(parents=True)
    line = json.dumps(upstream_row(0, "a\u2028b\u0085c", ["c"]), ensure_ascii=False)
    file.write_text(line + "\n\n" + line, encoding="utf-8")
    assert score(read_predictions(file))["score"].tolist() == [1.0, 1.0]


PLAIN = b"".join(
    json.dumps(
        {"index": n, "pred": f"the words are apple{n}", "outputs": [f"apple{n}", "pear"]}
    ).encode()
    + b"\n"
    for n in range(4)
)
HARNESS = b'{"doc": {"outputs": ["a"], "max_length": 1024}, "resps": [["a"]]}'


@given(text=damaged(PLAIN) | damaged(HARNESS))
@cases
def test_damaged_files_of_others(text):
    with TemporaryDirectory() as name:
        for place in ("m/b/1024/pred/vt.jsonl", "samples_ruler_vt_2025-01-01T00.jsonl"):
            path = Path(name) / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
            cells = result_or_line(read_predictions, path)
            if not isinstance(cells, Exception):
                assert not isinstance(result_or_line(rk.score, cells), Exception)


def test_files_of_others_beside_a_damaged_one_are_scored(tmp_path, capsys):
    for length, content in ((1024, PLAIN), (2048, b"{")):
        file = tmp_path / f"m/b/{length}/pred/vt.jsonl"
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    assert [cell.length for cell in read_predictions(tmp_path)] == [1024]
    assert "left out: " in capsys.readouterr().err
