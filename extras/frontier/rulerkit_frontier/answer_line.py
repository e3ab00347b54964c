"""What stands behind the last answer line of an answer, `Final Answer: ...`: a list or a number.

What is in doubt stays as it was written, and so is wrong: "a or b", "about 12", "not a".

    **Final Answer:** $\\boxed{\\text{tidy-otter} \\to \\text{pale-anchor}}$

says the items `tidy-otter` and `pale-anchor`.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from rulerkit_frontier.plain import BULLET, comparable, plain, split_items

ItemForm = Callable[[str], str | None]
"""An item of an answer -> the form in which it is compared; None is no item."""


# --- nothing --------------------------------------------------------------------------------------

_NOTHING = re.compile(
    r"(?:there (?:is|are|was|were) |it is )?(?:"
    r"(?:none|nothing|nobody|no[ -]?one|"
    r"no (?:such |other |special |magic |missing |matching )*"
    r"(?:number|value|line|item|entry|entrie|node|parent|person|people|thing|key|order|buyer|"
    r"element|object|result|match|matche|name)s?)(?: [\w'-]+){0,12}"
    r"|n/?a|n\.a|null|nil|∅|(?:the |an )?empty(?: (?:set|list|array|string))?"
    r"|not (?:mentioned|present|there|found)(?: in the text)?"
    r"|(?:[\w-]+ ){1,5}(?:is|was|remains) (?:now |currently )?empty(?: [\w-]+){0,6})"
    # The bracket that closes a reason is taken off with what stands around the item.
    r"(?: \([^()\[\]~≈?]*)?"
)
_EXCEPT = re.compile(r"\b(?:but|except|besides|only|unless|apart|or|not|than|if)\b")
_EMPTY_PAIR = re.compile(r"\(\s*\)|\{\s*\}|\"\s*\"|'\s*'")


def says_nothing(item: str) -> bool:
    """Whether an item, as `comparable` gives it, says that there is nothing."""
    if not _NOTHING.fullmatch(item):
        return False
    return item.startswith("not ") or not _EXCEPT.search(item)


# --- doubt ----------------------------------------------------------------------------------------

_IN_DOUBT = re.compile(
    r"\b(?:or|not|either|maybe|perhaps|possibly|about|around|approximately)\b|n't|[~≈<≤≥±?]",
    re.IGNORECASE,
)


def in_doubt(item: str) -> bool:
    """Whether a text leaves open what it says, or denies it."""
    return bool(_IN_DOUBT.search(item))


# --- the answer line ------------------------------------------------------------------------------

_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_SMALL = tuple(_NUMBERS.split())
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORD_VALUES = {word: value for value, word in enumerate(_SMALL)}
_WORD_VALUES |= {word: 20 + 10 * place for place, word in enumerate(_TENS)}
_NUMBER_WORDS = re.compile(
    rf"\b(?:({'|'.join(_TENS)})(?:[- ]({'|'.join(_SMALL[1:10])}))?|({'|'.join(_SMALL)}))\b",
    re.IGNORECASE,
)

_MARKS = r"[ *_\"'#)]*"
_NAME = rf"(?<![^\W_])final[ _-]answers?{_MARKS}(?:\([^()\n]*\){_MARKS})?"
_LIKE_AN_ITEM = (
    rf"{_MARKS}(?:that )?(?:the |an? )?(?:[\[{{(∅\d]|(?-i:[A-Z])|\S*[-\d]|none|no\b|nothing|"
    rf"nobody|n/a|null|[^\n.]{{0,40}}\bempty\b|(?:{'|'.join(_SMALL + _TENS)})\b)"
)
_ANSWER_LINE = re.compile(
    # `Final Answer: ...`, `The final answer is: ...`, `Final Answer for locker 41734: ...`
    rf"{_NAME}(?:(?:is|are)\b{_MARKS}(?:as follows|the following)?{_MARKS}"
    r"|(?:for|to|of)\b[^:\n\[]{0,80})?:"
    # `The final answer is Ines Marlow`; not `this final answer is based on ...`
    rf"|{_NAME}(?:is|are)\b(?={_LIKE_AN_ITEM})"
    # A line that begins with it: a heading, `Final Answer - ...`, `Final Answer [...]`
    rf"|^[^a-z\n]*(?:(?:the|my|our) )?{_NAME}(?:(?:-|=|->) (?=\S)|(?=\[)|\n(?=\s*\S))",
    re.IGNORECASE | re.MULTILINE,
)
_OPENING_MARKS = re.compile(r"[\s*_#:]*(?:[\"']\s*(?=[\[{]))?")
_BULLET_LINE = re.compile(BULLET, re.IGNORECASE)
_LOOSE_LIST = re.compile(rf"^({BULLET}[^\n]*)\n\s*\n(?={BULLET})", re.IGNORECASE | re.MULTILINE)
_LEAD_IN = re.compile(
    r"[^\n\[\]{},;:=]{1,80}[:=]\s*(?=\S)"
    r"|(?:the|it|this|these|they|there|that)\b[^\n\[\]{},;:]{0,60}?\b(?:is|are|was|were)\b\s*(?=\S)"
    r"|[^\n\[\]{},;:]{2,60}?\b(?:brought|contains|holds)\b\s*(?=\S)",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\b(?:not|no|never|neither|nor|except|without|other|wrong|incorrect|false|but|or)\b|n't",
    re.IGNORECASE,
)
_REASON = re.compile(r",? (?:because|since|in (?:that|this) order)\b", re.IGNORECASE)
_NEXT_ITEM = re.compile(r"(?:the )?[^\s,;]*[-\d][^\s,;]*(?: \d+)?[.,;]?")
_BRACKETS = re.compile(r"[\[{][^\]}]*(?:[\]}](?:[^\n\[\]{}]*[\[{]|\s*[\[{])[^\]}]*)*")
_MORE_BEHIND = re.compile(
    r"[\]}]+\s?(?=(?:[&+/|]|->|\(?(?:or|and|alternatively|possibly|maybe|perhaps)\b)"
    r"|, ?(?:(?-i:[A-Z])[^\W_]|[^\s,]*[-\d]))",
    re.IGNORECASE,
)


_NAMED = re.compile(r"final\W{1,8}answer|final_answer", re.IGNORECASE)
_MOST_NAMED = 50
"""How often a text may name an answer line behind the last one."""


class _Answer(NamedTuple):
    """What stands behind an answer line."""

    text: str
    is_below: bool
    """Whether it begins on a line of its own."""


@lru_cache(maxsize=16)
def _answer(text: str) -> _Answer | None:
    """What stands behind the last answer line of a text; None where there is no such line, or
    nothing stands behind it."""
    # Long texts argue before they answer; few of them name the answer line often.
    named = [found.start() for found in _NAMED.finditer(text)]
    if named:
        begin = named[-min(len(named), _MOST_NAMED)]
        text = text[text.rfind("\n", 0, begin) + 1 :]
    text = plain(text)
    lines = list(_ANSWER_LINE.finditer(text))
    if not lines:
        return None
    end = lines[-1].end()
    said = text[end:].lstrip()
    if not _BULLET_LINE.match(said):
        said = said[_OPENING_MARKS.match(said).end() :]  # type: ignore[union-attr]
    if not said:
        return None
    between = text[end - 1 : len(text) - len(said)]
    return _Answer(said, "\n" in between)


def _listed(answer: _Answer) -> tuple[str, bool]:
    """The list of an answer line, and whether brackets say where it ends: what stands in them, the
    lines below the answer line, or the rest of the line."""
    said, is_below = answer

    # "The missing lines are: [a, b]"
    lead_in = _LEAD_IN.match(said)
    if lead_in and not _DENIED.search(lead_in[0]):
        is_below |= "\n" in lead_in[0]
        said = said[lead_in.end() :]

    brackets = _BRACKETS.match(said)
    if brackets:
        # "[a] or b" names both
        behind = said[brackets.end() :]
        more = _MORE_BEHIND.match(behind)
        listed = brackets[0] + (behind.partition("\n")[0] if more else "")
        return listed, bool(behind)

    if not is_below and not _BULLET_LINE.match(said):
        first, *others = said.split("\n")
        lines = [_REASON.split(first)[0]]
        for line in takewhile(_NEXT_ITEM.fullmatch, others):
            lines.append(line)
        return "\n".join(lines), bool(_EMPTY_PAIR.search(first))

    # Blank lines stand between the items of some lists, and sentences behind others.
    block = _LOOSE_LIST.sub(r"\1\n", said).partition("\n\n")[0]
    first, *others = block.split("\n")
    lines = [first]
    for line in others:
        if _is_prose(line):
            break
        lines.append(line)
    return "\n".join(lines), bool(_EMPTY_PAIR.search(first))


def _is_prose(line: str) -> bool:
    """Whether a line below an answer is no item of it but a sentence."""
    words = _BULLET_LINE.sub("", line, count=1).partition(",")[0]
    is_item = "-" in words or any(letter.isdigit() for letter in words)
    return not is_item and (len(words.split()) > 2 or words.endswith(("!", ":")))


def final_items(text: str, item_form: ItemForm = comparable) -> list[str] | None:
    """The distinct items of the last `Final Answer:` of a text, in order; [] where it says that
    there is nothing, None where there is no such line or nothing stands behind it."""
    answer = _answer(text)
    if answer is None:
        return None
    listed, is_closed = _listed(answer)
    items = split_items(listed)
    if len(items) == 1 and says_nothing(items[0]):
        return []

    # Brackets that were closed say that there is nothing; other marks alone are silence.
    if not items and not is_closed:
        return None
    forms = dict.fromkeys(item_form(item) for item in items)
    return [form for form in forms if form is not None]


# --- numbers --------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[-+]?\w*\d\w*(?:[.,]\w*\d\w*)*")
_WHOLE = re.compile(r"\+?(\d+|\d{1,3}(?:,\d{3})+)(?:\.0+)?")
_DOUBT_BEFORE = re.compile(
    r"(?:\b(?:(?:more|less|fewer|greater|larger|higher|lower|smaller|other|better|rather) than|"
    r"at (?:least|most)|(?<!add )(?<!adds )up to|about|around|approx(?:imately)?|roughly|nearly|"
    r"almost|over|under|above|below|circa|ca|close to|some|not|or|between|minimum|maximum)"
    r"|n't|[~≈≃<≤≥≠±!]|(?<!-)>|\\\w+)[\s.=*_\[({]*$",
    re.IGNORECASE,
)
_DOUBT_BEHIND = re.compile(
    r"[\s*_\])},]*(?:[+?^%±]|-?ish\b|or\b|(?:\w+ ){0,4}(?:or (?:more|less|fewer|so)|give or take|"
    r"(?:maybe|perhaps|possibly|probably) (?:more|less|fewer)|at (?:least|most)|"
    r"and (?:more|up|above)|minimum|maximum)\b)",
    re.IGNORECASE,
)


def said_number(text: str) -> int | None:
    """The whole number, 0 or more, that the last answer line of a text says, by digits, by a word,
    or by saying that there is nothing; None where it says none, more than one, or one about which
    it is in doubt."""
    answer = _answer(text)
    if answer is None:
        return None

    # Brackets may go over line ends; what follows them on their line belongs to the answer.
    in_brackets, bracket, rest = answer.text.partition("]")
    if not answer.text.startswith("["):
        in_brackets, bracket, rest = "", "", answer.text
    line = in_brackets + bracket + rest.partition("\n")[0]

    # Of "5 + 7 = 12" the side that is one number.
    sides = [side for side in line.split("=") if len(_NUMBER.findall(side)) == 1]
    if "=" in line and len(sides) == 1 and not re.search("[<>~!≈]=", line):
        line = sides[0]

    found = list(_NUMBER.finditer(line)) or list(_NUMBER_WORDS.finditer(line))
    item = comparable(line)
    if item and says_nothing(item) and not _NUMBER.search(line):
        return 0
    if not found:
        return 0 if not item and (bracket or _EMPTY_PAIR.search(line)) else None
    if len(found) > 1:
        return None
    number = found[0]
    if _DOUBT_BEFORE.search(line[: number.start()]):
        return None
    if _DOUBT_BEHIND.match(line, number.end()):
        return None
    return _value(number)


def _value(number: re.Match[str]) -> int | None:
    """The number that digits or words write; None where it is not whole."""
    if number.re is _NUMBER_WORDS:
        words = [word.lower() for word in number.groups() if word]
        return sum(_WORD_VALUES[word] for word in words)
    whole = _WHOLE.fullmatch(number[0])
    if not whole:
        return None
    digits = whole[1].replace(",", "")
    # Python reads no number of thousands of digits, and none of a hundred is near.
    return int(digits) if len(digits) < 100 else None


# --- right, in another form -----------------------------------------------------------------------

_TAIL = 300
_QUOTED_LINE = re.compile(r"[\"']final answer: ?[^\n\"']*[\"']", re.IGNORECASE)


def stand_at_the_end(text: str, references: Sequence[str], in_order: bool = False) -> bool:
    """Whether all references stand in the last 300 characters of a text, and behind its last answer
    line where it has one; in their order, where this matters."""
    text = _QUOTED_LINE.sub("", text)
    answer = _answer(text)
    if answer:
        text = answer.text
        # The text does not say what of two things it means.
        if in_doubt(text.partition("\n")[0]):
            return False
    tail = plain(text[-_TAIL:]).casefold()
    if not references:
        last = comparable(tail.strip().rpartition("\n")[2])
        return answer is None and bool(last) and says_nothing(str(last))

    places = []
    for reference in references:
        word = rf"(?<![\w-]){re.escape(reference)}(?![\w-])"
        found = [match.start() for match in re.finditer(word, tail)]
        if not found:
            return False
        places.append(found[-1])
    return not in_order or places == sorted(places)
