"""Models behind addresses whose tokenizer is not known."""

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
