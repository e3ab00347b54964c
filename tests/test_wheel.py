"""The wheel by itself: installed in an environment of its own, without the repository."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from tests.projects import REPOSITORY


@pytest.mark.slow
def test_the_wheel_works_alone_in_an_empty_folder(tmp_path):
    pytest.importorskip("setuptools")
    build = "from setuptools.build_meta import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    source, wheels, empty = (
        tmp_path / "source",
        tmp_path / "wheels",
        tmp_path / "empty",
    )
    for folder in ("rulerkit", "notebooks", "params"):
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(REPOSITORY / folder, source / folder, ignore=ignore)
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / file, source)
    for folder in (wheels, empty):
        folder.mkdir()
    name = call(sys.executable, "-c", build, wheels, cwd=source).splitlines()[-1]
    wheel = zipfile.ZipFile(wheels / name)
    names = [
        file
        for file in wheel.namelist()
        if file.startswith("rulerkit/data/project/")
    ]
    assert "rulerkit/data/project/notebooks/00_tasks.ipynb" in names
    assert "rulerkit/data/project/params/models/llama-3.1-8b.yaml" in names
    models = [file for file in wheel.namelist() if file.endswith(".safetensors")]
    assert models == ["rulerkit/data/small/llama/model.safetensors"]
    assert [file for file in wheel.namelist() if "train" in file.lower()] == [
        "rulerkit/data/project/notebooks/08_training_length.ipynb",
        "rulerkit/data/small/llama/training.json",
    ]
    assert sum(entry.compress_size for entry in wheel.infolist()) < 5e6
    site = (
        tmp_path / "site"
    )  # behind it come the dependencies, without the editable install
    wheel.extractall(site)
    dependencies = sysconfig.get_paths()["purelib"]
    start = f"import sys; sys.path[:0] = [{str(site)!r}]; sys.path.append({dependencies!r})"

    def rulerkit(*arguments):
        main = f"{start}; from rulerkit.cli import main; main()"
        return call(sys.executable, "-S", "-c", main, *arguments, cwd=empty)

    assert re.fullmatch(r"rulerkit \d+\.\d+\.\d+\n", rulerkit("--version"))
    listed = rulerkit(
        "evaluate", "llama-3.1-8b", "--dry-run", "-y", "lengths: [4K]"
    )
    assert "13 cells, 0 of 260 examples are answered; 1,064,960 tokens" in listed
    small = rulerkit(
        "evaluate",
        "small-llama",
        "--dry-run",
        "-y",
        "tasks: [vt]",
        "-y",
        "lengths: [1K]",
    )
    assert "1 cell," in small
    batches = [file for file in names if "/batches/" in file]
    assert len(batches) == 4
    for file in batches:
        path = file.removeprefix("rulerkit/data/project/")
        assert "missing" in rulerkit("batch", path, "--dry-run"), (
            f"{path} cannot be planned"
        )
    kept = [file for file in names if re.search(r"/models/small-", file)]
    assert kept == ["rulerkit/data/project/params/models/small-llama.yaml"]
    assert list(empty.iterdir()) == []
    assert " files copied to ., 0 were there before" in rulerkit("notebooks", ".")
    (empty / "params/sizes/smoke.yaml").write_text("mine")
    assert rulerkit("notebooks", ".").startswith("0 files copied")
    assert (empty / "params/sizes/smoke.yaml").read_text() == "mine"
    papermill = f"{start}; from papermill.cli import papermill; papermill()"
    small = "{model: reader-1024, tasks: [vt], lengths: [1024], num_examples: 1}"
    notebook = ("notebooks/01_main_results.ipynb", "out.ipynb", "-y", small)
    call(
        sys.executable,
        "-c",
        papermill,
        *notebook,
        cwd=empty,
        PYTHONPATH=str(site),
    )
    assert (
        empty / "outputs/tables/main/01_main_results/reader-1024.md"
    ).is_file()


def call(*command, cwd, **more):
    """The output of a command that ends well; nothing leads it to the repository."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "RULERKIT_HOME", "RULERKIT_DATA")
    }
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {"HF_HUB_OFFLINE": "1"} | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
