"""One vLLM engine over several nodes, as its rank 0 sees it: a follower on each of the others, told what to run.

The model file says `nodes: 2`. All nodes see one environment variable, RULERKIT_MASTER=HOST:PORT: a name of the first
node, by which the others reach it, and a port that is free there. The others run `python -m
rulerkit.models.vllm.follower`, once each, whenever they like; all else comes from rank 0. The line between the two is
what holds them together: when one end is gone, killed or without power, the other ends its part of the engine.

HOST also chooses the network for vLLM's own messages. Two networks are chosen by others, where the default is not right:
NCCL_SOCKET_IFNAME (with NCCL_IB_HCA) by NCCL, whose tensors are the bulk, and GLOO_SOCKET_IFNAME by torch, which is
needed where a node's own name means 127.0.1.1 to itself. `ip -brief address` lists the names, such as ib0.

Run for real with vLLM's CPU build, two "nodes" on one machine and two of a test Slurm; never over a network, nor NCCL.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from rulerkit.errors import UserError

MASTER = "RULERKIT_MASTER"
FOLLOWER = "rulerkit.models.vllm.follower"
WAIT = 600.0  # seconds in which all followers must have come
_TALK = 30.0  # seconds for a word that the other side should have said at once
_ENDING = 8.0  # seconds in which an engine that has lost a follower may say itself what happened


class Follower(NamedTuple):
    """A line to another node, and what that node calls itself."""

    line: socket.socket
    host: str


def master() -> tuple[str, int]:
    """Where rank 0 waits for its followers. Errors: `UserError` where the environment does not say so."""
    given = os.environ.get(MASTER, "")
    host, _, port = given.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(
            f"a model over several nodes needs {MASTER}=HOST:PORT on all of them (seen: {given!r}): a name of the first "
            f"node and a free port on it; the other nodes run `python -m {FOLLOWER}`, as the scripts of `rulerkit batch "
            "--slurm` do"
        )
    return host, int(port)


@contextmanager
def led(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Wait for the followers and tell them their part of the engine; gives rank 0's own settings.

    Within, this process ends where a follower does. Errors: `TimeoutError` where too few come.
    """
    if settings.get("nnodes", 1) == 1:
        yield settings
        return
    followers, told = meet(settings["nnodes"] - 1), threading.Event()
    address = followers[0].line.getsockname()[0]  # by which a follower has reached this node
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    os.environ["VLLM_HOST_IP"] = address
    common = settings | {"master_addr": address, "master_port": port}
    environment = {name: value for name, value in os.environ.items() if name.startswith("VLLM_")}
    for rank, follower in enumerate(followers, start=1):
        say(follower.line, {"settings": common | {"node_rank": rank}, "environment": environment})
    threading.Thread(target=_end_with, args=(followers, told), daemon=True).start()
    try:
        yield common
    except Exception:
        told.wait(_ENDING)  # often it is a follower that knows why
        raise


def meet(count: int, seconds: float = WAIT) -> list[Follower]:
    """The first so many followers that come to the door, and only they."""
    (host, port), until, found = master(), time.monotonic() + seconds, list[Follower]()
    with socket.create_server(("", port)) as door:
        while len(found) < count:
            door.settimeout(max(0.01, until - time.monotonic()))
            try:
                line, _ = door.accept()
            except TimeoutError:
                raise TimeoutError(
                    f"{len(found)} of {count} followers came to {host}:{port} within {seconds:.0f} s: each other node "
                    f"runs `python -m {FOLLOWER}` with the same {MASTER}, and says itself what keeps it"
                ) from None
            hello = hear(line, _TALK)
            if "follower" in hello:
                keep_alive(line)
                found.append(Follower(line, str(hello["follower"])))
            else:  # somebody who tries all ports
                line.close()
    return found


def say(line: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message; nothing happens where the other side is gone."""
    with suppress(OSError):
        line.sendall(json.dumps(message).encode() + b"\n")


def hear(line: socket.socket, seconds: float | None = None) -> dict[str, Any]:
    """The next message; {} where the other side is gone, says nothing in time or something else."""
    line.settimeout(seconds)
    try:
        with line.makefile("rb") as file:
            message = json.loads(file.readline(2**20))
    except (OSError, ValueError):
        return {}
    finally:
        line.settimeout(None)
    return message if isinstance(message, dict) else {}


def keep_alive(line: socket.socket) -> None:
    """Let the kernel find out within two minutes that the other machine is no longer there."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, option):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _end_with(followers: list[Follower], told: threading.Event) -> None:
    """Ends this process once a follower has, which it names: vLLM itself would wait for minutes, or for ever."""
    ready = wait([each.line for each in followers])
    gone = next(each for each in followers if each.line in ready)
    words = hear(gone.line, _TALK).get("ended", "it is gone without a word")
    print(f"FollowerError: the follower on {gone.host} ended: {words}", flush=True)
    told.set()
    time.sleep(_ENDING)
    os._exit(1)
