"""What an answer says, in whatever form it says it: `plain` takes the marks of LaTeX, Markdown and
HTML off a text, `split_items` reads a list."""

import html
import re
import string
import unicodedata
from functools import lru_cache

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


@lru_cache(maxsize=16)  # score and failures ask for the same text
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
