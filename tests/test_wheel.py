"""The wheel by itself: installed in an environment of its own, without the repository."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import venv
import zipfile

import pytest

from rulerkit.generation.tokenizers import load_tokenizer
from tests.projects import REPOSITORY, notebook
from tests.text_server import ReaderServer


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel of this checkout."""
    pytest.importorskip("setuptools")
    source = tmp_path_factory.mktemp("source")
    for folder in ("rulerkit", "notebooks", "params", "extras"):
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(REPOSITORY / folder, source / folder, ignore=ignore)
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / file, source)

    build = "import sys; from setuptools.build_meta import build_wheel as b; print(b(sys.argv[1]))"
    wheels = tmp_path_factory.mktemp("wheels")
    name = call(sys.executable, "-c", build, wheels, cwd=source).splitlines()[-1]
    return wheels / name


@pytest.mark.slow
def test_the_wheel_works_alone_in_an_empty_folder(built, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    wheel = zipfile.ZipFile(built)
    names = [file for file in wheel.namelist() if file.startswith("rulerkit/data/project/")]
    assert "rulerkit/data/project/notebooks/17_tasks.ipynb" in names
    assert "rulerkit/data/project/params/models/llama-3.1-8b.yaml" in names
    models = [file for file in wheel.namelist() if file.endswith(".safetensors")]
    assert models == ["rulerkit/data/small/llama/model.safetensors"]
    assert not [file for file in wheel.namelist() if "train_small" in file]
    assert sum(entry.compress_size for entry in wheel.infolist()) < 5e6
    site = tmp_path / "site"  # behind it come the dependencies, without the editable install
    wheel.extractall(site)
    dependencies = sysconfig.get_paths()["purelib"]
    start = f"import sys; sys.path[:0] = [{str(site)!r}]; sys.path.append({dependencies!r})"

    def rulerkit(*arguments):
        main = f"{start}; from rulerkit.cli import main; main()"
        return call(sys.executable, "-S", "-c", main, *arguments, cwd=empty)

    assert re.fullmatch(r"rulerkit \d+\.\d+\.\d+\n", rulerkit("--version"))
    listed = rulerkit("evaluate", "llama-3.1-8b", "--dry-run", "-y", "lengths: [4K]")
    assert "together: 260 examples, 1,064,960 tokens; 1,064,960 tokens left" in listed
    small = rulerkit("evaluate", "small-llama", "--dry-run", "--tasks", "vt", "--lengths", "1K")
    assert "together: 20 examples, 20,480 tokens" in small
    batches = [file for file in names if "/batches/" in file]
    assert len(batches) == 4
    for file in batches:
        path = file.removeprefix("rulerkit/data/project/")
        assert "missing" in rulerkit("batch", path, "--dry-run"), f"{path} cannot be planned"
    assert list(empty.iterdir()) == []
    assert " files copied to ., 0 were there before" in rulerkit("notebooks", ".")
    (empty / "params/sizes/smoke.yaml").write_text("mine")
    assert rulerkit("notebooks", ".").startswith("0 files copied")
    assert (empty / "params/sizes/smoke.yaml").read_text() == "mine"
    papermill = f"{start}; from papermill.cli import papermill; papermill()"
    small = "{model: reader-1024, tasks: [vt], lengths: [1024], num_examples: 1}"
    notebook = ("notebooks/01_main_results.ipynb", "out.ipynb", "-y", small)
    call(sys.executable, "-c", papermill, *notebook, cwd=empty, PYTHONPATH=str(site))
    assert (empty / "outputs/tables/main/01_main_results/reader-1024.md").is_file()


@pytest.mark.slow
def test_the_core_alone_generates_asks_a_server_scores_and_prints_a_table(built, tmp_path):
    """And it is small, and names the extra that something else needs."""
    python = tmp_path / "thin/bin/python"
    venv.create(tmp_path / "thin", with_pip=False, symlinks=True)
    install = ("-m", "pip", "--python", python, "install", "-q", "--no-compile")
    call(sys.executable, *install, built, cwd=tmp_path)

    (packages,) = (tmp_path / "thin/lib").glob("python3*/site-packages")
    files = [path for path in packages.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.lstat().st_size for path in files) < 350e6
    names = {path.name.split("-")[0] for path in packages.glob("*.dist-info")}
    assert len(names) <= 60
    assert not names & {"transformers", "torch", "matplotlib", "papermill"}

    def rulerkit(*words, ends=0):
        return call(python, "-m", "rulerkit", *words, cwd=tmp_path, ends=ends)

    rulerkit("generate", "--tasks", "vt", "--lengths", "1K", "-n", "2", "-o", "vt.jsonl")
    assert len((tmp_path / "vt.jsonl").read_text().splitlines()) == 2

    with ReaderServer(load_tokenizer("builtin")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        spec = f"{{name: served, engine: openai, base_url: '{server.url}', path: m, tokenizer: builtin, prompt_path: text}}"
        asked = ("--tasks", "vt,fwe", "--lengths", "1K", "-n", "2")
        table = rulerkit("evaluate", spec, *asked)
        rulerkit("gate", spec, "main/served", *asked, ends=3)
        server.shutdown()
    run = "outputs/predictions/main"
    assert "n = 2 examples each" in rulerkit("report", run)
    for shown in (table, rulerkit("report", "--by", "task", run)):
        assert re.search(r"^vt +\d+\.\d \(", shown, re.MULTILINE)
    rulerkit("report", "--by", "example", "outputs", "-o", "results.csv")
    rulerkit("browse", "outputs", "-o", "answers.html")

    (tmp_path / "notebooks").mkdir()
    notebook(tmp_path / "notebooks/mine.ipynb", 'model = "perfect"', "study = []")
    batch = "models: [perfect]\nnotebooks: [mine]\n"
    (tmp_path / "batch.yaml").write_text(batch)
    advice = "pip install 'rulerkit[{}]'"
    for words, extra in {
        ("batch", "batch.yaml"): "notebooks",
        ("evaluate", "small-llama", *asked): "transformers",
        ("report", "outputs", "--by", "example", "-o", "results.parquet"): "parquet",
    }.items():
        said = rulerkit(*words, ends=2)
        assert advice.format(extra) in said
        assert "Traceback" not in said
    plots = call(python, "-c", "import rulerkit.report.plots", cwd=tmp_path, ends=1)
    assert advice.format("figures") in plots.splitlines()[-1]


def call(*command, cwd, ends=0, **more):
    """What a command prints, which must end with this status; nothing leads it to the
    repository."""
    ours = ("PYTHONPATH", "RULERKIT_HOME", "RULERKIT_DATA")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"HF_HUB_OFFLINE": "1"} | more
    words = [str(part) for part in command]
    ended = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    assert ended.returncode == ends, ended.stdout + ended.stderr
    return ended.stdout if ends == 0 else ended.stdout + ended.stderr
