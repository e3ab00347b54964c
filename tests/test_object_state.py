"""What lies in an object that answers belongs to its identity: a change is never answered from what
is stored."""

import socket
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.inference.object_state import state_of
from tests.tiny_llama import save_llama, save_tokenizer


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


@pytest.mark.parametrize(
    "make", [Counting, Slotted, Array, closure, bound, method]
)
def test_a_changed_object_is_asked_anew_and_an_unchanged_one_is_not(
    make, tmp_path, capsys
):
    assert asked(make(0.5), tmp_path) == {"ratio 0.5"}
    again = make(0.5)
    assert asked(again, tmp_path) == asked(again, tmp_path) == {"ratio 0.5"}
    assert capsys.readouterr().err.count("nothing was asked") == 2
    with pytest.raises(
        UserError, match=r"was made with model\.(state|code).*run: NAME"
    ):
        asked(make(0.9), tmp_path)
    assert asked(make(0.9), tmp_path, run="other") == {"ratio 0.9"}
    assert asked(make(0.5), tmp_path) == {"ratio 0.5"}  # the old rows stay


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


def test_the_state_is_the_same_in_every_process_where_it_can_be_read():
    code = (
        "from tests.test_object_state import *; print(state_of(closure(0.5)))\n"
        "print(state_of({'a': {3, 1}, 'b': frozenset('xyz')}))"
    )
    command = [sys.executable, "-c", code]
    runs = {
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
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
