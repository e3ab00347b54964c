"""`rulerkit gate SERVER --serving` against real servers of vLLM's build for CPUs: sound ones, and
two into which a fault was planted. Run by `make test-vllm`."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from rulerkit.inference.access import Address

ROOT = Path(__file__).resolve().parents[3]
TOKENIZER = ROOT / "rulerkit/data/small/tokenizer"
MODEL = ROOT / "notebooks/small_models/llama-1024"
needs_vllm = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vllm is not installed: make test-vllm"
)


@contextmanager
def serving(log, *flags, fault=""):
    """The address of a vLLM with a small pool of blocks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL]
    command += ["--tokenizer", TOKENIZER, "--served-model-name", "small", "--port", port]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"]
    command += ["--num-gpu-blocks-override", "400", *flags]
    path = os.pathsep.join([str(Path(__file__).parent / "planted_vllm"), str(ROOT)])
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": path, "RULERKIT_FAULT": fault}
    variables |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    address = Address(f"http://127.0.0.1:{port}/v1")
    with log.open("w") as file:
        running = subprocess.Popen(
            list(map(str, command)), stdout=file, stderr=file, env=os.environ | variables
        )
        try:
            until = time.monotonic() + 300
            while not address.healthy() and time.monotonic() < until:
                assert running.poll() is None, log.read_text()
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}"
        finally:
            running.terminate()
            running.wait()


@needs_vllm
@pytest.mark.parametrize(
    ("flags", "fault", "word"),
    [
        (("--enable-prompt-tokens-details",), "", "sound"),
        ((), "", "sound"),
        (("--enable-prompt-tokens-details",), "half_hashed", "worse"),
        (("--enable-prompt-tokens-details",), "stays_known", "worse"),
    ],
)
def test_a_sound_vllm_is_sound_and_a_planted_fault_is_found(
    tmp_path, nowhere, rulerkit, flags, fault, word
):
    with serving(tmp_path / "log", *flags, fault=fault) as url:
        model = ("-y", f"tokenizer: {TOKENIZER}", "--lengths", "512,1K", "-y", "seed: 1")
        said = rulerkit("gate", url, "--serving", "--json", *model)
    content = json.loads(said.out)
    print(content["verdict"], content["asked"], content["hits_from"])
    assert content["verdict"]["word"] == word, said.out[:2000]
    assert content["hits_from"] == ("reply" if flags else "metrics")
