"""`rulerkit fetch`: each repository of the hub once, and one line for each that cannot be had."""

import pytest

import rulerkit as rk
from rulerkit.common import hub
from rulerkit.common.errors import UserError


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """What the hub is asked for; it has all but org/none."""
    asked = []

    def download(who, path, revision, patterns):
        if path == "org/none":
            raise UserError(f"{who}: there is no such repository")
        asked.append((path, revision, list(patterns)))
        return tmp_path / path

    monkeypatch.setattr(hub, "download", download)
    monkeypatch.setattr(rk, "load_tokenizer", lambda name: asked.append((name, None, [])))
    return asked


def test_models_and_their_tokenizers_are_fetched(rulerkit, fetched):
    models = """
    - {name: plain, engine: transformers, path: org/plain}
    - {name: other, engine: vllm, path: org/plain, tokenizer: org/words, revision: v2}
    - {name: rwkv, engine: rwkv, path: org/rwkv/x.pth, tokenizer: builtin}
    - reader-4096
    """
    said = rulerkit("fetch", "-y", f"models:{models}")
    assert said.status == 0, said
    assert fetched[0] == ("org/plain", None, ["*"])
    assert fetched[1] == ("org/plain", "v2", ["*"])
    assert fetched[2][0] == "org/words"
    assert fetched[3] == ("org/rwkv", None, ["x.pth"])
    assert said.out.count("there ") == len(fetched) == 4


def test_what_cannot_be_had_is_one_line_and_the_others_go_on(rulerkit, fetched):
    models = """
    - {name: none, engine: transformers, path: org/none}
    - {name: plain, engine: transformers, path: org/plain}
    """
    said = rulerkit("fetch", "-y", f"models:{models}")
    assert said.status == 1
    assert "failed   model none: there is no such repository" in said.out
    assert [path for path, *_ in fetched] == ["org/plain"]
