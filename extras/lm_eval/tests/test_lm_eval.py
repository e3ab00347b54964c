"""lm-evaluation-harness itself runs the tasks: its log holds our prompts, `rulerkit report` reads it,
and a run of ours pairs with it prompt by prompt."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.generation.tasks import read_answer

pytestmark = pytest.mark.slow

TASKS = Path(__file__).parents[1] / "rulerkit_lm_eval" / "tasks"
LENGTHS, NUM_EXAMPLES = ["2K", "4K"], 2
SMALL = Path(rk.__file__).parent / "data" / "small"


@pytest.fixture(autouse=True)
def harness():
    """The tests need it; the quick tests, which collect this file, do not import it."""
    # Its folder extras/lm_eval alone would be importable as `lm_eval`, too.
    pytest.importorskip("lm_eval.evaluator", reason="pip install extras/lm_eval")


def evaluated(tmp_path, answer, tasks=("rulerkit",), **metadata):
    """The results of a model that answers by a function of the prompt, and the folder of its log."""
    from lm_eval.api.model import LM
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    sent = []

    class FakeModel(LM):
        def generate_until(self, requests, disable_tqdm=False):
            sent.extend(request.args for request in requests)
            return [answer(request.args[0]) for request in requests]

        def loglikelihood(self, requests, disable_tqdm=False):
            raise NotImplementedError

        def loglikelihood_rolling(self, requests, disable_tqdm=False):
            raise NotImplementedError

    given = {"lengths": LENGTHS, "num_examples": NUM_EXAMPLES, "tokenizer": "builtin"} | metadata
    results = simple_evaluate(
        model=FakeModel(),
        tasks=list(tasks),
        task_manager=TaskManager(include_path=str(TASKS), metadata=given),
        log_samples=True,
        bootstrap_iters=0,
    )
    tracker = EvaluationTracker(output_path=str(tmp_path / "log"))
    tracker.general_config_tracker.model_name_sanitized = "fake"
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task, rows in samples.items():
        tracker.save_results_samples(task_name=task, samples=rows)
    return results, sent, tmp_path / "log"


def test_the_thirteen_tasks_have_our_prompts_rooms_and_scores(tmp_path):
    """Every second answer is right; the log is judged again, and the harness shows the same."""
    numbers = iter(range(10**6))

    def answer(prompt):
        return read_answer(prompt) if next(numbers) % 2 else "none"

    results, sent, log = evaluated(tmp_path, answer)
    read = rk.load(log)
    assert len(read) == len(sent) == 13 * 2 * NUM_EXAMPLES
    assert 0.3 < read["score"].mean() < 0.9

    for (task, length), rows in read.groupby(["task", "length"]):
        ours = rk.generate(task, length, NUM_EXAMPLES, corpora="builtin")
        assert set(rows["digest"]) == {example.digest for example in ours}
        assert set(rows["num_prompt_tokens"]) == {example.num_tokens for example in ours}
        shown = results["results"][f"rulerkit_{task}"][f"{length},none"]
        assert shown == pytest.approx(rows["score"].mean())

    rooms = {given["max_gen_toks"] for _, given in sent}
    assert rooms == {rk.task(name).answer_tokens for name in rk.THIRTEEN}
    for name in rk.THIRTEEN:
        config = results["configs"][f"rulerkit_{name}"]
        assert config["generation_kwargs"]["max_gen_toks"] == rk.task(name).answer_tokens


def test_a_run_of_ours_pairs_with_the_log_by_prompt(tmp_path):
    """The same answers on both sides: the comparison pairs all examples and sees no difference."""

    def answer(prompt):
        return read_answer(prompt) or ""

    *_, log = evaluated(tmp_path, answer, ["rulerkit_vt", "rulerkit_qa_1"])
    model = rk.model(lambda prompts: [answer(p) for p in prompts], name="m", tokenizer="builtin")
    study = rk.study(
        model=model,
        tasks=["vt", "qa_1"],
        lengths=LENGTHS,
        num_examples=NUM_EXAMPLES,
        outputs=str(tmp_path / "outputs"),
    )
    ours = rk.score(rk.evaluate(study, progress=False))
    theirs = rk.score(log)
    key = ["task", "length", "digest"]
    both = ours.merge(theirs, on=key, suffixes=("", "_theirs"))
    assert len(both) == len(ours) == len(theirs)
    assert both["score"].equals(both["score_theirs"])


def test_a_limit_leaves_as_many_examples_of_each_length(tmp_path):
    import rulerkit_lm_eval

    rows = rulerkit_lm_eval.examples("vt", "2K,4K", 3, tokenizer="builtin")["test"]
    assert list(rows["max_length"]) == [2048, 4096] * 3
    assert list(rows["index"]) == [0, 0, 1, 1, 2, 2]


def test_the_command_runs_a_model_and_its_log_is_reported(tmp_path, rulerkit):
    """`lm_eval run --model hf` with the small Llama, as the page says."""
    folder = subprocess.run(
        [sys.executable, "-m", "rulerkit_lm_eval"], capture_output=True, text=True, check=True
    ).stdout.strip()
    model = f"pretrained={SMALL / 'llama'},tokenizer={SMALL / 'tokenizer'},max_length=4096"
    asked = json.dumps({"lengths": ["1K"], "num_examples": 2})
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args", model]
    command += ["--tasks", "rulerkit_vt", "--include_path", folder, "--metadata", asked]
    command += ["--log_samples", "-o", str(tmp_path / "log"), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    ended = rulerkit("report", tmp_path / "log")
    assert "vt" in ended.out
    assert len(rk.load(tmp_path / "log")) == 2
