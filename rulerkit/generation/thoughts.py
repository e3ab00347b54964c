"""How models mark a thought, and what they wrote behind it.

A needle that stands only in a thought is no answer, so a thought must be told from the answer in
every text of a model that thinks: where it ended, and where it never did.
"""

import re
from functools import lru_cache
from typing import NamedTuple


class Marks(NamedTuple):
    """How one family of models marks a thought: regular expressions for its beginning and for its
    end, which is where the answer begins, and the two as they are usually written."""

    beginning: str
    end: str
    usual: tuple[str, str]


def _plain(beginning: str, end: str) -> Marks:
    """Marks that are always written alike."""
    return Marks(re.escape(beginning), re.escape(end), (beginning, end))


KNOWN = (
    # DeepSeek, Qwen, GLM, Kimi K2, MiniMax-M2, Nemotron, Olmo, Step and others; Hunyuan's newer
    # models put a name into the marks, such as <think:opensource>.
    Marks(r"<think(?::[^<>\s]+)?>", r"</think(?::[^<>\s]+)?>", ("<think>", "</think>")),
    _plain("[THINK]", "[/THINK]"),  # Mistral
    _plain("<seed:think>", "</seed:think>"),  # Seed-OSS
    _plain("<mm:think>", "</mm:think>"),  # MiniMax-M3
    _plain("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    # gpt-oss: channels, of which the last is the answer.
    _plain("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    # The same from a server that drops special tokens, or puts blanks in their place.
    Marks(
        r"\banalysis(?=\w)",
        r"assistantfinal|[.!?\n]\s*assistant\s+final\b",
        ("analysis", "assistantfinal"),
    ),
    _plain("<|channel>", "<channel|>"),  # Gemma 4
    _plain("<|open|>think<|sep|>", "<|close|>think<|sep|>"),  # Kimi K3
    # K2-Horizon has a mark for each effort.
    Marks(
        r"<ifm\|think(?:_fast(?:er)?)?>",
        r"</ifm\|think(?:_fast(?:er)?)?>",
        ("<ifm|think>", "</ifm|think>"),
    ),
    _plain("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    # Inkling and Muse end a thought as any other message: the answer has a beginning of its own.
    _plain("<|content_thinking|>", "<|content_text|>"),
    _plain("to=self<|message|>", "to=user<|message|>"),
    # Granite 3 writes sentences.
    Marks(
        r"Here(?:'s| is) my thought process:",
        r"Here(?:'s| is) my response:",
        ("Here is my thought process:", "Here is my response:"),
    ),
)
"""The marks that the reasoning parsers of vLLM 0.32 know; a test holds them against its list."""

ENDS = tuple(marks.usual[1] for marks in KNOWN)
"""The ends as they are usually written, for messages."""


def marks_in(template: str) -> tuple[str, str] | None:
    """The beginning and the end of a thought that a chat template names; None where it names
    none."""
    for marks in KNOWN:
        beginning = re.search(marks.beginning, template)
        end = re.search(marks.end, template)
        if beginning and end:
            return beginning[0], end[0]
        # Many templates write only one of the two: the other one is written by the model.
        if beginning:
            return beginning[0], _like(beginning[0], marks.usual[0], marks.usual[1])
        if end:
            return _like(end[0], marks.usual[1], marks.usual[0]), end[0]
    return None


def _like(seen: str, usual: str, other: str) -> str:
    """The other mark of a pair, written as the one that was seen: `</think:x>` for `<think:x>`."""
    inside = seen.removeprefix(usual[:-1]).removesuffix(usual[-1])
    return f"{other[:-1]}{inside}{other[-1]}"


def without_thought(
    text: str, opened: bool = False, own: tuple[str, str] | None = None, asked: bool = True
) -> str | None:
    """What a model wrote behind the last end of a thought; None where a thought never ended.

    `opened` says that the prompt began the thought; `own` are marks that the model's parameters
    name beside the known ones. A text without any mark is an answer. Where nobody `asked` for a
    thought, one that never ended counts only at the beginning of the text.
    """
    beginning, end = _patterns(own)
    # The last end counts: a model may quote the mark inside its thought.
    answers = end.split(text)
    if len(answers) == 1:
        if not asked:
            return None if beginning.match(text.lstrip()) else text
        return None if opened or beginning.search(text) else text

    # What is thought behind the answer is no part of it.
    answer, *thoughts = beginning.split(answers[-1], maxsplit=1)
    return None if thoughts and not answer.strip() else answer


def ends_thought(text: str, own: tuple[str, str] | None = None) -> bool:
    """Whether a text holds the end of a thought."""
    return _patterns(own)[1].search(text) is not None


@lru_cache
def opens_thought(after: str, own: tuple[str, str] | None = None) -> bool:
    """Whether the end of a prompt begins a thought: the template's text behind the user's part."""
    beginning, end = _patterns(own)
    return beginning.search(end.split(after)[-1]) is not None


@lru_cache
def _patterns(own: tuple[str, str] | None) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What finds the beginnings and the ends of thoughts in a text."""
    marks = (*KNOWN, _plain(*own)) if own else KNOWN
    beginnings = "|".join(each.beginning for each in marks)
    ends = "|".join(each.end for each in marks)
    return re.compile(beginnings), re.compile(ends)
