"""Store the form that vLLM puts around a message, for a chat model that has no Jinja template.

    vllm launch render MODEL        # needs no GPU
    python scripts/store_form.py MODEL http://localhost:8000

MODEL is a name, a path or a mapping, as in `rulerkit evaluate`. The file params/forms/MODEL.jinja
is used from then on, without a server; `template: NAME` takes it for another model. It holds for
the `chat_template_kwargs` of the model's file.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

import rulerkit as rk
from rulerkit.common.errors import UserError, shorten
from rulerkit.common.paths import home
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.prompt_format import FORMS_FOLDER, PromptFormat
from rulerkit.generation.tokenizers import Tokenizer
from rulerkit.inference.access import Address, served_models
from rulerkit.inference.rendered import PROBES, compare_with_server, rendered_ids
from rulerkit.store.files import write_whole

SWITCHES = (None, True, False)
"""Whether the model is to think; None leaves it to the template."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("address", help="a vLLM that renders chats")
    given = parser.parse_args()
    try:
        store_form(given.model, given.address)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def store_form(model: str, address: str) -> None:
    """Write the form of a served model, and print it."""
    engine: Any = rk.load_model(json.loads(model) if model.startswith("{") else model)
    place, served_as = served_models(address)
    values = engine.spec.get("chat_template_kwargs", {})
    template = form_of_server(place, served_as, engine.tokenizer(), values)
    file = home() / FORMS_FOLDER / f"{engine.name}.jinja"
    write_whole(file, template)
    print(f"{file}: the form of {served_as}, checked by its ids\n{template}")


def form_of_server(
    address: Address,
    served_as: str,
    tokenizer: Tokenizer,
    values: Mapping[str, Any],
    extra: Spec | None = None,
) -> str:
    """The form that a server puts around a message, as the text of a Jinja template: with a
    thought, without one, and as it is where nothing is said. `values` are the model's own
    `chat_template_kwargs`, for which alone the form holds.

    Raises `UserError` where the message is changed, or where the tokenizer does not give the
    server's ids for the form.
    """
    by_switch = {}
    for thinks in SWITCHES:
        told = PromptFormat(tokenizer, "base", enable_thinking=thinks, chat_template_kwargs=values)
        by_switch[thinks] = _surroundings(
            address, served_as, tokenizer, told.template_values, extra
        )
    usual, thinking, direct = (_literal(*by_switch[one]) for one in SWITCHES)
    template = usual
    if not usual == thinking == direct:
        template = (
            f"{{% if enable_thinking is not defined %}}{usual}"
            f"{{% elif enable_thinking %}}{thinking}{{% else %}}{direct}{{% endif %}}"
        )

    # The form is right where it gives the server's ids.
    for thinks in SWITCHES:
        form = PromptFormat(
            tokenizer, template, enable_thinking=thinks, chat_template_kwargs=values
        )
        found = compare_with_server(form, address, served_as, extra)
        if found:
            raise UserError(f"the form of {served_as} at {address}: {found}")
    return template


def _surroundings(
    address: Address, served_as: str, tokenizer: Tokenizer, values: JSON, extra: Spec | None
) -> tuple[str, str]:
    """What a server puts before and behind a message, alike for every probe."""
    found = set[tuple[str, str]]()
    for probe in PROBES:
        ids = rendered_ids(address, served_as, probe, values, extra=extra)
        text = tokenizer.decode(ids)
        before, *after = text.split(probe)
        if len(after) != 1:
            raise UserError(
                f"{served_as} at {address}: its form changes the message {probe!r}: "
                f"{shorten(text, 160)!r}; is {tokenizer.name} its tokenizer?"
            )
        found.add((before, after[0]))
    if len(found) > 1:
        raise UserError(
            f"{served_as} at {address}: its form depends on the message, so it cannot be stored"
        )
    return found.pop()


def _literal(before: str, after: str) -> str:
    """A Jinja template that writes two texts around the message, whatever they hold."""
    texts = [json.dumps(text, ensure_ascii=False) for text in (before, after)]
    return f"{{{{ {texts[0]} }}}}{{{{ messages[-1]['content'] }}}}{{{{ {texts[1]} }}}}"


if __name__ == "__main__":
    main()
