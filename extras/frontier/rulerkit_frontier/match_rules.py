"""The suite's match rules: they judge a last line `Final Answer: ...`, or what follows a hash.

With them silence is never right, not even where nothing is the right answer.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from rulerkit_frontier.answer_line import ItemForm, final_items, said_number, stand_at_the_end
from rulerkit_frontier.plain import comparable, plain

_FAR = 1000
"""A distance at which `count` gives nothing that a float holds beside other scores."""
RULES = ("f1", "exact", "ordered", "ratio", "count")
"""`f1`: F1 over the items of the answer line; `exact`: 1 for exactly the right ones in any order;
`ordered`: 2 LCS / (said + right), which minds the order; `ratio`: likeness of a copied passage;
`count`: nearness of a number."""
WHOLE = ("ratio", "count")
"""The rules that judge an answer as a whole: the references are alternatives."""


# --- lists ---------------------------------------------------------------------------------------


def _wanted_items(references: Iterable[str], item_form: ItemForm = comparable) -> list[str]:
    items = (comparable(plain(reference)) for reference in references)
    forms = dict.fromkeys(item_form(item) for item in items if item)
    return [form for form in forms if form is not None]


def _list_score(
    rule: str, text: str, references: Sequence[str], item_form: ItemForm = comparable
) -> float:
    """The score of the items of an answer line."""
    said, wanted = final_items(text, item_form), _wanted_items(references, item_form)
    if said is None:
        return 0.0
    if rule == "exact":
        return float(sorted(said) == sorted(wanted))
    if not said or not wanted:
        return float(said == wanted)
    # `ordered` counts the items of the longest common subsequence alone.
    right = (Counter(said) & Counter(wanted)).total()
    if rule == "ordered":
        right = _longest_common(said, wanted)
    return 2 * right / (len(said) + len(wanted))


def _longest_common(said: Sequence[str], wanted: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    # Row by row of the usual table: lengths[i] belongs to the first i items that are wanted.
    lengths = [0] * (len(wanted) + 1)
    for item in said:
        before = 0
        for place, other in enumerate(wanted, start=1):
            above = lengths[place]
            if item == other:
                lengths[place] = before + 1
            else:
                lengths[place] = max(above, lengths[place - 1])
            before = above
    return lengths[-1]


def _missing_items(text: str, references: Sequence[str], item_form: ItemForm) -> tuple[str, ...]:
    """The references that are no item of the answer line."""
    said = final_items(text, item_form) or []
    missing = []
    for reference in references:
        wanted = _wanted_items([reference], item_form)
        if not set(wanted) <= set(said):
            missing.append(reference)
    return tuple(missing)


# --- count and ratio ------------------------------------------------------------------------------


def match_count(text: str, references: Iterable[str]) -> float:
    """0.75 to the power of the distance from the right number, as Oolong (arXiv 2511.02817); 0
    without a number."""
    said = said_number(text)
    if said is None:
        return 0.0
    distance = min(abs(said - int(reference)) for reference in references)
    return float(0.75 ** min(distance, _FAR))


def match_ratio(text: str, references: Iterable[str]) -> float:
    """How alike a passage is that was to be copied behind a hash, 0..1, as in MRCR: the ratio of
    difflib, the best over the references. A reference is the hash, a blank and the passage.

    Without the hash 0. Passages of less than 300 characters are better judged otherwise: difflib
    treats texts of 200 characters or more differently.
    """
    return max(_ratio(text, reference) for reference in references)


def _ratio(text: str, reference: str) -> float:
    hash_, _, passage = reference.partition(" ")
    _, seen, copied = text.rpartition(hash_)
    if not seen:
        return 0.0
    # The order of the two matters: difflib looks for frequent letters in the second alone.
    return SequenceMatcher(a=passage.strip(), b=copied.strip()).ratio()


# --- judging by the name of a rule ----------------------------------------------------------------


def rule_score(
    rule: str, text: str, references: Sequence[str], item_form: ItemForm = comparable
) -> float:
    """0 to 1."""
    if rule == "count":
        return match_count(text, references)
    if rule == "ratio":
        return match_ratio(text, references)
    return _list_score(rule, text, references, item_form)


def missing(
    rule: str, text: str, references: Sequence[str], item_form: ItemForm = comparable
) -> tuple[str, ...]:
    """The references that were not given."""
    if rule not in WHOLE:
        return _missing_items(text, references, item_form)
    return () if rule_score(rule, text, references) == 1 else tuple(references)


def is_at_the_end(rule: str, text: str, references: Sequence[str]) -> bool:
    """Whether all references stand at the end of an answer that the rule does not see: a form that
    nobody thought of, or no answer line."""
    return stand_at_the_end(text, _wanted_items(references), in_order=rule == "ordered")
