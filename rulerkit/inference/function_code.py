"""What belongs to the code of a user's function or class, and what is left to installed packages.

`object_state` reads the code and the values; here stands where both are found.
"""

import sys
import sysconfig
from collections.abc import Iterator
from dis import get_instructions
from inspect import getclosurevars
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

DESCRIPTORS = (
    BuiltinFunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
"""Kinds of attributes that are written in C: their code is that of an installed package."""

_INSTALLED = (
    *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)


def is_installed(part: Any) -> bool:
    """Whether a function, a class or a module belongs to Python, an installed package or the kit:
    such code counts by its name."""
    if isinstance(part, FunctionType):
        return _is_place_installed(part.__globals__.get("__file__"))
    name = part.__name__ if isinstance(part, ModuleType) else part.__module__
    # A notebook's own module may have the file of what started it.
    if name == "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        # Some modules of Python have no file.
        return str(name).partition(".")[0] in sys.stdlib_module_names
    return _is_place_installed(file)


def _is_place_installed(file: Any) -> bool:
    return str(file).startswith(_INSTALLED)


def written(code: CodeType) -> str:
    """What a function does, without the names of files and the numbers of lines."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(written(constant))
        elif isinstance(constant, frozenset):
            # the order of a set differs between processes
            constants.append(repr(sorted(constant, key=repr)))
        else:
            constants.append(repr(constant))
    return repr((code.co_code, code.co_names, constants))


def global_values(function: FunctionType) -> list[Any]:
    """The values of the globals that a function reads, also in its comprehensions and inner
    functions, in the order of their names; of a module of the user's the attributes that the
    function names. What the function assigns itself, such as a counter, is left out."""
    read, assigned, named = set[str](), set[str](), set[str]()
    for code in _codes(function.__code__):
        named.update(code.co_names)
        for step in get_instructions(code):
            if step.opname.startswith("STORE_GLOBAL"):
                assigned.add(step.argval)
            elif step.opname.startswith("LOAD_") and (
                "GLOBAL" in step.opname or step.opname == "LOAD_NAME"
            ):
                read.add(step.argval)

    values: list[Any] = []
    for name in sorted(read - assigned):
        if name in function.__globals__:
            values += _of_modules(function.__globals__[name], named, set())
    return values


def _of_modules(value: Any, named: set[str], met: set[int]) -> Iterator[Any]:
    """A value; of a module of the user's what the names find in it and in its modules."""
    if not isinstance(value, ModuleType):
        yield value
    elif id(value) not in met and not is_installed(value):
        met.add(id(value))
        for name in sorted(named & vars(value).keys()):
            yield from _of_modules(vars(value)[name], named, met)


def closure_values(function: FunctionType) -> list[Any]:
    """The values of a closure, without counters, which its calls change."""
    rebound = {
        step.argval
        for code in _codes(function.__code__)
        for step in get_instructions(code)
        if step.opname == "STORE_DEREF"
    }
    values = getclosurevars(function).nonlocals
    return [values[name] for name in sorted(values.keys() - rebound)]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code and those within it: comprehensions, inner functions and classes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def class_values(kind: type) -> list[tuple[str, Any]]:
    """The attributes that a class of the user's brings itself, by name, without what Python adds to
    every class."""
    values = []
    for name, value in sorted(vars(kind).items()):
        is_special = name.startswith("__") and name.endswith("__")
        is_code = isinstance(value, FunctionType | staticmethod | classmethod | property)
        if isinstance(value, DESCRIPTORS) or name == "_abc_impl":
            continue
        if is_code or not is_special:
            values.append((name, value))
    return values
