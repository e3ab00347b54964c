"""Servers that the kit starts: asked, killed, slow, never healthy, shared between processes, and
never left behind."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rulerkit as rk
from rulerkit.errors import UserError
from rulerkit.evaluation import close, predict
from rulerkit.generation import generate
from rulerkit.models import load_model
from rulerkit.models.client import Address
from rulerkit.models.process import ServerProcess, last_error
from rulerkit.models.server import ServerEngine
from rulerkit.scoring import string_match_all
from rulerkit.tasks import THIRTEEN, task
from tests.processes import gone_within, processes
from tests.projects import make_project

pytestmark = pytest.mark.xdist_group("serve")

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = [sys.executable, "-c", "from rulerkit.cli import main; main()"]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has a registry of its own, and leaves no server running."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    close()
    if ServerEngine._running:
        ServerEngine._running.close()
    assert gone_within(15, str(tmp_path))


def spec(folder: Path, *options: str, **more: Any) -> dict[str, Any]:
    """A model behind a server that is to be started; its processes have the folder's name in their
    command line."""
    server = f"cd {ROOT} && exec {shlex.quote(sys.executable)} -m tests.text_server --journal {folder}/journal "
    command = f"{server} --port {{port}} --key {{key}} {' '.join(options)}"
    return {"name": "served", "path": "any", "serve": command, "tokenizer": "builtin", **more}


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal").read_text().splitlines()]


def examples(model: Any, count: int, name: str = "vt") -> Any:
    length = 1024 if name.startswith("niah") or name == "vt" else 2048
    return generate(
        task(name).with_corpora("builtin"), length, count, prompt_format=model.prompt_format
    )


def test_all_tasks_are_answered_by_a_server_that_takes_text_only(tmp_path: Path) -> None:
    study = rk.study(
        model=spec(tmp_path), lengths=[2048], num_examples=2, outputs=str(tmp_path / "outputs")
    )
    cells = rk.evaluate(study, progress=False)
    assert [cell.task for cell in cells] == list(THIRTEEN)
    assert all(
        string_match_all(row["pred"], row["outputs"]) == 1 for cell in cells for row in cell.rows
    )
    assert cells[0].record["result"]["model"]["prompt_path"] == "text"
    assert len({entry["pid"] for entry in journal(tmp_path)}) == 1
    assert len(journal(tmp_path)) == 26
    assert processes(str(tmp_path))  # it stays loaded for the next call
    close()
    assert not processes(str(tmp_path))
    assert not list(tmp_path.glob("*.log"))


def test_two_replicas_answer_about_half_each_and_none_twice(tmp_path: Path) -> None:
    model = load_model(spec(tmp_path, "--pace 0.05", replicas=2, concurrency=2))
    asked = examples(model, 40)
    cell = predict(model, asked, tmp_path / "run", progress=False)
    model.close()
    assert cell.complete
    assert all(string_match_all(row["pred"], row["outputs"]) == 1 for row in cell.rows)
    prompts = [entry["prompt"] for entry in journal(tmp_path)]
    assert sorted(prompts) == sorted(set(prompts))
    shares = Counter(row["usage"]["replica"] for row in cell.rows)
    assert sorted(shares) == [1, 2]
    assert min(shares.values()) >= 14
    assert Counter(entry["pid"] for entry in journal(tmp_path)).total() == 40


def test_a_replica_that_dies_hands_its_work_to_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = load_model(spec(tmp_path, "--pace 0.05", replicas=2, concurrency=4))
    assert isinstance(model, ServerEngine)
    answers: dict[int, str] = {}
    asked = examples(model, 40)
    for example, answer in model.answer(asked):
        assert example.index not in answers
        answers[example.index] = answer.text
        if len(answers) == 8:
            victim = journal(tmp_path)[-1]["pid"]
            os.kill(victim, signal.SIGKILL)
    model.close()
    assert sorted(answers) == list(range(40))
    assert all(string_match_all(answers[i], asked[i].references) == 1 for i in answers)
    said = capfd.readouterr().err
    assert re.search(r"model served-replica[12]: its server ended \(exit status 137\)", said)
    assert "the other servers take over its work" in said


def test_an_answer_that_is_given_up_half_way_leaves_the_server_ready_for_the_next(
    tmp_path: Path,
) -> None:
    model = load_model(spec(tmp_path, "--pace 0.05", concurrency=2))
    asked = examples(model, 20)
    for _ in range(3):
        answers = model.answer(asked)
        next(answers)
        answers.close()  # type: ignore[attr-defined]
    assert len(list(model.answer(asked))) == 20
    assert len({entry["pid"] for entry in journal(tmp_path)}) == 1


def test_a_server_that_dies_is_one_line_and_the_answers_stay(tmp_path: Path) -> None:
    model = load_model(spec(tmp_path, "--die-after 5", concurrency=1))
    asked = examples(model, 12)
    with pytest.raises(UserError) as caught:
        predict(model, asked, tmp_path / "run", progress=False)
    message = str(caught.value)
    assert "\n" not in message
    for words in (
        "model served",
        "server ended (exit status 3)",
        "the card fell off the bus",
        "answers so far are kept",
    ):
        assert words in message
    file = next((tmp_path / "run").rglob("*.jsonl"))
    assert len(file.read_text().splitlines()) == 5
    again = load_model(spec(tmp_path, concurrency=1))
    assert predict(again, asked, tmp_path / "run", progress=False).complete
    assert len(journal(tmp_path)) == 6 + 7  # the one that it died of was asked again


def test_a_server_that_never_gets_healthy_is_one_line_and_ended(tmp_path: Path) -> None:
    model = load_model(spec(tmp_path, "--never-healthy", start_timeout=3))
    with pytest.raises(UserError) as caught:
        list(model.answer(examples(model, 1)))
    assert "\n" not in str(caught.value)
    assert "did not get healthy within 3 s" in str(caught.value)
    assert "it said last: loading the weights" in str(caught.value)
    assert "start_timeout" in str(caught.value)
    assert gone_within(5, str(tmp_path))


def test_a_command_that_does_not_run_is_one_line(tmp_path: Path) -> None:
    wrong = {
        "name": "wrong",
        "path": "x",
        "tokenizer": "builtin",
        "serve": "no-such-command --port {port}",
    }
    with pytest.raises(
        UserError,
        match=r"its server did not start \(exit status 127\): .*no-such-command: not found",
    ):
        _ = load_model(wrong).prompt_format
    with pytest.raises(
        UserError, match=r"it takes a command that starts the server and names its \{port\}"
    ):
        load_model(wrong | {"serve": "vllm serve x"})
    with pytest.raises(UserError, match="leave `base_url` out"):
        load_model(wrong | {"base_url": "http://localhost:1/v1"})


def test_a_slow_server_is_asked_again_with_more_time(tmp_path: Path) -> None:
    model = load_model(spec(tmp_path, "--pace 1.5", timeout=1, max_retries=2, prompt_path="text"))
    answers = list(model.answer(examples(model, 2)))
    assert len(answers) == 2
    assert len(journal(tmp_path)) == 4


EVALUATE = """
import sys, yaml, rulerkit as rk
model = yaml.safe_load(open(sys.argv[1]))
study = rk.study(model=model, tasks=["vt"], lengths=[1024], num_examples=int(sys.argv[2]), outputs=sys.argv[3])
print(len(rk.evaluate(study, progress=False)[0].rows), flush=True)
"""


def evaluating(folder: Path, model: dict[str, Any], count: int) -> "subprocess.Popen[str]":
    """A process that evaluates a model."""
    (folder / "model.yaml").write_text(json.dumps(model))
    call = [sys.executable, "-c", EVALUATE, f"{folder}/model.yaml", str(count), f"{folder}/outputs"]
    return subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def wait_for_rows(outputs: Path, count: int) -> None:
    until = time.monotonic() + 60
    while sum(file.read_text().count("\n") for file in outputs.rglob("*.jsonl")) < count:
        assert time.monotonic() < until, "no answers"
        time.sleep(0.05)


def test_nothing_is_left_after_a_killed_parent_and_the_next_run_resumes(tmp_path: Path) -> None:
    parent = evaluating(tmp_path, spec(tmp_path, "--pace 0.2"), 40)
    wait_for_rows(tmp_path / "outputs", 5)
    server = journal(tmp_path)[0]["pid"]
    parent.kill()
    parent.wait()
    assert gone_within(15, "tests.text_server --journal " + str(tmp_path))
    assert not Path(f"/proc/{server}").exists()
    rows = len(next((tmp_path / "outputs").rglob("1024.jsonl")).read_text().splitlines())
    assert 0 < rows < 40
    again = evaluating(tmp_path, spec(tmp_path), 40)
    assert again.communicate(timeout=60)[0].strip() == "40"
    assert gone_within(15, str(tmp_path))  # a script's server ends with the script


def test_a_served_model_is_found_and_used_by_every_process(tmp_path: Path) -> None:
    model = spec(tmp_path)
    (tmp_path / "served.yaml").write_text(json.dumps({"model": model}))
    call = [*PROGRAM, "serve", str(tmp_path / "served.yaml")]
    serving = subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert serving.stdout
        assert serving.stdout.readline().startswith("served answers at http://127.0.0.1:")
        assert "Ctrl-C" in serving.stdout.readline()
        for count in (2, 4):
            out, err = evaluating(tmp_path, model, count).communicate(timeout=60)
            assert (out.strip(), "asks the server that runs at" in err) == (str(count), True)
        other = {
            **model,
            "serve": model["serve"] + " --pace 0",
        }  # another command is another server
        out, err = evaluating(tmp_path, other, 5).communicate(timeout=60)
        assert "asks the server" not in err
        pids = [entry["pid"] for entry in journal(tmp_path)]
        assert len(set(pids[:4])) == 1
        assert pids[4] not in pids[:4]
        twice = subprocess.run(call, capture_output=True, text=True, cwd=ROOT)
        assert twice.returncode == 2
        assert "is served already, at http://127.0.0.1:" in twice.stderr
    finally:
        serving.send_signal(signal.SIGINT)
        out, err = serving.communicate(timeout=30)
    assert "served: ended" in out
    assert gone_within(15, str(tmp_path))
    assert not list(tmp_path.glob("rulerkit-servers-*/*.json"))
    out, _ = evaluating(tmp_path, model, 6).communicate(timeout=60)
    assert out.strip() == "6"


def test_a_served_model_that_is_killed_leaves_no_trap(tmp_path: Path) -> None:
    model = spec(tmp_path)
    (tmp_path / "served.yaml").write_text(json.dumps({"model": model}))
    call = [*PROGRAM, "serve", str(tmp_path / "served.yaml")]
    serving = subprocess.Popen(call, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert serving.stdout
    assert "answers at" in serving.stdout.readline()
    serving.kill()
    serving.wait()
    assert gone_within(15, "text_server --journal " + str(tmp_path))
    out, err = evaluating(tmp_path, model, 2).communicate(timeout=60)
    assert (out.strip(), "asks the server" in err) == ("2", False)


def test_a_served_model_that_goes_away_is_said_and_then_started_anew(tmp_path: Path) -> None:
    described = spec(tmp_path, "--pace 0.2", max_retries=1)
    (tmp_path / "served.yaml").write_text(json.dumps({"model": described}))
    call = [*PROGRAM, "serve", str(tmp_path / "served.yaml")]
    serving = subprocess.Popen(call, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert serving.stdout
    assert "answers at" in serving.stdout.readline()
    model = load_model(described)
    asked = examples(model, 20)
    answers = model.answer(asked)
    next(answers)
    serving.kill()
    serving.wait()
    with pytest.raises(
        UserError, match=r"model served: its server at http://127\.0\.0\.1:\d+/v1 does not answer"
    ):
        list(answers)
    assert len(list(model.answer(asked))) == 20


def test_others_cannot_plant_a_server(tmp_path: Path) -> None:
    """A registry that others may write to is not read."""
    folder = tmp_path / f"rulerkit-servers-{os.getuid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    from rulerkit.models.process import find_servers

    (folder / f"x-{os.getpid()}.json").write_text('[["http://127.0.0.1:1/v1", "k"]]')
    assert find_servers(lambda: pytest.fail("the registry was read")) == []


def test_a_model_that_is_no_server_cannot_be_served(tmp_path: Path) -> None:
    done = subprocess.run([*PROGRAM, "serve", "perfect"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "model perfect (engine reader) is no server that can be started" in done.stderr


KERNEL = """
import json, sys
sys.path.insert(0, {root!r})
import rulerkit as rk
study = rk.study(model=json.loads({model!r}), tasks=["vt"], lengths=[1024], num_examples=2, outputs={outputs!r})
print(len(rk.evaluate(study, progress=False)))
"""


def test_a_server_that_a_notebook_started_ends_with_its_kernel(tmp_path: Path) -> None:
    """A restart gives the memory back; `rulerkit serve` keeps a model loaded across kernels."""
    manager: Any = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, "PYTHONPATH": str(ROOT)})
    kernel = manager.client()
    try:
        kernel.start_channels()
        kernel.wait_for_ready(timeout=60)
        code = KERNEL.format(
            root=str(ROOT), model=json.dumps(spec(tmp_path)), outputs=str(tmp_path / "outputs")
        )
        reply = kernel.execute_interactive(code, timeout=60, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok"
        assert processes("text_server --journal " + str(tmp_path))
        manager.restart_kernel(now=True)  # as a kernel that hangs: killed, not asked
        assert gone_within(15, "text_server --journal " + str(tmp_path))
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)


def test_gpus_are_shared_out_among_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "max_position_embeddings": 4096}'
    )

    def groups(visible: str, **more: Any) -> list[list[str]]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        model: Any = load_model(
            {"engine": "vllm", "path": str(tmp_path), "name": "m", "dtype": "float32", **more}
        )
        found: list[list[str]] = model._gpu_groups()
        return found

    assert groups("0,1,2,3") == [["0"], ["1"], ["2"], ["3"]]
    assert groups("0,1,2,3,4", tensor_parallel_size=2) == [["0", "1"], ["2", "3"]]
    assert groups("4,6", tensor_parallel_size=2) == [["4", "6"]]
    assert groups("0,1,2,3", replicas=2) == [["0"], ["1"]]
    assert groups("") == [[]]
    assert groups("", replicas=2) == [[], []]
    with pytest.raises(UserError, match=r"1 x 4 GPUs do not fit on the 2 visible ones \(0, 1\)"):
        groups("0,1", tensor_parallel_size=4)
    with pytest.raises(UserError, match="3 x 1 GPUs do not fit on the 2 visible ones"):
        groups("0,1", replicas=3)


def test_a_batch_gives_free_gpus_to_replicas_and_none_to_a_model_that_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    make_project(project)
    monkeypatch.setenv("RULERKIT_HOME", str(project))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    models = [
        spec(tmp_path, f"--pace 0.1 --journal {tmp_path}/{name}", gpus=1) | {"name": name}
        for name in "ab"
    ]

    def batch(run: str) -> dict[str, set[str | None]]:
        """The GPUs that the servers of each model had."""
        for name in "ab":
            (tmp_path / name).unlink(missing_ok=True)
        small = {"tasks": ["vt"], "lengths": [1024], "num_examples": 12, "run": run}
        file = project / "params/batches/served.yaml"
        file.write_text(
            json.dumps({"models": models, "notebooks": ["10_small"], "parameters": small})
        )
        done = subprocess.run(
            [*PROGRAM, "batch", str(file), "--gpus", "0-3"],
            capture_output=True,
            text=True,
            cwd=project,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        rows = {
            name: [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
            for name in "ab"
        }
        assert all(
            len({row["prompt"] for row in each}) == len(each) == 12 for each in rows.values()
        )
        return {name: {row["gpus"] for row in each} for name, each in rows.items()}

    first = batch("one")
    assert {name: len(gpus) for name, gpus in first.items()} == {"a": 2, "b": 2}
    assert first["a"] | first["b"] == {"0", "1", "2", "3"}
    (tmp_path / "a.yaml").write_text(json.dumps({"model": models[0]}))
    here = os.environ | {"CUDA_VISIBLE_DEVICES": "7"}
    call = [*PROGRAM, "serve", str(tmp_path / "a.yaml")]
    serving = subprocess.Popen(call, stdout=subprocess.PIPE, text=True, cwd=project, env=here)
    try:
        assert serving.stdout
        assert "answers at" in serving.stdout.readline()
        second = batch("two")
        assert second == {"a": {"7"}, "b": {"0", "1", "2", "3"}}
    finally:
        serving.terminate()
        serving.wait(30)


def test_a_server_hides_behind_its_key_and_ignores_proxies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    model: Any = load_model(spec(tmp_path))
    assert len(list(model.answer(examples(model, 1)))) == 1
    stranger = load_model(
        {
            "path": "any",
            "base_url": model.replicas[0].address.url,
            "tokenizer": "builtin",
            "prompt_path": "text",
        }
    )
    with pytest.raises(UserError, match="HTTP 401"):
        list(stranger.answer(examples(stranger, 1)))
    model.close()


def test_the_end_of_a_log_is_said_by_its_cause() -> None:
    log = (
        "(EngineCore pid=7) ERROR 11-20 12:25:11 [core.py:1] ValueError: 16.0 GiB KV cache is "
        "needed. Try increasing x\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
        "proc(s): {}\n"
    )
    assert last_error(log) == "ValueError: 16.0 GiB KV cache is needed"
    assert last_error("[rank0]: OSError: no weights\n") == "OSError: no weights"
    assert last_error("one\n\ntwo\nthree\nfour\n") == "two | three | four"
    assert last_error("") == "it wrote nothing"


def test_a_server_is_healthy_by_health_or_by_its_list_of_models() -> None:
    address = Address("http://127.0.0.1:9/v1", "k")
    for pages, healthy in (
        ({"/health": 200}, True),
        ({"/health": 503, "/v1/models": 200}, False),  # it says itself that it still loads
        ({"/health": 404, "/v1/models": 200}, True),
        ({"/health": 404, "/v1/models": 404}, False),
        ({"/health": 0, "/v1/models": 0}, False),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                Address,
                "get",
                lambda self, path, timeout=2.0, pages=pages: (pages.get(path, 0), ""),
            )
            assert address.healthy() == healthy


def test_a_server_that_ignores_the_end_is_killed(tmp_path: Path) -> None:
    stubborn = f"trap '' TERM; echo deaf; : {tmp_path}; while true; do sleep 0.2; done"
    process = ServerProcess(
        "stubborn", lambda address: ["/bin/bash", "-c", stubborn], {}, timeout=2
    )
    time.sleep(3)
    with pytest.raises(UserError, match="it said last: deaf"):
        process.poll()
    process.close()
    process.log.unlink()
    assert gone_within(1, str(tmp_path))
