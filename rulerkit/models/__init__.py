"""Models: rules, checkpoints, servers and Python functions, all with the same interface, `Model`.

`load_model` turns what stands in a parameter file into a `Model`; `model` does so with a function
or a loaded checkpoint. No weights are read before the first answer. An engine is one module of this
folder (its class), one line in `ENGINES`, and its keys in `settings`.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import ceil
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.prompt_format import PromptFormat
from rulerkit.settings import JSON, Spec, check_spec, read_spec
from rulerkit.tokenizers import Tokenizer


class Answer(NamedTuple):
    """What a model wrote behind a prompt."""

    text: str
    finish_reason: str
    """`stop`: it ended by itself; `length`: it was cut at the example's `max_new_tokens`."""
    num_tokens: int
    usage: Spec | None = None
    """What an engine tells beside the text, JSON-able: its own counts of tokens, cost, what a
    server calls the model."""


class Failure(NamedTuple):
    """An example that has no answer: why, and whether the service declined it."""

    reason: str
    refused: bool = False


@runtime_checkable
class Model(Protocol):
    """What the rest of the package asks of a model. Every engine is one; so is any object with
    these members."""

    name: str
    engine: str
    label: str
    claimed_length: int | None

    @property
    def aligned(self) -> str:
        """`chat` or `base`: the group in which the paper ranks it."""

    @property
    def prompt_format(self) -> PromptFormat: ...

    def identity(self) -> JSON:
        """What defines the answers, JSON-able: predictions under another identity are never mixed
        with these."""

    def environment(self) -> JSON:
        """What is worth recording and never blocks: `gpu`, `packages` (versions), where a folder
        lies."""
        return {}

    def too_long(self, length: int) -> str | None:
        """Why a length cannot be run here and what would make it fit; None where it can."""
        return None

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer | Failure]]:
        """Each example with its answer or why it has none, as they finish, in any order; reads only
        a bounded window ahead. A `UserError` ends the model's work: the answers until then are
        kept, and other models still run."""

    def close(self) -> None:
        """Give the memory back; the next answer loads the model again."""


ENGINES = {
    "reader": "rulerkit.models.readers:Reader",
    "transformers": "rulerkit.models.transformers:Transformers",
    "rwkv": "rulerkit.models.recurrent:RWKV",
    "function": "rulerkit.models.functions:Function",
    "vllm": "rulerkit.models.server:Vllm",
    "openai": "rulerkit.models.server:OpenAI",
}
"""Engine name -> `module:class`, imported at first use; the class is called with a spec. Its keys
stand in `settings`."""

FORMAT_KEYS = ("template", "system_prompt", "prefix_in", "thinking_tokens", "enable_thinking")
"""The keys of a spec that are handed on to `prompt_format`."""


class Engine(Model):
    """What all engines share: the names in a spec, and the prompt format, made when it is first
    needed."""

    on_gpu: ClassVar[bool] = True
    """Whether it computes here, so that a batch hands it a GPU; a service or a rule needs none."""

    def __init__(self, spec: Spec) -> None:
        self.spec = dict(spec)
        self.name = spec["name"]
        self.engine = spec["engine"]
        self.label = spec.get("label", self.name)
        self.claimed_length = spec.get("claimed_length")

    @property
    def aligned(self) -> str:
        """As the spec says, else `base` where the prompt is sent without a template."""
        return str(
            self.spec.get("aligned") or ("base" if self.prompt_format.form == "base" else "chat")
        )

    @cached_property
    def prompt_format(self) -> PromptFormat:
        """The frame around each example, with this model's tokenizer."""
        return self.make_format(self.tokenizer())

    def make_format(self, tokenizer: Tokenizer, **settings: Any) -> PromptFormat:
        """The prompt format of the spec, over defaults. A chat model without any template is a
        `UserError`."""
        from rulerkit.prompt_format import FORMS, prompt_format

        form = prompt_format(
            tokenizer, **settings | {key: self.spec[key] for key in FORMAT_KEYS if key in self.spec}
        )
        # readers read plain text, and around a prefilled chat stands the server's own template
        plain = self.engine == "reader" or self.spec.get("prompt_path") == "prefill"
        if (
            self.spec.get("aligned") == "chat"
            and not plain
            and form.template == "auto"
            and form.form == "base"
        ):
            raise UserError(
                f"model {self.name}: it is a chat model (aligned: chat), but no chat template was "
                "found beside its "
                f"tokenizer {tokenizer.name}; give `template: NAME`, a form of the paper "
                f"({', '.join(FORMS)}), or "
                "`template: base` to send plain text"
            )
        return form

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that counts and encodes this model's prompts."""
        from rulerkit.tokenizers import load_tokenizer

        return load_tokenizer(self.spec.get("tokenizer", "builtin"))

    def most_tokens(self, example: Example) -> int:
        """How many tokens may be written: those of the answer, and before them those of a
        thought."""
        return example.max_new_tokens + self.prompt_format.thinking_tokens


def cut(text: str, tokenizer: Tokenizer, most: int) -> Answer:
    """An answer of at most `most` tokens, as a real model would have been cut."""
    ids = tokenizer.encode(text)
    if len(ids) <= most:
        return Answer(text, "stop", len(ids))
    return Answer(tokenizer.decode(ids[:most]), "length", most)


def num_shares(spec: Spec) -> int:
    """Over how many GPUs one copy of a model is spread."""
    return int(spec.get("tensor_parallel_size", 1) * spec.get("pipeline_parallel_size", 1))


def gpus_and_nodes(spec: Spec) -> tuple[int, int]:
    """How many GPUs a checked spec takes on each node, all its replicas together (one for `auto`),
    and how many nodes."""
    nodes: int = spec.get("nodes", 1)
    on_gpu = (resolve_name(ENGINES[spec["engine"]]).on_gpu or "serve" in spec) and spec.get(
        "device"
    ) != "cpu"
    gpus = spec.get("gpus", ceil(num_shares(spec) / nodes) if on_gpu else 0)
    replicas = spec.get("replicas", "auto")
    return gpus if replicas == "auto" else gpus * replicas, nodes


def takes_more_gpus(spec: Spec) -> bool:
    """Whether a model answers faster with several times the GPUs that it needs: it starts as many
    servers as they allow."""
    started = spec.get("engine") == "vllm" or "serve" in spec
    return started and spec.get("replicas", "auto") == "auto" and spec.get("nodes", 1) == 1


def load_model(spec: "str | Spec | Model") -> Model:
    """The model that a name, a path, a hub id or a mapping describes (see `settings.read_spec`); a
    model passes through.

    No weights are read before the first answer. Raises `UserError` for unknown names and keys, and
    for a folder that is no model.
    """
    return spec if isinstance(spec, Model) else _engine(read_spec(spec))


def model(target: Any, *, name: str, **spec: Any) -> Model:
    """A function, or a loaded checkpoint with its tokenizer, as a model.

    `target` is a function from a list of prompts (`takes="prompts"`, str) or of token ids
    (`takes="ids"`, int32 arrays of shape (tokens,)) to a list of as many texts: the new text alone,
    without the prompt; where it has a parameter `max_new_tokens`, it is told how many tokens may
    come. Or `target` is `(model, tokenizer)` as transformers loads them. `spec` are further keys of
    a model's mapping, such as `tokenizer="builtin"`.
    """
    if isinstance(target, tuple) and len(target) == 2 and hasattr(target[0], "generate"):
        engine = "transformers"
    elif callable(target) and not hasattr(target, "generate"):
        engine = "function"
    else:
        raise UserError(
            f"model {name}: a {type(target).__name__} cannot answer: give a function from prompts "
            "to texts, or the "
            "pair (model, tokenizer) as transformers loads them"
        )
    return _engine(check_spec(spec | {"name": name, "engine": engine}, name), target)


def _engine(spec: Spec, *target: Any) -> Model:
    engine: Model = resolve_name(ENGINES[spec["engine"]])(spec, *target)
    return engine
