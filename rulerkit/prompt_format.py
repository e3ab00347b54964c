"""The frame around an example: chat template, system prompt, place of the answer prefix, room for
thinking.

A template is rendered once around a marker, with a fixed date, and cut there; content and answer
prefix are put in raw, so that no template trims or re-encodes them. Named forms are those of the
paper's Table 6.
"""

import json
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Any

from rulerkit.errors import UserError, unknown
from rulerkit.tokenizers import Tokenizer, load_tokenizer

_CHATML = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{t}<|im_end|>\n<|im_start|>assistant\n"
_LONGCHAT = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and "
    "polite answers to the user's questions. USER: {t} ASSISTANT:"
)
_COMMAND_R = "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>{t}<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"
_LLAMA3 = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{t}<|eot_id|>"
_RWKV = "User: hi\n\nAssistant: Hi. I am your assistant and I will provide expert full response in full details. "
_JAMBA = "<|startoftext|><|bom|><|system|> <|eom|><|bom|><|user|> {t}<|eom|><|bom|><|assistant|>"

FORMS = {
    "base": "{t}",
    "gpt-4": "{t}",
    "llama2": "[INST] {t} [/INST]",
    "lwm": "You are a helpful assistant. USER: {t} ASSISTANT: ",
    "longchat": _LONGCHAT,
    "command-r": _COMMAND_R + "<|CHATBOT_TOKEN|>",
    "glm": "[gMASK]sop<|user|> \n {t}<|assistant|> \n ",
    "phi3": "<|user|>\n{t}<|end|>\n<|assistant|>\n",
    "llama3": _LLAMA3 + "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "qwen": _CHATML.replace("{system}", "You are a helpful assistant."),
    "dbrx": _CHATML.replace("{system}", "You are a helpful assistant."),
    "jamba": _JAMBA,
    "rwkv": _RWKV
    + "Please feel free to ask any question and I will always answer it\n\nUser: {t}\n\nAssistant:",
}
"""The paper's prompt forms by name; `{t}` is the user's part."""

_OWN_OPENING = {
    "command-r": "<BOS_TOKEN>",
    "glm": "[gMASK]",
    "llama3": "<|begin_of_text|>",
    "jamba": "<|startoftext|>",
}
"""The forms that begin with a token of their own, where the tokenizer knows it, in place of a
BOS."""
DIRECT = " Do not provide any explanation. Please directly give me the answer."
"""What closes the user's turn where the answer prefix cannot open the assistant's."""

_TODAY = date(2024, 7, 26)
"""The day on which every prompt is written, for templates that print the date."""
_MARK = "\u2060RULERKIT\u2060"


@dataclass(frozen=True)
class PromptFormat:
    """How an example becomes the prompt of a model.

    `tokenizer` may be given as `load_tokenizer` takes it. `template` is `auto` (the tokenizer's own
    chat template, or `base` where it has none), a name in FORMS, or the text of a Jinja template.
    `prefix_in` is the turn in which the answer prefix stands. `thinking_tokens` are kept free
    inside the length, beside the answer's tokens.
    """

    tokenizer: Tokenizer = field(default_factory=lambda: load_tokenizer("builtin"))
    template: str = "auto"
    system_prompt: str | None = None
    prefix_in: str = "assistant"
    thinking_tokens: int = 0
    enable_thinking: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tokenizer, str):
            object.__setattr__(self, "tokenizer", load_tokenizer(self.tokenizer))
        if not isinstance(self.template, str):
            raise UserError(
                f"template is {self.template!r}: it must be a name ({', '.join(('auto', *FORMS))}) "
                "or a text"
            )
        if self.prefix_in not in ("assistant", "user"):
            raise unknown("value of prefix_in", self.prefix_in, ("assistant", "user"))
        if (
            isinstance(self.thinking_tokens, bool)
            or not isinstance(self.thinking_tokens, int)
            or self.thinking_tokens < 0
        ):
            raise UserError(
                f"thinking_tokens is {self.thinking_tokens!r}: it must be a whole number from 0 on"
            )
        if self.template not in FORMS and self.template != "auto" and "{" not in self.template:
            raise unknown(
                "template", self.template, ("auto", *FORMS), "or the text of a Jinja chat template"
            )
        if self.system_prompt and self.form in FORMS:
            raise UserError(
                f"the template {self.form} has no place for a system_prompt: use the tokenizer's "
                "own (template: auto)"
            )

    @property
    def form(self) -> str:
        """The named form in use, or the text of the Jinja template."""
        if self.template != "auto":
            return self.template
        return self.tokenizer.chat_template or "base"

    @property
    def closes_user_turn(self) -> bool:
        """Whether the answer prefix stands at the end of the user's turn (chat services take no
        other)."""
        return self.prefix_in == "user" or self.form == "gpt-4"

    @cached_property
    def around(self) -> tuple[str, str]:
        """The template's text before and after the user's part."""
        rendered = FORMS[self.form] if self.form in FORMS else self._render()
        mark = "{t}" if self.form in FORMS else _MARK
        before, found, after = rendered.partition(mark)
        if not found or mark in after:
            times = "more than once" if found else "not at all"
            raise UserError(
                f"the chat template prints the user's message {times}: give another as template"
            )
        return before, after

    @cached_property
    def bos(self) -> tuple[int, ...]:
        """The one id put before the prompt: none where the template begins with it or the model has
        none."""
        token, before = self.tokenizer, self.around[0]
        opening = _OWN_OPENING.get(self.form) or token.bos_token
        carried = (
            bool(opening) and before.startswith(str(opening)) and token.count(str(opening)) == 1
        )
        return () if token.bos_id is None or carried else (token.bos_id,)

    def settings(self) -> dict[str, Any]:
        """What defines this format in a record, without the tokenizer."""
        kept = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "tokenizer"
        }
        return kept | {"before": self.around[0], "after": self.around[1]}

    def _render(self) -> str:
        """The Jinja template around a marker; what it asks of the date is answered with the same
        day every day."""
        from jinja2 import TemplateError

        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        given: dict[str, Any] = {
            "bos_token": self.tokenizer.bos_token or "",
            "eos_token": self.tokenizer.eos_token or "",
        }
        if self.enable_thinking is not None:
            given["enable_thinking"] = self.enable_thinking
        try:
            rendered = _jinja(self.form).render(
                messages=[*system, {"role": "user", "content": _MARK}],
                add_generation_prompt=True,
                tools=None,
                documents=None,
                date_string=_TODAY.strftime("%d %b %Y"),
                **given,
            )
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError) as error:
            raise UserError(
                f"the chat template cannot be rendered: {error}; name a form: {', '.join(FORMS)}"
            ) from error
        if self.system_prompt and self.system_prompt not in rendered:
            raise UserError(
                "the chat template leaves out the system prompt: drop system_prompt or give "
                "another template"
            )
        return str(rendered)


def _jinja(template: str) -> Any:
    """A template as chat templates are written for: sandboxed, blocks trimmed, with the helpers
    they expect."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    class Generation(Extension):
        """`{% generation %}` marks what an assistant wrote, for training; here its body is printed
        as it stands."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    rooms = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", Generation],
        autoescape=False,
    )
    rooms.globals |= {"raise_exception": raise_exception, "strftime_now": _TODAY.strftime}
    rooms.filters["tojson"] = tojson
    return rooms.from_string(template)


def prompt_format(tokenizer: Tokenizer | str = "builtin", **settings: Any) -> PromptFormat:
    """A prompt format; unknown settings are errors that list the known ones."""
    known = [name for name in PromptFormat.__dataclass_fields__ if name != "tokenizer"]
    for name in settings:
        if name not in known:
            raise unknown("prompt setting", name, known)
    tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    return PromptFormat(
        tokenizer, **{name: value for name, value in settings.items() if value is not None}
    )
