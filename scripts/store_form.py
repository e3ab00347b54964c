"""Store the form that vLLM puts around a message, for a chat model that has no Jinja template.

    vllm launch render MODEL        # needs no GPU
    python scripts/store_form.py MODEL http://localhost:8000
    python scripts/store_form.py MODEL http://localhost:8000 --check

`vllm serve` renders chats, too, where it was started with `--enable-scale-out`. MODEL is a name, a
path or a mapping, as in `rulerkit evaluate`. The file params/forms/MODEL.jinja is used from then
on, without a server; `template: NAME` takes it for another model. It holds for the
`chat_template_kwargs` of the model's file. With `--check` nothing is stored: the form that is used
is compared with the server's.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import httpx2

import rulerkit as rk
from rulerkit.common.errors import UserError, shorten
from rulerkit.common.paths import home
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.prompt_format import FORMS, FORMS_FOLDER, MARK, THE_DAY, PromptFormat
from rulerkit.generation.tokenizers import Tokenizer
from rulerkit.inference.access import Address, address_of, model_at
from rulerkit.inference.refusals import fatal_words, why_unreachable
from rulerkit.store.files import write_whole

RENDER = "/chat/completions/render"
_TIMEOUT = 60.0  # seconds
PROBES = ("Which number is written above? Say: 4812093.", "Ünïcödé, 東京; 1. apple 2. banana")
"""Messages whose surroundings must be alike. Neither begins or ends with a blank, which templates
may strip."""
_AROUND = 24  # characters that are shown on both sides of a difference
SWITCHES = (None, True, False)
"""Whether the model is to think; None leaves it to the template."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("address", help="a vLLM that renders chats")
    parser.add_argument("--check", action="store_true", help="compare, and store nothing")
    given = parser.parse_args()
    try:
        if given.check:
            check_form(given.model, given.address)
        else:
            store_form(given.model, given.address)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def named(model: str, address: str) -> tuple[Any, Address, str]:
    """The model, the address of a server, and what it calls the one model that it serves."""
    engine = rk.load_model(json.loads(model) if model.startswith("{") else model)
    served = model_at(address)
    return engine, address_of(served["base_url"], {}), served["path"]


def check_form(model: str, address: str) -> None:
    """Print whether the form that is used is the server's; `UserError` where it is another."""
    engine, place, served_as = named(model, address)
    found = compare_with_server(engine.prompt_format, place, served_as)
    if found:
        raise UserError(f"the form of {engine.name} is not that of {place}: {found}")
    print(f"the ids that {place} renders are ours")


def store_form(model: str, address: str) -> None:
    """Write the form of a served model, and print it."""
    engine, place, served_as = named(model, address)
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


# --- what a server renders ------------------------------------------------------------------------


def rendered_ids(
    address: Address,
    served_as: str,
    content: str,
    values: Mapping[str, Any],
    system: str | None = None,
    extra: Spec | None = None,
) -> list[int]:
    """The token ids of a chat of one message, as a server renders it with these values of its
    template; `extra` goes into the request as it is. Raises `UserError` where it has no such page
    or refuses."""
    messages = [{"role": "user", "content": content}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    body: JSON = {"model": served_as, "messages": messages, **(extra or {})}
    if values:
        body["chat_template_kwargs"] = dict(values)
    try:
        with address.client(httpx2.Client, timeout=_TIMEOUT) as client:
            reply = client.post(address.page(RENDER), json=body)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = why_unreachable(address.url, error)
        raise UserError(fatal_words(address, "unreachable", reason)) from None

    # What a server says may hold anything, our key too.
    text = address.without_secrets(reply.text)
    try:
        ids = json.loads(text)["token_ids"]
        if ids and all(isinstance(one, int) for one in ids):
            return list(ids)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError(
        f"{address} does not render chats (HTTP {reply.status_code}: {shorten(text, 160)}): "
        "`vllm launch render MODEL` does, and so does `vllm serve` with --enable-scale-out and a "
        "tokenizer"
    )


def _around_on(form: PromptFormat, day: date) -> tuple[str, ...]:
    """What stands before and behind a message, where a template prints this day."""
    if form.form in FORMS:
        return form.around
    messages = [{"role": "user", "content": MARK}]
    if form.system_prompt:
        messages.insert(0, {"role": "system", "content": form.system_prompt})
    return tuple(form.rendered(messages, day).split(MARK))


def compare_with_server(
    form: PromptFormat, address: Address, served_as: str, extra: Spec | None = None
) -> str:
    """How the ids of a form differ from those that a server renders, as text; empty where they are
    equal, but for the date that a template prints: ours stands still."""
    values = form.template_values
    # The server may be in another time zone.
    today = date.today()
    days = (THE_DAY, *(today + timedelta(days=n) for n in (0, -1, 1)))
    arounds = list(dict.fromkeys(_around_on(form, day) for day in days))
    for probe in PROBES:
        theirs = rendered_ids(address, served_as, probe, values, form.system_prompt, extra)
        ours = [
            [*form.bos, *form.tokenizer.encode(before + probe + after).tolist()]
            for before, after in arounds
        ]
        if theirs not in ours:
            return difference(ours[0], theirs, form.tokenizer)
    return ""


def difference(ours: list[int], theirs: list[int], tokenizer: Tokenizer) -> str:
    """The first place where two lists of ids differ, as text with what stands around it."""
    place = 0
    while ours[place : place + 1] == theirs[place : place + 1] != []:
        place += 1
    before = tokenizer.decode(ours[:place])[-_AROUND:]
    ends = [
        tokenizer.decode(ids[place:])[:_AROUND] if ids[place:] else "" for ids in (ours, theirs)
    ]
    return (
        f"{len(ours)} ids here, {len(theirs)} there; behind {before!r} stands here {ends[0]!r}, "
        f"there {ends[1]!r}"
    )


if __name__ == "__main__":
    main()
