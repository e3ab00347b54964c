"""Models that think before they answer: prompts that let them, thoughts that are cut, counted and
never scored, and answers that are drawn."""

import re

import pandas as pd
import pytest

import rulerkit as rk
from rulerkit.batch.checks import Case, check_case
from rulerkit.common.errors import UserError
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import KNOWN, PromptFormat
from rulerkit.generation.tasks import task
from rulerkit.report.tables import usage_notes
from rulerkit.scoring.scores import answer_of
from rulerkit.store.comparable import check_same
from tests.records import predict
from tests.test_openai import client, error, server, some  # noqa: F401

OPEN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
OPEN += "<|im_start|>assistant\n"
TEMPLATES = {  # each family's way to open and to close a thought: template, end with and without
    "qwen": (
        OPEN + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
        "assistant\n",
        "<think>\n\n</think>\n\n",
    ),
    "always": (OPEN + "{{ '<think>\n' }}", "<think>\n", None),
    "deepseek": (
        OPEN + "{% if thinking %}<think>{% else %}</think>{% endif %}",
        "<think>",
        "</think>",
    ),
    "harmony": (
        "Reasoning: {{ reasoning_effort or 'medium' }}\n{{ messages[0].content }}<|start|>assistant"
        "{% if enable_thinking is false %}<|channel|>final<|message|>{% endif %}",
        "<|start|>assistant",
        "<|channel|>final<|message|>",
    ),
}
VT = task("vt").with_corpora("builtin")
NUMBER = re.compile(r"is: (\d{7})\.")


def prompt(**settings):
    return generate(VT, 2048, 1, prompt_format=PromptFormat(**settings))[0]


@pytest.mark.parametrize("family", TEMPLATES)
def test_prompts_end_where_the_model_thinks_or_answers(family):
    template, thinking, closed = TEMPLATES[family]
    thinks = prompt(template=template, thinking_tokens=500)
    assert thinks.prompt.endswith(thinking)
    assert "they are:" not in thinks.prompt[-100:]
    assert 2000 < thinks.num_tokens + thinks.max_new_tokens <= 2048
    kwargs = {"enable_thinking": False, "chat_template_kwargs": {"reasoning_effort": "low"}}
    answers = prompt(template=template, **kwargs)
    if closed is not None:
        assert answers.prompt.endswith(closed + answers.answer_prefix)
        assert answers.answer_prefix.startswith(" Answer:")
    assert ("Reasoning: low" in answers.prompt) == (family == "harmony")


@pytest.mark.parametrize(
    ("family", "spec", "seen"),
    [
        ("qwen", {"thinking_tokens": 64}, ""),
        ("qwen", {"enable_thinking": False}, ""),
        ("qwen", {"thinking_tokens": 64, "prefix_in": "assistant"}, "without a thought"),
        ("qwen", {"thinking_tokens": 64, "enable_thinking": False}, "before it begins"),
        ("always", {}, "no token is kept free"),
        ("harmony", {"thinking_tokens": 64}, ""),
    ],
)
def test_check_fails_where_thinking_cannot_work(family, spec, seen):
    template = TEMPLATES[family][0]
    model = rk.model(list, name="m", tokenizer="builtin", template=template, **spec)
    (example,) = generate(VT, 2048, 1, prompt_format=model.prompt_format)
    case = Case(model, VT, example)
    failed = [f.seen for f in check_case(case) if f.name == "thinking"]
    assert len(failed) == bool(seen)
    assert all(seen in reason for reason in failed)


@pytest.mark.parametrize("marks", KNOWN, ids=lambda marks: marks[1])
def test_a_thought_of_every_known_kind_is_no_answer(tmp_path, marks):
    beginning, end = marks
    written = {
        "{right}": 100,  # at once
        f"{beginning}no{end}{{right}}": 100,
        f"{beginning}{{right}}{end}I cannot tell. {beginning}{{right}}": 0,
        f"{beginning}{{right}}": 0,
        f"{beginning}quotes {end} and {{right}}{end}none": 0,
    }
    asked = {"tasks": ["niah_single_1"], "lengths": [2048], "num_examples": 2, "outputs": tmp_path}
    about = {"template": f"{{{{ messages[0].content }}}}{{# {end} #}}", "tokenizer": "builtin"}
    for number, (text, score) in enumerate(written.items()):

        def answer(prompts, text=text):
            return [text.format(right=NUMBER.search(prompt)[1]) for prompt in prompts]

        model = rk.model(answer, name=f"m{number}", **about, thinking_tokens=64)
        scores = rk.score(rk.evaluate(rk.study(model=model, **asked), progress=False))
        assert (100 * scores["score"]).tolist() == [score] * 2, text


def test_a_thought_with_unknown_marks_is_refused_or_its_marks_are_given():
    spec = {"name": "m", "tokenizer": "builtin", "thinking_tokens": 64}
    unknown = {"template": "<user>{{ messages[0].content }}<model>"}
    for more in (unknown, {"template": "base"}):
        with pytest.raises(UserError, match=r"no known mark.*thinking_marks: \["):
            _ = rk.model(list, **spec, **more).prompt_format
    own = ("<reason>", "</reason>")
    form = rk.model(list, **spec, **unknown, thinking_marks=list(own)).prompt_format
    assert form.thought == tuple(form.settings()["thinking_marks"]) == own
    record = {"result": {"prompt_format": form.settings()}}
    assert answer_of("<reason>1</reason>2", record) == ("2", False)
    assert answer_of("<reason>1", record) == ("", True)
    with pytest.raises(UserError, match=r"thinking_marks.*a list of two texts"):
        rk.model(list, **spec, thinking_marks=["<reason>"])


@pytest.mark.parametrize(
    ("text", "score", "is_cut"),
    [("<think>no</think>{}", 1, False), ("<think>it is {}", 0, True), ("{}", 1, False)],
)
def test_a_thought_is_counted_and_never_scored(server, tmp_path, text, score, is_cut):  # noqa: F811
    def amend(body, reply):
        choice = reply["choices"][0]
        choice["finish_reason"] = "length" if is_cut else "stop"
        choice["text"] = text.format(choice["text"])

    server.amend = amend
    marks = ["<think>", "</think>"]
    model = client(server, thinking_tokens=64, thinking_marks=marks)
    cell = predict(model, some(model, 2), tmp_path / "run", progress=False)
    scores = rk.score([cell])
    assert scores["score"].tolist() == [score] * 2
    assert scores["cut_thought"].tolist() == [is_cut] * 2
    assert (scores["reasoning_tokens"] > 0).tolist() == [text != "{}"] * 2
    assert server.real[-1]["max_tokens"] == some(model, 1)[0].max_new_tokens + 64


@pytest.mark.parametrize("cut", [False, True])
def test_hidden_reasoning_is_counted_by_the_service(server, tmp_path, cut):  # noqa: F811
    def amend(body, reply):
        if cut:
            reply["choices"][0] |= {"finish_reason": "length", "message": {"content": ""}}
        reply["usage"]["completion_tokens_details"] = {"reasoning_tokens": 41}

    def behave(body):  # as services with reasoning models do
        if "max_tokens" in body:
            return 400, {}, error("Unsupported: max_tokens; use max_completion_tokens")
        if body.get("temperature") == 0:
            return 400, {}, error("temperature must be 1")
        body["max_tokens"] = body["max_completion_tokens"]
        return None

    server.amend, server.behave = amend, behave
    model = client(server, prompt_path="chat", thinking_tokens=64)
    cell = predict(model, some(model, 2), tmp_path / "run", progress=False)
    scores = rk.score([cell])
    assert scores["reasoning_tokens"].tolist() == [41, 41]
    assert scores["cut_thought"].tolist() == scores["cut_off"].tolist() == [cut] * 2
    assert scores["score"].tolist() == [not cut] * 2
    assert usage_notes(scores) == ["Tokens thought by m, on average: 41 at 1K."]
    of_two_runs = usage_notes(pd.concat([scores, scores.assign(run="again")]))
    assert of_two_runs[1] == "Tokens thought by m [again], on average: 41 at 1K."
    told = cell.record["environment"]["server"]
    assert (told["limit_name"], told["takes_sampling"]) == ("max_completion_tokens", False)
    assert "temperature" not in server.seen[-1]


def test_what_is_drawn_is_sent_and_recorded(server, tmp_path):  # noqa: F811
    sampling = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    model = client(server, sampling=sampling)
    cell = predict(model, some(model, 2), tmp_path / "run", progress=False)
    sent = server.real[-1]
    assert (sent["temperature"], sent["top_k"], "seed" in sent) == (0.6, 20, False)
    assert cell.record["result"]["model"]["sampling"] == sampling
    with pytest.raises(UserError, match="in sampling 'temprature': did you mean 'temperature'"):
        client(server, sampling={"temprature": 1})


def test_room_beside_and_inside_never_share_a_table(tmp_path):
    cells = []
    for place in ("beside", "inside"):
        about = {"thinking_tokens": 100, "thinking_room": place, "tokenizer": "builtin"}
        about["thinking_marks"] = ["<think>", "</think>"]
        model = rk.model(lambda prompts: ["42"] * len(prompts), name=place, **about)
        asked = {"tasks": ["vt"], "lengths": [2048], "num_examples": 1, "outputs": tmp_path}
        cells += rk.evaluate(rk.study(model=model, **asked), progress=False)
    with pytest.raises(UserError, match="thinking_room"):
        check_same(cells)
