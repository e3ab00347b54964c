"""The match rules beyond RULER's own: every row of the tables that define them."""

import re

import pytest

from rulerkit.generation.tasks import task
from rulerkit.scoring.scores import answer_of
from rulerkit_frontier.answer_line import final_items
from rulerkit_frontier.match_rules import RULES, WHOLE, missing, rule_score
from rulerkit_frontier.plain import comparable

THINKS = {"result": {"prompt_format": {"thinking_tokens": 100, "after": "", "before": ""}}}
HUNDRED = ", ".join(["a1", "b2", "c3", *(f"n{i}" for i in range(97))])
FINAL = "Final Answer:"


def judged(rule, answer, references, item_form=comparable):
    text, _ = answer_of(answer, THINKS)
    return rule_score(rule, text, references, item_form)


@pytest.mark.parametrize(
    ("answer", "f1", "ordered", "exact"),
    [
        (f"{FINAL} [a1, b2, c3]", 1, 1, 1),
        (f"{FINAL} ['a1', \"b2\", c3]\n", 1, 1, 1),
        (f"**{FINAL}** a1, b2, c3.", 1, 1, 1),
        ("**Final Answer**: [a1, b2, c3]", 1, 1, 1),
        ("Final Answer : a1, b2, c3", 1, 1, 1),
        (f"{FINAL}\n[a1,\nb2, c3]", 1, 1, 1),
        (f"{FINAL} [A1, B2, C3]", 1, 1, 1),
        (f"{FINAL} [a1, b2, c3]\nI hope this helps.", 1, 1, 1),
        (f"{FINAL} [x9]\nWait.\n{FINAL} [a1, b2, c3]", 1, 1, 1),
        (f"<think>{FINAL} [x9]</think>{FINAL} [a1, b2, c3]", 1, 1, 1),
        (f"{FINAL.lower()} `a1`; _b2_; *c3*", 1, 1, 1),
        (f"{FINAL} [c3, b2, a1]", 1, 1 / 3, 1),
        (f"{FINAL} [a1, a1, b2]", 0.8, 0.8, 0),
        (f"{FINAL} [a1, b2", 0.8, 0.8, 0),
        (f"{FINAL} [a1, b2, x9]", 2 / 3, 2 / 3, 0),
        (f"{FINAL} [{HUNDRED}]", 6 / 103, 6 / 103, 0),
        (f"{FINAL} []", 0, 0, 0),
        ("a1, b2, c3", 0, 0, 0),
        ("", 0, 0, 0),
        (f"<think>{FINAL} [a1, b2, c3]", 0, 0, 0),
    ],
)
def test_lists(answer, f1, ordered, exact):
    right = ["a1", "b2", "c3"]
    assert judged("f1", answer, right) == pytest.approx(f1)
    assert judged("ordered", answer, right) == pytest.approx(ordered)
    assert judged("exact", answer, right) == exact


@pytest.mark.parametrize("rule", ["f1", "ordered", "exact"])
def test_nothing_is_right_where_it_is_said(rule):
    for said in (
        f"{FINAL} []",
        f"{FINAL} [none]",
        f"{FINAL} Nothing.",
        f"{FINAL} [ ]",
        f"**{FINAL}** no one",
        f"{FINAL} There is none.",
    ):
        assert judged(rule, said, []) == 1, said
    # Silence is never right, nor is a list that was cut before it said anything.
    for silent in (
        "",
        "There is none.",
        FINAL,
        f"{FINAL} **",
        f"{FINAL}\n\n",
        f"{FINAL} .",
        f"{FINAL} [",
        "[]",
    ):
        assert judged(rule, silent, []) == 0, silent
        assert judged(rule, silent, ["a1"]) == 0, silent
    for wrong in (f"{FINAL} [a1]", f"{FINAL} none, nobody"):
        assert judged(rule, wrong, []) == 0, wrong


def test_an_item_may_count_as_a_part_of_it():
    def digits(item):
        number = re.search(r"\d{7}", item)
        return number[0] if number else None if item.endswith("none") else item

    answer = f"{FINAL} [tidy-otter: 4821377, pale-anchor: none]"
    assert judged("f1", answer, ["4821377"], digits) == 1
    assert judged("f1", answer, ["4821377"]) == 0
    assert judged("f1", f"{FINAL} [tidy-otter: none, pale-anchor: none]", [], digits) == 1
    assert judged("f1", f"{FINAL} [4821377, tidy]", ["4821377"], digits) == pytest.approx(2 / 3)
    assert final_items(f"{FINAL} [a: 4821377, b: 4821377]", digits) == ["4821377"]


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        (f"{FINAL} 12", 12, 1),
        (f"**{FINAL} [12] orders.**\n", 12, 1),
        (f"{FINAL} 9\nNo.\n{FINAL} 12", 12, 1),
        (f"{FINAL} 12\nThat is all.", 12, 1),
        (f"{FINAL}\n[12]", 12, 1),
        (f"{FINAL} +12.", 12, 1),
        (f"{FINAL} 1,012 orders", 1012, 1),
        (f"{FINAL} 11", 12, 0.75),
        (f"{FINAL} 14", 12, 0.5625),
        (f"{FINAL} twelve", 12, 1),
        (f"{FINAL} 10 or 12", 12, 0),
        (f"{FINAL} [12] or 13", 12, 0),
        (f"{FINAL} 12th", 12, 0),
        ("12", 12, 0),
        ("", 12, 0),
        (f"{FINAL} -12", 12, 0),
        (f"{FINAL} \u221212", 12, 0),
        (f"{FINAL} 12.5", 12, 0),
        (f"{FINAL} 12,5", 12, 0),
        (f"{FINAL} none", 0, 1),
        (f"{FINAL} 0", 0, 1),
        (f"{FINAL} 1", 0, 0.75),
        (f"{FINAL} none", 1, 0.75),
        ("", 0, 0),
        (FINAL, 0, 0),
        (f"{FINAL} nothing 3 of them", 0, 0.75**3),
        (f"{FINAL} {'9' * 6000}", 12, 0),
        (f"{FINAL} {'9' * 90}", 12, pytest.approx(0, abs=1e-100)),
    ],
)
def test_count(answer, right, score):
    assert judged("count", answer, [str(right)]) == score


REPLY = (
    "Under every solemn penguin there is a kettle that forgot its ladder. A brittle orchard leaned over "
    "the harbour and counted the lamps twice. Nobody told the violin that the anchor had gone to sleep. "
    "We carried a crooked saddle past the meadow before noon. The otter wrote three letters to the tallest "
    "chimney. At dusk the whole valley smelled of rain and copper."
)
OTHER = (
    "Most people never notice how a tin roof hums in winter. My uncle sold maps of islands which he had "
    "invented himself. Twelve quiet dogs waited beside the ferry for a man with bread. You could hear "
    "somebody practise scales behind the bakery. Few things are as stubborn as a wet rope. Then came "
    "spring, and with it all those unpaid bills."
)
HASH = "b6Yath1qpbUa"


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (HASH + REPLY, 1.00),
        (f"{HASH} {REPLY}", 1.00),
        (f'{HASH}"{REPLY}"', 1.00),
        (f"{HASH} {REPLY}\n", 1.00),
        (f"Here it is: {HASH} {REPLY}", 1.00),
        (REPLY, 0),
        ("", 0),
        (HASH, 0),
        (f"{HASH} {REPLY} {HASH} {REPLY}", 1.00),
        (f"{HASH} {REPLY.upper()}", 0),
        (f"<think>{HASH} {OTHER}</think>{HASH} {REPLY}", 1.00),
    ],
)
def test_ratio(answer, score):
    assert len(REPLY) > 300 < len(OTHER)
    assert judged("ratio", answer, [f"{HASH} {REPLY}"]) == pytest.approx(score, abs=0.01)


def test_ratio_in_between():
    def of(answer):
        return judged("ratio", f"{HASH} {answer}", [f"{HASH} {REPLY}"])

    assert of(OTHER) < 0.15
    assert of(REPLY[: len(REPLY) // 2]) == pytest.approx(2 / 3, abs=0.03)
    assert of(f"{REPLY}\n\n{OTHER}") == pytest.approx(2 / 3, abs=0.05)
    assert of(REPLY.replace("copper", "pepper")) == pytest.approx(0.99, abs=0.01)
    sentences = REPLY.rstrip(".").split(". ")
    assert of(". ".join(reversed(sentences)) + ".") < 0.4


def test_missing_compares_items():
    # `a1` stands in `a12` and in the sentence before, but is no item.
    text = f"The node a1 is not it.\n{FINAL} [a12, b2]"
    assert missing("f1", text, ["a1", "b2", "A12"]) == ("a1",)
    assert task("vt").missing(text, ["a1", "c3"]) == ("c3",)
    assert missing("count", f"{FINAL} 3", ["4"]) == ("4",)


def test_every_score_is_a_share():
    for rule in RULES:
        for text in (f"{FINAL} [1]", "1 x", "", FINAL):
            for references in (["1"], ["1", "2"], *([] if rule in WHOLE else [[]])):
                score = rule_score(rule, text, references)
                assert 0 <= score <= 1, (rule, text)
