"""Two declared protocols: what `paper` does to the distributions that a score may depend on, and
that they never mix."""

from collections import Counter

import numpy as np
import pytest

from rulerkit.common.errors import UserError
from rulerkit.evaluation.study import study
from rulerkit.generation.example import begins_alike
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import task
from rulerkit.inference.model import load_model
from rulerkit.report.plots import remarks, tasks_by_length
from rulerkit.report.tables import task_table_text
from rulerkit.scoring.scores import score
from rulerkit.scoring.summary import summarize
from rulerkit.store.comparable import check_same
from tests.records import predict


def examples(spec, protocol, length=4096, num_examples=40, **settings):
    return generate(task(spec, protocol).with_corpora("builtin"), length, num_examples, **settings)


def layout(example):
    """The order of the first 400 words, whatever they are: for each when it first came."""
    first = {}
    roles = ("needle", "haystack", "distractor")
    words = [piece.text.split()[-1] for piece in example.pieces if piece.role in roles]
    return tuple(first.setdefault(word, len(first)) for word in words[:400])


def test_the_paper_asks_the_first_questions_among_their_own_article(data):
    form = PromptFormat(str(data / "tokenizers/gpt-neox"))
    made = list(generate(task("qa_1", "paper"), 4096, 200, prompt_format=form))
    documents = [example.context_blocks for example in made]
    places = [[piece.role for piece in listed].index("needle") for listed in documents]
    # Upstream e40fae1, run: 20 documents in every example.
    assert set(places) == {18}
    assert {len(listed) for listed in documents} == {20}
    fill = sum(example.num_tokens + 32 for example in made) / 200 / 4096
    assert 0.66 <= fill <= 0.72
    # All are of the same article.
    assert all(piece.role != "haystack" for listed in documents for piece in listed)
    asked = ("In what country is Normandy located?", "When were the Normans in Normandy?")
    for example, question in zip(made, asked, strict=False):
        assert f"Question: {question}" in example.text_of("question")
    (long,) = generate(task("qa_1", "paper"), 131072, 1, prompt_format=form)
    roles = [piece.role for piece in long.context_blocks]
    assert (roles.index("needle") + 1, len(roles)) == (596, 760)  # as upstream's


@pytest.mark.parametrize("name", ["cwe", "fwe"])
def test_the_paper_has_one_layout_and_clean_one_for_each_example(name):
    paper = Counter(map(layout, examples(name, "paper", num_examples=12)))
    clean = Counter(map(layout, examples(name, "clean", num_examples=12)))
    assert len(paper) <= 3
    assert paper.most_common(1)[0][1] >= 9
    assert len(clean) == 12


def test_the_paper_has_needles_at_forty_depths():
    made = examples("niah_single_2", "paper", 16384, 150)
    depths = {depth for example in made for depth in example.depths}
    steps = {round(depth * 39 / 100) for depth in depths}
    assert all(min(abs(depth - 100 * step / 39) for step in steps) < 1.0 for depth in depths)
    assert len(steps) >= 36
    made = examples("niah_single_2", "clean", 16384, 150)
    free = [depth for example in made for depth in example.depths]
    assert sum(abs(depth * 39 / 100 - round(depth * 39 / 100)) > 0.3 for depth in free) > 30


@pytest.mark.slow
def test_the_paper_fills_long_lists_with_random_letters():
    hyphens = {}
    for protocol in ("paper", "clean"):
        (example,) = examples("cwe", protocol, 131072, 1)
        words = {piece.text.split()[-1] for piece in example.pieces if piece.role == "haystack"}
        assert len(words) > 8166
        hyphens[protocol] = sum("-" in word for word in words)
    assert hyphens["clean"] > 5 * hyphens["paper"]


@pytest.mark.parametrize(
    "name", ["niah_single_1", "niah_single_2", "vt", "cwe", "fwe", "qa_1", "qa_2"]
)
def test_the_paper_can_be_answered_and_differs_from_clean_only_where_it_says(name):
    paper, clean = (examples(name, protocol, num_examples=4) for protocol in ("paper", "clean"))
    for example, answer in load_model("perfect").answer(paper):
        assert paper.task.score(answer.text, example.references) == 1
        assert example.num_tokens + example.max_new_tokens <= 4096
    same = [one.digest == other.digest for one, other in zip(paper, clean, strict=True)]
    assert not any(same)


def test_the_protocol_of_a_study_is_that_of_all_its_tasks():
    for protocol in ("clean", "paper", "upstream"):
        tasks = ["vt", {"base": "vt", "num_hops": 2}, task("cwe", "paper")]
        asked = study(protocol=protocol, tasks=tasks)
        assert {one.protocol for one in asked.tasks} == {protocol}
    assert {one.protocol for one in study({}).tasks} == {"clean"}


def test_protocols_never_stand_in_one_table_and_are_never_resumed_by_the_other(tmp_path):
    model, other = load_model("perfect"), load_model("mute")
    folder = tmp_path / "main"
    cells = [predict(model, examples("niah_single_1", "clean", 1024, 2), folder, progress=False)]
    assert cells[0].record["result"]["protocol"] == "clean"
    made = generate(task("niah_single_1", "upstream"), 1024, 1)
    cell = predict(model, made, tmp_path / "upstream", progress=False)
    assert score([cell])["note"][0].startswith("Protocol upstream: ")
    with pytest.raises(UserError, match="protocol"):
        predict(model, examples("niah_single_1", "paper", 1024, 2), folder, progress=False)
    asked = examples("niah_multikey_2", "paper", 1024, 2)
    cells.append(predict(other, asked, folder, progress=False))
    with pytest.raises(UserError, match="protocol"):
        check_same(cells)


def test_what_copying_scores_stands_below_its_task_and_copies_are_counted(tmp_path):
    tasks = [task(name).with_corpora("builtin") for name in ("cwe", "niah_single_1")]
    made = [generate(one, 4096, 3) for one in tasks]
    cells = {
        name: [predict(load_model(name), one, tmp_path / name, progress=False) for one in made]
        for name in ("perfect", "floor-copy")
    }
    names = ["cwe", "niah_single_1"]
    whole = summarize(score(cells["perfect"]), names)
    copied, no_copy = whole.cells["copied"]
    assert 20 <= copied < 100
    assert np.isnan(no_copy)
    text = task_table_text(whole, "perfect")
    assert "100.0 (43.9-100.0)\n  copying the beginning" in text
    assert text.count("copying the beginning") == 1
    assert "answers that begin as" not in text

    scores = score(cells["floor-copy"])
    assert scores.query("task == 'cwe'")["score"].mean() == pytest.approx(copied / 100)
    summary = summarize(scores, names)
    assert summary.cells["is_copy"].tolist() == [3, 0]
    text = task_table_text(summary, "floor-copy")
    assert " b3\n" in text
    assert "b: answers that begin as the context does" in " ".join(text.split())
    (axes,) = tasks_by_length(summary.cells, note=remarks(summary.cells))
    assert [text.get_text() for text in axes.texts] == [f"{copied:.1f}", "0.0"]


def test_an_answer_that_begins_as_the_context_is_a_copy():
    beginning = "1. tidy 2. otter 3. pale 4. anchor 5. mild 6. ferry 7. calm 8. lamp"
    assert begins_alike("1. tidy 2. otter 3. pale\n4. anchor", beginning)
    for answer in ("1. tidy 2. otter", "1. otter 2. tidy 3. pale 4. anchor", ""):
        assert not begins_alike(answer, beginning)
