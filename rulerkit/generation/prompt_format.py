"""The prompt around an example: chat template, system prompt, place of the answer prefix, tokens
for a thought, and how a thought ends.

A template is rendered once around a marker, with a fixed date, and cut there; content and answer
prefix are put in raw, so that no template trims or re-encodes them. Named forms are those of the
paper's Table 6.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rulerkit.common.errors import UserError, check_known
from rulerkit.common.paths import package_data, project_files
from rulerkit.generation.thoughts import marks_in, opens_thought
from rulerkit.generation.tokenizers import Tokenizer, load_tokenizer

FORMS: dict[str, str] = package_data("prompt_forms.yaml")
"""The paper's prompt forms by name; `{t}` is the user's part."""
FORMS_FOLDER = "params/forms"
DIRECT = " Do not provide any explanation. Please directly give me the answer."
"""What closes the user's turn where the answer prefix cannot open the assistant's."""

THE_DAY = date(2024, 7, 26)
"""The day on which every prompt is written, for templates that print the date."""
_MARK = "\u2060RULERKIT\u2060"


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

        # The folder of stored forms is listed only for names that may be in it.
        is_text = isinstance(self.template, str) and "{" in self.template
        if self.template not in ("auto", *FORMS) and not is_text:
            names = ("auto", *FORMS, *stored_forms())
            hint = "The text of a Jinja chat template may stand here too"
            check_known("template", self.template, names, hint)
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
        return stored_forms()[self.template].read_text(encoding="utf-8")

    @property
    def thinking_inside(self) -> int:
        """The tokens of the length that are kept free for a thought."""
        return self.thinking_tokens if self.thinking_room == "inside" else 0

    @cached_property
    def thought(self) -> tuple[str, str] | None:
        """How the model marks the beginning and the end of a thought: `thinking_marks`, else what
        the template names; None where neither names any."""
        return self.thinking_marks or marks_in(self.form)

    @property
    def opens_thought(self) -> bool:
        """Whether the prompt itself begins the thought."""
        return opens_thought(self.around[1], self.thinking_marks)

    @cached_property
    def around(self) -> tuple[str, str]:
        """The template's text before and after the user's part, on the same day every day."""
        return self.around_on(THE_DAY)

    def around_on(self, day: date) -> tuple[str, str]:
        """The template's text before and after the user's part, where a template that prints the
        date is told this day."""
        # A form of ours has its place for the text; a template of the tokenizer is rendered around
        # a marker that no prompt contains.
        if self.form in FORMS:
            before, *after = FORMS[self.form].split("{t}")
        else:
            user = {"role": "user", "content": _MARK}
            prompt = self.system_prompt
            system = [{"role": "system", "content": prompt}] if prompt else []
            rendered = self._rendered([*system, user], day)
            # Some templates drop a system message without a word. A switch such as /no_think is
            # heeded, and not printed.
            if prompt and prompt not in rendered and rendered == self._rendered([user], day):
                raise UserError(
                    "the chat template leaves out the system prompt: drop system_prompt or give "
                    "another template"
                )
            before, *after = rendered.split(_MARK)

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
        and none is put before it, whatever the tokenizer does with a text: so vLLM renders
        chats."""
        # Two BOS would be a prompt that no model has seen in training.
        leading = self.tokenizer.leading_ids
        first = self.tokenizer.encode(self.around[0])[:1]
        if self.form not in FORMS or tuple(first) == leading[:1]:
            return ()
        return leading

    @cached_property
    def leading_ids(self) -> tuple[int, ...]:
        """The tokenizer's leading ids with which the prompt begins, whether they are put before it
        (`bos`) or the template writes them: a server that adds its own must not be sent these."""
        if self.bos:
            return self.bos
        leading = self.tokenizer.leading_ids
        before = self.tokenizer.encode(self.around[0])
        number = 0
        while number < min(len(leading), len(before)) and before[number] == leading[number]:
            number += 1
        return leading[:number]

    @property
    def leading_text(self) -> str:
        """The text of `leading_ids`."""
        return "".join(self.tokenizer.leading_tokens[: len(self.leading_ids)])

    @property
    def lacks_bos(self) -> bool:
        """Whether the prompt begins without all that the tokenizer puts before a text, because the
        chat template does not write it."""
        return self.form not in FORMS and self.leading_ids != self.tokenizer.leading_ids

    def settings(self) -> dict[str, Any]:
        """What defines this format in a record, without the tokenizer."""
        # The text around the prompt is part of what was asked.
        before, after = self.around
        values = {name: getattr(self, name) for name in SETTINGS}
        if not self.thinking_tokens:
            del values["thinking_room"]
        # What few formats have is left out of the others' records.
        marks = values.pop("thinking_marks")
        if marks:
            values["thinking_marks"] = list(marks)
        if not self.chat_template_kwargs:
            del values["chat_template_kwargs"]
        if self.lacks_bos:
            values["bos"] = False
        return values | {"before": before, "after": after}

    def _rendered(self, messages: list[dict[str, str]], day: date) -> str:
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


def stored_forms() -> dict[str, Path]:
    """Name -> file of the forms of models that have no template of their own, as
    `scripts/store_form.py` stores them."""
    return project_files(FORMS_FOLDER, ".jinja")


SETTINGS = tuple(field.name for field in fields(PromptFormat))[1:]
"""What defines a prompt format beside its tokenizer; also keys of a model's mapping."""


def _jinja(template: str, day: date) -> Any:
    """A template as chat templates are written for: sandboxed, blocks trimmed, with the helpers
    they expect."""
    # A chat template is a program from elsewhere, so it runs in a sandbox.
    from jinja2 import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    class Generation(Extension):
        """`{% generation %}` marks what an assistant wrote, for training; here its body is printed
        as it stands."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    # These settings are those of transformers, which templates are written for.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", Generation],
        autoescape=False,
    )
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": day.strftime}
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    return environment.from_string(template)
