"""What decides the answers of a function or an object of the user's: its code, and its state.

Two objects of one class answer differently where a ratio, a prompt or a weight in them differs, and
two of one name where a method was edited. `contents_of` goes through a function or an object and
all that it holds: functions and classes of the user's give code, all else gives state.
"""

import hashlib
import os
import random
import sys
import time
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property, partial
from io import IOBase
from pathlib import PurePath
from re import Pattern
from socket import socket
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from rulerkit.inference.fingerprints import short
from rulerkit.inference.function_code import (
    DESCRIPTORS,
    class_values,
    closure_values,
    global_values,
    is_installed,
    written,
)

_PLAIN = (str, bytes, bytearray, int, float, complex, PurePath, Pattern, range, slice)
_WITHOUT_STATE = ("lock", "RLock", "Logger", "Condition", "Event", "weakref", "ReferenceType")
"""Types whose objects decide no answer."""
_WHOLE = 1 << 26
"""Arrays of more bytes are read at both ends, and summed."""
_END = 1 << 16
_CODE = (
    FunctionType,
    MethodType,
    ModuleType,
    type,
    property,
    staticmethod,
    classmethod,
    cached_property,
    *DESCRIPTORS,
)
"""Kinds of parts that are code."""
UNKNOWN = "unknown"
"""The first word of a state that cannot be compared with that of another process."""
_THIS_PROCESS = f"{os.getpid()}-{time.time_ns():x}"


class Contents(NamedTuple):
    """What decides the answers of a function or an object."""

    code: dict[str, str]
    """The version of Python -> 16 hex digits of what its functions and methods do: their bytecode,
    which each version writes in its own way, and constants."""
    state: str | None
    """16 hex digits over the values in it; None where there are none. Where a part cannot be read,
    such as a connection, the text names its type and this process: so it equals no other one's."""
    known_state: str | None
    """The state of the parts that can be read."""


def contents_of(value: Any) -> Contents:
    """The code and the state of a function or an object, and of all that it holds or names.

    Functions, classes and modules of installed packages count by name. Line numbers, file names,
    and the values that a function assigns to its own globals and closure do not count.
    """
    reader = _Reader(enters_objects=True)
    reader.read(value)
    known = short(reader.state) if reader.has_state else None
    state = known
    if reader.unknown:
        kinds = ", ".join(sorted(reader.unknown))
        state = f"{UNKNOWN} ({kinds} cannot be compared), process {_THIS_PROCESS}"
    return Contents(_by_version(reader.code), state, known)


def code_of(functions: Any) -> dict[str, str]:
    """The code of functions alone, with their constants, defaults and closures, by the version of
    Python: objects that they hold or belong to, such as networks, count by their class."""
    reader = _Reader(enters_objects=False)
    reader.read(functions)
    reader.code.update(reader.state.digest())
    return _by_version(reader.code)


def _by_version(code: Any) -> dict[str, str]:
    return {f"bytecode{sys.version_info[0]}.{sys.version_info[1]}": short(code)}


class _Reader:
    """Goes through an object and all that it holds."""

    def __init__(self, enters_objects: bool) -> None:
        self.code, self.state = hashlib.sha256(), hashlib.sha256()
        self.has_state = False
        """Whether anything but code was seen."""
        self.unknown = set[str]()
        """The types of what cannot be read."""
        self._enters_objects = enters_objects
        self._code_read: dict[int, Any] = {}
        """The code that was read, by id; held, as below."""
        self._values_read: dict[int, tuple[int, Any]] = {}
        """What else was read, by id, with its number; held, so that no id is used twice."""

    def read(self, value: Any) -> None:
        """All that a value holds, in an order that does not depend on the process."""
        waiting = [value]
        while waiting:
            part = waiting.pop()
            if part is None or isinstance(part, _PLAIN):
                self._add(type(part).__name__, repr(part))
            elif isinstance(part, _CODE):
                if id(part) not in self._code_read:
                    self._code_read[id(part)] = part
                    waiting += reversed(self._inside_code(part))
            elif id(part) in self._values_read:
                # A part that is met again is told by when it was met first.
                self._add("again", str(self._values_read[id(part)][0]))
            else:
                self._values_read[id(part)] = len(self._values_read), part
                waiting += reversed(self._inside(part))

    def _add(self, *texts: str) -> None:
        self.has_state = True
        for text in texts:
            self.state.update(f"{len(text)}:{text}".encode())

    def _inside_code(self, part: Any) -> list[Any]:
        """What a part that is code holds or names, once it is in the digest."""
        if isinstance(part, FunctionType):
            options = sorted((part.__kwdefaults__ or {}).items())
            around = [*closure_values(part), *sorted(vars(part).items())]
            held = [*(part.__defaults__ or ()), *options, *around]
            if is_installed(part):
                self._name(part)
                return held
            self.code.update(written(part.__code__).encode())
            return held + global_values(part)
        if isinstance(part, MethodType):
            of = [part.__self__] if self._enters_objects else []
            return [part.__func__, *of]
        if isinstance(part, property):
            return [one for one in (part.fget, part.fset) if one is not None]
        if isinstance(part, staticmethod | classmethod):
            return [part.__func__]
        if isinstance(part, cached_property):
            return [part.func]

        self._name(part)
        if not isinstance(part, type) or is_installed(part):
            return []
        # A class of the user's: its methods, its values, and the classes that it comes from.
        values = class_values(part)
        for name, _ in values:
            self.code.update(name.encode())
        bases = [base for base in part.__mro__[1:] if base is not object]
        return [value for _, value in values] + bases

    def _name(self, part: Any) -> None:
        """What is installed, or written in C, counts by its name."""
        module = getattr(part, "__module__", "")
        name = getattr(part, "__qualname__", getattr(part, "__name__", ""))
        self.code.update(f"{module}.{name}".encode())

    def _inside(self, part: Any) -> list[Any]:
        """What a part consists of, once its own kind is in the digest."""
        kind = type(part)
        if isinstance(part, partial):
            return [part.func, part.args, part.keywords]
        is_container = kind in (list, tuple, dict, set, frozenset)
        if not self._enters_objects and not is_container:
            self._name(kind)
            return []

        self._add(f"{kind.__module__}.{kind.__qualname__}")
        of_user = [] if is_installed(kind) else [kind]
        return of_user + self._held(part)

    def _held(self, part: Any) -> list[Any]:
        """The values that a part holds."""
        if isinstance(part, np.ndarray):
            return self._array(part)
        if type(part).__module__.partition(".")[0] == "torch" and hasattr(part, "untyped_storage"):
            return self._tensor(part)
        if isinstance(part, Mapping) and not hasattr(part, "__dict__"):
            return [one for pair in part.items() for one in pair]
        if isinstance(part, list | tuple | deque):
            self._add(str(len(part)))
            return [*part, *sorted(vars(part).items())] if hasattr(part, "__dict__") else [*part]
        if isinstance(part, AbstractSet):
            return sorted(part, key=repr)
        # The attributes of a generator of Python's do not hold where it stands.
        if isinstance(part, random.Random):
            return [part.getstate()]
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
        self.has_state = True
        ends = [content]
        if size > _WHOLE:
            ends = [content[:_END], content[-_END:]]
            self._add(repr(float(flat.sum())))
        for end in ends:
            self.state.update(np.asarray(end.cpu() if hasattr(end, "cpu") else end).tobytes())

    def _attributes(self, part: Any) -> list[Any]:
        """The attributes of an object; of one that has none, what `pickle` would keep."""
        slots = [
            name
            for kind in type(part).__mro__
            for name in _names(kind.__dict__.get("__slots__", ()))
        ]

        values = dict(getattr(part, "__dict__", {}))
        values |= {name: getattr(part, name) for name in slots if hasattr(part, name)}
        inside = [one for pair in sorted(values.items()) for one in pair]
        if isinstance(part, Mapping):
            inside += [one for pair in part.items() for one in pair]
        if inside or hasattr(part, "__dict__"):
            return inside

        try:
            reduced = part.__reduce_ex__(2)
        except Exception:  # what cannot be pickled raises anything
            self.unknown.add(type(part).__qualname__)
            return []
        if isinstance(reduced, str):
            return [reduced]
        return [*reduced[1:3], *(list(more) for more in reduced[3:5] if more is not None)]


def _names(slots: Any) -> list[str]:
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]
