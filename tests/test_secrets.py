"""Nothing that others can read tells a secret: what is hidden of texts and mappings, and what a run
with keys in six places leaves behind."""

import json
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.batch.jobs import Job
from rulerkit.common.errors import UserError
from rulerkit.common.hidden import hide, secrets_in
from rulerkit.common.model_files import read_spec
from rulerkit.generation.tokenizers import load_tokenizer
from tests.batches import Project
from tests.test_openai import serving
from tests.text_server import PROBE, ReaderServer


def test_what_is_hidden():
    """By its name, and of an address its user and its query."""
    given = {
        "base_url": ["https://me:pw@host/v1?code=1", "http://host/v1"],
        "headers": {"X-Team": "a", "Authorization": "Bearer b"},
        "extra_body": {"api_key": "c", "data": [{"password": "d", "top_k": 1}]},
        "path": "org/name",
    }
    assert hide(given) == {
        "base_url": ["https://***@host/v1?***", "http://host/v1"],
        "headers": "***",
        "extra_body": {"api_key": "***", "data": [{"password": "***", "top_k": 1}]},
        "path": "org/name",
    }
    assert set(secrets_in(given)) == {"Bearer", "b", "c", "d"}


def test_a_key_in_a_mapping_is_in_no_name_and_no_message():
    """The message names the key that is meant, in whole words."""
    spec = {"base": "gpt-4-1106", "api_key": "Tulip4711Ochre"}
    with pytest.raises(UserError, match="did you mean 'api_key_env'") as caught:
        read_spec(spec)
    assert "Tulip" not in str(caught.value)


PLANTED = {
    "api_key": "Tulip4711Ochre",
    "password": "Maple3388Coral",
    "query": "Birch6120Amber",
    "extra_body": "Otter7743Ivory",
    "environment": "Finch2917Olive",
    "header": "Egret8064Umber",
}
"""Keys by their place; the server repeats all that it is sent, which is the seventh."""
FORMS = [value.encode() for value in PLANTED.values()]
FORMS += [b64encode(b"alice:" + PLANTED["password"].encode())]
SMALL = ["--tasks", "vt,qa_1", "--lengths", "1024", "-n", "4"]


class Echo:
    """A server that repeats what it is sent, in every fifth answer as an error, and looks at the
    list of processes."""

    def __init__(self, server):
        self.server, self.asked, self.commands = server, 0, set()
        server.behave, server.amend = self.behave, self.amend

    def behave(self, body):
        self.asked += 1
        if not isinstance(body.get("prompt", ""), str):
            return 400, {}, {"error": {"message": "prompt must be a string"}}
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.commands.add(file.read_bytes())
            except OSError:
                continue
        if body["max_tokens"] != PROBE and self.asked % 5 == 0:
            return 400, {}, {"error": {"message": self.repeat(body)}}
        return None

    def amend(self, body, reply):
        reply["model"] = reply["system_fingerprint"] = self.repeat(body)

    def repeat(self, body):
        sent = f"{self.server.authorization} {json.dumps(body)[-200:]}"
        if PLANTED["environment"] in sent:
            names = ("query", "extra_body", "header")
            keys = [PLANTED[name] for name in names]
            sent += f" {self.server.url}?code={keys[0]} wrong: {' '.join(keys[1:])}"
        return sent


def plant(project, server):
    """Files that only their user can read, with the keys in them: two models, and one with a key
    where none may be."""
    common = {"path": "m", "tokenizer": "builtin", "prompt_path": "text"}
    keyed = {
        "base_url": f"{server.url}?code={PLANTED['query']}",
        "api_key_env": "A_KEY_OF_OURS",
        "headers": {"X-Access": "$A_HEADER_OF_OURS"},
        "extra_body": {"data": {"api_key": PLANTED["extra_body"]}},
    }
    user = f"//alice:{PLANTED['password']}@"
    owned = {"base_url": server.url.replace("//", user)}
    wrong = {"base_url": server.url, "api_key": PLANTED["api_key"]}
    for name, spec in {"keyed": keyed, "owned": owned, "wrong": wrong}.items():
        folder = "params" if name == "wrong" else "params/models"
        file = project.root / folder / f"{name}.yaml"
        file.touch(0o600)
        file.write_text(json.dumps({"model": {"name": name, **common, **spec}}))


def commands(project):
    """Everything that asks a model, and everything that shows what was stored."""
    run, made = "outputs/predictions/main", project.root / "made"
    project.notebook("05_asks")
    parameters = {"tasks": ["vt", "qa_1"], "lengths": [1024], "num_examples": 4}
    notebooks = {"notebooks": ["05_asks", "01_main_results"], "parameters": parameters}
    batch = project.batch({"models": ["keyed", "owned"], **notebooks})
    yield "evaluate", "-f", project.root / "params/wrong.yaml", *SMALL
    for model in ("keyed", "owned"):
        yield "check", model
        yield "evaluate", model, *SMALL
    yield "evaluate", "keyed", "--dry-run"
    for command in ("batch", "status"):
        yield command, batch
    # Every third reply is an error: by chance all of one small cell may be.
    some = ("-y", "max_failures: 1")
    if find_spec("rulerkit_gate"):
        yield ("gate", "keyed", "owned", *SMALL, *some)
    yield "compare", f"{run}/keyed", f"{run}/owned"
    for by in ("model", "task"):
        yield "report", run, "--by", by
    yield "browse", run, "-o", made / "answers.html"
    for ending in ("csv", "jsonl"):
        yield "report", run, "--by", "example", "-o", made / f"all.{ending}"


@pytest.mark.slow
def test_planted_keys_stand_in_nothing_that_others_can_read(tmp_path):
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project")
    (project.root / "made").mkdir()
    environment = {"A_KEY_OF_OURS": PLANTED["environment"], "A_HEADER_OF_OURS": PLANTED["header"]}
    with serving(ReaderServer(load_tokenizer("builtin"))) as server:
        echo = Echo(server)
        plant(project, server)
        for words in commands(project):
            ended = project.call(*words, cwd=project.root, **environment)
            said = (ended.stdout + ended.stderr).encode()
            assert [form for form in FORMS if form in said] == [], words

    text = b"".join(echo.commands)
    assert b"papermill" in text or b"rulerkit" in text
    assert [form for form in FORMS if form in text] == []
    private = 0
    for file in tmp_path.rglob("*"):
        assert not any(form.decode() in file.name for form in FORMS), file
        if file.is_file():
            found = [form for form in FORMS if form in file.read_bytes()]
            private += bool(found)
            assert found == [] or not file.stat().st_mode & 0o077, file
    # The three files above.
    assert private == 3
    assert len(list((project.root / "made").iterdir())) == 3
    rows = (tmp_path / "project/outputs/predictions/main").rglob("1024.jsonl")
    assert sum(file.stat().st_size > 0 for file in rows) == 4


def test_no_notebook_of_a_batch_is_told_a_key():
    model = {"engine": "openai", "path": "m", "base_url": "http://localhost:9/v1"}
    model |= {"name": "m", "tokenizer": "builtin", "api_key_env": "A_KEY_OF_OURS"}
    model["headers"] = {"X-Access": "A_KEY_OF_OURS"}
    own = {"notebook": Path("asks.ipynb"), "parameters": {"model": model}}
    job = Job(Path(), "server", "asks", (), **own)
    assert "A_KEY_OF_OURS" not in job.given
    # And the notebook can still read what it is given.
    assert "api_key_env" not in rk.study(json.loads(job.given)).models[0]
