"""A plug-in whose engine starts a server as the engine of vLLM does: a reader behind HTTP."""

import os
import shlex
import sys
from pathlib import Path

from rulerkit.common.settings import OpenAIKeys
from rulerkit.inference.openai import OpenAI

ROOT = Path(__file__).resolve().parents[1]


class Keys(OpenAIKeys):
    """What its mapping holds."""

    options: str
    """further options of tests.text_server"""


class Started(OpenAI):
    keys = Keys

    def identity(self):
        return {"engine": "started", "path": self.path, "prompt_path": self.prompt_path}

    def environment(self):
        return {}

    def address(self):
        return None

    def variables(self):
        return {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

    def command(self, address):
        program = [sys.executable, "-m", "tests.text_server"]
        given = ["--port", address.port, "--key", address.key]
        return [*program, *given, *shlex.split(self.spec.get("options", ""))]


engines = {"started": Started}
