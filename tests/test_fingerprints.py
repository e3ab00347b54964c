"""Every changed tensor changes the fingerprint of the weights, and records of earlier rules stay
comparable."""

import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from rulerkit.common.errors import UserError
from rulerkit.inference import fingerprints
from rulerkit.inference.fingerprints import weights_digests
from rulerkit.store.comparable import differences

SHAPES = {"embedding": (400, 16), "norm": (7,), "head": (50, 50), "scale": (1,)}


def save(folder, changed="", place=0):
    tensors = {
        name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for name, shape in SHAPES.items()
    }
    if changed:
        tensors[changed].flat[place] += 1
    save_file(tensors, folder / "model.safetensors", {"written": changed})
    return [folder / "model.safetensors"]


@pytest.mark.parametrize(
    ("name", "place"),
    [("embedding", 0), ("embedding", -1), ("embedding", 1023), ("head", -1024), ("scale", 0)],
)
def test_one_value_near_an_end_of_a_tensor_changes_the_digest(tmp_path, name, place):
    plain = weights_digests(save(tmp_path))
    assert weights_digests(save(tmp_path)) == plain
    assert weights_digests(save(tmp_path, name, place)) != plain


def test_a_change_in_the_middle_of_a_tensor_is_seen_by_full_alone(tmp_path):
    plain = weights_digests(save(tmp_path), full=True)
    changed = weights_digests(save(tmp_path, "embedding", 3000), full=True)
    assert changed["tensors"] == plain["tensors"]
    assert changed["full"] != plain["full"]


def test_a_file_of_another_format_is_read_once_and_again_when_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("RULERKIT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.bin"
    file.write_bytes(bytes(10_000))
    first = weights_digests([file])
    with monkeypatch.context() as without_reading:
        without_reading.setattr(fingerprints.hashlib, "file_digest", None)
        assert weights_digests([file]) == first
    times = file.stat()
    file.write_bytes(bytes(5_000) + b"x" + bytes(4_999))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as tools do that copy the times
    assert weights_digests([file]) != first


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_weights_that_are_cut_short_are_one_line(tmp_path, cut):
    [file] = save(tmp_path)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(
        UserError, match=r"model\.safetensors cannot be read .*: copy or download them again"
    ):
        weights_digests([file])


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
