"""What people type first: names and paths in place of studies, cells and tables; a row of results
that becomes its prompt again; keys that nothing uses; errors in a notebook."""

from pathlib import Path

import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

import rulerkit as rk
from rulerkit.analysis.results import data_of
from rulerkit.generation import corpora
from tests.conftest import needs_extras

ASKED = {"tasks": ["vt", "niah_single_2"], "lengths": ["1K", "2K"], "num_examples": 2}


def evaluate(model, /, **more):
    return rk.evaluate(model, progress=False, **{**ASKED, **more})


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty project, which is the working directory."""
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def answered(home):
    """The cells of two models."""
    return evaluate(["reader-1024", "perfect"])


def test_evaluate_takes_a_model_or_several(home):
    Path("mine.yaml").write_text("model: {window: 700, name: mine}\n")
    variant = {"base": "reader-4096", "window": 512}
    for model in ("reader-1024", ["perfect", variant], Path("mine.yaml")):
        cells = evaluate(model)
        models = model if isinstance(model, list) else [model]
        assert len(cells) == 4 * len(models)
        assert not any(cell.coverage.missing for cell in cells)
        assert rk.study(model, **ASKED).models == rk.study(models=models, **ASKED).models


def test_evaluate_takes_made_models_parameters_and_studies(home):
    assert len(evaluate(rk.load_model("perfect"))) == 4
    assert len(evaluate({"model": "perfect", "seed": 7, "run": "b"})) == 4
    assert len(evaluate(None, model="perfect", run="c")) == 4
    assert {cell.model for cell in evaluate({"base": "perfect"})} == {"perfect"}
    study = rk.study("perfect", **ASKED)
    assert len(rk.evaluate(study, progress=False)) == 4


def test_what_is_no_model_is_one_line(home):
    for given in (None, 5, [], pd.DataFrame({"a": [1]}), len, "nobody"):
        with pytest.raises(rk.UserError) as caught:
            evaluate(given)
        assert "\n" not in str(caught.value)


def test_a_study_takes_no_parameters_beside_it(home):
    study = rk.study("perfect", **ASKED)
    with pytest.raises(rk.UserError, match="not both"):
        rk.evaluate(study, hops=6)
    with pytest.raises(rk.UserError, match="two models are named"):
        rk.evaluate("perfect", model="mute")


def test_cells_places_and_rows_mean_the_same(answered):
    scores = rk.score(answered)
    expected = rk.summarize(scores).cells
    order = ["model", "task", "length"]
    expected = expected.sort_values(order, ignore_index=True)
    for given in ["outputs", Path("outputs"), ["outputs"], answered, rk.load()]:
        found = rk.summarize(given).cells.sort_values(order, ignore_index=True)
        pd.testing.assert_frame_equal(found, expected)
    for given in ["outputs", answered]:
        assert len(rk.score(given)) == len(rk.answers_of(given)) == len(scores)
        assert len(rk.load(given)) == len(scores)
        assert rk.browse(given).num_examples == len(scores)
    assert len(rk.score(answered[0])) == 2
    a, b = (scores[scores["model"] == name] for name in ("perfect", "reader-1024"))
    assert rk.compare(a, b).verdict == rk.compare(answered[4:], answered[:4]).verdict


def test_a_part_of_the_rows_stays_a_part(answered):
    rows = rk.load()
    some = rows[rows["index"] == 0]
    for function in (rk.score, rk.answers_of):
        found = function(some)
        assert len(found) == len(some)
        assert set(found["index"]) == {0}
    with pytest.raises(rk.UserError, match="1 of 2 answers"):
        rk.compare(some[some["model"] == "perfect"], "main/reader-1024")


def test_a_table_from_a_file_and_one_that_counts_twice(answered, home):
    rows = rk.load("main/perfect")
    (home / "rows.csv").write_text(data_of(rows, "csv"))
    read, expected = (rk.summarize(each).cells for each in (pd.read_csv(home / "rows.csv"), rows))
    pd.testing.assert_frame_equal(read, expected, check_dtype=False)
    with pytest.raises(rk.UserError, match="is there twice in one cell"):
        rk.summarize(pd.concat([rows, rows]))


def test_cells_without_an_answer_are_remembered(home):
    evaluate(rk.model(lambda prompts: [None for _ in prompts], tokenizer="builtin"))
    assert len(rk.load().attrs["empty_cells"]) == 4


def test_a_table_of_other_scores_is_refused(answered):
    rows = rk.load("main/perfect")
    for changed, seen in (
        (rows.assign(score=100 * rows["score"]), "holds 100, and .* are 0 to 1"),
        (rows.assign(score=rows["score"].where(rows["index"] > 0)), "holds nan"),
        (rows.assign(length="1K"), "length holds '1K'"),
    ):
        for function in (rk.summarize, rk.score):
            with pytest.raises(rk.UserError, match=seen):
                function(changed)
    with pytest.raises(rk.UserError, match=r"show takes examples.*seen: score"):
        rk.show(rows.iloc[0])


FUNCTIONS = [rk.score, rk.summarize, rk.load, rk.answers_of, rk.browse]
FUNCTIONS += [rk.failures.shares, rk.depth.recall_by_depth, rk.depth.by_bin, rk.tables.table_text]
FUNCTIONS += [rk.plots.score_by_length, rk.plots.tasks_by_length, rk.plots.failures_by_length]
FUNCTIONS += [rk.correlation.task_vectors, rk.comparison.difference_table, rk.show, rk.example_of]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_anything_else_is_one_line(home, function):
    for given in (5, pd.DataFrame({"a": [1]})):
        with pytest.raises(rk.UserError) as caught:
            function(given)
        assert "\n" not in str(caught.value)


@needs_extras
def test_a_row_becomes_its_prompt_again(home):
    def answer(prompts):
        return ["none"] * len(prompts)

    model = rk.model(answer, tokenizer="builtin", template="llama3")
    chain = {"base": "vt", "num_hops": 2, "name": "short_chain"}
    needle = {"base": "niah_single_2", "key": "uuids", "depth": 50}
    tasks = [chain, needle, {"base": "qa_1", "context": "none"}, "cwe", "state_4"]
    evaluate(model, tasks=tasks, lengths=[4096], seed=7, protocol="paper")
    evaluate("perfect", run="clean", seed=8, protocol="upstream")
    rows = rk.load()
    assert len(rows) == 5 * 2 + 4 * 2
    for row in rows.to_dict("records"):
        example = rk.example_of(row)
        assert example.digest == row["digest"]
        assert (example.task, example.index) == (row["task"], row["index"])
    assert rk.example_of(rows[rows["engine"] == "function"].iloc[0]).prompt.startswith("<|begin")


def test_a_row_is_a_series_or_a_mapping(answered):
    rows = rk.load()
    row = rows.iloc[0]
    example = rk.example_of(row)
    assert example.digest == rk.example_of(row.to_dict()).digest == row["digest"]
    assert rk.show(example, rk.generate("vt", 1024, 2)).text.count("references:") == 3
    with pytest.raises(rk.UserError, match="none with index 9"):
        rk.example_of(rows.assign(index=9).iloc[0])
    for given in (rows, rows["score"]):
        with pytest.raises(rk.UserError, match="example_of takes a row of"):
            rk.example_of(given)


def test_a_corpus_that_is_another_or_gone_is_named(home, monkeypatch):
    words = home / "words.txt"
    syllables = [a + b for a in "bdfgklm" for b in "aeiou"]
    words.write_text("\n".join(a + b for a in syllables for b in syllables))
    evaluate("perfect", tasks=["niah_single_2"], lengths=[1024], corpora={"words": "words.txt"})
    row = rk.load().iloc[0]
    assert rk.example_of(row).digest == row["digest"]

    words.write_text("\n".join(a + b + "n" for a in syllables for b in syllables))
    corpora.LOADED.clear()  # as another process, which reads it anew
    with pytest.raises(rk.UserError, match="a corpus or the tokenizer is another now"):
        rk.example_of(row)
    monkeypatch.setenv("RULERKIT_HOME", str(home / "elsewhere"))
    monkeypatch.chdir("/")
    with pytest.raises(rk.UserError, match=r"words\.txt"):
        rk.example_of(row)


UNUSED = {
    "evaluate perfect": "hops: 6",
    "check perfect": "hops: 6",
    "generate -o out.jsonl": "run: other",
    "gate perfect mute": "hops: 6",
    "batch params/batches/demo.yaml --dry-run": "hops: [6]",
}


@pytest.mark.parametrize(("words", "key"), UNUSED.items())
def test_a_key_that_a_command_does_not_use_is_an_error(home, rulerkit, words, key):
    ended = rulerkit(*words.split(), "-y", key)
    assert ended.status == 2
    assert len(ended.lines) == 1
    assert "did you mean" not in ended.err


def test_a_file_may_hold_keys_of_other_commands(home, rulerkit):
    Path("shared.yaml").write_text("hops: [2]\nmax_failures: 2\nlengths: [1024]\n")
    assert rulerkit("show", "--tasks", "vt", "-f", "shared.yaml").status == 0
    Path("wrong.yaml").write_text("hosp: [2]\n")
    assert "did you mean 'hops'" in rulerkit("show", "-f", "wrong.yaml").err


def test_a_key_that_a_study_does_not_use_is_an_error(home):
    for key, said in (
        ("num_hops", "unknown parameter 'num_hops': .*A study uses these"),
        ("max_examples", "adaptive runs"),
    ):
        for function in (rk.study, rk.evaluate):
            with pytest.raises(rk.UserError, match=said):
                function("perfect", **{key: 1})


def test_an_error_is_one_sentence_in_a_notebook(capsys):
    InteractiveShell().run_cell("import rulerkit as rk\nrk.score(5)")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("UserError: score takes cells")
