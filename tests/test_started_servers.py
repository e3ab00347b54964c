"""Servers that the kit starts: asked, killed, slow, never healthy, and never left behind."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.common.gpus import visible_gpus
from rulerkit.common.plugins import load_plugins
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import THIRTEEN, task
from rulerkit.generation.tasks.base import string_match_all
from rulerkit.inference.model import load_model
from rulerkit.inference.process import last_error
from tests.processes import gone_within, processes
from tests.records import predict

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """No test leaves a server running."""
    load_plugins(["tests.started_server"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert gone_within(15, str(tmp_path))


def spec(folder, options="", **more):
    """A model behind a server that is to be started; its processes have the folder's name in their
    command line."""
    options = f"--journal {folder}/journal {options}"
    about = {"name": "served", "engine": "started", "path": "any", "tokenizer": "builtin"}
    return {**about, "options": options, **more}


def journal(folder):
    return [json.loads(line) for line in (folder / "journal").read_text().splitlines()]


def examples(model, count):
    asked = task("vt").with_corpora("builtin")
    return generate(asked, 1024, count, prompt_format=model.prompt_format)


@pytest.mark.slow
def test_all_tasks_are_answered_by_a_server_that_takes_text_only(tmp_path):
    outputs = str(tmp_path / "outputs")
    model = load_model(spec(tmp_path))
    study = rk.study(model=model, lengths=[2048], num_examples=2, outputs=outputs)
    cells = rk.evaluate(study, progress=False)
    assert [cell.task for cell in cells] == list(THIRTEEN)
    rows = [row for cell in cells for row in cell.rows]
    assert all(string_match_all(row["pred"], row["outputs"]) == 1 for row in rows)
    assert cells[0].record["result"]["model"]["prompt_path"] == "text"
    assert [entry["pid"] for entry in journal(tmp_path)] == [journal(tmp_path)[0]["pid"]] * 26
    assert processes(str(tmp_path))  # it stays loaded for the next call
    model.close()
    assert not processes(str(tmp_path))
    assert not list(tmp_path.glob("*.log"))


@pytest.mark.slow
def test_an_answer_that_is_given_up_half_way_leaves_the_server_ready_for_the_next(tmp_path):
    model = load_model(spec(tmp_path, "--pace 0.05", concurrency=2))
    asked = examples(model, 20)
    for _ in range(3):
        answers = model.answer(asked)
        next(answers)
        answers.close()
    assert len(list(model.answer(asked))) == 20
    assert len({entry["pid"] for entry in journal(tmp_path)}) == 1
    model.close()


@pytest.mark.slow
def test_a_server_that_dies_is_one_line_and_the_answers_stay(tmp_path):
    model = load_model(spec(tmp_path, "--die-after 5", concurrency=1))
    asked = examples(model, 12)
    words = r"model served: its server ended \(exit status 3\).*the card fell off the bus.*are kept"
    with pytest.raises(UserError, match=words) as caught:
        predict(model, asked, tmp_path / "run", progress=False)
    assert "\n" not in str(caught.value)
    file = next((tmp_path / "run").rglob("*.jsonl"))
    assert len(file.read_text().splitlines()) == 5
    again = load_model(spec(tmp_path, concurrency=1))
    assert not predict(again, asked, tmp_path / "run", progress=False).coverage.missing
    again.close()
    assert len(journal(tmp_path)) == 6 + 7  # the one that it died of was asked again


@pytest.mark.slow
def test_a_server_that_never_gets_healthy_is_one_line_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("rulerkit.inference.process.START_TIMEOUT", 8)
    model = load_model(spec(tmp_path, "--health 503"))
    with pytest.raises(UserError, match="did not get healthy within 8 s") as caught:
        list(model.answer(examples(model, 1)))
    assert "\n" not in str(caught.value)
    assert gone_within(5, str(tmp_path))


EVALUATE = """
import json, sys, rulerkit as rk
plugins = ["tests.started_server"]
study = rk.study(model=json.loads(sys.argv[1]), plugins=plugins, tasks=["vt"], lengths=[1024], num_examples=40,
                 outputs=sys.argv[2])
print(len(rk.evaluate(study, progress=False)[0].rows), flush=True)
"""
HELD = """
import json, sys, rulerkit as rk
rk.study(model=None, plugins=["tests.started_server"])
model = rk.load_model(json.loads(sys.argv[1]))
""" + EVALUATE.replace("model=json.loads(sys.argv[1])", "model=model")


@pytest.mark.slow
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
    assert gone_within(15, f"{tmp_path}/journal")
    assert not Path(f"/proc/{server}").exists()
    rows = len(next(outputs.rglob("1024.jsonl")).read_text().splitlines())
    assert 0 < rows < 40
    again = [sys.executable, "-c", EVALUATE, json.dumps(spec(tmp_path)), str(outputs)]
    assert subprocess.check_output(again) == b"40\n"


@pytest.mark.slow
def test_a_server_that_a_notebook_started_ends_with_its_kernel(tmp_path):
    manager = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, "PYTHONPATH": str(ROOT)})
    kernel = manager.client()
    code = f"import sys\nsys.argv = {['', json.dumps(spec(tmp_path)), str(tmp_path / 'outputs')]!r}"
    try:
        kernel.start_channels()
        kernel.wait_for_ready(timeout=60)
        reply = kernel.execute_interactive(code + HELD, timeout=60, output_hook=print)
        assert reply["content"]["status"] == "ok"
        assert processes(f"{tmp_path}/journal")
        manager.restart_kernel(now=True)  # as a kernel that hangs: killed, not asked
        assert gone_within(15, f"{tmp_path}/journal")
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_server_asks_for_its_key_and_is_reached_without_a_proxy(tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    model = load_model(spec(tmp_path))
    assert len(list(model.answer(examples(model, 1)))) == 1
    where = {"path": "any", "base_url": model.connection.address.url}
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


def test_what_nvidia_smi_lists_is_visible(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    tool.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    tool.chmod(0o755)
    assert visible_gpus() == []
    tool.write_text('#!/bin/sh\ncase "$*" in *query-gpu=index*) echo 0; echo 1 ;; esac\n')
    assert visible_gpus() == ["0", "1"]
