"""A real checkpoint and the original corpora through the command line: evaluated, killed, resumed,
scored."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from rulerkit.generation.tasks import THIRTEEN
from rulerkit.generation.tokenizers import load_tokenizer
from tests.tiny_llama import save_llama

LENGTH = 2048
PROGRAM = [sys.executable, "-c", "from rulerkit.cli import main; main()"]


class Place(NamedTuple):
    """A project root with a tiny checkpoint in it, and the environment of the commands."""

    root: Path
    environment: dict[str, str]

    def command(self, outputs):
        asked = f"{{lengths: [{LENGTH}], num_examples: 2, corpora: original, outputs: {outputs}}}"
        return [*PROGRAM, "evaluate", "-f", "model.yaml", "-y", asked]

    def run(self, outputs):
        """The command, which must end well."""
        done = subprocess.run(
            self.command(outputs),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    def predictions(self, outputs):
        return self.root / outputs / "predictions/main/tiny-llama"

    def rows(self, outputs):
        """Task -> its rows, by index."""
        files = sorted(self.predictions(outputs).glob(f"*/{LENGTH}.jsonl"))
        found = {
            file.parent.name: [json.loads(line) for line in file.read_text().splitlines()]
            for file in files
        }
        return {task: sorted(rows, key=lambda row: row["index"]) for task, rows in found.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory, data):
    """Two random layers under the real vocabulary of Llama-3; outputs differ from token to
    token."""
    root = tmp_path_factory.mktemp("project")
    for folder in ("params", "notebooks", "checkpoints"):
        (root / folder).mkdir()
    shape = {"intermediate_size": 64, "max_position_embeddings": 2 * LENGTH}
    save_llama(root / "checkpoints/tiny", 128256, **shape, bos_token_id=128000, eos_token_id=128001)
    shutil.copy(
        data / "tokenizers/llama-3/tokenizer.json", root / "checkpoints/tiny/tokenizer.json"
    )
    model = "{path: checkpoints/tiny, name: tiny-llama, label: Tiny, batch_size: 1, device: cpu}"
    (root / "model.yaml").write_text(f"model: {model}\n")
    environment = {
        **os.environ,
        "RULERKIT_HOME": str(root),
        "RULERKIT_DATA": str(data),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # tests run side by side
    }
    return Place(root, environment)


@pytest.fixture(scope="module")
def undisturbed(place):
    return place.run("undisturbed")


@pytest.mark.slow
def test_thirteen_tasks_within_their_budget(place, undisturbed):
    found = place.rows("undisturbed")
    assert set(found) == set(THIRTEEN)
    tokenizer = load_tokenizer(str(place.root / "checkpoints/tiny"))
    answers = set()
    for task, rows in found.items():
        record = json.loads(
            (place.predictions("undisturbed") / task / f"{LENGTH}.json").read_text()
        )
        result = record["result"]
        assert result["tokenizer"]["fingerprint"] == tokenizer.fingerprint
        assert not any(source["stand_in"] for source in result["sources"].values())
        assert [row["index"] for row in rows] == [0, 1]
        for row in rows:
            assert row["num_prompt_tokens"] < row["length"] <= LENGTH
            answers.add(row["pred"])
    assert len(answers) == 26, "a model that says the same to every prompt proves nothing"
    rows = [line for line in undisturbed.stdout.splitlines() if re.search(r" \(\d", line)]
    lines = [row.split()[0] for row in rows]
    assert lines == [*THIRTEEN, "mean"]


@pytest.mark.slow
def test_killed_half_way_and_started_again(place, undisturbed):
    """SIGKILL once some rows are there; the same command ends with the rows of a run that nobody
    disturbed."""
    with subprocess.Popen(
        place.command("killed"),
        env=place.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        until = time.monotonic() + 120
        while sum(map(len, kept_lines(place, "killed").values())) < 11 and process.poll() is None:
            assert time.monotonic() < until, "no rows after two minutes"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    kept = kept_lines(place, "killed")
    assert 11 <= sum(map(len, kept.values())) < 26
    again = place.run("killed")
    assert place.rows("killed") == place.rows("undisturbed")
    for task, lines in kept.items():  # what was there is still there, in its place
        assert kept_lines(place, "killed")[task][: len(lines)] == lines
    table, other = (ended.stdout.partition("\n\n")[2] for ended in (again, undisturbed))
    assert table.replace("killed", "undisturbed") == other
    assert not list(place.predictions("killed").rglob("*.lock"))


def kept_lines(place, outputs):
    """Task -> the whole lines of its file."""
    files = sorted(place.predictions(outputs).glob("*/*.jsonl"))
    return {file.parent.name: file.read_text().split("\n")[:-1] for file in files}
