"""Models: rules, checkpoints, servers and Python functions, all with the same interface, `Model`.

`load_model` turns the description in a parameter file into a `Model`; `model` does so with a
function or a loaded checkpoint. No weights are read before the first answer. An engine is one
module of this folder (its class), one line in `ENGINES`, and its keys in `settings`; or it is in a
module outside, a plug-in, which holds all three: `docs/extend.md`.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import cached_property
from math import ceil
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

from rulerkit.common.errors import ModelError, TooLong, UserError, shortened
from rulerkit.common.model_files import check_spec, read_spec
from rulerkit.common.paths import project_file
from rulerkit.common.plugins import by_name, errors_of
from rulerkit.common.settings import JSON, ModelKeys, Spec
from rulerkit.common.urls import is_address
from rulerkit.generation.example import Example
from rulerkit.generation.prompt_format import (
    FORMS,
    FORMS_FOLDER,
    KNOWN,
    SETTINGS,
    PromptFormat,
    without_thought,
)
from rulerkit.generation.tokenizers import Tokenizer, load_tokenizer


class Answer(NamedTuple):
    """What a model wrote behind a prompt."""

    text: str
    finish_reason: str
    """`stop`: it ended by itself; `length`: it was cut at the example's `max_new_tokens`."""
    num_tokens: int
    usage: Spec | None = None
    """What an engine says beside the text, JSON-able: its own counts of tokens, the server's name
    for the model."""


class Failure(NamedTuple):
    """An example that has no answer: why, and whether the service declined it."""

    reason: str
    refused: bool = False


Answers = Iterator[tuple[Example, Answer | Failure]]
"""Examples with their answers, or why they have none."""


ENGINES = {
    "reader": "rulerkit.inference.readers:Reader",
    "transformers": "rulerkit.inference.transformers:Transformers",
    "rwkv": "rulerkit.inference.rwkv:RWKV",
    "function": "rulerkit.inference.functions:Function",
    "vllm": "rulerkit.inference.vllm:Vllm",
    "openai": "rulerkit.inference.openai:OpenAI",
}
"""Engine name -> `module:class`, imported at first use; the class is called with a spec."""


COMPRESSED = "the context was compressed without the question"
"""What tables say of functions that take prompts in two parts."""


def engine_class(name: str) -> Any:
    """The class of an engine, ours or a plug-in's; the name was checked with the spec."""
    if name in ENGINES:
        return resolve_name(ENGINES[name])
    outside = by_name("engines", ENGINES, "engine")[name]
    if not (isinstance(outside, type) and issubclass(outside, Model)):
        raise UserError(
            f"the engine {name} of a plug-in is {shortened(outside)}: it must be a class made from "
            "rulerkit.inference.model.Model"
        )
    return outside


class Model(ABC):
    """What the rest of the package asks of a model, and what all engines share: the names in a
    spec, and the prompt format, made when it is first needed."""

    keys: ClassVar[type[ModelKeys]] = ModelKeys
    """What the mapping of a model may hold; read of engines of plug-ins, ours stand in
    `settings.ENGINE_KEYS`."""
    on_gpu: ClassVar[bool] = True
    """Whether it computes here, so that a batch gives it a GPU; a service or a rule needs none."""

    def __init__(self, spec: Spec) -> None:
        self.spec = dict(spec)
        self.name = spec["name"]
        self.engine = spec["engine"]
        self.label = spec.get("label", self.name)
        self.claimed_length: int | None = spec.get("claimed_length")
        inside = spec.get("thinking_room") == "inside"
        self.beside = 0 if inside else spec.get("thinking_tokens", 0)
        """The tokens of a thought that come beside the length."""
        self.protocol_note: str | None = None
        """What tables say of the way in which it reads prompts."""

    @abstractmethod
    def identity(self) -> JSON:
        """What defines the answers, JSON-able: predictions under another identity are never mixed
        with these."""

    @abstractmethod
    def answer(self, examples: Iterable[Example]) -> Answers:
        """Each example with its answer or why it has none, as they finish, in any order; reads only
        a bounded number of examples ahead. A `UserError` ends the model's work: the answers until
        then are kept, and other models still run."""

    def environment(self) -> JSON:
        """What is worth recording and never blocks: `gpu`, `packages` (versions), where a folder
        lies."""
        return {}

    def too_long(self, length: int) -> str | None:
        """Why a length cannot be run here and what would make it fit; None where it can."""
        return None

    def close(self) -> None:  # noqa: B027
        """Free the memory; the next answer loads the model again."""

    def given(self, keys: Iterable[str]) -> JSON:
        """The values of those of these keys that stand in the spec."""
        return {key: self.spec[key] for key in keys if key in self.spec}

    @property
    def aligned(self) -> str:
        """As the spec says, else `base` where the prompt is sent without a template or messages."""
        chat = self.spec.get("prompt_path") == "chat" or self.prompt_format.form != "base"
        return str(self.spec.get("aligned", "chat" if chat else "base"))

    @cached_property
    def prompt_format(self) -> PromptFormat:
        """The frame around each example, with this model's tokenizer."""
        return self.make_format()

    def make_format(self, **settings: Any) -> PromptFormat:
        """The prompt format of the spec, over defaults. A chat model without any template is a
        `UserError`."""
        tokenizer = self.tokenizer()
        settings |= self.given(SETTINGS)
        # A form that was had from a server stands in for the template that the model lacks.
        has_template = "template" in settings or tokenizer.chat_template
        if not has_template and project_file(FORMS_FOLDER, self.name, ".jinja"):
            settings["template"] = self.name
        form = PromptFormat(tokenizer, **settings)
        # Readers read plain text, and their marks are ours.
        if self.engine == "reader":
            return form

        # A thought must be told from the answer behind it. A chat service takes it apart itself.
        if form.thinking_tokens and form.form != "gpt-4" and not form.thought:
            raise UserError(
                f"model {self.name}: it has thinking_tokens, but its prompt format names no known "
                f"mark of a thought ({' '.join(end for _, end in KNOWN)}): give the model's own, "
                "thinking_marks: [BEGINNING, END], or a needle that is only thought of would count "
                "as an answer"
            )
        has_none = form.template == "auto" and form.form == "base"
        if self.spec.get("aligned") == "chat" and has_none:
            raise UserError(
                f"model {self.name}: it is a chat model (aligned: chat), but no chat template was "
                f"found beside its tokenizer {tokenizer.name}; give `template: NAME`, a form of "
                f"the paper ({', '.join(FORMS)}) or one that scripts/store_form.py had from vLLM, "
                "or `template: base` to send plain text"
            )
        return form

    def tokenizer_name(self) -> str:
        """What `load_tokenizer` takes to read this model's tokenizer."""
        return str(self.spec.get("tokenizer", "builtin"))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that counts and encodes this model's prompts."""
        name = self.tokenizer_name()
        if name == "builtin" and self.on_gpu:
            raise UserError(
                f"model {self.name}: the ids of `tokenizer: builtin` mean nothing to a checkpoint: "
                "leave it out, or name the model's own"
            )
        return load_tokenizer(name)

    def most_tokens(self, example: Example) -> int:
        """How many tokens may be written: those of a thought and those of the answer."""
        return example.max_new_tokens + self.prompt_format.thinking_tokens

    def sampling(self, example: Example) -> JSON:
        """How its answer is drawn, with a seed of its own; greedy where the spec does not say."""
        sampling: JSON = dict(self.spec.get("sampling", {}))
        # Who says how to draw and names no temperature means a server's own, which is 1.
        temperature = sampling.get("temperature", 1 if sampling else 0)
        if temperature == 0:
            return sampling | {"temperature": 0}
        number = f"0/{example.task}/{example.index}"
        return sampling | {"seed": crc32(number.encode())}


def with_reasoning(text: str, form: PromptFormat, usage: Spec | None) -> Spec | None:
    """What an engine says beside a text, with the tokens of its thought where the model thinks."""
    known = dict(usage or {})
    if not form.thinking_tokens or known.get("reasoning_tokens") is not None:
        return usage
    answer = without_thought(text, form.opens_thought, form.thinking_marks) or ""
    return known | {"reasoning_tokens": form.tokenizer.count(text.removesuffix(answer))}


def cut(text: str, tokenizer: Tokenizer, most: int) -> Answer:
    """An answer of at most `most` tokens, as a real model would have been cut."""
    ids = tokenizer.encode(text)
    if len(ids) <= most:
        return Answer(text, "stop", len(ids))
    return Answer(tokenizer.decode(ids[:most]), "length", most)


def refuse_echo(name: str, example: Example, text: str) -> None:
    """Raise `ModelError` where an answer holds the middle half of the prompt.

    Engines drop special tokens at both ends. A shorter stretch is no sign: a base model may repeat
    the question, and a thinking model quotes what it reads.
    """
    if not example.prompt or 2 * len(text) < len(example.prompt):
        return
    # White space may come back in another form.
    written, prompt = " ".join(text.split()), " ".join(example.prompt.split())
    quarter = len(prompt) // 4
    if prompt[quarter : quarter + max(100, 2 * quarter)] not in written:
        return
    raise ModelError(
        f"{name} returned the prompt of example {example.index} of {example.task}: the engine "
        "returns the prompt with its answer, which would be scored; let it return only the new "
        "text (a transformers pipeline: return_full_text=False)"
    )


def num_shares(spec: Spec) -> int:
    """Over how many GPUs one copy of a model is spread."""
    return int(spec.get("tensor_parallel_size", 1) * spec.get("pipeline_parallel_size", 1))


def gpus_and_nodes(spec: Spec) -> tuple[int, int]:
    """How many GPUs a checked spec takes on each node, and how many nodes."""
    nodes: int = spec.get("nodes", 1)
    gpus = ceil(num_shares(spec) / nodes)
    if "base_url" in spec or spec.get("device") == "cpu" or not engine_class(spec["engine"]).on_gpu:
        gpus = 0
    return spec.get("gpus", gpus), nodes


def with_server(described: Any) -> Any:
    """A model as it is given; where it, or the `base` of its mapping, is an address, the mapping of
    what is served there. Errors: as of `model_at`."""
    own = dict(described) if isinstance(described, Mapping) else {"base": described}
    address = own.pop("base", None)
    if not is_address(address):
        return described

    from rulerkit.inference.access import model_at

    return model_at(address, own) | own


def load_model(spec: "str | Spec | Model") -> Model:
    """The model that a name, a path, a hub id, the address of a server or a mapping describes (see
    `model_files.read_spec`); a model passes through.

    No weights are read before the first answer. Raises `UserError` for unknown names and keys, and
    for a folder that is no model.
    """
    if isinstance(spec, Model):
        return spec
    return _engine(read_spec(with_server(spec)))


def model(target: Any, *, name: str = "", **spec: Any) -> Model:
    """A function, or a loaded checkpoint with its tokenizer, as a model.

    `target` is a function from a list of prompts to a list of as many texts: the new text alone,
    without the prompt. A prompt is a text (`takes="prompts"`), an int32 array of token ids
    (`takes="ids"`), or a `Parts` (`takes="parts"`): context and question apart, as texts and as
    ids. None in place of a text, or an exception, is a failure of that example: it is asked again
    by the next call. A parameter `max_new_tokens`, where the function has one, says how many tokens
    may come. Without a `name` the model has that of the function.

    Or `target` is `(model, tokenizer)` as transformers loads them. `spec` are further keys of a
    model's mapping, such as `tokenizer="builtin"`.
    """
    name = name or getattr(target, "__name__", "").strip("_<>")
    is_pair = isinstance(target, tuple) and len(target) == 2
    if is_pair and hasattr(target[0], "generate"):
        engine = "transformers"
    elif callable(target) and not hasattr(target, "generate"):
        engine = "function"
    else:
        raise UserError(
            f"model {name or 'without a name'}: a {type(target).__name__} cannot answer: give a "
            "function from prompts to texts, or the pair (model, tokenizer) as transformers loads "
            "them"
        )
    checked = check_spec(spec | {"name": name, "engine": engine}, name)
    return _engine(checked, target)


def _engine(spec: Spec, *target: Any) -> Model:
    engine_of = engine_class(spec["engine"])
    with errors_of(engine_of, f"making the model {spec['name']}"):
        engine: Model = engine_of(spec, *target)
    return engine


def answers_of(
    model: Model, examples: Iterable[Example]
) -> Generator[tuple[Example, Answer | Failure]]:
    """What a model answers, checked: each example with an `Answer` or a `Failure`. A `UserError` of
    the model becomes a `ModelError`: other models may go on."""
    try:
        with errors_of(type(model), f"answer of the model {model.name}"):
            for example, answer in model.answer(examples):
                yield example, _checked(model.name, answer)
    except TooLong:
        raise
    except UserError as error:
        raise ModelError(str(error)) from error


def _checked(name: str, answer: Any) -> Answer | Failure:
    if isinstance(answer, Answer | Failure):
        return answer
    seen = shortened(answer)
    raise UserError(f"model {name}: its engine yields {seen}, neither an Answer nor a Failure")
