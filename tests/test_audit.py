"""The audit: files of ours are in order; what is wrong with upstream's, the harness' and broken
ones is named."""

import json
import re
from functools import cache

import pytest

import rulerkit as rk
from rulerkit.analysis.other_formats import to_json, write_grid
from rulerkit.batch.audit import audit, read_file
from rulerkit.batch.checks import FAIL, summary_lines
from rulerkit.common.errors import UserError
from rulerkit.evaluation.writer import predict
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import THIRTEEN, task
from rulerkit.generation.tokenizers import load_tokenizer

LENGTH, COUNT = 4096, 12


def audit_file(path, name=None, length=None):
    return [
        f
        for cell in read_file(path, load_tokenizer("builtin"), name, length)
        for f in audit(cell)
    ]


@cache
def made(name, length):
    return [
        to_json(e) for e in generate(task(name).with_corpora("builtin"), length, COUNT)
    ]


def rows_of(name, length=LENGTH, **more):
    """Rows of ours in upstream's form, and no more than upstream's fields."""
    fields = ("index", "input", "outputs", "length", "answer_prefix")
    return [{key: row[key] for key in fields} | more for row in made(name, length)]


def looked(folder, rows, name, length=LENGTH):
    """What the audit says of rows: the lines that are no `ok`, by the name of the finding."""
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lines = summary_lines(audit_file(file, name, length))
    return {line[6:22].strip(): line for line in lines if not line.startswith("ok")}


@pytest.mark.parametrize("name", THIRTEEN)
def test_our_data_is_in_order(tmp_path, name):
    assert looked(tmp_path, rows_of(name), name) == {}
    with_prefix = [
        row | {"input": row["input"] + row["answer_prefix"], "answer_prefix": ""}
        for row in rows_of(name)
    ]
    assert looked(tmp_path, with_prefix, name) == {}  # the 2024 edition's files


@pytest.mark.parametrize("name", ["niah_multiquery", "cwe"])
def test_our_predictions_are_in_order(tmp_path, name):
    model = rk.load_model("perfect")
    examples = generate(
        task(name).with_corpora("builtin"), LENGTH, COUNT, 42, model.prompt_format
    )
    cell = predict(model, examples, tmp_path)
    found = audit_file(cell.path)
    assert {finding.name for finding in found} == {"indices", "budget", "predictions"}
    assert [finding for finding in found if finding.level != "ok"] == []


@pytest.mark.parametrize(
    ("protocol", "failed"), [("paper", set()), ("clean", {"budget"})]
)
def test_the_protocol_paper_fills_less_by_design(tmp_path, protocol, failed):
    model = rk.load_model("perfect")
    asked = task("qa_1", "paper").with_corpora("builtin")
    cell = predict(model, generate(asked, LENGTH, 6, 42, model.prompt_format), tmp_path)
    record = cell.path.with_suffix(".json")
    record.write_text(
        record.read_text().replace('"protocol": "paper"', f'"protocol": "{protocol}"')
    )
    found = audit_file(cell.path)
    assert {finding.name for finding in found if finding.level == FAIL} == failed
    assert any("by design" in finding.fix for finding in found) == (protocol == "paper")
    write_grid(
        [generate(task("cwe", "paper"), LENGTH, COUNT)], [tmp_path / "cwe.jsonl"]
    )
    text = (tmp_path / "cwe.jsonl").read_text().replace('"paper"', f'"{protocol}"')
    (tmp_path / "cwe.jsonl").write_text(text)
    found = {
        finding.name: finding
        for finding in audit_file(tmp_path / "cwe.jsonl", "cwe", LENGTH)
    }
    assert (found["positions"].level == FAIL) == (protocol == "clean")


# --- one fault at a time --------------------------------------------------------------------------


def at(rows, number, **changes):
    return [row | changes if i == number else row for i, row in enumerate(rows)]


def edit(rows, change):
    return [row | {"input": change(row["input"])} for row in rows]


def without_demonstration(text):
    opening = text[:40]
    return opening + text.rpartition(opening)[2]


def same_layout(rows):
    """Every row's list in the order of the first one's, with its own words."""
    names = [f"w{i}" for i in range(len(rows))]

    def renamed(name):
        return re.sub(r"(\d+\.) (\S+)", rf"\1 \2{name}", rows[0]["input"])

    return [
        row
        | {
            "input": renamed(name),
            "outputs": [word + name for word in rows[0]["outputs"]],
        }
        for row, name in zip(rows, names, strict=True)
    ]


FAULTS = [
    (
        "vt",
        "indices",
        lambda rows: at(rows, 3, index=2),
        "11 distinct indices in 12 rows (repeated: 2)",
    ),
    (
        "vt",
        "indices",
        lambda rows: [*rows[:4], *rows[6:]],
        "2 of 12 missing (first: 4)",
    ),
    (
        "vt",
        "prompts",
        lambda rows: [*rows[:-1], rows[0] | {"index": 11}],
        "11 different ones in 12 rows",
    ),
    (
        "fwe",
        "budget",
        lambda rows: edit(rows, lambda text: text + " again" * 60),
        "(line 1, index 0; 12 of 12)",
    ),
    (
        "niah_single_1",
        "budget",
        lambda rows: rows_of("niah_single_1", 2048),
        "50.0 % of 4096",
    ),
    (
        "niah_multivalue",
        "references",
        lambda rows: at(rows, 5, outputs=["0000000"]),
        "(line 6, index 5; 1 of 12)",
    ),
    (
        "cwe",
        "demonstration",
        lambda rows: edit(rows, without_demonstration),
        "none (line 1, index 0; 12 of 12)",
    ),
    (
        "vt",
        "answer prefix",
        lambda rows: [r | {"answer_prefix": r["answer_prefix"].strip()} for r in rows],
        "its blank",
    ),
    (
        "niah_single_1",
        "answer prefix",
        lambda rows: [r | {"answer_prefix": 2 * r["answer_prefix"]} for r in rows],
        "there twice (line 1, index 0; 12 of 12)",
    ),
    (
        "niah_single_1",
        "answer prefix",
        lambda rows: at(rows, 2, answer_prefix=""),
        "none at the end (line 3, index 2; 1 of 12)",
    ),
    (
        "niah_single_1",
        "BOS text",
        lambda rows: edit(rows, lambda text: "<s>[INST] " + text),
        "written out (line 1, index 0; 12 of 12)",
    ),
    ("cwe", "positions", same_layout, "in 12 of 12 rows"),
    (
        "niah_single_1",
        "positions",
        lambda rows: [
            rows[0] | {"index": i, "input": rows[0]["input"] + " " * i}
            for i in range(9)
        ],
        "% of the prompt in 9 of 9 rows",
    ),
    (
        "vt",
        "predictions",
        lambda rows: [row | {"pred": row["input"] + "ABCDE"} for row in rows],
        "the prompt itself (line 1, index 0; 12 of 12)",
    ),
    (
        "vt",
        "predictions",
        lambda rows: at([row | {"pred": "x"} for row in rows], 7, pred=" "),
        "nothing (line 8, index 7; 1 of 12)",
    ),
    (
        "vt",
        "own scores",
        lambda rows: [row | {"pred": row["outputs"][0], "score": 1.0} for row in rows],
        "1, not ours (line 1, index 0; 12 of 12)",
    ),
]


@pytest.mark.parametrize(
    ("name", "finding", "fault", "says"),
    FAULTS,
    ids=[f"{n} {f}" for n, f, *_ in FAULTS],
)
def test_a_fault_is_named(tmp_path, name, finding, fault, says):
    line = looked(tmp_path, fault(rows_of(name)), name)[finding]
    assert says in line
    assert "; " in line  # what it does to scores, or how to mend it


# --- the harness ----------------------------------------------------------------------------------


def harness(name, score):
    """Samples as lm-evaluation-harness writes them: two filters a document, prefixes stripped."""
    samples = []
    for row in rows_of(name):
        answers = [*row["outputs"], "another name"]
        doc = row | {
            "outputs": answers,
            "max_length": LENGTH,
            "gen_prefix": row["answer_prefix"].strip(),
        }
        doc["input"] += " "
        del doc["answer_prefix"]
        for kind in ("none", "strict"):
            sample = {
                "doc_id": row["index"],
                "doc": doc,
                "filter": kind,
                "filtered_resps": [answers[0]],
            }
            samples.append(
                sample | {str(LENGTH): score(answers[0], answers), "8192": -1.0}
            )
    return samples


def test_question_answering_scored_as_a_mean(tmp_path):
    def share(said, answers):
        return sum(answer.lower() in said.lower() for answer in answers) / len(answers)

    found = looked(tmp_path, harness("qa_1", share), "ruler_qa_squad", None)
    assert "the mean over references, 50.0 points too low" in found["own scores"]
    assert "12 of 12" in found["own scores"]
    assert found["answer prefix"].startswith("note")  # the harness strips it
    right = looked(
        tmp_path, harness("qa_1", lambda said, answers: 1.0), "ruler_qa_squad", None
    )
    assert "own scores" not in right


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("vt.jsonl", "{", "line 1: not JSON"),
        ("vt.jsonl", '{"input": "x"}', "give --length"),
        ("", "", "no file"),
    ],
)
def test_what_cannot_be_audited(tmp_path, name, content, says):
    file = tmp_path / (name or "nowhere.jsonl")
    if name:
        file.write_text(content)
    with pytest.raises(UserError, match=says) as said:
        audit_file(file)
    assert "\n" not in str(said.value)
