"""Every key of every parameter file: its name, its type and, in words, what it takes.

There are four kinds of files: models (one class of keys for each engine), the parameters of a
study, batches, and the site file of a cluster. `check` compares a mapping with such a class; what
is wrong is a `UserError` of one line. The mapping of a model is read by `model_files`.
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)
from pydantic.fields import FieldInfo

from rulerkit.common.errors import UserError, check_known, shortened
from rulerkit.common.hidden import hide
from rulerkit.common.lengths import parse_length
from rulerkit.common.paths import home, package_data
from rulerkit.common.plugins import by_name, is_outside
from rulerkit.common.urls import url_of
from rulerkit.common.yaml_files import read_yaml

JSON = dict[str, Any]
"""An object of JSON: names and their values."""
Spec = Mapping[str, Any]
"""A description that is only read, such as a model's mapping."""

# --- types of values ------------------------------------------------------------------------------


def _number_or_path(value: Any) -> Any:
    return str(value) if isinstance(value, Path) or type(value) is int else value


def _tokens(value: Any) -> int:
    try:
        return parse_length(value, least=0)
    except UserError:
        raise ValueError from None


Text = Annotated[str, BeforeValidator(_number_or_path), Field(pattern=r"\S")]
Tokens = Annotated[int, BeforeValidator(_tokens)]
Length = Annotated[Tokens, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Hours = Annotated[float, Field(gt=0, le=744)]
# A tuple may be given in Python.
Items = Annotated[list[Any], Field(strict=False, min_length=1)]
Marks = Annotated[list[Text], Field(min_length=2, max_length=2)]
Arguments = Annotated[dict[str, JsonValue], Field(min_length=1)]
Color = Annotated[str, Field(pattern=r"^#[0-9A-Fa-f]{6}$")]
Function = Annotated[str, Field(pattern=r"^[^:]+:[^:]+$")]
Line = Annotated[str, Field(pattern=r"^\s*[^\n]*\s*$")]
GpuLine = Annotated[str, Field(pattern=r"^\s*([^{\n]|\{gpus\})*\s*$")]


class Keys(BaseModel):
    """The keys of a mapping.

    The docstring of a key is shown to users: it ends the sentence "it takes ...". A `Literal` needs
    none.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        strict=True,
        use_attribute_docstrings=True,
        defer_build=True,  # commands need few of these classes
    )


class OptionalKeys(Keys):
    """Keys that may all be left out; `check_spec` keeps only those that are given."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for field in cls.model_fields.values():
            field.default = None if field.is_required() else field.default
        if is_outside(cls):
            # What is wrong with a plug-in's class is said when it is loaded.
            cls.model_rebuild(force=True)


# --- models ---------------------------------------------------------------------------------------


class ModelKeys(OptionalKeys):
    """What every engine understands. Beside these stands `base`, the model to start from."""

    name: Text
    """letters, digits, '.', '_' and '-'"""
    label: Text
    """a text"""
    color: Color
    """the colour of its lines in figures, such as "#0072B2" (default: one by its name)"""
    engine: Text
    """the name of an engine"""
    tokenizer: Text
    """`builtin`, a folder, a file, a hub name or a tiktoken encoding"""
    template: Text
    """`auto`, `base` or the name of a prompt format"""
    system_prompt: str
    """a text"""
    prefix_in: Literal["assistant", "user", "none"]
    thinking_tokens: Tokens
    """a number of tokens: the model thinks before it answers, for so many at most, and its prompt
    has no answer prefix"""
    thinking_room: Literal["beside", "inside"]
    thinking_marks: Marks
    """a list of two texts, such as ["<think>", "</think>"]: how the model marks the beginning and
    the end of a thought, where its chat template names neither"""
    enable_thinking: bool
    """true or false"""
    chat_template_kwargs: Arguments
    """a mapping of further values for the chat template, such as {reasoning_effort: high}"""
    claimed_length: Tokens
    """a number of tokens, such as 131072 or 128K"""
    aligned: Literal["chat", "base"]
    gpus: NonNegativeInt
    """the number of GPUs it takes on each node, 0 or more (default: what its engine needs)"""
    nodes: PositiveInt
    """the number of nodes that it is spread over (default 1)"""
    hours: Hours
    """the hours that a job of a batch may take, such as 8 or 0.5, at most 744"""


class ReaderKeys(ModelKeys):
    """Reference readers."""

    window: Tokens
    """a number of tokens, such as 8192 or 8K (0 sees nothing; without a window it sees
    everything)"""


class CodeKeys(OptionalKeys):
    """What the engines share that run code of the user's in this process."""

    version: Text
    """a text that says which version of the code answers: where its source does not say all that it
    does, stored answers are used again only with the same one"""
    batch_size: PositiveInt
    """a whole number of at least 1: the prompts that are answered at once (default 8; a checkpoint
    is given those from 16K tokens on one by one)"""


class FunctionKeys(ModelKeys, CodeKeys):
    """Python functions."""

    entry: Function
    """package.module:function, a function that returns the one that answers"""
    entry_with: Arguments
    """a mapping of the arguments of `entry`, such as {ratio: 0.5}"""
    takes: Literal["prompts", "ids", "parts"]


class WeightsKeys(ModelKeys):
    """What the engines share that read weights."""

    path: Text
    """a model folder or a hub id (org/name); of the engine rwkv a .pth file, here or on the hub
    (org/name/FILE.pth)"""
    revision: Text
    """a branch, tag or commit of the hub"""


class Sampling(OptionalKeys):
    """How answers are drawn; without it decoding is greedy."""

    temperature: NonNegativeFloat
    """a number from 0 on"""
    top_p: Annotated[Share, Field(gt=0)]
    """a share above 0, at most 1"""
    top_k: PositiveInt
    """a whole number of at least 1"""
    min_p: Share
    """a share from 0 to 1"""
    repetition_penalty: PositiveFloat
    """a number above 0"""


class NetworkKeys(OptionalKeys):
    """What all checkpoints share, whoever serves them."""

    max_length: Tokens
    """the tokens that the model may be given, prompt and answer together, such as 32K, where
    nothing else says so"""
    sampling: Sampling
    """a mapping: temperature, top_p, top_k, min_p, repetition_penalty"""


class CheckpointKeys(WeightsKeys, NetworkKeys):
    """What the engines share that run a checkpoint in the layout of transformers."""

    dtype: Literal["bfloat16", "float16", "float32"]
    hf_overrides: Arguments
    """a mapping over config.json, such as {max_position_embeddings: 131072}; a mapping in it stands
    in the place of the whole one there"""
    trust_remote_code: bool
    """true or false"""


class TransformersKeys(CheckpointKeys, CodeKeys):
    """Checkpoints that transformers runs in this process."""

    device: Annotated[str, Field(pattern=r"^(cpu|mps|spread|cuda(:\d+)?)$")]
    """cpu, cuda, cuda:1, mps, or spread (over all GPUs)"""
    load_args: Arguments
    """a mapping of further arguments of `from_pretrained`, such as {attn_implementation: eager} or
    {quantization_config: {quant_method: bitsandbytes, load_in_8bit: true}}"""


def _url(value: str) -> str:
    try:
        return url_of(value)
    except UserError:
        raise ValueError from None


ServerAddress = Annotated[Text, AfterValidator(_url)]
HeaderName = Annotated[str, Field(pattern=r"^[\w!#$%&'*+.^`|~-]+$")]
SENDABLE = "[!-~]+( [!-~]+)*"
"""What the value of a header is: ASCII, in words such as `Bearer KEY`."""
# The name of a variable, or a text without one.
HeaderText = Annotated[str, Field(pattern=r"^(\$\w+|[!-#%-~]+( [!-#%-~]+)*)$")]
Headers = Annotated[dict[HeaderName, HeaderText], Field(min_length=1)]


class ServerKeys(OptionalKeys):
    """What the engines share that ask a server over HTTP."""

    base_url: ServerAddress
    """the address of a server that runs already, such as http://localhost:8000/v1 (default of
    `engine: openai`: https://api.openai.com/v1; `engine: vllm` starts one of its own)"""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,63}$")]
    """the name of the environment variable that holds the key, never the key itself"""
    headers: Headers
    """a mapping of further headers of each request, such as {api-key: $NAME}; a value $NAME
    stands for an environment variable"""
    concurrency: PositiveInt
    """a whole number of at least 1: the requests under way at once"""
    timeout: PositiveFloat
    """seconds for one answer, above 0 (default: grows with the prompt)"""
    max_retries: NonNegativeInt
    """how often a failed request is sent again, 0 or more (default 5)"""


class VllmKeys(CheckpointKeys, ServerKeys):
    """Checkpoints that vLLM serves."""

    tensor_parallel_size: PositiveInt
    """the number of GPUs that share each layer"""
    pipeline_parallel_size: PositiveInt
    """the number of groups of GPUs that share the layers out"""
    engine_args: Arguments
    """a mapping of further arguments of `vllm serve`, such as {kv_cache_dtype: fp8}; beside them
    {batch_invariant: true}, which is a variable of its environment"""


class OpenAIKeys(ModelKeys, NetworkKeys, ServerKeys):
    """Any server that speaks OpenAI's protocol."""

    path: Text
    """the model's name, as the server knows it"""
    prompt_path: Literal["auto", "ids", "text", "chat"]
    extra_body: Arguments
    """a mapping of further fields of a request; null takes one away"""


ENGINE_KEYS: dict[str, type[ModelKeys]] = {
    "reader": ReaderKeys,
    "transformers": TransformersKeys,
    "rwkv": WeightsKeys,
    "function": FunctionKeys,
    "vllm": VllmKeys,
    "openai": OpenAIKeys,
}
"""Engine name -> what a mapping for this engine may hold."""

MODEL_KEYS = frozenset(key for kind in ENGINE_KEYS.values() for key in kind.model_fields)
"""Every key that the mapping of some model may hold."""

_KEYS: dict[str, Any] = package_data("model_keys.yaml")
ENGINE_OF: dict[str, str] = _KEYS["engine_of"]
"""The engine of a mapping that names none: that of the first of these keys that it holds."""

NEUTRAL_KEYS = {*_KEYS["neutral"], *ServerKeys.model_fields}
"""The keys that do not change what is answered."""


# --- studies, batches, sites ----------------------------------------------------------------------


class Parameters(Keys):
    """The parameters of `rulerkit evaluate` and of the notebooks that ask a model."""

    plugins: list[Text] = []
    """a list of modules that bring tasks or engines, such as `plugins: [my_package.my_tasks]`"""
    model: Any = "reader-8192"
    models: Items | None = None
    """a list, such as `models: [reader-4096, reader-8192]`; with papermill: -y 'models:
    [reader-4096, reader-8192]'"""
    tasks: Items | Annotated[str, Field(min_length=1)] | None = None
    """a list, such as `tasks: [niah_single_1, vt]`, or a suite, `tasks: ruler`; with papermill:
    -y 'tasks: [niah_single_1, vt]'"""
    lengths: Annotated[list[Length], Field(strict=False, min_length=1)] = [4096, 8192, 16384, 32768]
    """a list of tokens from 1 to 16M, such as `lengths: [4096, 8K]`; with papermill: -y 'lengths:
    [4096, 8192]'"""
    num_examples: Literal["adaptive"] | Annotated[PositiveInt, Field(le=10**6)] = 20
    """a whole number from 1 to 1000000, or adaptive: as many as the effective length needs"""
    max_examples: Annotated[PositiveInt, Field(le=10**6)] = 500
    """a whole number from 1 to 1000000: the examples that an adaptive run gives a cell at most"""
    seed: Annotated[NonNegativeInt, Field(lt=2**63)] = 42
    """a whole number from 0 on, below 2**63"""
    run: Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "main"
    """what names a folder: at most 100 letters, digits, . _ and -"""
    max_failures: NonNegativeFloat = 0
    """a share below 1 or a number: where no more examples of a cell fail, a mean is taken over the
    rest (default 0)"""
    corpora: Literal["builtin", "original"] | dict[str, Text] = "builtin"
    """one of builtin, original, or a mapping of essay, qa and words to paths, such as {essay:
    texts}, with base (builtin or original) for what it does not name"""
    protocol: Literal["clean", "paper", "upstream"] = "clean"
    ask: bool = True
    """true, or false: no model is asked, what is stored is shown, and what is missing is named"""
    outputs: Annotated[str, Field(min_length=1)] | Path = "outputs"
    """the path of a folder"""


class BatchKeys(Keys):
    """A batch file."""

    models: list[Any] = []
    """a list of names, paths or mappings of models, such as `models: [...]`"""
    notebooks: list[Any] = []
    """a list of notebooks that run once for each model, such as `notebooks: [...]`"""
    together: list[Any] = []
    """a list of notebooks that run once over all models, such as `together: [...]`"""
    size: Text | None = None
    """a name in params/sizes/ or a path"""
    parameters: JSON = {}
    """`name: value` lines: further parameters of the notebooks"""


class NotebookKeys(Keys):
    """A notebook of a batch that has models or parameters of its own."""

    notebook: Text
    """a name in notebooks/ or a path"""
    models: Items | None = None
    """a list, such as `models: [...]`"""
    parameters: JSON = {}
    """`name: value` lines, over those of the batch"""


class Site(Keys):
    """A Slurm cluster: where jobs go, and what they need before they start. Every key may be left
    out."""

    options: list[Line] = []
    """a list of texts, each on one line: options of sbatch for every job, such as --account=lab"""
    gpu_options: list[GpuLine] = ["--gres=gpu:{gpus}"]
    """a list of texts, each on one line: options of jobs with GPUs, such as --partition=gpu;
    {gpus} stands for the number of GPUs on each node"""
    cpu_options: list[Line] = []
    """a list of texts, each on one line: options of jobs without GPUs"""
    hours: Hours = 24.0
    """the hours of jobs whose model names none, above 0, at most 744"""
    setup: list[Line] = []
    """a list of texts, each on one line: shell before anything else"""
    python: Line = shlex.quote(sys.executable)
    """the command of the interpreter, on one line, such as `apptainer exec --nv
    kit.sif python` (default: the interpreter that submits)"""


# --- checking -------------------------------------------------------------------------------------

AnyKeys = TypeVar("AnyKeys", bound=Keys)


def check(kind: type[AnyKeys], values: Spec, where: str = "", what: str = "key") -> AnyKeys:
    """The values of a mapping, checked and converted; a key that is null counts as left out.

    `where` begins the message about a wrong value; `what` is what the message about an unknown key
    calls it.
    """
    fields = kind.model_fields
    for key in values:
        check_known(what, key, fields)
    given = {key: value for key, value in values.items() if value is not None}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        key, *inner = map(str, error.errors()[0]["loc"])
        nested = fields[key].annotation
        if inner and isinstance(nested, type) and issubclass(nested, Keys):
            # The message is about a key of the mapping inside.
            check(nested, values[key], f"{where}{key}.", f"{what} in {key}")
        raise UserError(
            f"{where}{key}: {shortened(hide(values).get(key))} is invalid: expected "
            f"{key_words(fields[key])}"
        ) from None


def engine_keys(engine: str, who: str) -> type[ModelKeys]:
    """What a mapping for an engine may hold; `who` names the model in messages. An engine of a
    plug-in says so by its attribute `keys`, a class made from ModelKeys."""
    # First, so that a plug-in's engine with the name of one of ours is refused.
    outside = by_name("engines", ENGINE_KEYS, "engine")
    if engine in ENGINE_KEYS:
        return ENGINE_KEYS[engine]
    check_known(f"engine of the model {who}", engine, [*ENGINE_KEYS, *outside])
    keys: type[ModelKeys] = getattr(outside[engine], "keys", ModelKeys)
    return keys


def key_words(field: FieldInfo) -> str:
    """What a key takes: its docstring, or the words that it may be."""
    words = field.description
    if not words:
        words = f"one of {', '.join(get_args(field.annotation))}"
    return " ".join(words.split())


def read_site() -> Site:
    """The site file params/site.yaml; without one, plain sbatch with the cluster's defaults."""
    path = home() / "params" / "site.yaml"
    if not path.exists():
        return Site()
    return check(Site, read_yaml(path), f"{path}: ", f"key in {path}")
