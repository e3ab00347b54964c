"""Damaged corpus files: read as a substitute that is named, or one line; never a traceback, never
unnoticed."""

import gzip
import json

import pytest
from faults import cases, places, result_or_line
from hypothesis import example, given
from hypothesis import strategies as st

from rulerkit.common.errors import UserError
from rulerkit.generation import corpora
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import task

QA = {"question": "Who? ", "answers": [{"text": "Ada"}], "is_impossible": False}
CONTENTS = {
    "niah_single_2": (
        corpora.ESSAYS,
        {"text": "The sun is warm. The sea is cold. " * 40, "essays": 218, "of": 218},
    ),
    "qa_1": (
        corpora.SQUAD,
        {
            "data": [
                {
                    "paragraphs": [
                        {"context": " Ada ran. ", "qas": [QA]},
                        {"context": "B", "qas": []},
                    ]
                }
            ]
        },
    ),
    "qa_2": (
        corpora.HOTPOTQA,
        [
            {
                "question": "Who?",
                "answer": "yes",
                "supporting_facts": [["A", 0]],
                "context": [["A", ["x. "]], ["B", ["y."]]],
            }
        ],
    ),
}
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "data", "qas", "x"]), inner)
    ),
    max_leaves=5,
)


def replaced(value, path, new):
    """The value with another one at a place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@st.composite
def damaged(draw):
    """A task, the path of the file that it reads, and the file with a value replaced or bytes
    changed."""
    task = draw(st.sampled_from(list(CONTENTS)))
    path, content = CONTENTS[task]
    if draw(st.booleans()):
        content = replaced(content, draw(st.sampled_from(places(content))), draw(JUNK))
        return task, path, json.dumps(content).encode()
    data = json.dumps(content).encode()
    zipped = draw(st.booleans())
    data = gzip.compress(data) if zipped else data
    start = draw(st.integers(0, len(data) - 1))
    data = data[:start] + draw(st.binary(max_size=3)) + data[start + draw(st.integers(0, 3)) :]
    return task, path + ".gz" * zipped, data


def first_prompt(name):
    example = generate(task(name), 1024, 1)[0]
    return example.prompt, task(name).sources().values()


@cases
@given(file=damaged())
@example(file=("niah_single_2", corpora.ESSAYS, b'{"text": " "}'))
def test_a_damaged_corpus_is_a_substitute_or_one_line(tmp_path_factory, file):
    task, path, data = file
    folder = tmp_path_factory.mktemp("data")
    (folder / path).parent.mkdir()
    (folder / path).write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RULERKIT_DATA", str(folder))
        patch.setenv("RULERKIT_CACHE", str(folder / "cache"))
        corpora._LOADED.clear()
        result = result_or_line(first_prompt, task)
    corpora._LOADED.clear()
    if not isinstance(result, UserError):
        assert all(source.stand_in and "is a substitute" in source.note for source in result[1])
