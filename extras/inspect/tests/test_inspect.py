"""inspect_ai: its mock model, and a local server that speaks OpenAI's protocol, answer the task; logs
are read back and scored as `evaluate` scores the same answers."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from hashlib import sha1
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.common.plugins import load_plugins
from rulerkit.generation.tasks import read_answer
from rulerkit.generation.tokenizers import load_tokenizer
from rulerkit.store.predictions import read_predictions
from tests.conftest import ENCODINGS, data  # noqa: F401
from tests.test_openai import serving
from tests.text_server import ReaderServer

ASKED = {"tasks": "vt,qa_1", "lengths": "1K", "num_examples": 3}


def needs_inspect():
    load_plugins(["rulerkit_inspect"])
    return pytest.importorskip("inspect_ai", reason="pip install -e extras/inspect")


ENCODING = f"{ENCODINGS}/o200k_base.tiktoken"
"""What the mock model counts with; tiktoken would download it."""


@pytest.mark.slow
def test_the_command_finds_the_task_and_its_log_is_scored(tmp_path, data):  # noqa: F811
    """`inspect eval rulerkit_inspect/ruler --model mockllm/model`, in a process of its own."""
    needs_inspect()
    points = entry_points(group="inspect_ai")
    if "rulerkit_inspect" not in {point.name for point in points}:
        pytest.skip("extras/inspect is not installed: its entry point is not there")
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.copyfile(
        data / "tokenizers/openai/o200k_base.tiktoken", cache / sha1(ENCODING.encode()).hexdigest()
    )
    logs = tmp_path / "logs"
    given = [f"-T{name}={value}" for name, value in ASKED.items()]
    asked = [*given, "--model", "mockllm/model", "--display", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "inspect_ai", "eval", "rulerkit_inspect/ruler", *asked]
        + ["--log-dir", logs],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "TIKTOKEN_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = logs.glob("*.eval")
    results = rk.load(log)
    assert len(results) == 6
    assert set(results["score"]) == {0.0}
    assert set(results["prediction"]) == {"Default output from mockllm/model"}
    assert set(results["task"]) == {"vt", "qa_1"}
    # A folder of logs, too; and both leave no file beside them.
    assert len(rk.load(logs)) == 6
    assert list(logs.iterdir()) == [log]


def evaluated(tmp_path, answer, **more):
    """The log of a mock model that answers by a function of the prompt."""
    inspect_ai = needs_inspect()
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from rulerkit_inspect.tasks import ruler

    def said(messages, *_):
        output = answer(messages[-1].text)
        if isinstance(output, str):
            output = ModelOutput.from_content("mockllm/model", output)
        # Without counts of its own the mock model counts with a tokenizer of the network.
        output.usage = ModelUsage(input_tokens=900, output_tokens=9, total_tokens=909)
        return output

    (log,) = inspect_ai.eval(
        ruler(**ASKED | more),
        model=get_model("mockllm/model", custom_outputs=said),
        log_dir=str(tmp_path),
        display="none",
    )
    return log


@pytest.mark.slow
def test_a_local_server_gets_the_score_that_evaluate_gives(tmp_path):
    """The same prompts and answers, by inspect's provider and by rulerkit."""
    needs_inspect()
    pytest.importorskip("openai", reason="pip install openai")
    import inspect_ai
    from inspect_ai.model import get_model
    from rulerkit_inspect.tasks import ruler

    def with_total(_, reply):
        usage = reply["usage"]
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]

    with serving(ReaderServer(load_tokenizer("builtin"))) as server:
        server.amend = with_total
        model = get_model("openai-api/local/m", base_url=server.url, api_key="none")
        (log,) = inspect_ai.eval(
            ruler(**ASKED | {"tasks": "vt,niah_single_2,qa_1"}),
            model=model,
            log_dir=str(tmp_path),
            display="none",
        )
        assert log.status == "success", log.error
        described = {
            "path": "m",
            "base_url": server.url,
            "tokenizer": "builtin",
            "prompt_path": "chat",
            "template": "base",
            "prefix_in": "user",
        }
        study = rk.study(
            model=described,
            tasks=["vt", "niah_single_2", "qa_1"],
            lengths=[1024],
            num_examples=3,
            outputs=str(tmp_path / "outputs"),
        )
        ours = rk.score(rk.evaluate(study, progress=False))

    (file,) = tmp_path.glob("*.eval")
    columns = ["task", "length", "index", "digest", "score"]
    theirs = rk.score(read_predictions(file))
    one, other = (
        frame[columns].sort_values(columns[:3]).reset_index(drop=True) for frame in (ours, theirs)
    )
    assert one.equals(other)
    assert ours["score"].mean() > 0.5
    # What inspect shows is the same mean.
    (cells, *_) = log.results.scores
    shown = {name: metric.value for name, metric in cells.metrics.items()}
    for task, score in ours.groupby("task")["score"].mean().items():
        assert shown[f"{task}/1024"] == pytest.approx(score)


SMALL = Path(rk.__file__).parent / "data/small"


def small_llama(**more):
    """The small Llama of the package, which has no chat template, by inspect's provider `hf`."""
    from inspect_ai.model import get_model

    paths = {"model_path": str(SMALL / "llama"), "tokenizer_path": str(SMALL / "tokenizer")}
    return get_model("hf/local", device="cpu", **paths, **more)


@pytest.mark.slow
def test_a_base_model_gets_the_prompts_and_answers_of_our_own_engine(tmp_path):
    """The provider `hf` sends the prompt as it is, and draws nothing."""
    inspect_ai = needs_inspect()
    pytest.importorskip("torch", reason='pip install ".[transformers]"')
    from rulerkit_inspect.tasks import ruler

    asked = {"tasks": "vt,niah_single_1", "lengths": "1K", "num_examples": 3}
    (log,) = inspect_ai.eval(
        ruler(**asked, prefix_in="assistant", tokenizer=str(SMALL / "tokenizer")),
        model=small_llama(chat_template="{{ messages[0].content }}"),
        log_dir=str(tmp_path),
        display="none",
    )
    assert log.status == "success", log.error
    study = rk.study(
        model="small-llama",
        tasks=["vt", "niah_single_1"],
        lengths=["1K"],
        num_examples=3,
        outputs=str(tmp_path / "outputs"),
    )
    columns = ["task", "index", "digest", "prediction"]
    ours = rk.load(rk.evaluate(study, progress=False)).sort_values(columns)[columns]
    (file,) = tmp_path.glob("*.eval")
    theirs = rk.load(file).sort_values(columns)[columns]
    assert theirs.values.tolist() == ours.values.tolist()


@pytest.mark.slow
def test_a_base_model_without_a_template_is_refused(tmp_path):
    """Else inspect writes "user: " before each prompt, and the log does not say so."""
    inspect_ai = needs_inspect()
    pytest.importorskip("torch", reason='pip install ".[transformers]"')
    from rulerkit_inspect.tasks import ruler

    (log,) = inspect_ai.eval(
        ruler(tasks="vt", lengths="1K", num_examples=1),
        model=small_llama(),
        log_dir=str(tmp_path),
        display="none",
    )
    assert log.status == "error"
    assert "give -T prefix_in=assistant" in log.error.message


@pytest.mark.slow
def test_a_template_of_ours_is_for_providers_that_send_the_message_as_it_is():
    needs_inspect()
    from rulerkit_inspect.tasks import ruler

    with pytest.raises(UserError, match="prefix_in=assistant"):
        ruler(tasks="vt", lengths="1K", num_examples=1, template="auto")


@pytest.mark.slow
def test_a_mock_model_is_judged_as_rulerkit_judges(tmp_path):
    """What inspect shows is the mean of what `score` says of the log."""
    right = [True, False, True]
    asked = iter(range(100))

    def answer(prompt):
        number = next(asked)
        return (read_answer(prompt) or "") if right[number % 3] else "No."

    log = evaluated(tmp_path, answer, tasks="vt,niah_single_2")
    assert log.status == "success", log.error
    assert {score.scorer for score in log.results.scores} == {"string_match"}
    (cells, *_) = log.results.scores
    shown = {name: metric.value for name, metric in cells.metrics.items()}
    (file,) = tmp_path.glob("*.eval")
    scores = rk.score(read_predictions(file))
    assert len(scores) == 6
    assert scores["score"].sum() == 4
    for task, score in scores.groupby("task")["score"].mean().items():
        assert shown[f"{task}/1024"] == pytest.approx(score)


@pytest.mark.slow
def test_thoughts_limits_and_errors_of_a_log(tmp_path):
    """A thought is no answer, an answer that was cut says so, and an error is no zero."""
    needs_inspect()
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ContentReasoning,
        ContentText,
        ModelOutput,
    )

    asked = iter(range(100))

    def answer(prompt):
        number = next(asked)
        right = read_answer(prompt) or ""
        if number == 0:
            content = [ContentReasoning(reasoning=right), ContentText(text="No.")]
        elif number == 1:
            content = [ContentReasoning(reasoning="so"), ContentText(text=right)]
        elif number == 2:
            content = f"<think>{right}"
        else:
            raise RuntimeError("out of order")
        message = ChatMessageAssistant(content=content)
        stop = "max_tokens" if number == 2 else "stop"
        choice = ChatCompletionChoice(message=message, stop_reason=stop)
        return ModelOutput(model="m", choices=[choice])

    with suppress(Exception):
        evaluated(tmp_path, answer, tasks="vt", num_examples=4, thinking_tokens=500)
    (file,) = tmp_path.glob("*.eval")
    rows = rk.load(file)
    assert sorted(rows["score"]) == [0.0, 0.0, 1.0]
    assert rows["cut_off"].sum() == 1
    summary = rk.summarize(rk.score(read_predictions(file)))
    assert not summary.cells.iloc[0]["complete"]


def test_the_package_passes_the_lint_of_inspects_register():
    lint = Path(sys.executable).with_name("inspect-evals-lint")
    if not lint.exists():
        pytest.skip("pip install inspect-evals-lint")
    package = Path(__file__).parents[1]
    task = "rulerkit_inspect/tasks.py"
    done = subprocess.run(
        [lint, "--root", package, "--task", task], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_damaged_log_is_named(tmp_path):
    needs_inspect()
    file = tmp_path / "one.eval"
    file.write_bytes(b"no zip")
    with pytest.raises(UserError, match="cannot be read as a log"):
        read_predictions(file)
