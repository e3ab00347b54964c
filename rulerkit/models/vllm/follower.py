"""`python -m rulerkit.models.vllm.follower`: another node's share of a vLLM engine whose rank 0 is elsewhere.

It needs no arguments and no model file: RULERKIT_MASTER=HOST:PORT says where to ask (see `vllm.nodes`). It serves one
engine after the other, each in processes of their own that are gone, and their GPUs free, seconds after rank 0 is, and
waits for the next one until it is ended: by Slurm with its job, by hand with Ctrl-C. While it serves, SIGTERM waits, since
a scheduler sends it to all nodes at once and what becomes of the engine is rank 0's to say.
"""

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path

from rulerkit.errors import UserError
from rulerkit.models.vllm.child import watch
from rulerkit.models.vllm.nodes import FOLLOWER, hear, keep_alive, master, say
from rulerkit.models.vllm.process import engine_process, reason


def main() -> int:
    """Serve engines until the process is ended; returns 2 where the environment does not say whose."""
    try:
        host, port = master()
    except UserError as error:
        print(f"rulerkit: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        with _find(host, port) as line:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # for all that is started below too
            _serve(line)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def part(descriptor: int) -> None:
    """This node's workers, as rank 0 describes them at the other end of a socket; returns when one has ended."""
    watch(descriptor)
    resource_tracker.ensure_running()  # which lets SIGTERM through again, once
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    line = socket.socket(fileno=descriptor)
    told = hear(line)
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()
    if not told:
        return
    os.environ.update(told["environment"] | {"VLLM_HOST_IP": line.getsockname()[0]})
    context = import_module("vllm.usage.usage_lib").UsageContext.LLM_CLASS  # some defaults hang on it
    arguments = import_module("vllm.engine.arg_utils").EngineArgs(**told["settings"])
    config = arguments.create_engine_config(context, headless=True)
    executor = import_module("vllm.v1.executor.multiproc_executor").MultiprocExecutor(config, monitor_workers=False)
    executor.start_worker_monitor(inline=True)
    sys.exit(1)


def _end_with(line: socket.socket) -> None:
    """Ends this process, and by `watch` its group, once rank 0 is gone."""
    hear(line)
    os._exit(0)


def _find(host: str, port: int) -> socket.socket:
    """A line to rank 0, as soon as it listens."""
    said = ""
    while True:
        try:
            line = socket.create_connection((host, port), timeout=10)
        except OSError as error:
            if said != (said := str(error)):
                print(f"rulerkit: waiting for an engine at {host}:{port} ({said})", flush=True)
            time.sleep(1)
            continue
        keep_alive(line)
        say(line, {"follower": socket.gethostname()})
        return line


def _serve(line: socket.socket) -> None:
    """One engine, to its end; where this node's part ends first, rank 0 is told why, and the log is kept."""
    descriptor, name = tempfile.mkstemp(prefix="rulerkit-vllm-follower-", suffix=".log")
    process = engine_process(FOLLOWER, "part", line.fileno(), descriptor, {})
    status, log = process.wait(), Path(name)
    if status:
        ended = (
            signal.Signals(-status).name if status < 0 else reason(log.read_text(encoding="utf-8", errors="replace"))
        )
        words = f"{ended}; its log there is {log}"
        say(line, {"ended": words})
        print(f"rulerkit: this node's part of the engine ended: {words}", flush=True)
    else:
        log.unlink()
    with suppress(OSError):  # it is gone already
        line.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    sys.exit(main())
