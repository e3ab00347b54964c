"""A fresh seed is drawn once for a run and kept; a model is compared on public and on unseen
questions."""

import json

import pytest

import rulerkit as rk
from rulerkit.batch.batch_file import read_batch
from rulerkit.common.errors import UserError

ASKED = {"tasks": ["vt", "niah_single_2"], "lengths": [1024], "num_examples": 12}


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    return tmp_path


def test_a_fresh_seed_is_drawn_once_for_a_run_and_recorded(project):
    seed = rk.study(run="a", seed="fresh").seed
    assert rk.study(run="a", seed="fresh").seed == seed
    others = {rk.study(run=name, seed="fresh").seed for name in "bcde"}
    assert len(others - {seed, 42}) > 1
    assert (project / "outputs/predictions/a/seed.txt").read_text() == f"{seed}\n"

    (project / "outputs/predictions/a/seed.txt").write_text("")
    with pytest.raises(UserError, match="does not hold the seed of run a"):
        rk.study(run="a", seed="fresh")
    with pytest.raises(UserError, match="seed"):
        rk.study(seed="new")


def test_a_run_with_answers_gets_no_fresh_seed(project):
    """A number that was never asked would be a seed of nothing."""
    rk.evaluate(rk.study(**ASKED | {"num_examples": 1}, model="mute"), progress=False)
    with pytest.raises(UserError, match="run main has answers, and no fresh seed"):
        rk.study(seed="fresh")
    assert not (project / "outputs/predictions/main/seed.txt").exists()


def test_all_jobs_of_a_batch_have_the_seed_that_was_drawn(project):
    file = project / "mine.yaml"
    content = {"models": ["mute", "perfect"], "together": ["01_main_results"]}
    file.write_text(json.dumps(content))
    jobs = read_batch(file, {"seed": "fresh"}).jobs
    (seed,) = {study.seed for job in jobs for study in job.studies}
    assert {job.run.parameters["seed"] for job in jobs if job.run} == {seed}
    again = read_batch(file, {"seed": "fresh"}).jobs
    assert [job.studies for job in again] == [job.studies for job in jobs]
