"""Match rules: what an answer scores against its references. A family names one of the two, `all`
or `part`, or brings a `score` of its own.

Both are RULER's, unchanged: they look for the references anywhere in the answer, and know no
question whose right answer is nothing.
"""

import string
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rulerkit.generation.answers import comparable, named_items, plain

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Strict(NamedTuple):
    """Judged by all that was said, each 0..1; `exact` asks for everything right and nothing
    else."""

    precision: float
    f1: float
    exact: float


# --- all and part: RULER's rules ------------------------------------------------------------------


def string_match_all(prediction: str, references: Collection[str]) -> float:
    """Share (0..1) of the references that occur in the prediction, whatever their case: niah, vt,
    cwe, fwe."""
    answer = prediction.lower()
    return sum(reference.lower() in answer for reference in references) / len(references)


def string_match_part(prediction: str, references: Collection[str]) -> float:
    """1 if any of the references occurs in the prediction, whatever its case, else 0: question
    answering."""
    answer = prediction.lower()
    return float(any(reference.lower() in answer for reference in references))


def not_written(text: str, references: Iterable[str]) -> tuple[str, ...]:
    """The references that occur nowhere in a text, whatever their case."""
    answer = text.lower()
    return tuple(r for r in references if r.lower() not in answer)


def strict_items(prediction: str, references: Iterable[str], blanks: bool = False) -> Strict:
    """Precision and F1 over the distinct items named: a wrong word costs, and so does a sentence
    around the answer. `blanks`: whether blanks, too, stand between items."""
    named = named_items(prediction)
    wanted = []
    for reference in references:
        # Most references are one word, of which nothing is to be taken off.
        is_word = reference.isascii() and reference.isalnum()
        item = reference.casefold() if is_word else comparable(plain(reference))
        if item:
            wanted.append(item)

    # Some words of a list are two: "contact lens".
    if blanks:
        text = " ".join(named)
        for item in wanted:
            text = text.replace(item, item.replace(" ", "\0"))
        named = [item.replace("\0", " ") for item in text.split() if item != "="]
    said = set(named)
    right = set(wanted)
    return strict_share(len(said & right), said, right)


def strict_answer(prediction: str, references: Iterable[str]) -> Strict:
    """SQuAD's normalised exact match and F1 over words, the best over the references."""
    said = _squad_words(prediction)
    return max(
        (overlap(said, _squad_words(reference)) for reference in references),
        key=lambda s: (s.f1, s.exact),
    )


def _squad_words(text: str) -> list[str]:
    return [w for w in text.lower().translate(_PUNCTUATION).split() if w not in ("a", "an", "the")]


def overlap(said: Sequence[str], wanted: Sequence[str]) -> Strict:
    """Judged by the items that both sides hold."""
    # Counted with repetition: a word said twice is right twice only if it is wanted twice.
    right = (Counter(said) & Counter(wanted)).total()
    return strict_share(right, said, wanted)


def strict_share(right: int, said: Collection[str], wanted: Collection[str]) -> Strict:
    """The strict score of so many right items; both sides empty is right."""
    if not said or not wanted:
        same = float(said == wanted)
        return Strict(same, same, same)
    return Strict(right / len(said), 2 * right / (len(said) + len(wanted)), float(said == wanted))
