"""The prompt around an example: chat template, system prompt, place of the answer prefix, tokens
for a thought, and how a thought ends.

A template is rendered once around a marker, with a fixed date, and cut there; content and answer
prefix are put in raw, so that no template trims or re-encodes them. Named forms are those of the
paper's Table 6.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from functools import cached_property, lru_cache, partial
from typing import Any

from rulerkit.common.errors import UserError, check_known
from rulerkit.common.paths import package_data, project_files
from rulerkit.generation.tokenizers import Tokenizer, load_tokenizer

FORMS: dict[str, str] = package_data("prompt_forms.yaml")
"""The paper's prompt forms by name; `{t}` is the user's part."""
FORMS_FOLDER = "params/forms"
"""Of forms of models that have no template of their own, as `scripts/store_form.py` stores them."""
DIRECT = " Do not provide any explanation. Please directly give me the answer."
"""What closes the user's turn where the answer prefix cannot open the assistant's."""

THE_DAY = date(2024, 7, 26)
"""The day on which every prompt is written, for templates that print the date."""
MARK = "\u2060RULERKIT\u2060"
"""Stands for the user's part while a template is rendered."""


@dataclass(frozen=True)
class PromptFormat:
    """How an example becomes the prompt of a model.

    `tokenizer` may be given as `load_tokenizer` takes it. `template` is `auto` (the tokenizer's own
    chat template, or `base` where it has none), a name in FORMS, that of a file of params/forms, or
    the text of a Jinja template, which is rendered with `chat_template_kwargs`. `prefix_in` is the
    turn in which the answer prefix stands, `assistant` or (in the form of chat services, which take
    no other) `user`, or `none`, the default of a model that thinks.
    `thinking_tokens` are for its thought: `thinking_room` says whether they come beside the length
    or are kept free inside it.
    `thinking_marks` are the beginning and the end of a thought, where the template names neither.
    """

    tokenizer: Tokenizer = field(default_factory=lambda: load_tokenizer("builtin"))
    template: str = "auto"
    system_prompt: str | None = None
    prefix_in: str = ""
    thinking_tokens: int = 0
    thinking_room: str = "beside"
    thinking_marks: tuple[str, str] | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if isinstance(self.tokenizer, str):
            object.__setattr__(self, "tokenizer", load_tokenizer(self.tokenizer))
        if self.thinking_marks:
            object.__setattr__(self, "thinking_marks", tuple(self.thinking_marks))

        if self.system_prompt and self.form in FORMS:
            raise UserError(
                f"the template {self.form} has no place for a system_prompt: use the tokenizer's "
                "own (template: auto)"
            )

        place = self.prefix_in or ("none" if self.thinking_tokens else "assistant")
        if self.form == "gpt-4" and place == "assistant":
            place = "user"
        object.__setattr__(self, "prefix_in", place)

    @cached_property
    def form(self) -> str:
        """The named form in use, or the text of the Jinja template."""
        if self.template == "auto":
            return self.tokenizer.chat_template or "base"
        if self.template in FORMS or "{" in self.template:
            return self.template
        stored = project_files(FORMS_FOLDER, ".jinja")
        hint = "The text of a Jinja chat template may stand here too"
        check_known("template", self.template, ("auto", *FORMS, *stored), hint)
        return stored[self.template].read_text(encoding="utf-8")

    @property
    def thinking_inside(self) -> int:
        """The tokens of the length that are kept free for a thought."""
        return self.thinking_tokens if self.thinking_room == "inside" else 0

    @cached_property
    def thought(self) -> tuple[str, str] | None:
        """How the model marks the beginning and the end of a thought: `thinking_marks`, else what
        the template names; None where neither names any."""
        if self.thinking_marks:
            return self.thinking_marks
        # Many templates write only one of the two: the other one is written by the model.
        for marks in KNOWN:
            if any(re.search(_PATTERNS[mark], self.form) for mark in marks):
                return marks
        return None

    @property
    def opens_thought(self) -> bool:
        """Whether the prompt itself begins the thought."""
        return opens_thought(self.around[1], self.thinking_marks)

    @cached_property
    def around(self) -> tuple[str, str]:
        """The template's text before and after the user's part, on the same day every day."""
        # A form of ours has its place for the text; a template of the tokenizer is rendered around
        # a marker that no prompt contains.
        if self.form in FORMS:
            before, *after = FORMS[self.form].split("{t}")
        else:
            user = {"role": "user", "content": MARK}
            prompt = self.system_prompt
            system = [{"role": "system", "content": prompt}] if prompt else []
            rendered = self.rendered([*system, user])
            # A switch such as /no_think is heeded, and not printed.
            if prompt and prompt not in rendered and rendered == self.rendered([user]):
                raise UserError(
                    "the chat template leaves out the system prompt: drop system_prompt or give "
                    "another template"
                )
            before, *after = rendered.split(MARK)

        # A template that prints the message twice, or not at all, would ask something else.
        if len(after) != 1:
            times = "more than once" if after else "not at all"
            raise UserError(
                f"the chat template prints the user's message {times}: give another as template"
            )
        return before, after[0]

    @property
    def template_values(self) -> dict[str, Any]:
        """What the template is told: whether to think, where that is known, and
        `chat_template_kwargs`."""
        thinks = self.enable_thinking
        if thinks is None and self.thinking_tokens:
            thinks = True
        # Templates call this switch by one of two names; the other one does no harm.
        names = () if thinks is None else ("enable_thinking", "thinking")
        return {**dict.fromkeys(names, thinks), **self.chat_template_kwargs}

    @cached_property
    def bos(self) -> tuple[int, ...]:
        """The ids put before the prompt of a named form: all that the tokenizer puts before a text,
        or none where the form itself begins with the first of them. A chat template writes its own,
        whatever the tokenizer does with a text: so vLLM renders chats."""
        # Two BOS would be a prompt that no model has seen in training.
        leading = self.tokenizer.leading_ids
        first = self.tokenizer.encode(self.around[0])[:1]
        if self.form not in FORMS or tuple(first) == leading[:1]:
            return ()
        return leading

    @cached_property
    def leading_ids(self) -> tuple[int, ...]:
        """The tokenizer's leading ids with which the prompt begins, by `bos` or by the template: a
        server that adds its own must not be sent these."""
        leading = self.tokenizer.leading_ids
        begins = (*self.bos, *self.tokenizer.encode(self.around[0]).tolist())
        number = len(leading)
        while begins[:number] != leading[:number]:
            number -= 1
        return leading[:number]

    @property
    def leading_text(self) -> str:
        """The text of `leading_ids`."""
        return "".join(self.tokenizer.leading_tokens[: len(self.leading_ids)])

    @property
    def lacks_bos(self) -> bool:
        """Whether the chat template does not write all that the tokenizer puts before a text."""
        return self.form not in FORMS and self.leading_ids != self.tokenizer.leading_ids

    def settings(self) -> dict[str, Any]:
        """What defines this format in a record, without the tokenizer."""
        # What few formats have is left out of the others' records.
        values = {name: getattr(self, name) for name in SETTINGS}
        marks = values.pop("thinking_marks")
        if marks:
            values["thinking_marks"] = list(marks)
        if not self.thinking_tokens:
            del values["thinking_room"]
        if not self.chat_template_kwargs:
            del values["chat_template_kwargs"]
        if self.lacks_bos:
            values["bos"] = False

        # The text around the prompt is part of what was asked.
        values["before"], values["after"] = self.around
        return values

    def rendered(self, messages: list[dict[str, str]], day: date = THE_DAY) -> str:
        """The Jinja template with these messages."""
        try:
            rendered = _jinja(self.form, day).render(
                messages=messages,
                add_generation_prompt=True,
                tools=None,
                documents=None,
                date_string=day.strftime("%d %b %Y"),
                bos_token=self.tokenizer.bos_token or "",
                eos_token=self.tokenizer.eos_token or "",
                **self.template_values,
            )
        except Exception as error:  # a template raises anything
            raise UserError(
                f"the chat template cannot be rendered: {error}; name a form: {', '.join(FORMS)}"
            ) from error
        return str(rendered)


SETTINGS = tuple(field.name for field in fields(PromptFormat))[1:]
"""What defines a prompt format beside its tokenizer; also keys of a model's mapping."""


def _jinja(template: str, day: date) -> Any:
    """A template with what chat templates expect, in a sandbox: it is a program from elsewhere."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    class Generation(Extension):
        """`{% generation %}` marks what an assistant wrote, for training: its body is printed."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    # The settings are those of transformers.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", Generation],
        autoescape=False,
    )
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": day.strftime}
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    return environment.from_string(template)


# --- thoughts -------------------------------------------------------------------------------------

# A needle that stands only in a thought is no answer: thoughts are told from answers, those that
# never ended too.

KNOWN = (
    ("<think:opensource>", "</think:opensource>"),  # Hunyuan's newer models
    # DeepSeek, Qwen, GLM, Kimi K2, MiniMax-M2, Nemotron, Olmo, Step and others
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<mm:think>", "</mm:think>"),  # MiniMax-M3
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    # gpt-oss: the last channel is the answer; and the same from a server without special tokens
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("analysis", "assistantfinal"),
    ("<|channel>", "<channel|>"),  # Gemma 4
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),  # Kimi K3
    # K2-Horizon has a mark for each effort
    ("<ifm|think>", "</ifm|think>"),
    ("<ifm|think_fast>", "</ifm|think_fast>"),
    ("<ifm|think_faster>", "</ifm|think_faster>"),
    ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    # Inkling and Muse end a thought as any other message
    ("<|content_thinking|>", "<|content_text|>"),
    ("to=self<|message|>", "to=user<|message|>"),
    # Granite 3
    ("Here is my thought process:", "Here is my response:"),
    ("Here's my thought process:", "Here's my response:"),
)
"""The beginnings and the ends of thoughts that the reasoning parsers of vLLM 0.32 know; a test
holds them against its list. The answer begins behind the end."""
_PATTERNS = {mark: re.escape(mark) for marks in KNOWN for mark in marks}
# Some have a name in them, and these two could be words of a text.
_PATTERNS["<think>"] = r"<think(?::[^<>\s]+)?>"
_PATTERNS["</think>"] = r"</think(?::[^<>\s]+)?>"
_PATTERNS["analysis"] = r"\banalysis(?=\w)"
_PATTERNS["assistantfinal"] = r"assistantfinal|[.!?\n]\s*assistant\s+final\b"


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
    beginnings = [_PATTERNS[beginning] for beginning, _ in KNOWN]
    ends = [_PATTERNS[end] for _, end in KNOWN]
    if own:
        beginnings.append(re.escape(own[0]))
        ends.append(re.escape(own[1]))
    return re.compile("|".join(beginnings)), re.compile("|".join(ends))
