"""What an answer says, in whatever form it says it, and what it scores against its references.

`plain` takes the marks of LaTeX, Markdown and HTML off a text; `named_items` reads a whole answer
as a list. The match rules are RULER's, unchanged: they look for the references anywhere in the
answer, and know no question whose right answer is nothing. A family names one of the two, `all` or
`part`, or brings a `score` of its own.
"""

import html
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

# --- marks ----------------------------------------------------------------------------------------

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("→⟶⇒⟹➔➜➡", "->"),
        **dict.fromkeys("•‣◦▪●", "\n- "),
        **dict.fromkeys("“”„«»", '"'),
        **dict.fromkeys("‘’‚‹›", "'"),
        **dict.fromkeys("【「『〔", "["),
        **dict.fromkeys("】」』〕", "]"),
        "、": ",",
        "。": ".",
        # Invisible ones.
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\ufe0f"),
        **dict.fromkeys("✅✔☑👉🎯"),
        **{chr(ord("①") + place): f"\n{place + 1}. " for place in range(20)},
        # A raised digit is none of the number before it.
        **{raised: f"^{digit}" for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    }
)
_MARKED = re.compile(r"[^\x20-\x7e\n]|[\\$`<>&|]|\*\*|  |---|===")
"""Something that `plain` takes off; most answers hold nothing of it."""

_ESCAPED = re.compile(r"\\([^a-zA-Z0-9\s]| )")
_ESCAPES = {**dict.fromkeys("[](),!", ""), "{": "[", "}": "]", "\\": "\n", ";": " ", ":": " "}
_EMPTY_BOX = re.compile(r"\\\[\s*\\\]|\\boxed\s*\{\s*\}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w+\*?\}(?:\{\w+\})?")
_WRAPPER = re.compile(
    r"\\(?:boxed|fbox|mbox|emph|underline|operatorname|bm|boldsymbol|"
    r"text(?:bf|it|rm|sf|tt|normal)?|math(?:bf|it|rm|sf|tt|normal)?)\s*\{"
)
_WRAPPED = re.compile("\0([^{}\0]*)\\}")
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_COMMANDS = {
    **dict.fromkeys(["to", "rightarrow", "Rightarrow", "longrightarrow"], "->"),
    **dict.fromkeys(["emptyset", "varnothing"], "∅"),
    **dict.fromkeys(["left", "right", "displaystyle", "boxed"], ""),
    **dict.fromkeys(["big", "Big", "bigl", "bigr", "bf", "rm", "it", "tt"], ""),
    **dict.fromkeys(["quad", "qquad", "space"], " "),
    "item": "\n- ",
}
"""What LaTeX writes around or between items. Others, such as `\\approx`, say something."""
_TIE = re.compile(r"(?<=[^\W\d])~(?=[^\W\d])")

_TAG = re.compile(
    r"</?(?:b|i|u|em|strong|code|mark|span|div|ul|ol|p|answer|final_answer)\b[^<>]*>"
    r"|</s>|<\|\w+\|>",
    re.IGNORECASE,
)
_LINE_TAG = re.compile(r"<(br|li)\b[^<>]*>|</li>", re.IGNORECASE)
_FENCE = re.compile(r"^ *(?:```|~~~)[\w-]* *(?:\n|$)", re.MULTILINE)
_QUOTE = re.compile(r"^ *(?:> )+", re.MULTILINE)
_RULE = re.compile(r"^ *([-*_=])\1{2,} *(?:\n|$)", re.MULTILINE)
_BLANKS = re.compile(r"[^\S\n]+")
_BOLD = re.compile(r"(?<!\d)\*\*|\*\*(?!\d)")
_TABLE_HEAD = re.compile(r"^[^\n]*\|[^\n]*\n(?=[^\n]*\|)[ |:-]*--[ |:-]*(?:\n|$)", re.MULTILINE)


@lru_cache(maxsize=16)  # score, strict score and failures ask for the same text
def plain(text: str) -> str:
    """A text without marks of LaTeX, Markdown and HTML, with ASCII dashes and single blanks; lines
    stay lines."""
    if not _MARKED.search(text):
        return text
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS))
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _BLANKS.sub(" ", text)

    # LaTeX
    if "\\" in text or "$" in text:
        text = _EMPTY_BOX.sub("[]", text).replace("{,}", ",")
        text = _ENVIRONMENT.sub("", text)
        text = _ESCAPED.sub(lambda mark: _ESCAPES.get(mark[1], mark[1]), text)
        # The braces of a wrapper go with it, from the innermost to the outermost.
        text, inside = _WRAPPER.sub("\0", text), ""
        while inside != text:
            inside, text = text, _WRAPPED.sub(r"\1", text)
        text = text.replace("\0", "")
        text = _COMMAND.sub(lambda command: _COMMANDS.get(command[1], command[0]), text)
        text = _TIE.sub(" ", text.replace("$", ""))

    # HTML
    if "&" in text:
        text = html.unescape(text)
    if "<" in text:
        text = _LINE_TAG.sub(lambda tag: "\n- " if tag[1] == "li" else "\n", text)
        text = _TAG.sub("", text)

    # Markdown
    if "```" in text or "~~~" in text:
        text = _FENCE.sub("", text)
    if "> " in text:
        text = _QUOTE.sub("", text)
    if "**" in text:
        text = _BOLD.sub("", text)
    if "|" in text:
        text = _TABLE_HEAD.sub("", text)
    text = _RULE.sub("", text).replace("`", "")
    return _BLANKS.sub(" ", text)


# --- items ----------------------------------------------------------------------------------------

_AROUND = string.whitespace + "\"'()[]{}<>*_`.,;:!#|"
BULLET = r"(?:[-*+]|\(?\d{1,3}(?:[.):]| -)|\(?(?:[a-z]|[ivx]{1,4})[.)]) +"
_BEFORE_ITEM = re.compile(
    rf"(?:{BULLET}|\d{{1,3}}[.)](?=[^\W\d])|(?:\w+ )?\d{{1,5}}(?::| -) +|both |only |the |an? "
    r"|(?:node|line|number|person|thing|item|variable)s? |var "
    r"|(?:first|next|then|finally|lastly) )+",
    re.IGNORECASE,
)
_NUMBER_BEHIND = re.compile(r"(?<=\w)[*_\"' ]*\((?:\w+ )?\d[\d,]*(?: \w+)?\)[\s.*_\"']*$")
_DAY_BEHIND = re.compile(r" *\((?:on )?day \d{1,6}\)", re.IGNORECASE)
_BORDER = re.compile(
    r"[,;\n|]|-+>|=+>|[\]}]\s*[\[{]"
    r"|(?<!\S)(?:[&+></]|and|then|followed by|\(?\d{1,3}[.)]|\([a-z]\))(?!\S)",
    re.IGNORECASE,
)
_JSON_KEY = re.compile(r"[\"']\w+[\"']\s*:\s*(?=[\"'\[{])")
_COUNT_BEHIND = re.compile(r"(?<=\w)[\"']?(?:\s*[:=]| [-x×]) *\d{1,6}(?: times)?$")


def comparable(item: str) -> str | None:
    """An item as it is compared: whatever its case, without what may stand around it, a number in
    front, a number in brackets behind, and an article."""
    # Most are plain words, for which nothing else is to be done.
    word = item.strip(_AROUND)
    if word.replace("-", "0").isalnum():
        return word.casefold()

    item = _NUMBER_BEHIND.sub("", item)
    item = " ".join(item.strip(_AROUND).split())
    before = _BEFORE_ITEM.match(item)
    if before:
        item = item[before.end() :].strip(_AROUND)
    return item.casefold() or None


def split_items(listed: str) -> list[str]:
    """The distinct items of a list, in order."""
    # The end of "(Day 48)" looks like the number of an item.
    if "(" in listed:
        listed = _DAY_BEHIND.sub("", listed)
    if ":" in listed:
        listed = _JSON_KEY.sub("", listed)
    items: dict[str, None] = {}
    for part in _BORDER.split(listed):
        if item := comparable(part):
            items[item] = None
    return list(items)


@lru_cache(maxsize=16)  # lists of words are asked for twice
def named_items(prediction: str) -> list[str]:
    """The distinct items that a prediction lists, lower case, in order: without bullets, quotes,
    brackets, full stops and counts behind them."""
    named: dict[str, None] = {}
    for item in split_items(plain(prediction)):
        # A count stands behind a blank or a colon.
        named[item if item.isalnum() else _COUNT_BEHIND.sub("", item)] = None
    return list(named)


# --- RULER's rules, and what is stricter ----------------------------------------------------------

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Strict(NamedTuple):
    """Judged by all that was said, each 0..1; `exact` asks for everything right and nothing
    else."""

    f1: float
    exact: float


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
    """F1 over the distinct items named: a wrong word costs, and so does a sentence around the
    answer. `blanks`: whether blanks, too, stand between items."""
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
    return max(overlap(said, _squad_words(reference)) for reference in references)


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
        return Strict(same, same)
    return Strict(2 * right / (len(said) + len(wanted)), float(said == wanted))
