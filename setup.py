"""The wheel holds the repository's notebooks/ and params/ as rulerkit/data/project/."""

from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithProject(build_py):
    """Adds the notebooks and parameter files to the package that is built."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for name in ("notebooks", "params"):
                target = Path(self.build_lib, "rulerkit/data/project", name)
                copytree(name, target, dirs_exist_ok=True, ignore=ignore_patterns(".*"))


setup(cmdclass={"build_py": BuildWithProject})
