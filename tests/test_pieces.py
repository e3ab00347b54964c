"""Ids of pieces, joined, are the ids of the whole: on every vocabulary, for random texts cut at
clean cuts."""

from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rulerkit.generation.pieces import PieceEncoder, piece_encoder
from rulerkit.generation.tokenizers import Tokenizer

WHITE = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2009", "\u200b"]
ATOMS = """
. , ' 's ’ " ( ) $ % - _ — … ... Q a The word Wörter ab-cd don't 1 23 4567 3.5 ² ½ é é ß İ ﬁ Ω 中
文字 ﷺ नमस्ते 🙂 👩\u200d👩\u200d👧 \ufeff e\u0301
"""
ATOMS = [*WHITE, *ATOMS.split(), "x" * 60]
BORDERS = ["\n|  \n", "ß| \n", "\t| a", "\xa0| a", "\n\n| a", " \n| a", "\n| a", ".|  a", "a| 's"]
BORDERS += ["\n|a", "\r\n|a", "1|  2", "\n| \n"]
"""Cuts that some vocabulary takes amiss, or nearly; the bar is where to cut if that is called
clean."""
WORDS = st.lists(st.one_of(st.sampled_from(ATOMS), st.text(max_size=6)), max_size=5).map("".join)


def check_cuts(vocabulary, parts):
    encoder = piece_encoder(vocabulary)
    joined = [*encoder.encode(parts[:1], starts=True), *map(encoder.ids, parts[1:])]
    assert np.concatenate(joined).tolist() == vocabulary.encode("".join(parts)).tolist(), parts


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(WORDS, min_size=2, max_size=4),
    border=st.sampled_from(BORDERS),
    draw=st.randoms(use_true_random=False),
)
def test_clean_cuts_are_exact(vocabulary, texts, border, draw):
    """Whatever `clean_cut` allows. The text ends in a letter, as every prompt that ends in an
    answer prefix does."""
    encoder = piece_encoder(vocabulary)
    assert encoder.exact
    text = (texts[0] + border.replace("|", "") + "".join(texts[1:]) + "a").encode("utf-8", "ignore")
    text = text.decode()
    cuts = [i for i in range(1, len(text)) if encoder.clean_cut(text[:i], text[i:])]
    for chosen in (cuts, sorted(draw.sample(cuts, draw.randint(0, len(cuts))))):
        bounds = [0, *chosen, len(text)]
        check_cuts(vocabulary, [text[a:b] for a, b in pairwise(bounds)])


def test_a_tokenizer_that_merges_across_borders_is_not_called_exact():
    """One whose ids depend on all that went before: no cut can be exact, and the encoder must find
    out."""

    def encode_many(texts):
        return [[len(text[: i + 1]) * 7 % 251 for i in range(len(text))] for text in texts]

    assert not PieceEncoder(Tokenizer(encode_many, str)).exact
