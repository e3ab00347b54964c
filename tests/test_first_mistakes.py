"""Likely first mistakes: each is one line that says what is wrong, and what to do."""

import pytest

MISTAKES = {
    "evaluate": ("no model is named", "`rulerkit models`"),
    "evaluate lama-3.1-8b": ("did you mean 'llama-3.1-8b'", "`rulerkit models`"),
    "evaluate ./ck": ("there is no folder", "ck"),
    "evaluate ./empty": ("empty", "config.json"),
    "evaluate perfect --tasks niah_singel_1": ("did you mean 'niah_single_1'", "`rulerkit tasks`"),
    "evaluate perfect --lengths 4KB": ("'4KB' is no length", "4K"),
    "evaluate http://127.0.0.1:1": ("nothing answers at", "start the server"),
    "evaluate {not_openai}": ("is no list of models", "/v1"),
    "evaluate perfect reader-4096": ("one MODEL is meant", "perfect and reader-4096"),
    "evaluate perfect|-y|model: reader-4096": ("one MODEL is meant", "perfect and `model: 'reader-4096'`"),
    "evaluate -f params/models/perfekt.yaml": ("cannot read", "perfekt.yaml"),
    "evaluate perfect -n many": ("-n", "valid integer", "rulerkit evaluate --help"),
    "evaluate perfect|-y|lengths=4K": ("holds no `name: value`", "write it like -y"),
    "compare perfect mute": ("unknown model or folder of predictions", "predictions"),
    "modles": ("No such command 'modles'", "models"),
    "evaluate perfect --tasks vt --lengths 200": ("not fit into 200 tokens",),
    "evaluate perfect --tasks|[vt, {base: cwe, name: vt}]": ("vt is another task's name",),
    "evaluate -f params/batches/demo.yaml": ("is a batch file: `rulerkit batch FILE` runs it",),
    "show --tasks|{base: vt, num_hopz: 3}": ("unknown setting of vt", "did you mean 'num_hops'"),
    "show --tasks vt --lengths 300": ("does not fit into 300 tokens", "longer length"),
    "report .": ("no predictions in /", "no file of ours"),
    "report nothere": ("/nothere: no such file or folder",),
    f"evaluate {'a' * 300}": ("unknown model", "`rulerkit models`"),
    f"report {'a' * 300}": ("unknown model or folder of predictions",),
    f"status {'a' * 300}": ("cannot read", "File name too long"),
}  # fmt: skip
"""What somebody types first, and what the one line must say: what is wrong, and what to do."""


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_first_mistake_is_one_line_with_the_way_out(nowhere, serve, rulerkit, typed):
    (nowhere / "empty").mkdir()
    text = typed
    if "{not_openai}" in typed:
        server = serve()
        server.listing = {"detail": "Not Found"}
        text = typed.replace("{not_openai}", server.url)
    words = []
    for part in text.split("|"):
        words += [part] if ": " in part or "=" in part else part.split()
    ended = rulerkit(*words)
    assert ended.status == 2, ended
    (line,) = ended.lines
    assert line.startswith("rulerkit: ")
    assert [part for part in MISTAKES[typed] if part not in line] == [], line
    assert list(nowhere.rglob("*.jsonl")) == []
