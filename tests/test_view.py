"""Examples to look at: nothing hidden that is not said, nothing shown that is not in the prompt."""

import re

import pytest

from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import task
from rulerkit.generation.tokenizers import load_tokenizer
from rulerkit.report.view import parts, to_terminal


def example_of(name, length=4096):
    return generate(task(name).with_corpora("builtin"), length, 1)[0]


@pytest.mark.parametrize("name", ["niah_single_1", "niah_multikey_3", "vt", "cwe", "fwe", "qa_1"])
def test_parts_stand_in_the_prompt_in_this_order_and_the_hidden_tokens_are_counted(name):
    example, tokenizer = example_of(name), load_tokenizer("builtin")
    place = tokens = gaps = 0
    for part in (part for stretch in parts(example) for part in stretch):
        if part.role == "gap":
            gaps += 1
            tokens += int(re.search(r"([\d,]+) tokens", part.text)[1].replace(",", ""))
        else:
            tokens += tokenizer.count(part.text)
            place = example.prompt.index(part.text, place) + len(part.text)
    assert gaps
    assert place == len(example.prompt)
    assert tokens == pytest.approx(example.num_tokens, rel=0.03)


@pytest.mark.parametrize("name", ["niah_multivalue", "vt", "qa_2"])
def test_needles_are_shown_whole(name):
    example = example_of(name)
    shown = [part.text for stretch in parts(example) for part in stretch if part.role == "needle"]
    assert shown == [block.text for block in example.blocks if block.role == "needle"]


def test_roles_are_marked_and_coloured_on_a_terminal():
    example = example_of("niah_single_2")
    plain, coloured = (to_terminal(example, color=False), to_terminal(example, color=True))
    needle = next(block.text for block in example.blocks if block.role == "needle")
    assert "\x1b" not in plain
    assert f"[needle] {needle}" in plain
    assert f"m{needle}\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
