"""The process in which vLLM runs, so that its GPU is free when the process is gone: `Child` starts, asks and ends it.

The two talk over one socket, whose end tells the child that nobody asks any more, whatever became of the parent. Run as
a program (`python -m rulerkit.models.vllm_child FD`) this module is the child.
"""

import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rulerkit.errors import UserError
from rulerkit.tokenizers import Ids

GRACE = 5.0  # seconds in which an engine may end by itself before its process group is killed


class Asked(NamedTuple):
    """A request: the ids of a prompt, int32, the most tokens to write and the ids that end an answer."""

    number: int
    ids: Ids
    most: int
    stop: list[int]


class Said(NamedTuple):
    """What the engine made of a request."""

    number: int
    ids: list[int]
    """The tokens written, one that ended the answer included."""
    ended: bool
    """Whether the answer ended by itself; else it was cut off."""
    prompt_tokens: int
    """The engine's own count."""
    same_prompt: bool
    """Whether the engine read the very ids that it was sent."""
    cached_tokens: int
    seconds: float
    """From the first step that read of the prompt to the last token."""


class Ready(NamedTuple):
    """What a started engine tells of itself: the tokens of one request, and of all that its cache holds at once."""

    max_length: int
    cache_tokens: int


class Child:
    """An engine in a process of its own, in a session of its own: a terminal's Ctrl-C is the parent's alone.

    Threads read and write the socket, so that an interrupted parent never leaves half a message behind.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.name = name
        self.ready: Ready | None = None
        self.idle = 0.0  # seconds in which the engine had nothing to do, after its first request
        self._round = self._number = 0
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        descriptor, log = tempfile.mkstemp(prefix=f"rulerkit-vllm-{name}-", suffix=".log")
        self.log = Path(log)
        self._socket, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])  # this package, wherever the parent found it
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs, open(descriptor, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rulerkit.models.vllm_child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._line = Connection(os.dup(self._socket.fileno()))
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._read, self._write)]
        for thread in self._threads:
            thread.start()
        self._outbox.put(dict(settings))

    def ask(self, ids: Ids, most: int, stop: list[int]) -> int:
        """Send a request; returns the number under which its answer comes."""
        self._number += 1
        self._outbox.put(Asked(self._number, ids, most, stop))
        return self._number

    def abort(self) -> None:
        """Take all requests back; answers that are on their way are passed over."""
        self._round = self._number
        self._outbox.put(None)

    def has_news(self) -> bool:
        """Whether `news` would return at once."""
        return not self._inbox.empty()

    def news(self) -> list[Said]:
        """Wait for the next message: answers, or none where the engine tells that it is ready.

        Raises `UserError` with the engine's last words where it ended.
        """
        message = self._inbox.get()
        if message is None:
            self._inbox.put(None)
            raise UserError(self._last_words())
        if isinstance(message, Ready):
            self.ready = message
            return []
        self.idle, said = message
        return [one for one in said if one.number > self._round]

    def close(self) -> None:
        """End the engine and all its processes; returns once they are gone."""
        with suppress(OSError):  # the other end is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._outbox.put(...)
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            pass
        with suppress(ProcessLookupError):  # what is left of the group; nothing after an orderly end
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for thread in self._threads:
            thread.join()
        self._line.close()
        self._socket.close()
        self.log.unlink(missing_ok=True)

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(self._line.recv())
        except (EOFError, OSError):
            self._inbox.put(None)

    def _write(self) -> None:
        with suppress(OSError):  # the child is gone, as the other thread finds out
            while (message := self._outbox.get()) is not ...:
                self._line.send(message)

    def _last_words(self) -> str:
        """Why the engine ended, in one line, with what helps where memory was short."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        kept = self.log.with_suffix(".txt")
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        kept.write_text(text, encoding="utf-8")
        did = "ended" if self.ready else "did not start"
        advice = f". {MORE_MEMORY}" if re.search(_NO_MEMORY, text) else ""
        return (
            f"model {self.name}: vLLM {did} (exit status {self.process.poll()}): {_reason(text)}{advice}; its log is "
            f"{kept}; answers so far are kept"
        )


MORE_MEMORY = (
    "The weights, or the keys and values of one such prompt, do not fit: a larger `tensor_parallel_size`, "
    "`kv_cache_dtype: fp8`, `quantization`, `gpu_memory_utilization` nearer to 1 or a smaller `max_length` makes room"
)
_NO_MEMORY = r"KV cache is needed|No available memory for the cache|OutOfMemoryError|[Oo]ut of memory|less than desired"


def _reason(log: str) -> str:
    """The last error of a log that tells more than that there was one; else its last lines."""
    lines = [re.sub(r"^(\([^)]*\) )?([A-Z]+ [\d-]+ [\d:]+ \[[^]]*\] )?", "", line).strip() for line in log.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line) and "See root cause" not in line]
    found = " ".join(errors[-1:]) or " | ".join([line for line in lines if line][-3:]) or "it left no word"
    return found if len(found) <= 500 else f"{found[:497]}..."


# --- the child ----------------------------------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    """Start the engine that the first message describes, then answer until nobody asks any more."""
    _watch(descriptor)
    line = Connection(descriptor)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(line, inbox), daemon=True).start()
    settings = inbox.get()
    engine = _Engine(settings)
    line.send(engine.ready())
    idle, live = 0.0, dict[str, Asked]()
    with suppress(BrokenPipeError):  # the parent is gone
        while True:
            while not live or not inbox.empty():
                since = time.monotonic()
                message = inbox.get()
                idle += time.monotonic() - since if engine.began and not live else 0.0
                if message is ...:
                    return
                if message is None:
                    engine.abort(live)
                    live.clear()
                else:
                    live[engine.add(message)] = message
            if said := engine.step(live):
                line.send((idle, said))


def _receive(line: Connection, inbox: "queue.SimpleQueue[Any]") -> None:
    """Reads at once whatever comes, so that neither side ever waits for the other to read."""
    try:
        while True:
            inbox.put(line.recv())
    except (EOFError, OSError):
        inbox.put(...)


def _watch(descriptor: int) -> None:
    """Leaves a small process behind that kills the whole group when the parent is gone, or the engine is.

    A thread could not: the engine's own processes outlive it, and a kernel or a download can hold it up.
    """
    engine, parent = os.getpid(), os.getppid()
    if os.fork():
        return
    poller = select.poll()
    poller.register(descriptor, select.POLLRDHUP)
    with suppress(OSError, AttributeError):  # kernels and systems without it have the socket alone
        poller.register(os.pidfd_open(parent))  # the parent's own forks may hold its end of the socket open
    while os.getppid() == engine and not poller.poll(500):
        pass
    until = time.monotonic() + GRACE
    while os.getppid() == engine and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(0, signal.SIGKILL)


class _Engine:
    """vLLM's own loop (`LLM.generate` is nothing else), opened up: requests come and go between two steps."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from importlib import import_module

        vllm = import_module("vllm")  # not this package's module of that name
        self._params = vllm.SamplingParams
        self._final = import_module("vllm.sampling_params").RequestOutputKind.FINAL_ONLY
        self._tokens = import_module("vllm.inputs").TokensPrompt
        self._llm = vllm.LLM(**settings)
        self._engine = self._llm.llm_engine
        self._names: dict[str, str] = {}
        self.began = False

    def ready(self) -> Ready:
        config = self._engine.vllm_config
        blocks, size = config.cache_config.num_gpu_blocks, config.cache_config.block_size
        return Ready(int(config.model_config.max_model_len), int((blocks or 0) * size))

    def add(self, asked: Asked) -> str:
        """Hand a request over; the name under which its output comes."""
        self.began = True
        params = self._params(
            temperature=0,
            max_tokens=asked.most,
            stop_token_ids=asked.stop,
            detokenize=False,
            output_kind=self._final,
        )
        prompt = self._tokens(prompt_token_ids=asked.ids.tolist())
        renderer = getattr(self._engine, "renderer", None)
        if hasattr(renderer, "render_cmpl"):
            prompt = renderer.render_cmpl([prompt])[0]
        name = str(asked.number)
        self._names[name] = self._engine.add_request(name, prompt, params) or name
        return name

    def abort(self, names: Iterable[str]) -> None:
        self._engine.abort_request([self._names.pop(name) for name in list(names)], internal=True)

    def step(self, live: dict[str, Asked]) -> list[Said]:
        """One step of the engine; what finished in it is taken out of `live`."""
        said = []
        for output in self._engine.step():
            if output.finished:
                del self._names[output.request_id]
                said.append(_said(live.pop(output.request_id), output))
        return said


def _said(asked: Asked, output: Any) -> Said:
    answer, times = output.outputs[0], output.metrics
    read = np.asarray(output.prompt_token_ids, dtype=np.int64)
    return Said(
        asked.number,
        list(answer.token_ids),
        answer.finish_reason == "stop",
        len(read),
        np.array_equal(read, asked.ids),
        int(output.num_cached_tokens or 0),
        round(times.last_token_ts - times.scheduled_ts, 4) if times else 0.0,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
