"""Locales whose encoding is not UTF-8: the same prompts and files as everywhere, and no traceback."""

import os
import shutil
import subprocess
import sys

import pytest

from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import THIRTEEN, task
from tests.test_special_tokens import small_tokenizer

ESSAY = "Größe ist alles — so steht es hier. Ünder allem liegt ein Satz. 中文 steht am Ende.\n"
DIGESTS = r"""
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import THIRTEEN, task
form = PromptFormat("tok\xf6", "\xdc: {{ messages[0].content }}")
for name in THIRTEEN:
    print(generate(task(name).with_corpora("builtin"), 2048, 1, prompt_format=form)[0].digest)
"""


@pytest.fixture
def elsewhere(tmp_path):
    """The environment of a process in a locale that is not UTF-8, and a folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    environment = os.environ | {"LC_ALL": "C", "RULERKIT_HOME": str(folder)}
    environment |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for name in ("PYTHONIOENCODING", "LANG", "LC_CTYPE"):
        environment.pop(name, None)
    return environment, folder


def run(elsewhere, *command):
    """What a process says, as bytes; it must end well."""
    environment, folder = elsewhere
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert b"Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_prompts_are_the_same(elsewhere, tmp_path):
    _, folder = elsewhere
    small_tokenizer(tmp_path, "<s> $A")
    # The locale has no bytes for the letter, so it stands there in those of UTF-8.
    place = os.path.join(os.fsencode(folder), "tokö".encode())
    os.mkdir(place)
    shutil.copy(os.fsencode(tmp_path / "tokenizer.json"), place)

    said = run(elsewhere, "-c", DIGESTS).split()
    form = PromptFormat(str(tmp_path), "Ü: {{ messages[0].content }}")
    here = []
    for name in THIRTEEN:
        asked = task(name).with_corpora("builtin")
        made = generate(asked, 2048, 1, prompt_format=form)[0]
        here.append(made.digest.encode())
    assert said == here


@pytest.mark.slow
def test_commands(elsewhere):
    """Texts of one's own, values and names of models with letters that the locale lacks."""
    _, folder = elsewhere
    (folder / "essay.txt").write_text(ESSAY, encoding="utf-8")
    (folder / "p.yaml").write_text(
        "model: {base: perfect, name: b, label: 'Größe — 中文'}\ncorpora: {essay: essay.txt}\n",
        encoding="utf-8",
    )
    command = ["-m", "rulerkit", "evaluate", "-f", "p.yaml", "--tasks"]
    text = run(elsewhere, *command, "niah_single_2", "--lengths", "1K", "-n", "1")
    assert b"100.0" in text
    run(elsewhere, "-m", "rulerkit", "browse", "outputs")
    # As typed on a terminal that is in UTF-8 all the same.
    template = "template: 'Größe: {{ messages[0].content }}'"
    shown = run(elsewhere, *command[:2], "show", "--tasks", "vt", "-y", template)
    assert "Größe:".encode() in shown
