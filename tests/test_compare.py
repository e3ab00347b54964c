"""Comparing two models on the same examples: pairing, refusals, verdicts, the command, and its
notebook."""

import json
import math
import re
import shutil
from pathlib import Path
from statistics import NormalDist

import pandas as pd
import pytest

import rulerkit as rk
from rulerkit.analysis.compare import (
    CANNOT_TELL,
    NOT_WORSE,
    WORSE,
    Comparison,
    PairedDifferences,
    Side,
    judge_pairs,
    places_of,
)
from rulerkit.report.comparison import difference_table
from tests.records import change_record, change_rows

TASKS = ["niah_multikey_1", "vt", "qa_1"]
DROPPING = {"base": "perfect", "engine": "planted", "name": "dropping"}
ASKED = {
    "models": ["reader-1024", DROPPING | {"drop": 0.3}, "perfect"],
    "tasks": TASKS,
    "lengths": [1024, 2048],
    "num_examples": 8,
    "seed": 3,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Outputs of three readers, and of `perfect` in a second run too."""
    outputs = tmp_path_factory.mktemp("made") / "outputs"
    rk.evaluate(rk.study(ASKED, outputs=outputs), progress=False)
    rk.evaluate(rk.study(ASKED, outputs=outputs, models=["perfect"], run="again"), progress=False)
    return outputs


@pytest.fixture
def outputs(made, tmp_path):
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "outputs"))


def pairs(num_tasks, num_lengths, n, **lost):
    """All right for A; B loses the first so many examples of `task_length`, such as t0_1=3."""
    rows = [
        (f"niah_{t}", n_length, i)
        for t in range(num_tasks)
        for n_length in range(num_lengths)
        for i in range(n)
    ]
    frame = pd.DataFrame(rows, columns=["task", "length", "index"]).assign(category="niah", a=1.0)
    cell = "t" + frame["task"].str[5:] + "_" + frame["length"].astype(str)
    frame["b"] = (frame["index"] >= cell.map(lost).fillna(0)).astype(float)
    return frame.assign(length=1024 * (1 + frame["length"]), difference=frame["b"] - frame["a"])


def test_a_broken_task_is_found_though_the_mean_is_within_the_margin():
    rows, _ = judge_pairs(pairs(13, 1, 200, t3_0=24), 1.5)
    mean = rows[rows["level"] == "all"].iloc[0]
    assert mean["low"] > -1.5
    beyond = rows.loc[rows["beyond_margin"], "task"]
    assert beyond.unique().tolist() == ["niah_3"]


def test_a_loss_is_seen_before_it_is_found_to_be_beyond_the_margin():
    """8 of 400 examples of one cell are a loss for certain, but not one of more than a point; of
    40 both are certain."""
    for lost, seen, beyond in ((2, False, False), (8, True, False), (40, True, True)):
        rows, _ = judge_pairs(pairs(2, 1, 400, t0_0=lost), 1.0)
        cell = rows.iloc[0]
        assert (cell["loss"], cell["beyond_margin"]) == (seen, beyond)


def test_the_test_of_the_margin_is_that_of_bonett_and_price():
    """Their adjusted Wald limit for 60 pairs, 9 lost and 3 gained: -0.1 times 60 / 62, and the
    formula of their paper for its error."""
    frame = pairs(1, 1, 60, t0_0=9)
    frame.loc[frame["index"] >= 57, ["a", "difference"]] = [0.0, 1.0]
    mean = PairedDifferences(frame).mean(places_of([("niah_0", 1024)])[0])
    gained, lost = 4 / 62, 10 / 62
    error = math.sqrt((gained + lost - (gained - lost) ** 2) / 62)
    assert mean == pytest.approx((gained - lost, error, math.inf))
    limit = gained - lost - 1.644854 * error
    assert mean.lower_limit(0.05) == pytest.approx(limit)
    assert mean.p_not_below(limit) == pytest.approx(0.95)


def test_questions_of_one_article_count_as_little_as_they_tell():
    frame = pairs(1, 1, 60, t0_0=12).assign(category="qa")
    alone = PairedDifferences(frame).mean(places_of([("niah_0", 1024)])[0])
    articles = frame.assign(group=frame["index"] // 6)
    together = PairedDifferences(articles).mean(places_of([("niah_0", 1024)])[0])
    assert together.value == alone.value
    assert together.error > 1.5 * alone.error
    assert together.freedom == 9


def test_gains_are_no_losses():
    worse = pairs(2, 2, 50, t0_0=40)
    better = worse.assign(a=worse["b"], b=worse["a"], difference=-worse["difference"])
    rows, _ = judge_pairs(better, 1)
    assert not rows[["loss", "beyond_margin"]].any(axis=None)


def comparison_of(frame, margin=1.0):
    rows, cells = judge_pairs(frame, margin)
    a, b = (Side(name, name, {}, pd.DataFrame(), set()) for name in "AB")
    more = {"by": "digest", "flips": pd.DataFrame(), "lacking": "", "notes": ()}
    return Comparison(a, b, margin=margin, rows=rows, cells=tuple(cells), **more)


def test_the_verdict_follows_from_losses_and_the_mean():
    for n, lost, margin, word in (
        (500, 0, 1.0, NOT_WORSE),
        (20, 0, 1.0, CANNOT_TELL),
        (4, 4, 1.0, CANNOT_TELL),  # four flips of one task pass no test
        (500, 50, 1.0, WORSE),
        (500, 50, 99.0, NOT_WORSE),
    ):
        found = comparison_of(pairs(2, 1, n, t0_0=lost), margin)
        assert found.verdict.word == word
        assert (found.verdict.needed or math.inf) > n


def test_a_loss_that_may_be_larger_than_the_margin_is_no_pass():
    """Of 13 tasks at six lengths one cell of 500 lost 12: a loss, and maybe more than a point."""
    found = comparison_of(pairs(13, 6, 500, t0_3=12))
    assert found.mean["low"] > -1
    assert found.verdict.word == CANNOT_TELL
    assert "a loss is seen that may be larger: niah_0 at 4K -2.4 points" in found.verdict.text


def test_a_pass_says_what_a_cell_can_have_lost():
    """Without a flip in 50 examples, of 78 cells none lost more than 8.8 points: 3.22 standard
    errors of 1 / 26 / sqrt(2) at 2 of 52."""
    found = comparison_of(pairs(13, 6, 50))
    assert found.verdict.word == NOT_WORSE
    error = math.sqrt(2 / 52 / 52)
    most = 100 * error * NormalDist().inv_cdf(1 - 0.05 / 78)
    said = re.search(r"bound: no cell lost more than ([\d.]+) points", found.verdict.text)
    assert said
    assert float(said[1]) == pytest.approx(most, abs=0.1)


def test_missing_cells_and_rows_are_left_out_and_named(outputs):
    folder = outputs / "predictions/main/perfect"
    for path in (folder / "vt").glob("1024.*"):
        path.unlink()
    short = folder / "qa_1/2048.jsonl"
    lines = short.read_text(encoding="utf-8").splitlines(keepends=True)
    short.write_text("".join(lines[:5]), encoding="utf-8")
    found = rk.compare("main/perfect", "reader-1024", outputs=outputs)
    cells = found.rows[found.rows["level"] == "cell"]
    assert len(cells) == 5
    assert ("vt", 1024) not in set(zip(cells["task"], cells["length"], strict=True))
    notes = " | ".join(found.notes)
    assert "37 of 48 examples were answered by both; the others, in qa_1 at 2K, vt at 1K" in notes
    by_length = found.rows.set_index(["level", "length"])["difference"]
    assert by_length["length", 1024] == pytest.approx(0)


def test_a_candidate_that_lacks_what_the_baseline_has_does_not_pass(outputs):
    """Unless the caller leaves it out."""
    margin = {"margin": 99, "outputs": outputs}
    folder = outputs / "predictions/again/perfect"
    whole = rk.compare("main/perfect", "again/perfect", **margin)
    assert (whole.verdict.word, whole.lacking) == (NOT_WORSE, "")

    cell = folder / "vt/1024.jsonl"
    lines = cell.read_text(encoding="utf-8").splitlines(keepends=True)
    lines.sort(key=lambda line: json.loads(line)["index"])
    for content in (lines[:5], [*lines[:5], "{damaged\n"]):
        cell.write_text("".join(content), encoding="utf-8")
        damaged = rk.compare("main/perfect", "again/perfect", **margin)
        assert damaged.lacking.startswith("again/perfect lacks vt at 1K, which main/perfect has")
        assert damaged.verdict.status == 3
    cell.write_text("".join(lines[:5]), encoding="utf-8")
    first = rk.compare("main/perfect", "again/perfect", num_examples=5, **margin)
    assert first.verdict.word == NOT_WORSE, first.verdict.text

    for path in (folder / "vt").iterdir():
        path.unlink()
    gone = rk.compare("main/perfect", "again/perfect", **margin)
    assert "again/perfect lacks vt at 1K, vt at 2K" in gone.verdict.text
    chosen = rk.compare("main/perfect", "again/perfect", tasks=["qa_1"], **margin)
    assert chosen.verdict.word == NOT_WORSE
    more = rk.compare("again/perfect", "main/perfect", **margin)
    assert more.verdict.word == NOT_WORSE, "the baseline lacks it"

    # What the caller names is to be compared, whoever lacks it.
    for named, missing in (
        ({"tasks": ["qa_1", "cwe"]}, "cwe"),
        ({"tasks": ["qa_1", "vt"]}, "vt"),
        ({"lengths": [1024, 131072]}, "128K"),
    ):
        with pytest.raises(rk.UserError, match=f"has no answers to {missing}, which is to be"):
            rk.compare("again/perfect", "main/perfect", **margin, **named)


def test_a_baseline_of_the_same_name_and_files_of_other_programs(made, tmp_path):
    baseline = shutil.copytree(made / "predictions/main/perfect", tmp_path / "my baseline")
    found = rk.compare(baseline, "main/perfect", margin=15, outputs=made)
    assert f"A: {baseline} (" in difference_table(found, "markdown")
    record = made / "predictions/main/reader-1024/vt/1024.json"
    assert set(rk.compare(record, "main/perfect", outputs=made).rows["task"]) == {"vt", ""}
    for name, kept in (("before", 1), ("after", 0)):
        file = tmp_path / name / "model/synthetic/1024/pred/vt.jsonl"
        file.parent.mkdir(parents=True)
        row = {"pred": "X1" * kept, "outputs": ["X1"]}
        file.write_text((json.dumps(row) + "\n") * 8, encoding="utf-8")
    found = rk.compare(tmp_path / "before", tmp_path / "after", by="index")
    assert found.verdict.word == WORSE
    found = rk.compare("main/perfect", tmp_path / "after", by="index", outputs=made)
    assert "task." not in " ".join(found.notes)


def test_other_prompts_are_refused_and_named(outputs):
    path = outputs / "predictions/main/reader-1024/vt/2048.jsonl"
    change_rows(path, digest="0" * 16)

    def differs(record):
        record["result"]["tokenizer"]["fingerprint"] = "another"
        record["result"]["model"]["loaded"] = "6109af76"

    change_record(path, differs)
    said = r'not asked the same prompts in vt at 2K \(tokenizer.fingerprint: .* \| "another"'
    with pytest.raises(rk.UserError, match=said):
        rk.compare("main/perfect", "reader-1024", outputs=outputs)
    change_rows(path, digest="")
    with pytest.raises(rk.UserError, match="not asked the same prompts"):
        rk.compare("main/perfect", "reader-1024", outputs=outputs)
    found = rk.compare("main/perfect", "reader-1024", by="index", outputs=outputs)
    assert found.verdict.word == WORSE
    assert any("8 of 48 pairs have prompts that differ" in note for note in found.notes)
    assert "other weights or configuration" in " ".join(found.notes)


NOT_COMPARED = [
    ("perfect", {}, "several runs: name one of again/perfect, main/perfect"),
    ("main", {}, "main holds main/dropping, main/perfect, main/reader-1024: a"),
    ("main/reader-1024", {}, "are the same predictions"),
    ("main/perfect", {"margin": 0}, "margin is 0: it must be a number of"),
    ("main/perfect", {"tasks": ["cwe"]}, "no answers to cwe, .* it has niah_multikey_1 at 1K"),
]


@pytest.mark.parametrize(("a", "options", "message"), NOT_COMPARED)
def test_what_cannot_be_compared_is_said_in_one_line(made, a, options, message):
    with pytest.raises(rk.UserError, match=message) as error:
        rk.compare(a, "main/reader-1024", outputs=made, **options)
    assert "\n" not in str(error.value)


def test_the_number_of_examples_it_would_take(made):
    verdict = rk.compare("main/perfect", "again/perfect", margin=1, outputs=made).verdict
    z2 = 1.959964**2  # nothing flips: the limit -z2 / (N + z2) is to lie above -1 point; 6 cells
    assert verdict.needed == pytest.approx(99 * z2 / 6, abs=2)


WORSE_BY = "WORSE: all tasks at 2K -62.5 points (95 % CI -78.9 to -38.3); for certain in 0 of 6 single cells\n\nB - A (poi"
COMMANDS = [
    (["main/perfect", "reader-1024", "--by", "index"], 1, WORSE_BY),
    (["main/perfect", "again/perfect"], 3, "examples per task and length would tell"),
    (["main/perfect", "again/perfect", "--margin", "20"], 0, "NOT WORSE: mean +0.0 points"),
    (["main/perfect", "nobody"], 2, "unknown model or folder"),
]


@pytest.mark.parametrize(("arguments", "status", "expected"), COMMANDS)
def test_command(made, arguments, status, expected, rulerkit, monkeypatch):
    monkeypatch.chdir(made.parent)
    command = ("compare", *arguments)
    plain, as_json = rulerkit(*command), rulerkit(*command, "--json")
    assert plain.status == as_json.status == status
    assert expected in plain.out + plain.err
    if status != 2:
        content = json.loads(as_json.out)
        assert content["verdict"]["status"] == status
        assert len(content["rows"]) == 12
        assert bool(content["flips"]) == (status == 1)
