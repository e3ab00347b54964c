"""The frontier suite: every example verified by a parser that shares no code with the generator,
readers that find everything and readers that see a part, floors, labels, golden digests."""

import hashlib
import json
import re
import sys
from random import Random

import frontier_verifier
import numpy as np
import pytest
import yaml

import rulerkit as rk
from rulerkit.analysis.failures import label_answers
from rulerkit.common.errors import UserError
from rulerkit.generation.corpora import load
from rulerkit.generation.example import copy_beginning
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import all_tasks, read_answer, suites
from rulerkit.generation.tasks import task as make_task
from rulerkit.generation.tokenizers import load_tokenizer
from rulerkit.inference.model import load_model
from rulerkit.scoring.scores import score
from rulerkit_frontier.answer_line import final_items
from rulerkit_frontier.scores import frontier
from rulerkit_frontier.table import frontier_text
from rulerkit_frontier.tasks import FAMILIES
from rulerkit_frontier.tasks.base import draw_things
from tests.test_failures import cell_of, distractors, labelled

FRONTIER = suites()["frontier"]
VARIANTS = [
    {"base": "graph_bfs_4", "order": "grouped"},
    {"base": "graph_parents", "order": "grouped", "width": 3},
    {"base": "graph_bfs_2", "depth": 1, "empty": False},
    {"base": "state_16", "num_lockers": 3, "num_operations": 40},
    {"base": "state_4", "num_operations": 3},
    {"base": "missing_8", "most_missing": 1},
    {"base": "order_8", "by": "text", "num_items": 3},
    {"base": "ordinal_copy_8", "num_replies": 5, "near": 12},
    {"base": "count_64", "most": 3},
    {"base": "count_distinct_32", "empty": False, "most": 50},
    {"base": "absent_4", "num_queries": 1, "near": 5},
    {"base": "absent_4", "num_queries": 2, "empty": False},
    {"base": "latent_3", "num_distractors": 6},
]


def task(spec):
    return make_task(spec).with_corpora("builtin")


def verified(spec, lengths, indices, form):
    """Verifies examples at several lengths; returns what percent of each length every example
    fills, and the scores of a reader that reads everything."""
    asked = task(spec)
    parse = frontier_verifier.FAMILIES[asked.family]
    tokenizer, filled, scores = form.tokenizer, {n: [] for n in lengths}, []
    for index in indices:
        rows, counts = {}, {}
        for length in lengths:
            example = generate(asked, length, index + 1, prompt_format=form)[index]
            rows[length] = {
                "task": asked.name,
                "index": index,
                "input": example.input,
                "outputs": list(example.references),
                "length": example.length,
                "max_new_tokens": example.max_new_tokens,
                "empty": getattr(asked, "empty", False),
            }
            text = example.input + example.answer_prefix
            counts[length] = len(form.bos) + tokenizer.count(text)
            filled[length].append(100 * (counts[length] + asked.answer_tokens) / length)

            answer = prefix_of(asked, example) + read_answer(example.prompt)
            scores.append(asked.score(answer, example.references))
            assert asked.answer_tokens >= tokenizer.count(read_answer(example.prompt))
        frontier_verifier.verify(parse, rows, counts)
    return filled, scores


@pytest.mark.parametrize("name", FRONTIER)
def test_a_parser_of_its_own_agrees_with_every_example(name):
    """References, one question, line forms, the same at both lengths, filler without effect."""
    form = PromptFormat("builtin", template="base")
    filled, scores = verified(name, (4096, 8192), (0, 4, 9), form)
    assert np.mean(filled[4096]) >= 99.9
    assert set(scores) == {1.0}


@pytest.mark.parametrize("spec", VARIANTS, ids=str)
def test_variants_hold_what_their_tasks_hold(spec):
    form = PromptFormat("builtin", template="base")
    _, scores = verified(spec, (4096,), (0, 9), form)
    assert set(scores) == {1.0}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["builtin", "qwen2.5", "llama-3", "mistral/tokenizer.model.v1"])
@pytest.mark.parametrize("name", FRONTIER)
def test_every_length_and_tokenizer(name, folder, request):
    """V1 to V7 at 4K, 32K and 128K; nearly every token is used; the perfect reader has 100."""
    path = folder
    if folder != "builtin":
        path = str(request.getfixturevalue("data") / "tokenizers" / folder)
    form = PromptFormat(load_tokenizer(path), template="base")
    filled, scores = verified(name, (4096, 32768, 131072), (1, 2, 9), form)
    assert set(scores) == {1.0}
    assert np.mean(filled[4096]) >= 99.9
    least = 99.9 if name == "missing_8" else 99.99
    assert min(np.mean(filled[32768]), np.mean(filled[131072])) >= least


def test_ids_are_those_of_the_whole_text_in_every_vocabulary(vocabulary):
    """Joined from pieces, for every kind of line."""
    form = PromptFormat(vocabulary, template="base")
    for name in {*FRONTIER} - {"graph_bfs_4", "state_16", "ordinal_copy_8"}:
        example = generate(task(name), 4096, 10, prompt_format=form)[3]
        whole = [*form.bos, *vocabulary.encode(example.prompt)]
        assert example.ids.tolist() == whole, name


# --- readers and floors ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", FRONTIER)
def test_what_a_reader_does_not_see_it_does_not_find(name):
    """A window of the whole length sees everything, one of a quarter of it nearly nothing but what
    is nothing anyway."""
    asked, examples, means = task(name), list(generate(task(name), 8192, 10)), {}
    for window in (8192, 2048):
        spec = {"engine": "reader", "name": f"reader-{window}", "window": window}
        scores = [
            asked.score(prefix_of(asked, example) + answer.text, example.references)
            for example, answer in load_model(spec).answer(examples)
        ]
        means[window] = 100 * np.mean(scores)
    assert means[8192] == 100
    assert means[2048] < 75, means


def test_a_line_that_is_cut_is_no_line():
    """Wherever a window begins, what it names is missing indeed."""
    example = generate("missing_8", 4096, 1)[0]
    for start in range(300, 700):
        items = final_items(read_answer(example.prompt[start:]))
        assert {*items} <= {reference.casefold() for reference in example.references}


def prefix_of(asked, example):
    """The answer prefix where it is judged with the answer."""
    return example.answer_prefix if asked.judges_prefix else ""


def without_reading(example, asked, tokenizer):
    """Answers without reading: the beginning copied, the form of nothing, and all guesses at a thing
    of the kind that is asked for."""
    copied = prefix_of(asked, example) + copy_beginning(example, tokenizer)
    if asked.family == "ordinal_copy":
        (needle,) = of_role(example, "needle")
        alike = [p for p in of_role(example, "distractor") if p.key == needle.key]
        hash_ = example.references[0].partition(" ")[0]
        return {"copy": [copied], "guess": [f"{hash_} {p.value}" for p in (needle, *alike)]}
    if asked.family == "count":
        guesses = [f"Final Answer: {number}" for number in range(1, asked.most + 1)]
        return {"copy": [copied], "nothing": ["Final Answer: 0"], "guess": guesses}
    things = sorted(set(re.findall(asked.item_pattern, example.context_text)))[:20] or ["Jane Doe"]
    return {"copy": [copied], "nothing": [said()], "guess": [said(thing) for thing in things]}


@pytest.mark.parametrize(
    "spec", [*FRONTIER, *(pytest.param(one, marks=pytest.mark.slow) for one in VARIANTS)]
)
def test_no_answer_without_reading_is_above_the_floor(spec):
    """The floor by the settings is the best mean over examples, within its standard error."""
    asked, means = task(spec), {}
    examples = generate(asked, 2048 if asked.family != "ordinal_copy" else 8192, 50)
    for example in examples:
        answers = without_reading(example, asked, examples.prompt_format.tokenizer)
        for rule, of_rule in answers.items():
            scores = [asked.score(answer, example.references) for answer in of_rule]
            means.setdefault(rule, []).append(np.mean(scores))
    best = max(means.values(), key=np.mean)
    near = 3 * np.std(best) / np.sqrt(len(best)) + 0.005
    if getattr(asked, "empty", True) or asked.family == "count":
        assert abs(np.mean(best) - asked.floor) < near
    else:
        assert asked.floor == 0
        assert np.mean(best) < 0.08


def test_no_thing_has_a_blank():
    words = load("words", "wonderwords")
    assert any(" " in adjective for adjective in words.adjectives)
    things = draw_things(Random(1), words, 20_000)
    assert not any(" " in thing for thing in things)


# --- labels ---------------------------------------------------------------------------------------


def said(*items):
    return f"I looked.\nFinal Answer: [{', '.join(items)}]"


def of_role(example, role):
    return [piece for piece in example.pieces if piece.role == role]


def things_put(example, role):
    texts = (piece.text for piece in of_role(example, role))
    return [found[1] for text in texts if (found := re.match("Put the (.+) into", text))]


WRONG = {
    "revisited node": ("graph_bfs_2", lambda e: said(*led_back(e))),
    "wrong depth": ("graph_bfs_2", lambda e: said(after(e))),
    "children for parents": (
        "graph_parents",
        lambda e: said(*(p.value for p in of_role(e, "distractor") if p.key == asked_node(e))),
    ),
    "invented node": ("graph_parents", lambda e: said("0123456789")),
    "other locker of the group": (
        "state_16",
        lambda e: said(next(t for t in things_put(e, "distractor") if t not in was_inside(e))),
    ),
    "stale value": ({"base": "state_16", "num_operations": 40}, lambda e: said(was_inside(e)[0])),
    "said empty": ("state_4", lambda e: said()),
    "neighbour of a missing line": ("missing_8", lambda e: said(beside(e))),
    "line of both parts": ("missing_8", lambda e: said(far_away(e))),
    "invented line": ("missing_8", lambda e: said("blue-door 11111")),
    "order of the text": ("order_8", lambda e: said(*(p.value for p in of_role(e, "needle")))),
    "thing of another person": ("order_8", lambda e: said(of_role(e, "distractor")[0].value)),
    "one left out": ("order_8", lambda e: said(*e.references[1:])),
    "invented thing": ("order_8", lambda e: said("blue-door")),
    "said nothing": ("order_8", lambda e: said()),
    "other ordinal": ("ordinal_copy_2", lambda e: behind_hash(e, 0)),
    "near request": ("ordinal_copy_2", lambda e: behind_hash(e, 1)),
    "no hash": ("ordinal_copy_2", lambda e: e.references[0][13:]),
    "cut copy": ("ordinal_copy_2", lambda e: e.references[0][:200]),
    "too many": ("count_64", lambda e: counted(e, 2)),
    "too few": ("count_64", lambda e: counted(e, -1)),
    "people for orders": (
        "count_64",
        lambda e: f"Final Answer: {len({p.value for p in of_role(e, 'needle')})}",
    ),
    "no number": ("count_64", lambda e: "Final Answer: many"),
    "false none": ({"base": "absent_4", "empty": False}, lambda e: said()),
    "value of a near key": ("absent_4", lambda e: said(value_of(e, near=True))),
    "value of another key": ("absent_4", lambda e: said(value_of(e, near=False))),
    "invented number": ("absent_4", lambda e: said("1111111")),
    "other person of the relation": ("latent_3", lambda e: said(distractors(e)[0])),
    "person not in the text": ("latent_3", lambda e: said("Jane Doe")),
    "said nobody": ("latent_3", lambda e: "Final Answer: nobody"),
}
"""Label -> a task, and an answer that goes wrong in this way."""


def asked_node(example):
    return re.search("(?:node) ([0-9a-f]{10})", example.text_of("question"))[1]


def led_back(example):
    """Nodes that were visited, to which edges from the first level lead back."""
    edges = [(p.key, p.value) for p in of_role(example, "needle")]
    first = [b for a, b in edges if a == asked_node(example)]
    return [b for a, b in edges if a in first and b in (asked_node(example), *first)]


def after(example):
    """A node one step too far."""
    found = example.references
    return next(p.value for p in of_role(example, "distractor") if p.key in found)


def was_inside(example):
    """What was in the locker that is asked about, before the answer."""
    locker = re.search(r"\d{5}", example.text_of("question"))[0]
    inside, seen = {}, []
    for line in example.context_text.splitlines():
        if found := re.match(r"Put the (.+) into locker (\d+)", line):
            inside[found[2]] = found[1]
        elif found := re.match(r"Swap what is in lockers (\d+) and (\d+)", line):
            a, b = found.groups()
            inside[a], inside[b] = inside.get(b), inside.get(a)
        elif found := re.match(r"Empty locker (\d+)", line):
            inside[found[1]] = None
        seen.append(inside.get(locker))
    return [thing for thing in dict.fromkeys(seen) if thing not in (None, *example.references)]


def listed(example):
    return example.context_text.split("Copy:\n")[0].splitlines()


def beside(example):
    lines = listed(example)
    at = lines.index(example.references[0])
    return next(line for line in lines[at + 1 :] if line not in example.references)


def far_away(example):
    lines, places = listed(example), range(len(listed(example)))
    near = [lines.index(line) for line in example.references]
    return next(lines[at] for at in places if min(abs(at - n) for n in near) > 3)


def behind_hash(example, number):
    """The hash with another reply to the request (0), or with one to a near request (1)."""
    asked = of_role(example, "needle")[0].key
    others = of_role(example, "distractor")
    others.sort(key=lambda piece: piece.key != asked)
    return f"{example.references[0][:12]} {others[number].value}"


def counted(example, more):
    return f"Final Answer: {int(example.references[0]) + more}"


def value_of(example, near):
    """The value of a key that shares a word with an asked one, or of one that does not."""
    asked = set(re.findall(r"\w+", example.text_of("question")))
    return next(
        piece.value
        for piece in of_role(example, "distractor")
        if asked.isdisjoint(re.findall(r"\w+", piece.key)) != near
    )


def test_every_label_of_the_suite_has_an_answer():
    rules = {rule.label for rule in [rule for family in FAMILIES for rule in family.failure_rules]}
    with_nothing_right = {"said full"}  # below
    assert rules == set(WRONG) | with_nothing_right


@pytest.mark.parametrize("name", WRONG)
def test_what_went_wrong_is_named(name):
    spec, write = WRONG[name]
    label, detail = labelled(spec, write, length=4096)
    assert label == name, detail


def test_naming_something_where_there_is_nothing_is_named():
    """Index 9 asks for nothing."""
    examples = generate("state_4", 4096, 10)
    assert examples[9].references == ()
    cell = cell_of(examples, {9: said("blue-door")})
    assert label_answers(cell, {}, {})[9][0] == "said full"
    asked = all_tasks()["state_4"]
    assert asked.score(said(), ()) == 1
    assert asked.score("", ()) == asked.score(said("blue-door"), ()) == 0


# --- what is asked --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("latent_3", lambda e: f"I think that it is {e.references[0]}."),
        ("state_4", lambda e: rf"\\boxed{{\\text{{{e.references[0]}}}}}"),
        ("order_8", lambda e: f"In order: {', '.join(e.references)}"),
        ("missing_8", lambda e: "\n".join(["These:", *e.references])),
        ("count_64", lambda e: f"There are {e.references[0]} of them."),
    ],
)
def test_a_right_answer_in_a_form_that_is_not_judged_as_right_is_named(name, write):
    label, detail = labelled(name, write, length=4096)
    assert label == "right, in another form", detail


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("latent_3", lambda e: f"Not {e.references[0]}. {said(distractors(e)[0])}"),
        ("latent_3", lambda e: f"Final Answer: {e.references[0]} or Jane Doe"),
        ("order_8", lambda e: f"In order: {', '.join(reversed(e.references))}"),
        ("order_8", lambda e: said(*reversed(e.references))),
        ("order_8", lambda e: said(*e.references, "blue-door")),
        ("count_64", lambda e: f"Final Answer: {e.references[0]} or more"),
    ],
)
def test_what_is_wrong_is_not_right_in_another_form(name, write):
    assert labelled(name, write, length=4096)[0] != "right, in another form"


def test_tables_of_the_suite_say_how_many_are_right_in_another_form():
    examples = generate(task("latent_3"), 4096, 5)
    texts = {index: f"It is {examples[index].references[0]}." for index in range(2)}
    texts |= {index: said(examples[index].references[0]) for index in range(2, 5)}
    scores = score([cell_of(examples, texts)]).assign(suite="frontier")
    assert scores["other_form"].tolist() == [True] * 2 + [False] * 3
    summary = frontier(scores)
    assert summary.models["other_form"].tolist() == [40.0]
    assert "40.0 %" in frontier_text(summary)


def test_only_models_without_a_template_get_the_beginning_of_the_answer():
    """They are judged with it; a chat model is asked for the line."""
    chat = PromptFormat("builtin", template="llama2")
    for name in FRONTIER:
        example = generate(task(name), 4096, 1, prompt_format=chat)[0]
        assert example.answer_prefix == ""
        base = generate(task(name), 4096, 1, prompt_format=PromptFormat("builtin", "base"))[0]
        wants_prefix = all_tasks()[name].judges_prefix
        assert base.prompt.endswith("\nFinal Answer:") == wants_prefix


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"base": "graph_bfs_2", "width": 1}, "width"),
        ({"base": "graph_bfs_2", "depth": 0}, "depth"),
        ({"base": "graph_bfs_2", "order": "sorted"}, "order"),
        ({"base": "state_4", "num_lockers": 2}, "num_lockers"),
        ({"base": "state_4", "num_operations": 2}, "num_operations"),
        ({"base": "missing_8", "most_missing": 0}, "most_missing"),
        ({"base": "missing_8", "empty": "no"}, "empty"),
        ({"base": "order_8", "num_items": 1}, "num_items"),
        ({"base": "order_8", "by": "length"}, "by"),
        ({"base": "ordinal_copy_8", "num_replies": 1}, "num_replies"),
        ({"base": "ordinal_copy_8", "num_replies": 9}, "num_replies"),
        ({"base": "ordinal_copy_8", "near": 100}, "near"),
        ({"base": "count_64", "ask": "buyers"}, "ask"),
        ({"base": "count_64", "most": 2000}, "most"),
        ({"base": "absent_4", "haystack": "noise"}, "haystack"),
        ({"base": "latent_3", "num_distractors": 7}, "num_distractors"),
    ],
)
def test_wrong_settings(spec, named):
    with pytest.raises(UserError, match=named) as error:
        task(spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", FRONTIER)
def test_too_short_lengths(name):
    for length in (1, 60, 120):
        with pytest.raises(UserError, match=r"fits into \d+ tokens"):
            generate(task(name), length, 1)[0]


@pytest.mark.parametrize("name", FRONTIER)
@pytest.mark.slow
def test_a_million_tokens(name):
    example = generate(task(name), 1_048_576, 1)[0]
    filled = (example.num_tokens + example.max_new_tokens) / example.length
    assert 0.9999 <= filled <= 1
    assert all_tasks()[name].score(read_answer(example.prompt), example.references) == 1


# --- golden digests -------------------------------------------------------------------------------

GOLDEN = {
    "graph_parents": "199cf43280b296f5",
    "graph_bfs_2": "87f1d8d628396401",
    "graph_bfs_4": "f5d6927c2867665e",
    "state_4": "efdb0569277e7e1d",
    "state_16": "8f2116808e9d6b37",
    "missing_8": "1affdc44cf97fbac",
    "order_8": "6ac6d686fb649a91",
    "ordinal_copy_2": "b9b50af3e31dfb96",
    "ordinal_copy_8": "318de6d9a2faf71c",
    "count_64": "b0f8e34c91c5cbb9",
    "count_distinct_32": "d37c158610083459",
    "absent_4": "1c9b9bc5a6ca845d",
    "latent_3": "ea684d23244f560d",
}
"""Of examples 0, 9 and 37 at 4096 tokens, `builtin` tokenizer, seed 42. If this test fails, prompts
have changed: say so in the changelog, and put the digests that the failure prints here."""


@pytest.mark.parametrize("name", FRONTIER)
def test_golden_digests(name):
    examples = generate(task(name), 4096, 38)
    marks = [f"{examples[index].digest} {examples[index].references}" for index in (0, 9, 37)]
    digest = hashlib.sha256(json.dumps(marks).encode()).hexdigest()[:16]
    assert GOLDEN.get(name) == digest, f'"{name}": "{digest}",'


def test_a_suite_goes_on_without_a_task_that_does_not_fit(tmp_path, capsys):
    """At 1K no graph of two steps fits; the example 7 of parents does not either, the first does."""
    names = ["state_4", "graph_parents", "graph_bfs_2"]
    study = rk.study(
        model="perfect", tasks=names, lengths=["1K", "2K"], num_examples=8, outputs=tmp_path
    )
    cells = rk.evaluate(study, progress=False)
    done = {(cell.task, cell.length) for cell in cells}
    assert done == {("state_4", 1024), *((name, 2048) for name in names)}
    said = capsys.readouterr().err
    assert "not run: graph_bfs_2 does not fit into 1024 tokens" in said
    assert "not run: graph_parents does not fit into 1024 tokens" in said

    alone = rk.study(model="perfect", tasks=["graph_bfs_2"], lengths=["1K"], outputs=tmp_path)
    with pytest.raises(UserError, match="does not fit into 1024 tokens"):
        rk.evaluate(alone, progress=False)


# --- docstrings -----------------------------------------------------------------------------------

SHOWN = re.compile(
    r"A prompt of `(.+)` in (\d+) tokens, its lines wrapped:\n(.+)References: (.+)\.\n", re.DOTALL
)


# The prompts of the other two are too long to be shown.
@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.family not in ("graph", "ordinal_copy")]
)
def test_the_file_of_a_family_shows_a_finished_prompt(family):
    spec, length, prompt, references = SHOWN.search(sys.modules[family.__module__].__doc__).groups()
    made = generate(make_task(yaml.safe_load(spec)).with_corpora("builtin"), int(length), 1)[0]
    # Whatever the lines are.
    assert prompt.split() == made.prompt.split()
    assert references == ", ".join(made.references)
