"""The process in which vLLM runs, so that its GPU is free once the process is gone: `vllm.process` starts it.

`main` is all that process does. It talks to its parent over one socket, whose end tells it that nobody asks any more,
whatever became of the parent.
"""

import os
import queue
import select
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from rulerkit.models.vllm.nodes import led
from rulerkit.tokenizers import Ids

GRACE = 8.0  # seconds in which an engine may end by itself before its process group is killed


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
    finish: str
    """`stop`, `length`, or what else vLLM calls the end of a request."""
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


def main(descriptor: int) -> None:
    """Start the engine that the first message describes, then answer until nobody asks any more."""
    watch(descriptor)
    line = Connection(descriptor)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(line, inbox), daemon=True).start()
    with led(inbox.get()) as settings:
        engine = _Engine(settings)
        line.send(engine.ready())
        with suppress(BrokenPipeError):  # the parent is gone
            _answer(engine, line, inbox)


def _answer(engine: "_Engine", line: Connection, inbox: "queue.SimpleQueue[Any]") -> None:
    idle, live = 0.0, dict[str, Asked]()
    while True:
        while not live or not inbox.empty():
            since = time.monotonic()
            message = inbox.get()
            idle += time.monotonic() - since if engine.began and not live else 0.0
            if message is ...:
                return engine.close()
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
        pass
    finally:
        inbox.put(...)


def watch(descriptor: int) -> None:
    """Leave a small process behind that kills the whole group when the parent is gone, or the engine is.

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
        renderer: Any = getattr(self._engine, "renderer", None)
        if hasattr(renderer, "render_cmpl"):
            prompt = renderer.render_cmpl([prompt])[0]
        name = str(asked.number)
        self._names[name] = self._engine.add_request(name, prompt, params) or name
        return name

    def abort(self, names: Iterable[str]) -> None:
        self._engine.abort_request([self._names.pop(name) for name in list(names)], internal=True)

    def close(self) -> None:
        """End the engine's own processes, where it has some."""
        self._engine.engine_core.shutdown()

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
        str(answer.finish_reason),
        len(read),
        np.array_equal(read, asked.ids),
        int(output.num_cached_tokens or 0),
        round(times.last_token_ts - times.scheduled_ts, 4) if times else 0.0,
    )
