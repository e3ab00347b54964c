"""RULER's two match rules, unchanged: they look for the references anywhere in the answer, and know
no question whose right answer is nothing. A family names one of them, `all` or `part`, or brings a
`score` of its own."""

from collections.abc import Collection, Iterable


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
