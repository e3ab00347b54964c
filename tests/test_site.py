"""The job scripts that come of a site file, without any Slurm: what they ask for, and what is
refused in one line."""

import json
import re
import shutil
import subprocess

import pytest

from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.slurm import open_jobs, script_text, submit
from rulerkit.common.errors import UserError
from rulerkit.common.settings import Site, read_site
from tests.projects import REPOSITORY, make_project


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project in a folder whose name holds what shells and Slurm read otherwise; no Slurm is to
    be found."""
    root = make_project(tmp_path / "it's 50%j")
    monkeypatch.setenv("RULERKIT_HOME", str(root))
    monkeypatch.setenv("PATH", "/nowhere")
    return root


def batch(root, *models, name="some batch"):
    path = root / f"params/batches/{name}.yaml"
    content = {"models": [*models], "notebooks": ["10_small"], "together": ["10_small"]}
    path.write_text(json.dumps(content))
    return path


def model(name, gpus, **more):
    return {"base": "perfect", "name": name, "gpus": gpus, **more}


def scripts(root, site, *models):
    """The job scripts, which bash can read."""
    (root / "params/site.yaml").write_text(json.dumps(site))
    lab = read_site()
    groups = open_jobs(read_batch(batch(root, *models)).jobs)
    texts = [script_text(group, lab) for group in groups]
    for text in texts:
        read = subprocess.run(["/bin/bash", "-n"], input=text, text=True, check=False)
        assert read.returncode == 0
    assert not (root / "outputs").exists()
    return texts


def test_what_a_site_says_stands_in_the_scripts(root):
    site = {
        "options": ["--account=lab", "--comment=short"],
        "gpu_options": ["--partition=main", "--gpus-per-node=h100:{gpus}", "--mem=1G"],
        "cpu_options": ["--partition=cheap"],
        "hours": 30,
        "setup": ["module load cuda"],
        "python": "apptainer exec --nv $HOME/kit.sif ~/bin/python3",
    }
    large_model = model("large", 8, nodes=2, hours=0.05)
    small, large, over_all = scripts(root, site, model("small", 1), large_model)
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
    python = "apptainer exec --nv $HOME/kit.sif ~/bin/python3"
    assert f"\n{python} -m rulerkit batch " in small  # as the shell reads it
    assert "srun" not in small + over_all
    # not before half of its time
    assert "#SBATCH --time=0-00:03:00\n#SBATCH --signal=B:USR1@90\n" in large
    assert "#SBATCH --nodes=2\n" in large
    assert f"--nodes=1 --ntasks=1 --relative=1 bash -c 'exec {python} -m rulerkit batch " in large
    rank = r"some batch\.yaml.* --only large --node \$\(\(SLURM_PROCID \+ 1\)\)' &\n"
    assert re.search(rank, large)
    assert "#SBATCH --partition=cheap\n" in over_all
    assert "gpus-per-node" not in over_all


def test_without_a_site_file_the_cluster_decides(root):
    small, over_all = scripts(root, {"options": None}, model("small", 2))
    assert read_site() == Site()
    assert "#SBATCH --gres=gpu:2\n" in small
    assert "--partition" not in small + over_all
    assert "gres" not in over_all
    file = root / "params/site.yaml"
    file.unlink()
    assert read_site() == Site()
    shutil.copy(REPOSITORY / "params/site-example.yaml", file)
    assert "--partition=gpu" in read_site().gpu_options


def test_a_machine_without_slurm(root):
    groups = open_jobs(read_batch(batch(root, model("a", 4), name="qwen2.5")).jobs)
    with pytest.raises(
        UserError,
        match=r"^sbatch .*No such file.*; fix params/site.yaml, and submit on a login node",
    ):
        list(submit(groups, Site()))
