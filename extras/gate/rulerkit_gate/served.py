"""Models behind addresses: whose tokenizer is not known, and which parameter makes the prompts of
two models the same."""

from collections.abc import Callable, Sequence
from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.inference.model import load_model
from rulerkit.inference.openai import OpenAI


def with_tokenizers(
    described: Sequence[Any], are_named: Sequence[bool], say: Callable[[str], None]
) -> list[tuple[Any, Any]]:
    """Each model as it is described, and loaded. A server's model whose tokenizer is neither named
    nor to be had is counted with that of the other model, else with `builtin`: it gets texts, and
    its lengths are approximate."""
    models = [load_model(one) for one in described]
    known: list[str] = []
    unknown: list[Any] = []
    for model, is_named in zip(models, are_named, strict=True):
        if isinstance(model, OpenAI) and not is_named:
            try:
                model.tokenizer()
            except UserError:
                unknown.append(model)
                continue
        if hasattr(model, "tokenizer_name"):
            known.append(model.tokenizer_name())

    used = known[0] if known else "builtin"
    pairs = []
    for one, model in zip(described, models, strict=True):
        is_unknown = model in unknown
        if is_unknown:
            one = {**one, "tokenizer": used}
            model = load_model(one)
        # Ids of another vocabulary would be other words, so texts are sent.
        if isinstance(model, OpenAI) and model.spec.get("prompt_path") != "ids":
            model.is_approximate = is_unknown or model.tokenizer_name() == "builtin"
        pairs.append((one, model))
    if unknown:
        names = " and ".join(dict.fromkeys(str(model.label) for model in unknown))
        same = "; both sides get the same prompts" if len(models) > 1 else ""
        say(
            f"the tokenizer of {names} is not known: lengths are approximate, counted with {used}"
            f"{same} (-y 'tokenizer: NAME' names it)"
        )
    return pairs


def what_pairs(models: Sequence[Any]) -> str:
    """The parameter with which two models get the same prompts where one of them takes chats
    alone; empty where that is not why they differ."""
    paths = [getattr(model, "prompt_path", "") for model in models]
    if paths.count("chat") != 1:
        return ""
    chat, other = models if paths[0] == "chat" else reversed(models)
    way = "-y 'template: gpt-4'"
    if isinstance(other, OpenAI):
        # A server of completions need not take chats, too.
        asked: Any = load_model({**other.spec, "prompt_path": "chat"})
        asked.is_approximate = other.is_approximate
        try:
            way = f"-y 'prompt_path: {asked.server.path}'"
        except UserError:
            pass
        finally:
            asked.close()
    return f"{chat.label} takes chats alone; {way} sends both the same"
