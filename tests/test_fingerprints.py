"""A changed end of a weight file changes the fingerprint of a checkpoint, and records of earlier
rules stay comparable."""

import pytest

from rulerkit.common.errors import UserError
from rulerkit.inference.checkpoint import Checkpoint
from rulerkit.store.comparable import differences

MIB = 1 << 20


def fingerprint(folder, names=("model.safetensors",), place=None):
    """That of a checkpoint whose weight files hold 3 MiB each; the byte at `place` is another."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    for name in names:
        data = bytearray(3 * MIB)
        if place is not None:
            data[place] = 1
        (folder / name).write_bytes(data)
    return Checkpoint("m", str(folder)).identity["fingerprint"]


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_byte_in_the_first_or_the_last_mib_of_a_file_changes_the_fingerprint(tmp_path, name):
    plain = fingerprint(tmp_path / "a", [name])
    assert fingerprint(tmp_path / "b", [name]) == plain
    for place in (0, MIB - 1, -MIB, -1):
        assert fingerprint(tmp_path / "b", [name], place) != plain
    assert fingerprint(tmp_path / "b", [name], MIB) == plain  # what is not read
    assert fingerprint(tmp_path / "c", [name, "model-2.safetensors"]) != plain


def test_weights_that_cannot_be_read_are_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(
        UserError, match=r"model\.safetensors cannot be read .*: copy or download them again"
    ):
        _ = Checkpoint("m", str(tmp_path)).identity


def test_records_are_compared_by_the_rules_that_both_hold():
    old = {"model": {"fingerprint": "e"}}
    new = {"model": {"fingerprint": "e", "weights": {"tensors": "a"}}}
    full = {"model": {"fingerprint": "e", "weights": {"tensors": "a", "full": "f"}}}
    other = {"model": {"fingerprint": "e", "weights": {"tensors": "b", "full": "g"}}}
    assert differences(old, new) == differences(new, old) == differences(new, full) == []
    assert differences(new, other) == [("model.weights.tensors", "a", "b")]
    assert [field for field, *_ in differences(full, other)] == [
        "model.weights.tensors",
        "model.weights.full",
    ]
    one, other = ({"model": {"code": {"python3.11": digest}}} for digest in "ab")
    assert differences({"model": {}}, one) == differences(one, {"model": {"code": {"c": 1}}}) == []
    assert differences(one, other) == [("model.code.python3.11", "a", "b")]
    assert differences(old, {"model": {"fingerprint": "x", "weights": {"tensors": "a"}}}) != []
