"""Ids of pieces, joined, are the ids of the whole: on every vocabulary, for random texts cut at
clean cuts."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rulerkit.pieces import PieceEncoder, Units, interleave, piece_encoder, ranges, settle
from rulerkit.tokenizers import Tokenizer, load_tokenizer

ATOMS = (
    [
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        "\u00a0",
        "\u3000",
        "\u2009",
        "\u200b",
        "\ufeff",
        ".",
        ",",
        "'",
        "'s",
        "’",
    ]
    + [
        '"',
        "(",
        ")",
        "$",
        "%",
        "-",
        "_",
        "—",
        "…",
        "...",
        "Q",
        "a",
        "The",
        "word",
        "Wörter",
        "x" * 60,
        "ab-cd",
        "don't",
    ]
    + [
        "1",
        "23",
        "4567",
        "3.5",
        "²",
        "½",
        "é",
        "e\u0301",
        "ß",
        "İ",
        "ﬁ",
        "Ω",
        "中",
        "文字",
        "ﷺ",
        "नमस्ते",
        "🙂",
        "👩‍👩‍👧",
    ]
)
BORDERS = [
    "\n|  \n",
    "ß| \n",
    "\t| a",
    "\u00a0| a",
    "\n\n| a",
    " \n| a",
    "\n| a",
    ".|  a",
    "a| 's",
    "\n|a",
    "\r\n|a",
    "1|  2",
    "\n| \n",
]
"""Cuts that some vocabulary takes amiss, or nearly; the bar is where to cut if that is called
clean."""
WORDS = st.lists(st.one_of(st.sampled_from(ATOMS), st.text(max_size=6)), max_size=5).map("".join)


def check_cuts(vocabulary: Tokenizer, parts: list[str]) -> None:
    joined = np.concatenate(
        [piece_encoder(vocabulary).start(parts[0]), *piece_encoder(vocabulary).many(parts[1:])]
    )
    assert joined.tolist() == vocabulary.encode("".join(parts)).tolist(), parts


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=st.lists(WORDS, min_size=2, max_size=4), draw=st.randoms(use_true_random=False))
def test_clean_cuts_are_exact(vocabulary: Tokenizer, texts: list[str], draw) -> None:
    """Whatever `clean_cut` allows. The text ends in a letter, as every prompt that ends in an
    answer prefix does."""
    encoder, text = (
        piece_encoder(vocabulary),
        ("".join(texts) + "a").encode("utf-8", "ignore").decode(),
    )
    if not encoder.exact:
        pytest.skip("prompts of this vocabulary are encoded whole")
    cuts = [i for i in range(1, len(text)) if encoder.clean_cut(text[:i], text[i:])]
    cuts = sorted(draw.sample(cuts, draw.randint(0, len(cuts))))
    check_cuts(vocabulary, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=WORDS, border=st.sampled_from(BORDERS), after=WORDS)
def test_difficult_borders(vocabulary: Tokenizer, before: str, border: str, after: str) -> None:
    left, _, right = (
        (before + border + after + "a").encode("utf-8", "ignore").decode().partition("|")
    )
    if (
        left
        and piece_encoder(vocabulary).exact
        and piece_encoder(vocabulary).clean_cut(left, right)
    ):
        check_cuts(vocabulary, [left, right])


def test_every_vocabulary_can_be_cut(vocabulary: Tokenizer) -> None:
    """A vocabulary that cannot costs half a second for each prompt: worth knowing."""
    assert piece_encoder(vocabulary).exact


@pytest.mark.parametrize(
    ("left", "right", "clean"),
    [
        ("end.", " Next", True),
        ("end.", "  Next", True),
        ("end. ", " Next", False),
        ("end.", "Next", False),
        ("line\n", "Next", True),
        ("line\n\n", "Next", True),
        ("line\n", "\nNext", False),
    ],
)
def test_where_a_text_may_be_cut(left: str, right: str, clean: bool) -> None:
    assert piece_encoder(load_tokenizer("builtin")).clean_cut(left, right) is clean


def test_a_tokenizer_that_merges_across_borders_is_not_called_exact() -> None:
    """One whose ids depend on all that went before: no cut can be exact, and the encoder must find
    out."""

    def encode_many(texts):
        return [[len(text[: i + 1]) * 7 % 251 for i in range(len(text))] for text in texts]

    assert not PieceEncoder(Tokenizer("odd", "0", encode_many, str)).exact


@given(parts=st.lists(st.text(alphabet="ab \n", max_size=6), max_size=6))
def test_settling_blanks_keeps_the_text(parts: list[str]) -> None:
    settled = settle(parts)
    assert "".join(settled) == "".join(parts)
    assert len(settled) == len(parts)
    assert not any(part.endswith(" ") for part in settled[:-1])


def test_joint_neighbours_share_out_the_ids_of_the_whole(vocabulary: Tokenizer) -> None:
    texts = ["<|im_start|>user\n", "Some special", " magic", "numbers?", " The answer is"]
    shared = piece_encoder(vocabulary).joint(texts, start=True)
    assert len(shared) == len(texts)
    assert np.concatenate(shared).tolist() == vocabulary.encode("".join(texts)).tolist()


def test_the_memory_forgets_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rulerkit.pieces._REMEMBERED", 3)
    encoder = PieceEncoder(load_tokenizer("builtin"))
    texts = [f" word{i % 7}" for i in range(40)]
    assert [ids.tolist() for ids in encoder.many(texts)] == [
        encoder(text).tolist() for text in texts
    ]


def test_units_hold_the_ids_of_their_texts(vocabulary: Tokenizer) -> None:
    encoder = piece_encoder(vocabulary)
    texts = [" one", " two", " three-four", " one", " 5", " 中文"]
    units = Units(texts, encoder)
    for i, text in enumerate(texts):
        assert units.span(i, i + 1).tolist() == encoder(text).tolist()
        assert units.counts[i] == len(encoder(text))
    order = np.array([5, 0, 0, 2])
    assert units.pick(order).tolist() == np.concatenate([encoder(texts[i]) for i in order]).tolist()


@pytest.mark.parametrize("harm", [None, b"", b"PK\x03\x04 torn"])
def test_units_kept_in_a_file_are_the_same(tmp_path: Path, harm: bytes | None) -> None:
    """The second process reads what the first wrote; a torn file is encoded anew, never
    believed."""
    encoder, path = piece_encoder(load_tokenizer("builtin")), tmp_path / "kept.npz"
    texts = [" one", " two", " one", " three-four"]
    first = Units(texts, encoder, kept=path)
    assert path.exists()
    if harm is not None:
        path.write_bytes(harm)
    again = Units(texts, encoder, kept=path)
    assert (
        again.ids.tolist()
        == first.ids.tolist()
        == np.concatenate([encoder(text) for text in texts]).tolist()
    )
    assert again.offsets.tolist() == first.offsets.tolist()
    assert list(tmp_path.iterdir()) == [path]


def test_interleaved_columns_are_rows() -> None:
    encoder = piece_encoder(load_tokenizer("builtin"))
    numbers, words = Units(["1.", " 2.", " 3."], encoder), Units([" able cat", " dog"], encoder)
    texts, counts, ids = interleave((numbers, np.arange(3)), (words, np.array([1, 0, 1])))
    assert texts == ["1.", " dog", " 2.", " able cat", " 3.", " dog"]
    assert counts.tolist() == [len(encoder(text)) for text in texts]
    assert ids.tolist() == np.concatenate([encoder(text) for text in texts]).tolist()


@given(rows=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_ranges_count_on_from_each_start(rows: list[tuple[int, int]]) -> None:
    starts, counts = (
        np.array(column, dtype=np.int64)
        for column in (zip(*rows, strict=True) if rows else ((), ()))
    )
    assert ranges(starts, counts).tolist() == [
        start + i for start, count in rows for i in range(count)
    ]
