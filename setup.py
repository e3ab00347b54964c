"""The wheel holds the repository's notebooks/ and params/ as rulerkit/data/project/."""

from pathlib import Path
from shutil import copytree

from setuptools import setup
from setuptools.command.build_py import build_py

# Small models beside the one that the demo runs, and how they are trained: all of this needs files
# that only a checkout has. What a wheel offers must work without them.
ONLY_IN_A_CHECKOUT = (
    "notebooks/small_models",
    "notebooks/train_small_models.py",
    "notebooks/18_train_small_models.ipynb",
    "params/batches/demo-all.yaml",
    "params/batches/site.yaml",
    "params/batches/small.yaml",
    "params/models/small-hybrid.yaml",
    "params/models/small-mamba2.yaml",
    "params/models/small-llama-*.yaml",
)


def left_out(folder: str, names: list[str]) -> set[str]:
    """The files and folders in a folder that do not go into the wheel."""
    paths = [Path(folder, name) for name in names]
    return {
        path.name
        for path in paths
        if path.name.startswith((".", "__pycache__"))
        or any(path.match(pattern) for pattern in ONLY_IN_A_CHECKOUT)
    }


class BuildWithProject(build_py):
    """Adds the notebooks and parameter files to the package that is built."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for name in ("notebooks", "params"):
                target = Path(self.build_lib, "rulerkit/data/project", name)
                copytree(name, target, dirs_exist_ok=True, ignore=left_out)


setup(cmdclass={"build_py": BuildWithProject})
