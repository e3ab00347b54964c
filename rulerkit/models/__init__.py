"""Who answers: rules, a checkpoint or any Python function, each behind the same small door.

`load_model` turns what stands in a parameter file into a `Model`; `model` does so with a function or a loaded
checkpoint. Nothing heavy is read before the first answer is asked for. An engine is one module of this folder (its
class and the keys that it alone understands) and one line in `ENGINES`.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.prompt_format import PromptFormat
from rulerkit.tokenizers import Tokenizer


class Answer(NamedTuple):
    """What a model wrote behind a prompt."""

    text: str
    finish_reason: str
    """`stop`: it ended by itself; `length`: it was cut at the example's `max_new_tokens`; `refused`: it declined."""
    num_tokens: int
    usage: Mapping[str, Any] | None = None
    """What an engine tells beside the text, JSON-able: cached tokens, cost, its own count of prompt tokens."""


@runtime_checkable
class Model(Protocol):
    """What the rest of the house asks of a model."""

    name: str
    engine: str
    label: str
    claimed_length: int | None

    @property
    def aligned(self) -> str:
        """`chat` or `base`: the group in which the paper ranks it."""

    @property
    def prompt_format(self) -> PromptFormat: ...

    def identity(self) -> dict[str, Any]:
        """What defines the answers, JSON-able: predictions under another identity are never mixed with these."""

    def environment(self) -> dict[str, Any]:
        """What is worth recording and never blocks: `gpu`, `packages` (versions), where a folder lies."""

    def too_long(self, length: int) -> str | None:
        """Why a length cannot be run here and what would make it fit; None where it can."""

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """Each example with its answer, as they finish, in any order; reads only a bounded window ahead."""

    def close(self) -> None:
        """Give the memory back; the next answer loads the model again."""


ENGINES = {
    "reader": "rulerkit.models.readers:Reader",
    "transformers": "rulerkit.models.transformers:Transformers",
    "rwkv": "rulerkit.models.rwkv:RWKV",
    "function": "rulerkit.models.functions:Function",
    "vllm": "rulerkit.models.vllm:Vllm",
    "openai": "rulerkit.models.openai:OpenAI",
}
"""Engine name -> `module:class`, imported at first use; the class is called with a spec. The module's `KEYS` are the
keys of a spec that only this engine understands."""

FORMAT_KEYS = ("template", "system_prompt", "prefix_in", "thinking_tokens", "enable_thinking")
"""The keys of a spec that are handed on to `prompt_format`."""


class Engine:
    """What all engines share: the names in a spec, and the prompt format, made when it is first asked for."""

    on_gpu: ClassVar[bool] = True
    """Whether it computes here, so that a batch hands it a GPU; a service or a rule needs none."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = dict(spec)
        self.name: str = spec["name"]
        self.engine: str = spec["engine"]
        self.label: str = spec.get("label", self.name)
        self.claimed_length: int | None = spec.get("claimed_length")
        self.slug: str | None = spec.get("slug")

    @property
    def aligned(self) -> str:
        """As the spec says, else `base` where the prompt is sent without a template."""
        return str(self.spec.get("aligned") or ("base" if self.prompt_format.form == "base" else "chat"))

    @cached_property
    def prompt_format(self) -> PromptFormat:
        """The frame around each example, with this model's tokenizer."""
        from rulerkit.prompt_format import prompt_format

        return prompt_format(self.tokenizer(), **{key: self.spec[key] for key in FORMAT_KEYS if key in self.spec})

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that counts and encodes this model's prompts."""
        from rulerkit.tokenizers import load_tokenizer

        return load_tokenizer(self.spec.get("tokenizer", "builtin"))

    def most_tokens(self, example: Example) -> int:
        """How many tokens may be written: those of the answer, and before them those of a thought."""
        return example.max_new_tokens + self.prompt_format.thinking_tokens

    def too_long(self, length: int) -> str | None:
        """Any length can be run."""
        return None

    def environment(self) -> dict[str, Any]:
        """Nothing worth recording beyond the machine itself."""
        return {}

    def close(self) -> None:
        """Nothing to give back."""


def cut(text: str, tokenizer: Tokenizer, most: int) -> Answer:
    """An answer of at most `most` tokens, as a real model would have been cut."""
    ids = tokenizer.encode(text)
    if len(ids) <= most:
        return Answer(text, "stop", len(ids))
    return Answer(tokenizer.decode(ids[:most]), "length", most)


def engine_module(engine: str) -> Any:
    """The module of an engine: its class and its `KEYS`."""
    return import_module(ENGINES[engine].partition(":")[0])


def gpus_and_nodes(spec: Mapping[str, Any]) -> tuple[int, int]:
    """How many GPUs a checked spec takes on each node, and how many nodes."""
    nodes = int(spec.get("nodes", 1))
    if "gpus" in spec:
        return int(spec["gpus"]), nodes
    on_gpu = _engine_class(spec["engine"]).on_gpu and spec.get("device") != "cpu"
    shares = int(spec.get("tensor_parallel_size", 1)) * int(spec.get("pipeline_parallel_size", 1))
    return -(-shares // nodes) if on_gpu else 0, nodes


def load_model(spec: "str | Mapping[str, Any] | Model") -> Model:
    """The model that a name, a path, a hub id or a mapping describes (see `spec.read_spec`); a model passes through.

    No weights are read before the first answer. Raises `UserError` for unknown names and keys, and for a folder that is
    no model.
    """
    from rulerkit.models.spec import read_spec

    if not isinstance(spec, str | Mapping):
        if isinstance(spec, Model):
            return spec
        raise UserError(
            f"a {type(spec).__name__} is no model: give a name, a path, a hub id or a mapping; a function or a loaded "
            "checkpoint becomes one by rulerkit.model(it, name=...)"
        )
    full = read_spec(spec)
    loaded: Model = _engine_class(full["engine"])(full)
    return loaded


def model(target: Any, *, name: str, tokenizer: str | None = None, takes: str | None = None, **spec: Any) -> Model:
    """A function, or a loaded checkpoint with its tokenizer, as a model.

    `target` is a function from a list of prompts (`takes="prompts"`, str) or of token ids (`takes="ids"`, int32 arrays
    of shape (tokens,)) to a list of as many texts: the new text alone, without the prompt; where it has a parameter
    `max_new_tokens`, it is told how many tokens may come. Or `target` is `(model, tokenizer)` as transformers loads
    them. `spec` are further keys of a model's mapping.
    """
    from rulerkit.models.spec import check_spec

    given: dict[str, Any] = {"name": name, "tokenizer": tokenizer, "takes": takes, **spec}
    if isinstance(target, tuple) and len(target) == 2 and hasattr(target[0], "generate"):
        engine = "transformers"
    elif callable(target) and not hasattr(target, "generate"):
        engine = "function"
    else:
        raise UserError(
            f"model {name}: a {type(target).__name__} cannot answer: give a function from prompts to texts, or the "
            "pair (model, tokenizer) as transformers loads them"
        )
    full = check_spec({key: value for key, value in given.items() if value is not None} | {"engine": engine}, name)
    made: Model = _engine_class(engine)(full, target)
    return made


def _engine_class(engine: str) -> Any:
    return getattr(engine_module(engine), ENGINES[engine].partition(":")[2])
