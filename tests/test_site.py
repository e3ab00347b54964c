"""The job scripts that come of a site file, without any Slurm: what they ask for, and what is
refused in one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rulerkit.batch import read_batch
from rulerkit.batch.slurm import script, submissions
from rulerkit.errors import UserError
from rulerkit.settings import Site, read_site
from tests.projects import REPOSITORY, make_project


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a folder whose name holds what shells and Slurm read otherwise; no Slurm is to
    be found."""
    root = make_project(tmp_path / "it's 50%j")
    monkeypatch.setenv("RULERKIT_HOME", str(root))
    monkeypatch.setenv("PATH", "/nowhere")
    return root


def batch(root: Path, *models: dict[str, Any]) -> Path:
    path = root / "params/batches/some batch.yaml"
    path.write_text(
        json.dumps({"models": [*models], "notebooks": ["10_small"], "together": ["10_small"]})
    )
    return path


def model(name: str, gpus: int, **more: object) -> dict[str, Any]:
    return {"base": "perfect", "name": name, "gpus": gpus, **more}


def scripts(root: Path, site: dict[str, object], *models: dict[str, Any]) -> list[str]:
    """The job scripts, which bash can read."""
    (root / "params/site.yaml").write_text(json.dumps(site))
    lab = read_site()
    found = [script(each, lab) for each in submissions(read_batch(batch(root, *models)).jobs, lab)]
    for text in found:
        assert (
            subprocess.run(["/bin/bash", "-n"], input=text, text=True, check=False).returncode == 0
        )
    assert not (root / "outputs").exists()
    return found


def test_what_a_site_says_stands_in_the_scripts(root: Path) -> None:
    site = {
        "partition": "main",
        "account": "lab",
        "options": ["--comment=short"],
        "gpu_options": ["--gpus-per-node=h100:{gpus}", "--mem=1G"],
        "cpu_options": ["--partition=cheap"],
        "hours": 30,
        "setup": ["module load cuda"],
        "launcher": "apptainer exec --nv $HOME/kit.sif",
        "python": "~/bin/python3",
        "offline": False,
    }
    small, large, over_all = scripts(
        root, site, model("small", 1), model("large", 8, nodes=2, hours=0.05)
    )
    for line in (
        "#SBATCH --partition=main",
        "#SBATCH --account=lab",
        "#SBATCH --comment=short",
        "#SBATCH --gpus-per-node=h100:1",
        "#SBATCH --time=1-06:00:00",
        "#SBATCH --signal=B:USR1@300",
        "module load cuda",
    ):
        assert line in small.splitlines()
    assert small.index("trap ") < small.index("module load cuda")  # whatever the set-up takes
    assert (
        "\napptainer exec --nv $HOME/kit.sif ~/bin/python3 -m rulerkit run " in small
    )  # as the shell reads them
    assert "HF_HUB_OFFLINE" not in small
    assert "srun" not in small + over_all
    assert (
        "#SBATCH --time=0-00:03:00\n#SBATCH --signal=B:USR1@90\n" in large
    )  # not before half of its time
    assert "#SBATCH --nodes=2\n" in large
    python = "apptainer exec --nv $HOME/kit.sif ~/bin/python3"
    assert f"--nodes=1 --ntasks=1 --relative=1 bash -c 'exec {python} -m rulerkit serve " in large
    assert re.search(
        r"/large/some batch\.job\.yaml\S+ --node \$\(\(SLURM_PROCID \+ 1\)\)' &\n", large
    )
    assert "#SBATCH --partition=cheap\n" in over_all
    assert "gpus-per-node" not in over_all


def test_without_a_site_file_the_cluster_decides(root: Path) -> None:
    small, over_all = scripts(root, {"partition": None, "options": None}, model("small", 2))
    assert read_site() == Site()
    assert "#SBATCH --gres=gpu:2\n" in small
    assert "--partition" not in small + over_all
    assert "gres" not in over_all
    assert "export HF_HUB_OFFLINE=1\n" in small
    (root / "params/site.yaml").unlink()
    assert read_site() == Site()


def test_paths_reach_slurm_and_the_shell_as_they_are(root: Path) -> None:
    (small, _) = scripts(root, {}, model("small", 2))
    (output,) = [line for line in small.splitlines() if "--output" in line]
    told = subprocess.run(
        ["/bin/bash", "-c", f"printf %s {output.split(' ', 1)[1]}"], capture_output=True, text=True
    )
    log = str(root / "outputs/notebooks/main/small/some batch.job.out")
    assert told.stdout == f"--output={log.replace('%', '%%')}"
    names = [line for line in small.splitlines() if "--job-name=" in line]
    assert names[0].startswith("#SBATCH --job-name=rulerkit-main-small-")


def test_the_example_is_a_site(root: Path) -> None:
    site = read_site(REPOSITORY / "params/site-example.yaml")
    assert (site.partition, site.hours) == ("gpu", 24)


@pytest.mark.parametrize(
    ("gpus", "nodes"),
    [
        ((1,), 1),
        ((4, 4), 2),
        ((3, 3, 2), 3),
        ((1, 3, 2, 2), 2),
        ((1, 1, 1, 1, 1), 2),
        ((2, 3, 1, 4, 2), 3),
    ],
)
def test_whole_nodes_are_as_many_as_all_models_need(
    root: Path, gpus: tuple[int, ...], nodes: int
) -> None:
    models = [model(f"m{n}", each, hours=n + 1) for n, each in enumerate(gpus)]
    *shared, free, over_all = scripts(
        root, {"whole_nodes": 4, "hours": 2}, *models, model("free", 0)
    )
    assert len(shared) == nodes
    for text in shared:
        assert {
            "#SBATCH --gres=gpu:4",
            "#SBATCH --exclusive",
            f"#SBATCH --time=0-{len(gpus):02}:00:00",
        } < {*text.split("\n")}
        assert text.count(".job.yaml") == len(gpus)  # each does whatever is free
    assert "--exclusive" not in free + over_all
    assert free.count(".job.yaml") == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partition", 3),
        ("setup", ["a\nb"]),
        ("gpu_options", ["--gres=gpu:{n}"]),
        ("hours", 1000),
        ("signal_before", 1.5),
        ("launcher", "env 'a"),
    ],
)
def test_wrong_values_are_named_with_what_is_allowed(root: Path, key: str, value: object) -> None:
    path = root / "wrong.yaml"
    path.write_text(json.dumps({key: value}))
    with pytest.raises(UserError) as error:
        read_site(path)
    assert f"{path}: {key}: {value!r} is not allowed; it takes " in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_key_is_named(root: Path) -> None:
    path = root / "wrong.yaml"
    path.write_text("partitions: main\n")
    with pytest.raises(UserError, match=r"unknown key in .*: did you mean 'partition'"):
        read_site(path)


def test_whole_nodes_of_a_batch_whose_name_holds_a_dot_have_a_script_and_a_log_each(
    root: Path,
) -> None:
    path = batch(root, model("a", 4), model("b", 4)).rename(root / "params/batches/qwen2.5.yaml")
    nodes = submissions(read_batch(path).jobs, Site(whole_nodes=4))[:2]
    assert [each.script.name for each in nodes] == ["qwen2.5-node1.sh", "qwen2.5-node2.sh"]
    assert [each.log.name for each in nodes] == ["qwen2.5-node1.out", "qwen2.5-node2.out"]


def test_a_model_larger_than_a_node_is_refused(root: Path) -> None:
    with pytest.raises(UserError, match="large needs 5 GPUs, a node has 4"):
        scripts(root, {"whole_nodes": 4}, model("large", 5))


def test_without_slurm_it_says_so(root: Path) -> None:
    call = [
        sys.executable,
        "-m",
        "rulerkit",
        "batch",
        str(batch(root, model("small", 1))),
        "--slurm",
    ]
    ended = subprocess.run(
        call, capture_output=True, text=True, timeout=300, env=dict(os.environ), check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("rulerkit: sbatch is not here")
    assert ended.stderr.count("\n") == 1
