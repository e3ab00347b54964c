"""What lies in an object that answers: its attributes, closures and arguments, by content.

Two objects of one class answer differently where a ratio, a prompt or a weight in them differs, so
their state is a part of a model's identity. Their code is another part, see
`fingerprints.code_digest`.
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from io import IOBase
from pathlib import PurePath
from re import Pattern
from socket import socket
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from rulerkit.inference.fingerprints import closure_values, global_values, short

_PLAIN = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    PurePath,
    Pattern,
    range,
    slice,
)
_WITHOUT_STATE = (
    "lock",
    "RLock",
    "Logger",
    "Condition",
    "Event",
    "weakref",
    "ReferenceType",
)
"""Types whose objects decide no answer."""
_WHOLE = 1 << 26
"""Arrays of more bytes are read at both ends, and summed."""
_END = 1 << 16
UNKNOWN = "unknown"
"""The first word of a state that cannot be compared with that of another process."""
_THIS_PROCESS = f"{os.getpid()}-{time.time_ns():x}"


def state_of(value: Any) -> str | None:
    """16 hex digits over what lies in a function or an object; None where nothing does.

    Where a part cannot be read, such as a connection, the text names its type and this process: so
    it equals no other one's.
    """
    reader = _Reader()
    reader.read(value)
    if reader.unknown:
        kinds = ", ".join(sorted(reader.unknown))
        return f"{UNKNOWN} ({kinds} cannot be compared), process {_THIS_PROCESS}"
    return short(reader.digest) if reader.found else None


class _Reader:
    """Goes through an object and all that it holds."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.found = False
        """Whether anything but code was seen."""
        self.unknown = set[str]()
        """The types of what cannot be read."""
        self._seen: dict[int, tuple[int, Any]] = {}
        """What was read, by id, with its number; held, so that no id is used twice."""

    def read(self, value: Any) -> None:
        """All that a value holds, in an order that does not depend on the process."""
        waiting = [value]
        while waiting:
            part = waiting.pop()
            if part is None or isinstance(part, _PLAIN):
                self._add(type(part).__name__, repr(part))
                continue
            # A part that is met again is told by when it was met first.
            if id(part) in self._seen:
                self._add("again", str(self._seen[id(part)][0]))
                continue
            self._seen[id(part)] = len(self._seen), part
            waiting += reversed(self._inside(part))

    def _add(self, *texts: str) -> None:
        self.found = True
        for text in texts:
            self.digest.update(f"{len(text)}:{text}".encode())

    def _inside(self, part: Any) -> list[Any]:
        """What a part consists of, once its own kind is in the digest."""
        if isinstance(part, FunctionType):
            options = sorted((part.__kwdefaults__ or {}).items())
            around = [*closure_values(part), *global_values(part)]
            return [*(part.__defaults__ or ()), *options, *around]
        if isinstance(part, MethodType):
            return [part.__self__]
        if isinstance(part, type | ModuleType | BuiltinFunctionType):
            return []
        if isinstance(part, partial):
            return [part.func, part.args, part.keywords]

        self._add(f"{type(part).__module__}.{type(part).__qualname__}")
        if isinstance(part, np.ndarray):
            return self._array(part)
        if type(part).__module__.partition(".")[0] == "torch" and hasattr(
            part, "untyped_storage"
        ):
            return self._tensor(part)
        if isinstance(part, Mapping) and not hasattr(part, "__dict__"):
            return [one for pair in part.items() for one in pair]
        if isinstance(part, list | tuple | deque):
            self._add(str(len(part)))
            return (
                [*part, *sorted(vars(part).items())]
                if hasattr(part, "__dict__")
                else [*part]
            )
        if isinstance(part, AbstractSet):
            return sorted(part, key=repr)
        if type(part).__name__ in _WITHOUT_STATE:
            return []
        # Nobody knows what is at the other end.
        if isinstance(part, socket | IOBase):
            self.unknown.add(type(part).__qualname__)
            return []
        return self._attributes(part)

    def _array(self, array: np.ndarray) -> list[Any]:
        self._add(str(array.dtype), str(array.shape))
        if array.dtype.hasobject:
            return list(array.ravel())
        flat = np.ascontiguousarray(array).reshape(-1)
        self._values(flat, flat.view(np.uint8), array.nbytes)
        return []

    def _tensor(self, tensor: Any) -> list[Any]:
        import torch

        flat = tensor.detach().reshape(-1).contiguous()
        self._add(str(flat.dtype), str(tuple(tensor.shape)))
        self._values(flat, flat.view(torch.uint8), flat.nbytes)
        return []

    def _values(self, flat: Any, content: Any, size: int) -> None:
        """The values of an array: whole, or both ends and the sum of a large one."""
        self.found = True
        ends = [content]
        if size > _WHOLE:
            ends = [content[:_END], content[-_END:]]
            self._add(repr(float(flat.sum())))
        for end in ends:
            self.digest.update(
                np.asarray(end.cpu() if hasattr(end, "cpu") else end).tobytes()
            )

    def _attributes(self, part: Any) -> list[Any]:
        """The attributes of an object; of one that has none, what `pickle` would keep."""
        slots = [
            name
            for kind in type(part).__mro__
            for name in _names(kind.__dict__.get("__slots__", ()))
        ]
        values = dict(getattr(part, "__dict__", {}))
        values |= {
            name: getattr(part, name) for name in slots if hasattr(part, name)
        }
        inside = [one for pair in sorted(values.items()) for one in pair]
        if isinstance(part, Mapping):
            inside += [one for pair in part.items() for one in pair]
        # What is called reads globals, too.
        call = type(part).__call__ if callable(part) else None
        if isinstance(call, FunctionType):
            inside += global_values(call)
        if inside or hasattr(part, "__dict__"):
            return inside
        try:
            reduced = part.__reduce_ex__(2)
        except Exception:  # what cannot be pickled raises anything
            self.unknown.add(type(part).__qualname__)
            return []
        if isinstance(reduced, str):
            return [reduced]
        return [
            *reduced[1:3],
            *(list(more) for more in reduced[3:5] if more is not None),
        ]


def _names(slots: Any) -> list[str]:
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]
