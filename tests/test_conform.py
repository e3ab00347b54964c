"""benchmarks/conform.py: a generator of upstream beside ours. A small stand-in of a checkout writes
prompts that are known; `RULERKIT_UPSTREAM` names a real checkout, and `RULERKIT_UPSTREAM_PYTHON`
its Python."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import task
from tests.conftest import needs_extras

PREPARE = """
import json, pathlib, sys, time
sys.path.insert(0, "")
from nemo.collections.asr.parts.utils.manifest_utils import write_manifest
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name = options["--task"]
if name == "vt":
    time.sleep(60)
rows = json.loads((pathlib.Path(__file__).parent / "prompts.json").read_text())[name]
folder = pathlib.Path(options["--save_dir"], name)
folder.mkdir()
write_manifest(folder / "validation.jsonl", rows[: int(options["--num_samples"])])
"""

PROGRAM = Path(__file__).parents[1] / "benchmarks/conform.py"


def conform(checkout, *options):
    """How the program ends over a checkout."""
    command = [sys.executable, PROGRAM, checkout, *options]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose multikey_3 is ours and whose fwe stops at three quarters of the budget."""
    data = tmp_path / "RULER/scripts/data"
    (data / "synthetic").mkdir(parents=True)
    (data / "synthetic/niah.py").write_text("incremental = 25")
    (data / "prepare.py").write_text(PREPARE)
    rows = {
        name: [
            {"input": one.prompt, "outputs": one.references}
            for one in generate(task(name, "paper"), length, 20, seed)
        ]
        for name, length, seed in (("niah_multikey_3", 4096, 7), ("fwe", 3072, 42))
    }
    (data / "prompts.json").write_text(json.dumps(rows))
    return tmp_path / "RULER"


@pytest.mark.slow
@needs_extras
def test_what_is_equal_what_differs_and_what_never_ends(checkout):
    names = ("niah_multikey_3", "fwe", "vt", "cwe")
    asked = ["--tasks", ",".join(names)]
    few = ("--num-examples", "20", "--timeout", "5")
    ended = conform(checkout, "--tokenizer", "builtin", *asked, *few)
    head, equal, differs, endless, failed, total = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (1, "")
    assert head == "upstream (paper) / ours"
    assert equal.startswith("niah_multikey_3 at 4096: equal (template ours / ours; needles 51.0")
    assert differs.startswith("fwe at 4096: differs in words, fill")
    assert endless == "vt at 4096: upstream did not end in 5 s"
    assert failed == "cwe at 4096: upstream made no file: KeyError: 'cwe'"
    assert total == "1 of 4 are equal"
    ended = conform(checkout, "--tokenizer", "builtin", "--tasks", names[0], *few)
    assert ended.returncode == 0


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    ended = conform(tmp_path, "--tokenizer", "builtin")
    assert ended.returncode == 2
    assert "is no checkout of RULER: it has no scripts/data/synthetic/niah.py" in ended.stderr


@pytest.mark.skipif(
    "RULERKIT_UPSTREAM" not in os.environ or "RULERKIT_DATA" not in os.environ,
    reason="RULERKIT_UPSTREAM names no checkout of RULER of 2024, or RULERKIT_DATA no tokenizers",
)
def test_all_tasks_but_fwe_are_equal_to_those_of_2024():
    ended = conform(
        os.environ["RULERKIT_UPSTREAM"],
        "--python",
        os.environ["RULERKIT_UPSTREAM_PYTHON"],
        "--tokenizer",
        f"{os.environ['RULERKIT_DATA']}/tokenizers/qwen2.5",
    )
    lines = ended.stdout.splitlines()[1:-1]
    differ = [line.split()[0] for line in lines if ": equal" not in line]
    assert (len(lines), differ) == (13, ["fwe"])
