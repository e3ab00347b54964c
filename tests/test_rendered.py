"""The forms of models without a Jinja template, as a server renders them: had once, stored, used
without a server, and checked where one runs."""

import json
from datetime import date

import pytest

from rulerkit.common.errors import UserError
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tokenizers import load_tokenizer
from rulerkit.inference.access import Address
from rulerkit.inference.model import load_model
from scripts.store_form import check_form, compare_with_server, store_form
from tests.test_openai import serving
from tests.text_server import ReaderServer
from tests.tiny_llama import save_tokenizer

MARKS = ("<|user|>", "<|assistant|>", "<think>", "</think>", '"quoted\\n"')


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A chat model without a template, in a project of its own."""
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    save_tokenizer(tmp_path / "m", ["words to learn"], 400, *MARKS)
    config = {"model_type": "llama", "max_position_embeddings": 8192}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    return tmp_path / "m"


@pytest.fixture
def server(folder):
    """Its form is code, which only the server knows."""
    tokenizer = load_tokenizer(str(folder))

    def render(body):
        thinks = body.get("chat_template_kwargs", {}).get("thinking", True)
        (message,) = body["messages"]
        system = '<s>{% "quoted\\n" é }'
        end = f"<|assistant|>{'<think>' if thinks else '</think>'}\n"
        text = f"{system}<|user|>{message['content']}{end}"
        return tokenizer.encode(text).tolist()

    server = ReaderServer(tokenizer)
    server.render = render
    with serving(server):
        yield server


def described(folder, **more):
    about = {"name": "m", "engine": "vllm", "path": str(folder), "dtype": "float32"}
    return json.dumps(about | {"aligned": "chat"} | more)


def test_a_form_is_had_from_a_server_and_used_without_one(folder, server, rulerkit, capsys):
    model = described(folder)
    ended = rulerkit("check", model, "--tasks", "vt", "--lengths", "8K")
    assert "scripts/store_form.py" in ended.out + ended.err

    store_form(model, server.url)
    file = folder.parent / "params/forms/m.jinja"
    assert str(file) in capsys.readouterr().out
    for thinks, mark in ((None, "<think>"), (True, "<think>"), (False, "</think>")):
        more = {} if thinks is None else {"enable_thinking": thinks}
        form = load_model(json.loads(described(folder, **more))).prompt_format
        assert form.around == ('<s>{% "quoted\\n" é }<|user|>', f"<|assistant|>{mark}\n")
        assert form.bos == ()
        assert form.opens_thought == (thinks is not False)

    # Another model takes it by its name.
    other = described(folder, name="other", template="m", enable_thinking=False)
    ended = rulerkit("check", other, "--tasks", "vt", "--lengths", "8K")
    assert ended.status == 0, ended.out + ended.err


def test_the_form_that_is_used_is_compared_with_what_a_server_renders(folder, server, capsys):
    form = '<s>{% raw %}{% "quoted\\n" é }{% endraw %}<|user|>'
    form += "{{ messages[0].content }}<|assistant|></think>\n"
    about = {"enable_thinking": False, "max_length": "8K"}
    with pytest.raises(UserError, match=r"there '\\n'") as caught:
        # A last newline is what templates lose most often.
        check_form(described(folder, template=form.removesuffix("\n"), **about), server.url)
    assert "stands here ''" in str(caught.value)
    check_form(described(folder, template=form + "\n", **about), server.url)
    assert "renders are ours" in capsys.readouterr().out


def test_a_date_that_a_template_prints_is_no_difference(folder, server):
    tokenizer = load_tokenizer(str(folder))
    form = PromptFormat(tokenizer, "{{ strftime_now('%d %b %Y') }}|{{ messages[0].content }}")
    for day, said in ((date.today(), ""), (date(1999, 6, 12), "there '12 Jun 1999")):
        before = f"{day:%d %b %Y}|"
        server.render = lambda body, before=before: tokenizer.encode(
            before + body["messages"][0]["content"]
        ).tolist()
        found = compare_with_server(form, Address(server.url, "k"), "m")
        assert said in found
        assert bool(said) == bool(found)
