"""A change of a weight file changes the fingerprint of a checkpoint, and records of earlier rules
stay comparable."""

import pytest

from rulerkit.common.errors import UserError
from rulerkit.inference.checkpoint import Checkpoint
from rulerkit.store.comparable import differences

MIB = 1 << 20


def fingerprint(folder, size, names=("model.safetensors",), changed=None):
    """That of a checkpoint whose weight files hold so many bytes; those of `changed` are others."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    for name in names:
        data = bytearray(size)
        if changed:
            data[changed] = b"\1" * len(data[changed])
        (folder / name).write_bytes(data)
    return Checkpoint("m", str(folder)).identity["fingerprint"]


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("size", [1, 70_000, 4 * MIB])
def test_a_byte_anywhere_in_a_small_file_changes_the_fingerprint(tmp_path, name, size):
    plain = fingerprint(tmp_path / "a", size, [name])
    assert fingerprint(tmp_path / "b", size, [name]) == plain
    for place in {0, size // 3, size // 2, size - 1}:
        changed = slice(place, place + 1)
        assert fingerprint(tmp_path / "b", size, [name], changed) != plain
    assert fingerprint(tmp_path / "c", size, [name, "model-2.safetensors"]) != plain
    assert fingerprint(tmp_path / "c", size + 1, [name]) != plain


def test_a_matrix_anywhere_in_a_large_file_changes_the_fingerprint(tmp_path):
    """Merged adapters change some matrices in the middle, each a sixtieth of the file or more."""
    plain = fingerprint(tmp_path / "a", 60 * MIB)
    for start in (MIB // 3, 7 * MIB, 31 * MIB + 11, 58 * MIB):
        assert fingerprint(tmp_path / "b", 60 * MIB, changed=slice(start, start + MIB)) != plain
    last = slice(-1, None)
    assert fingerprint(tmp_path / "b", 60 * MIB, changed=last) != plain
    unseen = slice(MIB // 2, MIB // 2 + 100)  # what is not read
    assert fingerprint(tmp_path / "b", 60 * MIB, changed=unseen) == plain


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
