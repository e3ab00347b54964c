"""What lies in an object that answers belongs to its identity: a change is never answered from what
is stored."""

import importlib
import shutil
import socket
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest

import rulerkit as rk
from rulerkit.inference.object_state import contents_of
from tests.tiny_llama import save_llama, save_tokenizer


def state_of(value):
    return contents_of(value).state


class Counting:
    def __init__(self, ratio):
        self.ratio, self.weights = ratio, np.arange(4.0) * ratio
        self.lock, self.log, self.calls = threading.Lock(), [], 0

    def __call__(self, prompts):
        self.log.append(len(prompts))
        self.calls += 1
        return [f"ratio {self.ratio}"] * len(prompts)


class Slotted:
    __slots__ = ("ratio",)

    def __init__(self, ratio):
        self.ratio = ratio

    def __call__(self, prompts):
        return [f"ratio {self.ratio}"] * len(prompts)


class Array:
    def __init__(self, ratio):
        self.weights = np.zeros((8, 8))
        self.weights[3, 5] = ratio

    def __call__(self, prompts):
        return [f"ratio {self.weights[3, 5]}"] * len(prompts)


def closure(ratio):
    held = Counting(ratio)

    def answer(prompts):
        return held(prompts)

    return answer


def with_ratio(prompts, ratio):
    return [f"ratio {ratio}"] * len(prompts)


def bound(ratio):
    return partial(with_ratio, ratio=ratio)


def method(ratio):
    return Counting(ratio).__call__


def asked(function, folder, **more):
    study = rk.study(
        model=rk.model(function, name="m"),
        tasks=["niah_single_1"],
        lengths=[1024],
        num_examples=2,
        outputs=folder,
        **more,
    )
    (cell,) = rk.evaluate(study, progress=False)
    return {row["pred"] for row in cell.rows}


@pytest.mark.parametrize("make", [Counting, Slotted, Array, closure, bound, method])
def test_a_changed_object_is_asked_anew_and_an_unchanged_one_is_not(make, tmp_path, capsys):
    assert asked(make(0.5), tmp_path) == {"ratio 0.5"}
    again = make(0.5)
    assert asked(again, tmp_path) == asked(again, tmp_path) == {"ratio 0.5"}
    assert capsys.readouterr().err.count("nothing was asked") == 2

    assert asked(make(0.9), tmp_path) == {"ratio 0.9"}
    said = capsys.readouterr().err
    assert "m: what lies in it is not what answered before" in said
    assert "so it is asked as m-" in said
    old, new = sorted((tmp_path / "predictions/main").iterdir())
    assert old.name == "m"
    assert f"asked as {new.name};" in said

    # Both are there, each is found again, and a table tells them apart.
    for ratio in (0.5, 0.9):
        assert asked(make(ratio), tmp_path) == {f"ratio {ratio}"}
    assert capsys.readouterr().err.count("nothing was asked") == 2
    scores = rk.score(rk.read_cells(tmp_path / "predictions"))
    assert set(scores["model"]) == {"m", new.name}
    assert scores["label"].nunique() == 2


def test_what_calls_change_is_no_change_but_what_the_user_changes_is(tmp_path):
    one = Counting(0.5)
    model = rk.model(one, name="m")
    identity = model.identity()
    asked(one, tmp_path)
    assert one.calls == 1
    assert model.identity() == rk.model(one, name="m").identity() == identity
    one.ratio = 0.9
    assert model.identity() != identity


def test_a_wrapper_of_a_loaded_network_is_told_by_its_weights(tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "tiny"
    save_llama(folder, save_tokenizer(folder, ["words to learn"], 320))

    class Wrapper:
        def __init__(self):
            self.network = AutoModelForCausalLM.from_pretrained(folder)

        def __call__(self, prompts):
            return ["words"] * len(prompts)

    one, same, other = Wrapper(), Wrapper(), Wrapper()
    with torch.no_grad():
        other.network.lm_head.weight[7, 3] += 1
    assert state_of(one) == state_of(same) != state_of(other)


def test_a_function_is_told_by_the_globals_that_it_names():
    names = {"held": Counting(0.5)}
    exec("def answer(prompts): return held(prompts)", names)  # as in a notebook
    before = state_of(names["answer"])
    names["held"].ratio = 0.9
    assert state_of(names["answer"]) != before is not None


CHANGES = {
    "a method that it calls of itself": (
        "class Answer:\n  def say(self): return {0}\n  def __call__(self, ps): "
        "return [self.say() for p in ps]\nanswer = Answer()",
        ("1", "2"),
    ),
    "an attribute of its class": (
        "class Answer:\n  ratio = {0}\n  def __call__(self, ps): "
        "return [self.ratio for p in ps]\nanswer = Answer()",
        ("0.5", "0.9"),
    ),
    "a method of an object that it names": (
        "class Helper:\n  def say(self, p): return {0}\nhelper = Helper()\n"
        "def answer(ps): return [helper.say(p) for p in ps]",
        ("p + 'a'", "p + 'b'"),
    ),
    "a class that it makes": (
        "class Helper:\n  def say(self, p): return {0}\n"
        "def answer(ps): return [Helper().say(p) for p in ps]",
        ("p + 'a'", "p + 'b'"),
    ),
    "a function that lies in an object": (
        "class Wrapper:\n  def __init__(self, inner): self.inner = inner\n  def __call__(self, ps): "
        "return self.inner(ps)\nanswer = Wrapper(lambda ps: [{0} for p in ps])",
        ("'one'", "'two'"),
    ),
    "a global in a comprehension": (
        "RATIO = {0}\ndef answer(ps): return [RATIO for p in ps]",
        ("0.5", "0.9"),
    ),
    "a global of a function that it calls": (
        "RATIO = {0}\ndef say(p): return RATIO\ndef answer(ps): return [say(p) for p in ps]",
        ("0.5", "0.9"),
    ),
    "a random generator": (
        "import random\nsource = random.Random({0})\n"
        "def answer(ps): return [source.random() for p in ps]",
        ("0", "7"),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_function_reaches_is_a_part_of_it(change):
    text, (old, new) = CHANGES[change]

    def contents(value):
        names = {"__name__": "__main__"}
        exec(text.format(value), names)
        return contents_of(names["answer"])

    assert contents(old) == contents(old)
    assert contents(old) != contents(new)


def test_a_function_of_another_file_is_a_part_of_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for number in (1, 1, 2):
        (tmp_path / "my_helpers.py").write_text(f"def say(p): return {number} * p\n")
        sys.modules.pop("my_helpers", None)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        names = {"my_helpers": importlib.import_module("my_helpers")}
        exec("def answer(ps): return [my_helpers.say(p) for p in ps]", names)
        found.append(contents_of(names["answer"]))
    assert found[0] == found[1] != found[2]


def test_what_is_loaded_at_the_first_call_is_no_change(tmp_path, capsys):
    class Lazy:
        def __init__(self):
            self.helper = None

        def __call__(self, prompts):
            self.helper = self.helper or Counting(0.5)
            return self.helper(prompts)

    lazy = Lazy()
    assert asked(lazy, tmp_path) == asked(lazy, tmp_path) == {"ratio 0.5"}
    assert asked(Lazy(), tmp_path) == {"ratio 0.5"}
    assert capsys.readouterr().err.count("nothing was asked") == 2


def test_the_state_is_the_same_in_every_process_where_it_can_be_read():
    code = (
        "from tests.test_object_state import *; print(state_of(closure(0.5)))\n"
        "print(state_of({'a': {3, 1}, 'b': frozenset('xyz')}))"
    )
    command = [sys.executable, "-c", code]
    runs = {
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
    }
    assert len(runs) == 1


def test_what_cannot_be_read_is_of_this_process_and_says_so():
    with socket.socket() as connection:
        state = state_of(Holder(connection))
        assert state == state_of(Holder(connection))
    generator = (number for number in range(3))
    assert "generator cannot be compared" in state_of(Holder(generator))
    assert "socket cannot be compared" in state
    assert "process" in state


class Holder:
    def __init__(self, held):
        self.held = held


def test_a_function_without_state_has_none(tmp_path):
    assert state_of(with_ratio) is None
    assert "state" not in rk.model(lambda prompts: prompts, name="m").identity()


def test_what_cannot_be_compared_is_asked_again_in_a_new_process(tmp_path):
    code = (
        "import socket, sys, rulerkit as rk\n"
        "class Client:\n"
        "    def __init__(self): self.connection = socket.socket()\n"
        "    def __call__(self, prompts): return ['called'] * len(prompts)\n"
        "model = rk.model(Client(), name='m')\n"
        "study = rk.study(model=model, tasks=['niah_single_1'], lengths=[1024],\n"
        "                 num_examples=1, outputs=sys.argv[1])\n"
        "for _ in range(2): rk.evaluate(study, progress=False)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True).stderr for _ in range(2)
    )
    assert "cannot be compared" not in first
    assert "m: its state is unknown (socket cannot be compared)" in second
    # within a process nothing is asked twice
    assert first.count("nothing was asked") == second.count("nothing was asked") == 1
    assert len(list((tmp_path / "predictions/main").iterdir())) == 2


def test_the_globals_of_an_entry_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "my_entry.py"
    identities = []
    for ratio in (0.5, 0.5, 0.9):
        module.write_text(f"RATIO = {ratio}\ndef load():\n    return [RATIO].copy\n")
        sys.modules.pop("my_entry", None)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        model = rk.load_model({"name": "m", "entry": "my_entry:load"})
        identities.append(model.identity())
    assert identities[0] == identities[1] != identities[2]
