"""A real checkpoint and the original corpora through the command line: evaluated, killed, resumed,
scored."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import rulerkit as rk
from tests.batches import wait_until
from tests.tiny_llama import save_llama

LENGTH = 2048
PROGRAM = [sys.executable, "-m", "rulerkit"]


class Place(NamedTuple):
    """A project root with a tiny checkpoint in it, and the environment of the commands."""

    root: Path
    environment: dict[str, str]

    def command(self, outputs):
        asked = f"{{lengths: [{LENGTH}], num_examples: 2, corpora: original, outputs: {outputs}}}"
        return [*PROGRAM, "evaluate", "-f", "model.yaml", "-y", asked]

    def run(self, outputs):
        """What the command prints, which must end well."""
        call, pipes = self.command(outputs), {"capture_output": True, "text": True}
        done = subprocess.run(call, env=self.environment, timeout=300, **pipes)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def predictions(self, outputs):
        return self.root / outputs / "predictions/main/tiny-llama"

    def lines(self, outputs):
        """Task -> the whole lines of its file."""
        files = sorted(self.predictions(outputs).glob("*/*.jsonl"))
        return {file.parent.name: file.read_text().split("\n")[:-1] for file in files}

    def rows(self, outputs):
        """Task -> its rows, by index."""
        found = {}
        for task, lines in self.lines(outputs).items():
            found[task] = sorted(map(json.loads, lines), key=lambda row: row["index"])
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory, data):
    """Two random layers under the real vocabulary of Llama-3."""
    root = tmp_path_factory.mktemp("project")
    for folder in ("params", "notebooks", "checkpoints"):
        (root / folder).mkdir()
    shape = {"intermediate_size": 64, "max_position_embeddings": 2 * LENGTH}
    save_llama(root / "checkpoints/tiny", 128256, **shape, bos_token_id=128000, eos_token_id=128001)
    shutil.copy(data / "tokenizers/llama-3/tokenizer.json", root / "checkpoints/tiny")
    model = "{path: checkpoints/tiny, name: tiny-llama, label: Tiny, batch_size: 1, device: cpu}"
    (root / "model.yaml").write_text(f"model: {model}\n")
    # One thread: tests run side by side.
    more = {"RULERKIT_DATA": str(data), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return Place(root, {**os.environ, "RULERKIT_HOME": str(root), **more})


@pytest.fixture(scope="module")
def undisturbed(place):
    return place.run("undisturbed")


@pytest.mark.slow
def test_thirteen_tasks_within_their_budget(place, undisturbed):
    found = place.rows("undisturbed")
    assert set(found) == set(rk.THIRTEEN)
    tokenizer = rk.load_tokenizer(str(place.root / "checkpoints/tiny"))
    answers = set()
    for task, rows in found.items():
        record = place.predictions("undisturbed") / task / f"{LENGTH}.json"
        result = json.loads(record.read_text())["result"]
        assert result["tokenizer"]["fingerprint"] == tokenizer.fingerprint
        assert not any(source["stand_in"] for source in result["sources"].values())
        assert [row["index"] for row in rows] == [0, 1]
        for row in rows:
            assert row["num_prompt_tokens"] < row["length"] <= LENGTH
            answers.add(row["pred"])
    assert len(answers) == 26, "a model that says the same to every prompt proves nothing"
    scores = [line for line in undisturbed.splitlines() if re.search(r" \(\d", line)]
    assert [line.split()[0] for line in scores] == [*rk.THIRTEEN, "mean"]


@pytest.mark.slow
def test_killed_half_way_and_started_again(place, undisturbed):
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    call = place.command("killed")
    with subprocess.Popen(call, env=place.environment, **silent) as process:
        wait_until("11 rows are there", lambda: sum(map(len, place.lines("killed").values())) > 10)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    kept = place.lines("killed")
    assert 11 <= sum(map(len, kept.values())) < 26
    again = place.run("killed")
    assert place.rows("killed") == place.rows("undisturbed")
    for task, lines in kept.items():  # what was there is still there, in its place
        assert place.lines("killed")[task][: len(lines)] == lines
    table, other = (said.partition("\n\n")[2] for said in (again, undisturbed))
    assert table.replace("killed", "undisturbed") == other
    assert not list(place.predictions("killed").rglob("*.lock"))
