"""Checkpoints of the Hugging Face layout, in a folder or on the hub: their small files, what
identifies their weights, and what the engines share that run them."""

import json
import os
from functools import cached_property
from pathlib import Path

from rulerkit.common.errors import TooLong, UserError, first_line
from rulerkit.common.gpus import torch_module
from rulerkit.common.hub import download, is_hub_id
from rulerkit.common.json_text import digest
from rulerkit.common.paths import resolve
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.generation.tokenizers import ON_HUB
from rulerkit.inference.model import Answer, Model, with_reasoning

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SMALL = ("config.json", "generation_config.json", *ON_HUB)
_NUM_SLICES, _SLICE = 64, 1 << 16  # what is read of a weight file to identify it, in bytes
_POSITIONS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")


class Checkpoint:
    """A folder with a `config.json`, or a repository of the Hugging Face hub at one revision."""

    def __init__(self, who: str, path: str, revision: str | None = None) -> None:
        self.who, self.path, self.revision = who, path, revision
        folder = resolve(path)
        self.folder: Path | None = folder if os.path.isdir(folder) else None
        if self.folder:
            if revision:
                raise UserError(
                    f"model {who}: {folder} is a folder, which has no revision {revision}: leave "
                    "it out (over a base, `revision: null`)"
                )
            # A folder without a configuration is refused here; a hub id needs a network first.
            _ = self.config
        elif not is_hub_id(path):
            raise UserError(
                f"model {who}: no folder {folder}; give a folder with a config.json, or a hub id "
                "(org/name)"
            )

    @cached_property
    def files(self) -> Path:
        """The folder of its small files; of a repository that of one commit in the hub's cache,
        downloaded where needed."""
        if self.folder:
            return self.folder
        who = f"model {self.who}: there is no folder {resolve(self.path)}; as a hub id"
        return download(who, self.path, self.revision, _SMALL)

    def check_weights(self) -> None:
        """Raise `UserError` where a file of weights is cut short or damaged, by what its header
        says. Nothing is downloaded."""
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:  # no engine that reads them is installed
            return
        for weights in sorted(self.folder.glob("*.safetensors")) if self.folder else ():
            try:
                safe_open(weights, "np")
            except SafetensorError as error:
                raise UserError(
                    f"model {self.who}: {weights} is cut short or damaged ({first_line(error)}): "
                    "copy or download it again"
                ) from error

    @cached_property
    def config(self) -> JSON:
        """`config.json`."""
        if not (self.files / "config.json").is_file():
            raise UserError(
                f"model {self.who}: {self.path} is no model: there is no config.json in it"
            )
        return self.read_json("config.json")

    @property
    def commit(self) -> str | None:
        """The commit of the hub that a revision stands for; None for a folder."""
        # The hub's cache names folders by commits.
        return None if self.folder else self.files.name

    def tokenizer_spec(self) -> str:
        """What `load_tokenizer` takes to read this checkpoint's own tokenizer, at the same
        commit."""
        is_pinned = self.revision is not None and not self.folder
        return str(self.files) if is_pinned else self.path

    @cached_property
    def identity(self) -> JSON:
        """What identifies this checkpoint: the hub id and its commit; of a folder a fingerprint
        over its configuration and slices of its weight files, the same wherever it lies.

        A change that leaves all slices of `file_slices` alone is not seen.
        """
        if not self.folder:
            return {"path": self.path, "revision": self.commit}

        content = []
        for name in ("config.json", "generation_config.json"):
            path = self.folder / name
            if path.is_file():
                content.append(f"{name}\n".encode() + path.read_bytes())
        weights = [path for path in self.folder.iterdir() if path.suffix in _WEIGHTS]
        for path in sorted(weights):
            content.append(f"{path.name} ".encode() + file_slices(path))
        return {"fingerprint": digest(b"".join(content))}

    @cached_property
    def special_ids(self) -> set[int]:
        """The ids that are no part of a text. The marks of a thought are: scoring removes the
        thought by them."""
        return {
            entry["id"]
            for entry in self.read_json("tokenizer.json").get("added_tokens") or []
            if entry.get("special") and "think" not in entry["content"]
        }

    def read_json(self, name: str) -> JSON:
        """What a file holds; {} where there is none."""
        path = self.files / name
        try:
            return dict(json.loads(path.read_bytes())) if path.is_file() else {}
        except (ValueError, TypeError) as error:
            raise UserError(
                f"model {self.who}: {path} cannot be read as JSON: {first_line(error)}"
            ) from error


def file_slices(path: Path) -> bytes:
    """The size of a file, and 64 KiB at its end and at each of 64 places from its beginning on: of
    up to 4 MiB all of it. Raises `UserError` where it cannot be read."""
    try:
        size = path.stat().st_size
        step = max(_SLICE, size // _NUM_SLICES)
        content = [f"{size}\n".encode()]
        with path.open("rb") as file:
            for place in [*range(0, size, step), max(0, size - _SLICE)]:
                file.seek(place)
                content.append(file.read(_SLICE))
        return b"".join(content)
    except OSError as error:
        raise UserError(
            f"the weights in {path} cannot be read ({error}): copy or download them again"
        ) from error


class CheckpointEngine(Model):
    """What the engines share that run a checkpoint.

    vLLM and transformers put the spec's `hf_overrides` over config.json themselves.
    """

    checkpoint: Checkpoint

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        if "path" in spec:
            self.checkpoint = Checkpoint(self.name, spec["path"], spec.get("revision"))

    def identity(self) -> JSON:
        """Hub id and commit, or the fingerprint of a folder; the dtype; and the keys that are given
        of those that change how it computes."""
        what = {"engine": self.engine, **self.checkpoint.identity, "dtype": self.dtype()}
        return what | self.given(("hf_overrides", "load_args", "sampling"))

    def device(self) -> str:
        """Where it computes: `cpu`, `cuda`, or a name that the engine gives it."""
        cuda = torch_module(self.engine).cuda
        return "cuda" if cuda.is_available() else "cpu"

    def tokenizer_name(self) -> str:
        """The spec's tokenizer, else the checkpoint's at the same revision."""
        return self.spec.get("tokenizer") or self.checkpoint.tokenizer_spec()

    def dtype(self) -> str:
        """The spec's number format, else float32 on a CPU and bfloat16 elsewhere."""
        if "dtype" in self.spec:
            return str(self.spec["dtype"])
        return "float32" if self.device() == "cpu" else "bfloat16"

    def limit(self) -> int | None:
        """The tokens allowed for prompt and answer together: `max_length`, else the positions that
        `hf_overrides` or config.json state; None where nothing limits them."""
        if "max_length" in self.spec:
            return int(self.spec["max_length"])
        for settings in (self.spec.get("hf_overrides", {}), self.checkpoint.config):
            stated = settings.get("text_config") or settings
            for name in _POSITIONS:
                if isinstance(stated.get(name), int):
                    return int(stated[name])
        return None

    def too_long(self, length: int) -> str | None:
        """Whether a length exceeds `limit`."""
        limit = self.limit()
        need = length + self.beside
        if limit is None or need <= limit:
            return None

        thought = f", {self.beside} of {need} are for the thought" if self.beside else ""
        key = "max_length" if "max_length" in self.spec else "max_position_embeddings"
        return (
            f"its limit is {limit} tokens ({key}){thought}; `hf_overrides: "
            f"{{max_position_embeddings: {need}}}` goes beyond, or `max_length: {need}` where its "
            "RoPE scaling allows it"
        )

    def check_fits(self, example: Example) -> None:
        """Raises `TooLong` for an example whose length, or prompt and answer, exceed the limit, and
        a `UserError` for ids that the model does not know."""
        config = self.checkpoint.config
        size = (config.get("text_config") or config).get("vocab_size")
        highest = int(example.ids.max())
        if size and highest >= size:
            raise UserError(
                f"model {self.name}: id {highest} is beyond the model's vocabulary of {size}: drop "
                f"`tokenizer: {self.tokenizer_name()}`, or name the model's own"
            )
        need = example.num_tokens + self.most_tokens(example)
        reason = self.too_long(max(need - self.beside, example.length))
        if reason:
            raise TooLong(
                f"model {self.name}: example {example.index} of {example.task} needs {need} "
                f"tokens: {reason}"
            )

    @cached_property
    def stop_ids(self) -> list[int]:
        """The ids that end an answer: those of the checkpoint's files, and the end token of the
        tokenizer."""
        tokenizer = self.prompt_format.tokenizer
        own = tokenizer.encode(tokenizer.eos_token or "").tolist()
        ids = set(own if len(own) == 1 else [])
        for name in ("generation_config.json", "config.json"):
            value = self.checkpoint.read_json(name).get("eos_token_id")
            ids.update(value if isinstance(value, list) else [value])
        return sorted(ids - {None})

    def read_ids(self, ids: list[int], finish: str = "length", usage: Spec | None = None) -> Answer:
        """The answer in the ids that were generated: the text before the first stop token, without
        special tokens.

        `finish` is the reason for its end where no stop token is among them.
        """
        end = next((i for i, token in enumerate(ids) if token in self.stop_ids), None)
        if end is not None:
            finish = "stop"

        form = self.prompt_format
        # The marks of a thought may be special tokens, and are needed to take it apart.
        special = () if form.thinking_tokens else self.checkpoint.special_ids
        written = [token for token in ids[:end] if token not in special]
        text = form.tokenizer.decode(written)
        return Answer(text, finish, len(ids[:end]), with_reasoning(text, form, usage))
