"""Checks of the frame around an example: template, marks, system prompt, thinking, BOS, answer
prefix."""

import re

import numpy as np

from rulerkit.checks import FAIL, NOTE, OK, Case, Finding, short
from rulerkit.prompt_format import DIRECT

# --- the template ---------------------------------------------------------------------------------


def template(case: Case) -> Finding | None:
    """The prompt begins and ends as the template says, around the task's own first words and
    question."""
    before, after = case.form.around
    first = case.draft.head[0].text[:40] if case.draft.head else ""
    mend = "render the template once around the whole user's part, and change nothing behind it"
    if not case.example.prompt.startswith(before + first):
        seen = f"the prompt begins with {case.example.prompt[:48]!r}, not with {(before + first)[:48]!r}"
        return Finding(FAIL, "template", seen, mend)
    if case.tail is None:
        return Finding(FAIL, "template", "the question is not in the prompt", mend)
    if after.strip() not in case.tail:
        return Finding(FAIL, "template", f"{after!r} is missing behind the question", mend)
    form = case.form.form if len(case.form.form) < 24 else "the tokenizer's own"
    if case.form.template not in ("auto", case.form.form):
        form = "as given"
    return Finding(
        OK, "template", f"{form}: {short(before or '(nothing)')} ... {short(after or '(nothing)')}"
    )


_MARKER = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Za-z]*(?:INST|MASK|PROMPT|RESULTS)\]|<[a-zA-Z]+_[a-zA-Z_]+>|</?s>|<[be]os>|<sop>"
)
_OFTEN_PLAIN = ("[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>")
"""Marks that some models were trained to see as ordinary tokens (Llama 2, Zephyr, Tulu)."""


def marks(case: Case) -> Finding | None:
    """The marks of the template are single tokens; another model's template shows as many ordinary
    ones."""
    own = case.form.template == "auto"
    found = dict.fromkeys(_MARKER.findall("".join(case.form.around)))
    if not found:
        return None
    broken = [mark for mark in found if case.tokenizer.count(mark) != 1]
    if not broken:
        return Finding(OK, "template marks", f"{len(found)} special tokens, one id each")
    seen = f"{', '.join(f'{mark} is {case.tokenizer.count(mark)} tokens' for mark in broken[:3])}"
    mild = case.model.engine == "reader" or all(mark in _OFTEN_PLAIN for mark in broken)
    if mild and (own or not case.tokenizer.chat_template):
        return Finding(NOTE, "template marks", seen, "right only for a model that was trained so")
    return Finding(
        FAIL,
        "template marks",
        seen,
        "the template is another model's: take `template: auto`, or its own name",
    )


def system_prompt(case: Case) -> Finding | None:
    """A system prompt that was asked for is in the prompt."""
    asked = case.spec.get("system_prompt") or case.form.system_prompt
    if not asked:
        return None
    if (
        asked
        in case.example.prompt.partition(case.draft.head[0].text if case.draft.head else "\0")[0]
    ):
        return Finding(OK, "system prompt", short(asked))
    return Finding(
        FAIL,
        "system prompt",
        f"{short(asked)} is not before the task",
        "give a template that has a place for it",
    )


_MEND = "set thinking_tokens, or enable_thinking: false"


def _may_think(case: Case) -> bool:
    """Whether the template knows thoughts and none is closed in it."""
    return "<think>" in case.form.form and "</think>" not in case.form.around[1]


def thinking(case: Case) -> Finding | None:
    """Where the template opens a thought there is room for it, and the answer prefix is not inside
    it."""
    after, room = case.form.around[1], case.form.thinking_tokens
    opened = after.rfind("<think>") > after.rfind("</think>")
    if not opened and not room and case.form.closes_user_turn and _may_think(case):
        return Finding(
            NOTE,
            "thinking",
            "the model may think before it answers, and no token is kept free for it",
            _MEND,
        )
    if not opened:
        return Finding(OK, "thinking", f"{room} tokens kept free") if room else None
    if not room:
        seen, mend = (
            "the template opens a thought, and no token is kept free for it",
            "set thinking_tokens, or",
        )
    elif not case.form.closes_user_turn:
        seen, mend = (
            "the answer prefix stands inside the thought that the template opens",
            "set prefix_in: user, or",
        )
    else:
        return Finding(OK, "thinking", f"opened by the template, {room} tokens kept free")
    return Finding(FAIL, "thinking", seen, f"{mend} enable_thinking: false")


# --- the beginning of the text --------------------------------------------------------------------


def one_bos(case: Case) -> Finding | None:
    """Exactly one beginning-of-sequence token where the model has one; two move VT at 128K by 17
    points."""
    token, ids = case.tokenizer, case.example.ids
    mend = "the template and the tokenizer must not both write it: check `template` and tokenizer_config.json"
    if token.bos_id is None:
        doubled = (
            len(ids) > 1 and ids[0] == ids[1] and str(token.bos_token) == token.decode(ids[:1])
        )
        twice = Finding(FAIL, "BOS", f"{token.bos_token!r} twice", mend)
        return twice if doubled else Finding(OK, "BOS", "the tokenizer adds none")
    count = int(np.count_nonzero(ids == token.bos_id))
    if count == 1 and ids[0] == token.bos_id:
        return Finding(OK, "BOS", f"{token.bos_token or token.bos_id} once, first")
    if count == 1:
        where = int(np.flatnonzero(ids == token.bos_id)[0])
        return Finding(
            FAIL, "BOS", f"{token.bos_token or token.bos_id} is token {where}, not the first", mend
        )
    return Finding(FAIL, "BOS", f"{token.bos_token or token.bos_id} {count} times, not once", mend)


# --- the answer prefix ----------------------------------------------------------------------------


def prefix_present(case: Case) -> Finding | None:
    """The answer prefix, which opens the answer, is in the prompt, once."""
    prefix, tail = case.draft.answer_prefix.strip(), case.tail
    count = (tail or "").count(prefix)
    if count == 1:
        return Finding(OK, "answer prefix", f"{short(prefix)} behind the question")
    seen = f"{count} times" if count else "lost"
    return Finding(
        FAIL,
        "answer prefix",
        f"{short(prefix)} is {seen}",
        "put the example's own prompt or ids, whole",
    )


def prefix_turn(case: Case) -> Finding | None:
    """It stands where `prefix_in` says: last in the assistant's turn, or last in the user's."""
    prefix, after = case.draft.answer_prefix.strip(), case.form.around[1].strip()
    if case.tail is None or prefix not in case.tail:
        return None
    before, _, behind = case.tail.partition(prefix)
    whose, right = (
        ("user", (DIRECT.strip(), after))
        if case.form.closes_user_turn
        else ("assistant", (after, ""))
    )
    if (before.strip(), behind.strip()) == right:
        return Finding(OK, "prefix turn", f"last in the {whose}'s turn")
    seen = f"the answer prefix is not the last of the {whose}'s turn: {short(before[-40:])} before, {short(behind)} behind"
    return Finding(
        FAIL, "prefix turn", seen, "set prefix_in to the turn in which the engine can hold it"
    )


def prefix_blank(case: Case) -> Finding | None:
    """Its blanks are kept, in the text and in the ids: variable tracking's ends with one."""
    prefix, after = case.draft.answer_prefix, case.form.around[1]
    ending = prefix + after if case.form.closes_user_turn else prefix
    if case.tail is None or prefix.strip() not in case.tail:
        return None
    for what, text in (("text", case.example.prompt), ("ids", case.decoded)):
        if not text.endswith(ending):
            seen = f"the {what} end with {text[-24:]!r}, not with {ending[-24:]!r}"
            return Finding(
                FAIL,
                "prefix blank",
                seen,
                "nothing may strip the prompt: send text or ids as they are",
            )
    return Finding(OK, "prefix blank", "kept")
