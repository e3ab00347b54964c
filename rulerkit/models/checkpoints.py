"""What the engines share that run a checkpoint.

A checkpoint's configuration is its config.json with the spec's `hf_overrides` merged in. It gives
the limit of prompt and answer together, unless the spec gives `max_length`.
"""

from functools import cached_property
from typing import ClassVar

from rulerkit.checkpoint import Checkpoint, max_positions, merge_config, newer_rope
from rulerkit.errors import TooLong, UserError
from rulerkit.example import Example
from rulerkit.gpus import torch_module
from rulerkit.models import Answer, Engine
from rulerkit.settings import JSON, Spec
from rulerkit.tokenizers import Tokenizer, load_tokenizer


class CheckpointEngine(Engine):
    """What the engines share that run a checkpoint."""

    checkpoint: Checkpoint
    modifiers: ClassVar[tuple[str, ...]]
    """The keys that change how a checkpoint computes: each belongs to the identity where it is
    given."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        if "path" in spec:
            self.checkpoint = Checkpoint(
                self.name, spec["path"], spec.get("revision"), "fingerprint" in spec
            )

    def identity(self) -> JSON:
        """Hub id and commit, or the fingerprint of a folder; the dtype; the modifiers given."""
        given = {key: self.spec[key] for key in self.modifiers if key in self.spec}
        return {"engine": self.engine, **self.checkpoint.identity(), "dtype": self.dtype(), **given}

    def device(self) -> str:
        """Where it computes: `cpu`, `cuda`, or a name that the engine gives it."""
        return "cuda" if torch_module().cuda.is_available() else "cpu"

    def tokenizer(self) -> Tokenizer:
        """The spec's tokenizer, else the checkpoint's at the same revision."""
        return (
            super().tokenizer()
            if "tokenizer" in self.spec
            else load_tokenizer(self.checkpoint.tokenizer_spec())
        )

    @cached_property
    def config(self) -> JSON:
        """config.json with `hf_overrides` merged in."""
        return merge_config(self.checkpoint.config, self.spec.get("hf_overrides", {}))

    def dtype(self) -> str:
        """The spec's number format; for `auto` float32 on a CPU, else bfloat16."""
        wanted = str(self.spec.get("dtype", "auto"))
        return wanted if wanted != "auto" else "float32" if self.device() == "cpu" else "bfloat16"

    def limit(self) -> int | None:
        """The tokens allowed for prompt and answer together: `max_length`, else the positions of
        the configuration."""
        if "max_length" in self.spec:
            return int(self.spec["max_length"])
        try:
            return max_positions(self.config)
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(
                f"model {self.name}: its config.json or hf_overrides state no usable limit: "
                "max_position_embeddings is "
                "a number, rope_parameters a mapping"
            ) from error

    def too_long(self, length: int) -> str | None:
        """Whether a length exceeds `limit`."""
        limit = self.limit()
        if limit is None or length <= limit:
            return None
        return (
            f"its limit is {limit} tokens (max_position_embeddings); `hf_overrides` with RoPE "
            "scaling, or "
            f"`max_length: {length}`, goes beyond"
        )

    def check_fits(self, example: Example) -> None:
        """Raises `TooLong` for an example whose length, or prompt and answer, exceed the limit."""
        need = example.num_tokens + self.most_tokens(example)
        if reason := self.too_long(max(need, example.length)):
            raise TooLong(
                f"model {self.name}: example {example.index} of {example.task} needs {need} "
                f"tokens: {reason}"
            )

    def vllm_overrides(self) -> JSON:
        """`hf_overrides` for vLLM, with max_position_embeddings raised to `limit` where vLLM would
        refuse it.

        The factor of YaRN counts for both engines, as the cards of many models give it without the
        positions. transformers computes beyond max_position_embeddings; vLLM refuses, and
        multiplies only other factors into them. YaRN must still scale from the original positions.
        """
        given: JSON = self.spec.get("hf_overrides", {})
        limit, allowed = self.limit(), max_positions(self.config, yarn=False)
        if limit is None or allowed is None or limit <= allowed:
            return given
        added: JSON = {"max_position_embeddings": limit}
        config = newer_rope(self.config.get("text_config") or self.config)
        rope = config.get("rope_parameters") or {}
        if (
            rope.get("rope_type") == "yarn"
        ):  # vLLM replaces the whole mapping, so it must be complete
            older = {
                key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config
            }
            added["rope_parameters"] = {
                "original_max_position_embeddings": allowed,
                **older,
                **rope,
            }
        return merge_config(
            given, {"text_config": added} if "text_config" in self.config else added
        )

    @cached_property
    def stop_ids(self) -> list[int]:
        """The ids that end an answer: those of the checkpoint's files, else the end token of the
        tokenizer."""
        tokenizer = self.prompt_format.tokenizer
        if ids := self.checkpoint.stop_ids(tokenizer.eos_token):
            return ids
        ids = tokenizer.encode(tokenizer.eos_token).tolist() if tokenizer.eos_token else []
        return ids if len(ids) == 1 else []

    def read_ids(self, ids: list[int], finish: str = "length", usage: Spec | None = None) -> Answer:
        """The answer in the ids that were generated: the text before the first stop token, without
        special tokens.

        `finish` is the reason for its end where no stop token is among them.
        """
        end = next((i for i, token in enumerate(ids) if token in self.stop_ids), None)
        special = self.checkpoint.special_ids()
        text = self.prompt_format.tokenizer.decode(
            [token for token in ids[:end] if token not in special]
        )
        return Answer(text, finish if end is None else "stop", len(ids[:end]), usage)
