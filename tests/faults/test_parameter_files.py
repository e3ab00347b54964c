"""Damaged and absurd parameter files: the study that they say, or one line; no traceback, no
hang."""

from dataclasses import fields
from pathlib import Path

from faults import cases, result_or_line
from hypothesis import given
from hypothesis import strategies as st

from rulerkit.batch.batch_file import read_batch
from rulerkit.common.settings import ENGINE_KEYS, Parameters, Site, check
from rulerkit.common.yaml_files import read_yaml
from rulerkit.evaluation.study import load_files, study
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import TASKS, all_families

REPOSITORY = Path(__file__).parents[2]
FILES = [path.read_text() for path in sorted((REPOSITORY / "params").rglob("*.yaml"))]

WORDS = """
no yes ~ null true 010 0x1F 1_000 1:30 1.0e5 1.0e99 .inf .nan 0 -1 2 4096 4K 17M 1000000000000 0.5
-0.0 2024-05-13 2024-13-45 4096.0 ../x / ~/x ∞ = ? | > % @ ` [] [[]] {} {a:} *a &a << uuids noise vt
mute perfect raeder original a/b "no" "\\0" "\\ud800" !!python/object:os.system
"""
SCALARS = st.sampled_from(
    [
        *WORDS.split(),
        *("'a b'", "!!binary aGk=", "!!set {a, b}", "!!timestamp 2024-05-13"),
        *("9" * 400, '"' + "x" * 5000 + '"', "[" * 3000),
    ]
) | st.text(max_size=8)
STUDY_KEYS = st.sampled_from(list(Parameters.model_fields))
MODEL_KEYS = st.sampled_from(
    ["base", *dict.fromkeys(key for keys in ENGINE_KEYS.values() for key in keys.model_fields)]
)
KNOBS = st.sampled_from(
    list(dict.fromkeys(knob.name for family in all_families() for knob in fields(family)))
)
KEYS = (
    STUDY_KEYS | MODEL_KEYS | KNOBS | st.sampled_from(list(Site.model_fields)) | st.text(max_size=5)
)


def flow(values):
    """Values inside lists and mappings, as YAML writes them on one line."""
    lists = st.lists(values, max_size=3).map(lambda texts: f"[{', '.join(texts)}]")
    mappings = st.lists(st.tuples(KEYS, values), max_size=4)
    return lists | mappings.map(
        lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
    )


VALUES = st.recursive(SCALARS, flow, max_leaves=6)
TASKS_LINE = st.tuples(st.sampled_from(list(TASKS)), KNOBS, VALUES).map(
    lambda t: f"tasks: [{{base: {t[0]}, {t[1]}: {t[2]}}}]"
)
MODEL_LINE = st.tuples(MODEL_KEYS, VALUES).map(
    lambda t: f"model: {{base: perfect, {t[0]}: {t[1]}}}"
)
LINES = st.lists(
    TASKS_LINE | MODEL_LINE | st.tuples(STUDY_KEYS | KEYS, VALUES).map(": ".join), max_size=3
).map("\n".join)


@st.composite
def damaged(draw):
    """A file of the repository with some of its text replaced."""
    text = draw(st.sampled_from(FILES))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        stop = draw(st.integers(start, min(len(text), start + 20)))
        text = (
            text[:start]
            + draw(SCALARS | st.sampled_from([": ", "\n", "  ", "- ", "#"]))
            + text[stop:]
        )
    return text


def first_example(path):
    """The first example of the first task of the study in a file, at its shortest length."""
    asked = study(load_files([path]))
    return generate(asked.tasks[0], asked.lengths[0], asked.num_examples, asked.seed)[0].num_tokens


@cases
@given(text=LINES | damaged(), kind=st.sampled_from(["study", "batch", "site"]))
def test_a_damaged_parameter_file_is_one_line(tmp_path_factory, text, kind):
    path = tmp_path_factory.mktemp("params") / "file.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    if kind == "study":
        result_or_line(first_example, path)
    elif kind == "batch":
        result_or_line(read_batch, path)
    else:
        result_or_line(lambda: check(Site, read_yaml(path)))
