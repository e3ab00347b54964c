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
from contextlib import contextmanager
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.evaluation.writer import predict
from rulerkit.generation.generate import generate
from rulerkit.generation.match_rules import string_match_all
from rulerkit.generation.tasks import THIRTEEN, task
from rulerkit.inference.model import load_model
from rulerkit.inference.process import find_servers, last_error
from rulerkit.inference.servers import ServerEngine
from tests.processes import gone_within, hear_signals, processes
from tests.projects import make_project

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = [sys.executable, "-c", "from rulerkit.cli import main; main()"]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Each test has a registry of its own, and leaves no server running."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    if ServerEngine._running:
        ServerEngine._running.close()
    assert gone_within(15, str(tmp_path))


def spec(folder, *options, **more):
    """A model behind a server that is to be started; its processes have the folder's name in their
    command line."""
    program = f"{shlex.quote(sys.executable)} -m tests.text_server --journal {folder}/journal"
    command = f"cd {ROOT} && exec {program} --port {{port}} --key {{key}} {' '.join(options)}"
    return {"name": "served", "path": "any", "serve": command, "tokenizer": "builtin", **more}


def journal(folder):
    return [json.loads(line) for line in (folder / "journal").read_text().splitlines()]


def examples(model, count):
    asked = task("vt").with_corpora("builtin")
    return generate(asked, 1024, count, prompt_format=model.prompt_format)


@contextmanager
def served(folder, model, **more):
    """The parameter file of a model that `rulerkit serve` runs, and that process."""
    file = folder / "served.yaml"
    file.write_text(json.dumps({"model": model}))
    call = [*PROGRAM, "serve", str(file)]
    serving = subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        preexec_fn=hear_signals, **more,
    )  # fmt: skip
    try:
        assert serving.stdout
        assert serving.stdout.readline().startswith("served answers at http://127.0.0.1:")
        assert "Ctrl-C" in serving.stdout.readline()
        yield str(file), serving
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(30)


def test_all_tasks_are_answered_by_a_server_that_takes_text_only(tmp_path):
    outputs = str(tmp_path / "outputs")
    study = rk.study(model=spec(tmp_path), lengths=[2048], num_examples=2, outputs=outputs)
    session = rk.Session()
    cells = rk.evaluate(study, progress=False, session=session)
    assert [cell.task for cell in cells] == list(THIRTEEN)
    rows = [row for cell in cells for row in cell.rows]
    assert all(string_match_all(row["pred"], row["outputs"]) == 1 for row in rows)
    assert cells[0].record["result"]["model"]["prompt_path"] == "text"
    assert len({entry["pid"] for entry in journal(tmp_path)}) == 1
    assert len(journal(tmp_path)) == 26
    assert processes(str(tmp_path))  # it stays loaded for the next call
    session.close()
    assert not processes(str(tmp_path))
    assert not list(tmp_path.glob("*.log"))


def test_two_replicas_answer_about_half_each_and_none_twice(tmp_path):
    model = load_model(spec(tmp_path, "--pace 0.05", replicas=2, concurrency=2))
    cell = predict(model, examples(model, 40), tmp_path / "run", progress=False)
    model.close()
    assert not cell.coverage.missing
    assert all(string_match_all(row["pred"], row["outputs"]) == 1 for row in cell.rows)
    prompts = [entry["prompt"] for entry in journal(tmp_path)]
    assert sorted(prompts) == sorted(set(prompts))
    assert len(prompts) == 40
    shares = Counter(row["usage"]["replica"] for row in cell.rows)
    assert sorted(shares) == [1, 2]
    assert min(shares.values()) >= 14


def test_a_replica_that_dies_hands_its_work_to_the_others(tmp_path, capfd):
    model = load_model(spec(tmp_path, "--pace 0.05", replicas=2, concurrency=4))
    answers = {}
    asked = examples(model, 40)
    for example, answer in model.answer(asked):
        assert example.index not in answers
        answers[example.index] = answer
        if len(answers) == 8:
            os.kill(journal(tmp_path)[-1]["pid"], signal.SIGKILL)
    model.close()
    assert sorted(answers) == list(range(40))
    assert all(string_match_all(answers[i].text, asked[i].references) == 1 for i in answers)
    said = capfd.readouterr().err
    assert re.search(r"model served-replica[12]: its server ended \(exit status 137\)", said)
    assert "the other servers take over its work" in said


def test_an_answer_that_is_given_up_half_way_leaves_the_server_ready_for_the_next(tmp_path):
    """One that has no page about its health: its list of models says that it is ready."""
    model = load_model(spec(tmp_path, "--pace 0.05 --health 404", concurrency=2))
    asked = examples(model, 20)
    for _ in range(3):
        answers = model.answer(asked)
        next(answers)
        answers.close()
    assert len(list(model.answer(asked))) == 20
    assert len({entry["pid"] for entry in journal(tmp_path)}) == 1


def test_a_server_that_dies_is_one_line_and_the_answers_stay(tmp_path):
    model = load_model(spec(tmp_path, "--die-after 5", concurrency=1))
    asked = examples(model, 12)
    with pytest.raises(UserError) as caught:
        predict(model, asked, tmp_path / "run", progress=False)
    message = str(caught.value)
    assert "\n" not in message
    assert "model served: its server ended (exit status 3)" in message
    assert "the card fell off the bus" in message
    assert "answers so far are kept" in message
    file = next((tmp_path / "run").rglob("*.jsonl"))
    assert len(file.read_text().splitlines()) == 5
    again = load_model(spec(tmp_path, concurrency=1))
    assert not predict(again, asked, tmp_path / "run", progress=False).coverage.missing
    assert len(journal(tmp_path)) == 6 + 7  # the one that it died of was asked again


def test_a_server_that_never_gets_healthy_is_one_line_and_ended(tmp_path):
    model = load_model(spec(tmp_path, "--health 503", start_timeout=8))
    with pytest.raises(UserError) as caught:
        list(model.answer(examples(model, 1)))
    message = str(caught.value)
    assert "\n" not in message
    assert "did not get healthy within 8 s" in message
    assert "it said last: loading the weights" in message
    assert "start_timeout" in message
    assert gone_within(5, str(tmp_path))


def test_a_command_that_does_not_run_is_one_line(tmp_path):
    wrong = {"name": "wrong", "path": "x", "tokenizer": "builtin"}
    words = r"its server did not start \(exit status 127\): .*no-such-command: not found"
    with pytest.raises(UserError, match=words):
        _ = load_model(wrong | {"serve": "no-such-command --port {port}"}).prompt_format
    with pytest.raises(UserError, match=r"starts the server and names its \{port\}"):
        load_model(wrong | {"serve": "vllm serve x"})


EVALUATE = """
import json, sys, rulerkit as rk
study = rk.study(model=json.loads(sys.argv[1]), tasks=["vt"], lengths=[1024], num_examples=40,
                 outputs=sys.argv[2])
print(len(rk.evaluate(study, progress=False)[0].rows), flush=True)
"""
HELD = "\nimport rulerkit as rk\nsession = rk.Session()" + EVALUATE.replace(
    "progress=False", "progress=False, session=session"
)


def test_nothing_is_left_after_a_killed_parent_and_the_next_run_resumes(tmp_path):
    outputs = tmp_path / "outputs"
    model = spec(tmp_path, "--pace 0.2")
    parent = subprocess.Popen([sys.executable, "-c", EVALUATE, json.dumps(model), str(outputs)])
    until = time.monotonic() + 60
    while sum(file.read_text().count("\n") for file in outputs.rglob("*.jsonl")) < 5:
        assert time.monotonic() < until, "no answers"
        time.sleep(0.05)
    server = journal(tmp_path)[0]["pid"]
    parent.kill()
    parent.wait()
    assert gone_within(15, "tests.text_server --journal " + str(tmp_path))
    assert not Path(f"/proc/{server}").exists()
    rows = len(next(outputs.rglob("1024.jsonl")).read_text().splitlines())
    assert 0 < rows < 40
    small = {"tasks": ["vt"], "lengths": [1024], "num_examples": 40}
    study = rk.study(model=spec(tmp_path), outputs=str(outputs), **small)
    assert len(rk.evaluate(study, progress=False)[0].rows) == 40


def test_a_served_model_is_found_and_used_by_every_process(tmp_path, rulerkit):
    model = spec(tmp_path)
    with served(tmp_path, model) as (file, serving):
        one = load_model(model)
        assert len(list(one.answer(examples(one, 4)))) == 4
        one.close()
        assert "asks the server that runs at" in rulerkit.capsys.readouterr().err
        assert len({entry["pid"] for entry in journal(tmp_path)}) == 1
        other = load_model({**model, "serve": model["serve"] + " --pace 0"})
        assert find_servers(other.about_server) == []  # another command is another server
        again = rulerkit("serve", file)
        assert again.status == 2
        assert "is served already, at http://127.0.0.1:" in again.err
        serving.send_signal(signal.SIGINT)
        out, _ = serving.communicate(timeout=30)
        assert "served: ended" in out
    assert gone_within(15, "text_server --journal " + str(tmp_path))
    assert not list(tmp_path.glob("rulerkit-servers-*/*.json"))


@pytest.mark.slow
def test_a_served_model_that_is_killed_is_named_and_then_started_anew(tmp_path):
    described = spec(tmp_path, "--pace 0.2", max_retries=1)
    with served(tmp_path, described) as (_, serving):
        model = load_model(described)
        asked = examples(model, 20)
        answers = model.answer(asked)
        next(answers)
        serving.kill()
        serving.wait()
        words = r"model served: its server at http://127\.0\.0\.1:\d+/v1 does not answer"
        with pytest.raises(UserError, match=words):
            list(answers)
    assert gone_within(15, "text_server --journal " + str(tmp_path))
    assert len(list(model.answer(asked))) == 20  # the entry of the dead server is no trap


def test_others_cannot_plant_a_server(tmp_path):
    """A registry that others may write to is not read."""
    folder = tmp_path / f"rulerkit-servers-{os.getuid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "x.json").write_text(f'[{os.getpid()}, ["http://127.0.0.1:1/v1", "k"]]')
    assert find_servers(lambda: pytest.fail("the registry was read")) == []


def test_a_model_that_is_no_server_cannot_be_served(rulerkit):
    ended = rulerkit("serve", "perfect")
    assert ended.status == 2
    assert "model perfect (engine reader) is no server that can be started" in ended.err


@pytest.mark.slow
def test_a_server_that_a_notebook_started_ends_with_its_kernel(tmp_path):
    """A restart gives the memory back; `rulerkit serve` keeps a model loaded across kernels."""
    manager = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, "PYTHONPATH": str(ROOT)})
    kernel = manager.client()
    code = f"import sys\nsys.argv = {['', json.dumps(spec(tmp_path)), str(tmp_path / 'outputs')]!r}"
    try:
        kernel.start_channels()
        kernel.wait_for_ready(timeout=60)
        reply = kernel.execute_interactive(
            code + HELD, timeout=60, output_hook=lambda message: None
        )
        assert reply["content"]["status"] == "ok"
        assert processes("text_server --journal " + str(tmp_path))
        manager.restart_kernel(now=True)  # as a kernel that hangs: killed, not asked
        assert gone_within(15, "text_server --journal " + str(tmp_path))
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_a_batch_gives_free_gpus_to_replicas_and_none_to_a_model_that_is_served(
    tmp_path, monkeypatch
):
    project = tmp_path / "project"
    project.mkdir()
    make_project(project)
    monkeypatch.setenv("RULERKIT_HOME", str(project))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    models = [
        spec(tmp_path, f"--pace 0.1 --journal {tmp_path}/{name}", gpus=1) | {"name": name}
        for name in ("served", "b")
    ]

    def batch(run):
        """The GPUs that the servers of each model had."""
        small = {"tasks": ["vt"], "lengths": [1024], "num_examples": 12, "run": run}
        file = project / "params/batches/served.yaml"
        parameters = {"models": models, "notebooks": ["10_small"], "parameters": small}
        file.write_text(json.dumps(parameters))
        call = [*PROGRAM, "batch", str(file), "--gpus", "0-3"]
        done = subprocess.run(call, capture_output=True, text=True, cwd=project, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        gpus = {}
        for name in ("served", "b"):
            rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
            assert len({row["prompt"] for row in rows}) == len(rows) == 12
            gpus[name] = {row["gpus"] for row in rows}
            (tmp_path / name).unlink()
        return gpus

    first = batch("one")
    assert [len(gpus) for gpus in first.values()] == [2, 2]
    assert first["served"] | first["b"] == {"0", "1", "2", "3"}
    with served(tmp_path, models[0], env=os.environ | {"CUDA_VISIBLE_DEVICES": "7"}):
        assert batch("two") == {"served": {"7"}, "b": {"0", "1", "2", "3"}}


def test_a_server_asks_for_its_key_and_is_reached_without_a_proxy(tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    model = load_model(spec(tmp_path))
    assert len(list(model.answer(examples(model, 1)))) == 1
    where = {"path": "any", "base_url": model.replicas[0].address.url}
    stranger = load_model({**where, "tokenizer": "builtin", "prompt_path": "text"})
    with pytest.raises(UserError, match="HTTP 401"):
        list(stranger.answer(examples(stranger, 1)))
    model.close()


def test_the_error_of_a_log_is_the_cause_with_what_pydantic_says_of_it():
    log = """(EngineCore pid=7) ERROR 11-22 21:38:01 [core.py:1] ValueError: no room for 4 GiB
(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above."""
    assert last_error(log) == "ValueError: no room for 4 GiB"
    log = "pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, bad rope\n    more"
    assert last_error(log).endswith("for ModelConfig Value error, bad rope")
