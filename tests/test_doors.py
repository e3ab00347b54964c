"""The doors to where people are: the action for pull requests, the page for assistants, NeMo Gym."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import rulerkit as rk
from tests.conftest import needs_extras

ROOT = Path(__file__).resolve().parent.parent


ENDS = [(0, "fail", 0), (1, "pass", 1), (3, "fail", 3), (3, "pass", 0), (2, "pass", 2)]


@pytest.mark.parametrize(("verdict", "undecided", "ends"), ENDS)
def test_the_action_ends_as_the_gate_does(tmp_path, verdict, undecided, ends):
    """Its script, with a program in place of uvx that prints what it was given."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    (script,) = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    program = tmp_path / "uvx"
    program.write_text(f'#!/bin/sh\nprintf "%s|" "$@"\nexit {verdict}\n')
    program.chmod(0o755)
    summary, outputs = tmp_path / "summary", tmp_path / "outputs"
    given = {"BASELINE": "http://a b", "CANDIDATE": "c", "OPTIONS": "--minutes 30"}
    given |= {"UNDECIDED": undecided, "GITHUB_ACTION_PATH": "/kit", "RUNNER_TEMP": str(tmp_path)}
    given |= {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(outputs)}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(shell, env={"PATH": f"{tmp_path}:/usr/bin:/bin", **given})
    assert done.returncode == ends
    assert outputs.read_text() == f"status={verdict}\n"
    words = summary.read_text().split("|")
    assert words[:8] == ["--from", "/kit", "rulerkit", "gate", "http://a b", "c", "--minutes", "30"]


def test_the_options_of_the_action_are_those_of_the_gate():
    gate = pytest.importorskip("rulerkit_gate.command")
    known = {name for option in get_command(gate.app).params for name in option.opts}
    script = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert {*re.findall(r"(--(?!from)[a-z-]+)", script)} <= known


@pytest.mark.slow
def test_the_commands_of_the_skill_run(tmp_path, monkeypatch, rulerkit):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    text = (ROOT / "skills/rulerkit/SKILL.md").read_text(encoding="utf-8")
    for name in ("reader-1024", "reader-2048"):
        rulerkit("evaluate", name, "--tasks", "vt", "--lengths", "1K,2K", "-n", "2")
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
        for command in block.strip().splitlines():
            ended = rulerkit(*command.split()[1:])
            assert ended.status in ((0, 1, 3) if " compare " in command else (0,)), ended.err


def rewarded(subset, text, references):
    """The reward of Gym's server `ruler` (nemo-gym 0.7.0, resources_servers/ruler/app.py)."""
    found = [1.0 if r.lower() in text.strip().lower() else 0.0 for r in references]
    return max(found) if subset in ("qa_1", "qa_2") else sum(found) / len(found)


@needs_extras
def test_rollouts_of_gym_get_its_rewards_as_scores(tmp_path):
    """Right answers, the first reference alone, and none."""
    script = [sys.executable, ROOT / "examples/nemo_gym.py"]
    rows_file, rollouts, folder = tmp_path / "rows", tmp_path / "rollouts", tmp_path / "gym/m"
    asked = ["--tasks", "vt,qa_1,niah_multivalue", "--lengths", "2K", "-n", "6"]
    subprocess.run([*script, "write", rows_file, *asked], check=True)

    rewards, lines = {}, []
    for number, line in enumerate(rows_file.read_text().splitlines()):
        row = json.loads(line)
        prompt = row["responses_create_params"]["input"][0]["content"]
        text = [rk.read_answer(prompt), row["outputs"][0], "I do not know."][number % 3]
        reward = rewarded(row["subset"], text, row["outputs"])
        rewards.setdefault(row["subset"], []).append(reward)
        response = {"output": [{"type": "message", "content": [{"text": text}]}]}
        lines.append(json.dumps(row | {"response": response, "reward": reward}))
    rollouts.write_text("\n".join(lines))

    subprocess.run([*script, "read", rollouts, folder], check=True)
    read = rk.load(folder).sort_values("index")
    assert len(read) == 18
    for task, scores in read.groupby("task")["score"]:
        assert list(scores) == pytest.approx(rewards[task])
        assert 0 < scores.mean() < 1
