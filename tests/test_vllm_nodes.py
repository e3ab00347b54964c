"""One vLLM engine over two nodes: rank 0 and a follower, both on this machine, that lose each other in every way."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_vllm import BYTES, alive, cell, config, environment, gone_within, needs_vllm, spec, tiny

from rulerkit.errors import UserError
from rulerkit.models import load_model
from rulerkit.models.vllm import Vllm
from rulerkit.models.vllm.nodes import MASTER, keep_alive, meet, say
from rulerkit.models.vllm.process import reason

__all__ = ["environment", "tiny"]  # fixtures
pytestmark = pytest.mark.xdist_group("vllm")


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, which RULERKIT_MASTER names."""
    with socket.create_server(("", 0)) as door:
        found = int(door.getsockname()[1])
    monkeypatch.setenv(MASTER, f"localhost:{found}")
    return found


# --- without an engine ------------------------------------------------------------------------------------------------


def over(folder: Path, nodes: int, gpus: int) -> Vllm:
    mapping = {"path": config(folder), "engine": "vllm", "dtype": "float32", "nodes": nodes}
    one = load_model(mapping | {"tensor_parallel_size": gpus})
    assert isinstance(one, Vllm)
    return one


def test_nodes_decide_nothing_but_where_it_runs(tmp_path: Path, port: int) -> None:
    one, two = over(tmp_path / "m", 1, 4), over(tmp_path / "n", 2, 4)
    assert "nnodes" not in one._settings()
    assert {"nnodes": 2, "node_rank": 0}.items() <= two._settings().items()
    assert two.identity() == one.identity()
    assert two.environment()["nodes"] == 2


@pytest.mark.parametrize("wrong", ["", "node1", "node1:", ":29000", "node1:0", "node1:70000", "node1:x"])
def test_an_environment_that_does_not_say_where_the_nodes_meet(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MASTER, wrong)
    with pytest.raises(UserError, match=r"RULERKIT_MASTER=HOST:PORT.*vllm.follower"):
        over(tmp_path / "m", 2, 2)._settings()
    done = subprocess.run([sys.executable, "-m", FOLLOWER], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "RULERKIT_MASTER" in done.stderr


def test_gpus_that_cannot_be_shared_out(tmp_path: Path, port: int) -> None:
    with pytest.raises(UserError, match=r"`nodes: 2` does not divide .*, which is 3"):
        over(tmp_path / "m", 2, 3)._settings()


def test_the_door_is_for_followers(port: int) -> None:
    """One who says nothing that a follower would is sent away; two come, and are known by name."""

    def come(words: bytes) -> None:
        for _ in range(600):
            try:
                line = socket.create_connection(("localhost", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        keep_alive(line)
        line.sendall(words)
        lines.append(line)

    lines: list[socket.socket] = []
    words = (b"GET / HTTP/1.0\r\n\r\n", b'{"follower": "b"}\n', b"[]\n", b'{"follower": "c"}\n')
    threads = [threading.Thread(target=come, args=(each,)) for each in words]
    for thread in threads:
        thread.start()
    found = meet(2, 60)
    for thread in threads:
        thread.join()
    assert {each.host for each in found} == {"b", "c"}
    for line in (*lines, *(each.line for each in found)):
        line.close()
    say(lines[0], {"x": 1})  # nobody is there


def test_followers_that_do_not_come(port: int) -> None:
    with pytest.raises(TimeoutError, match=f"0 of 1 followers came to localhost:{port} within 0 s.*vllm.follower"):
        meet(1, 0.2)


def test_a_lost_connection_is_told_by_what_broke_it() -> None:
    lost = "(Worker_TP0 pid=7) ERROR 11-20 12:25:11 [x.py:1] RuntimeError: gloo: Connection reset by peer\n"
    dead = "(MainProcess pid=1) ERROR 11-20 12:25:11 [x.py:1] Worker proc VllmWorker-1 died (exit code: -9)\n"
    aside = "(MainProcess pid=1) WARNING 11-20 12:25:11 [x.py:1] ValueError: no tokenizer\n"
    told = "FollowerError: the follower on b ended: exit status 1: "
    assert reason(lost + f"{told}torch.OutOfMemoryError: 3 GiB\n" + lost) == f"{told}torch.OutOfMemoryError: 3 GiB"
    assert reason(f"torch.OutOfMemoryError: 3 GiB\n{lost}{told}RuntimeError: Connection reset\n").startswith("torch.")
    assert "died" in reason(dead + "(MainProcess pid=1) INFO 11-20 12:25:11 [x.py:1] [shutdown] done\n")
    assert "tokenizer" not in reason(aside + lost)


# --- a real engine ----------------------------------------------------------------------------------------------------

FOLLOWER = "rulerkit.models.vllm.follower"
ENOUGH = 600.0  # seconds in which an engine has started on a busy machine; four processes import vllm for it


@pytest.fixture
def follower(port: int, environment: None, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (tmp_path / "follower.txt").open("wb") as said:
        process = subprocess.Popen([sys.executable, "-m", FOLLOWER], stdout=said, stderr=subprocess.STDOUT)
    yield process
    process.kill()
    process.wait()


def part_of(follower: "subprocess.Popen[bytes]") -> int | None:
    """The process in which the follower runs its part of an engine."""
    children = Path(f"/proc/{follower.pid}/task/{follower.pid}/children").read_text().split()
    return int(children[0]) if children else None


def on_two_nodes(folder: Path, **more: Any) -> dict[str, Any]:
    settings = {"kv_cache_memory_bytes": BYTES * 2**18}
    return spec(folder, nodes=2, tensor_parallel_size=2, engine_args=settings) | more


def texts(one: Any, count: int = 4) -> dict[tuple[str, int], str]:
    return {(e.task, e.index): a.text for name in ("vt", "cwe") for e, a in one.answer(cell(one, name, 1024, count))}


@needs_vllm
@pytest.mark.slow
def test_two_nodes_answer_as_one_until_one_of_them_is_gone(
    tiny: Path, tmp_path: Path, follower: "subprocess.Popen[bytes]"
) -> None:
    alone = load_model(spec(tiny, engine_args={"kv_cache_memory_bytes": BYTES * 2**18}))
    wanted = texts(alone)
    alone.close()
    one = load_model(on_two_nodes(tiny))
    assert isinstance(one, Vllm)
    start = time.monotonic()
    assert texts(one) == wanted
    print(f"started and answered in {time.monotonic() - start:.1f} s")
    part = part_of(follower)
    assert part
    assert one._child
    engine = one._child.process.pid
    answers = one.answer(cell(one, "niah_single_2", 4096, 200))
    next(answers)
    os.killpg(part, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(UserError) as caught:
        list(answers)
    print(f"noticed after {time.monotonic() - start:.1f} s: {caught.value}")
    assert time.monotonic() - start < 60
    assert "\n" not in str(caught.value)
    words = (
        "model tiny: vLLM ended",
        f"the follower on {socket.gethostname()} ended: SIGKILL",
        "answers so far",
    )
    assert all(each in str(caught.value) for each in words)
    one._child.log.unlink()
    one.close()
    assert not alive(engine)
    assert follower.poll() is None  # and waits for the next engine
    said = (tmp_path / "follower.txt").read_text()
    assert "this node's part of the engine ended: SIGKILL" in said
    Path(said.partition("its log there is ")[2].split()[0]).unlink()


@needs_vllm
@pytest.mark.slow
def test_rank_0_killed_takes_the_followers_part_with_it(tiny: Path, follower: "subprocess.Popen[bytes]") -> None:
    """And SIGTERM, which a scheduler sends to all nodes at once, ends the follower only then."""
    code = """if True:
        import json, sys
        from rulerkit.generation import generate
        from rulerkit.models import load_model
        from rulerkit.tasks import task
        one = load_model(json.loads(sys.argv[1]))
        examples = generate(task("vt").with_corpora("builtin"), 1024, 2, prompt_format=one.prompt_format)
        print(len(list(one.answer(examples))), one._child.process.pid, flush=True)
        input()
        print(len(list(one.answer(examples))), flush=True)
        input()
        """
    command = [sys.executable, "-c", code, json.dumps(on_two_nodes(tiny))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank0:
        assert rank0.stdin
        assert rank0.stdout
        answered, engine = map(int, rank0.stdout.readline().split())
        part = part_of(follower)
        assert part
        assert answered == 2
        follower.terminate()
        os.killpg(part, signal.SIGTERM)
        time.sleep(2)
        rank0.stdin.write("\n")
        rank0.stdin.flush()
        assert rank0.stdout.readline() == "2\n"
        assert alive(part)
        rank0.kill()
        start = time.monotonic()
        assert gone_within(60, part)
        assert gone_within(60, engine)
    print(f"all gone {time.monotonic() - start:.1f} s after rank 0")
    assert follower.wait(60) == -signal.SIGTERM


@needs_vllm
@pytest.mark.slow
def test_a_follower_that_cannot_start_its_part_tells_rank_0_why(
    tiny: Path, port: int, environment: None, tmp_path: Path
) -> None:
    """As on a node that has not all the files of the others."""
    odd = os.environ | {"VLLM_LOGGING_CONFIG_PATH": str(tmp_path / "missing.json")}
    with (tmp_path / "follower.txt").open("wb") as said:
        process = subprocess.Popen([sys.executable, "-m", FOLLOWER], env=odd, stdout=said, stderr=subprocess.STDOUT)
    one = load_model(on_two_nodes(tiny))
    assert isinstance(one, Vllm)
    try:
        with pytest.raises(UserError) as caught:
            texts(one, 1)
        print(caught.value)
        assert "\n" not in str(caught.value)
        words = ("vLLM did not start", "FollowerError: the follower on", "missing.json")
        assert all(each in str(caught.value) for each in words)
        assert one._child
        one._child.log.unlink()
        Path((tmp_path / "follower.txt").read_text().partition("its log there is ")[2].split()[0]).unlink()
    finally:
        one.close()
        process.kill()
        process.wait()
