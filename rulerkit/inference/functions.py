"""Any Python function as a model: a patched attention, a pipeline, a compression, a custom server.

A function takes a list of prompts and returns as many texts. A prompt is a text, its token ids, or
its two parts (`takes`). In a parameter file, `entry: package.module:load` names a function that
returns this function; `entry_with` holds its arguments. Modules in the project root can be imported
too.

A function that names nothing but installed modules is told from a changed one by its source. Any
other, and a loaded checkpoint, answers freely as the model that `rk.model` made of it; later its
answers are used again only with the same `version`.
"""

import inspect
import reprlib
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dis import get_instructions
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from pkgutil import resolve_name
from traceback import extract_tb
from types import CodeType, FunctionType, ModuleType
from typing import Any
from uuid import uuid4

from rulerkit.common.errors import UserError, first_line, remark
from rulerkit.common.gpus import loading
from rulerkit.common.json_text import digest
from rulerkit.common.project import KIT, PACKAGE, home
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example, split_prompt
from rulerkit.inference.model import COMPRESSED, Answers, Failure, Model, cut, refuse_echo

BATCH_SIZE = 8  # prompts of a batch, where the spec does not say
_PROCESS = uuid4().hex[:8]
_INSTALLED = (
    *("built-in", "frozen"),
    *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    str(PACKAGE),
)


class Function(Model):
    """Calls a function: the one that it is given, or the one that `entry` returns."""

    on_gpu = False

    def __init__(self, spec: Spec, function: Any = None) -> None:
        super().__init__(spec)
        self._function = function
        self.takes: str = spec.get("takes", "prompts")
        if self.takes == "parts":
            self.protocol_note = COMPRESSED
        if self.takes != "prompts" and "tokenizer" not in spec:
            raise UserError(
                f"model {self.name}: a function that takes {self.takes} needs the `tokenizer` that "
                "their ids belong to (`builtin` where it reads the texts of parts alone)"
            )

    def identity(self) -> JSON:
        """The entry and its arguments, or the function's qualified name; and what tells its code
        from a changed one."""
        what: JSON = {"engine": "function", "takes": self.takes}
        what |= self.given(("entry", "entry_with"))
        if "entry" not in what:
            # An object that is called is named by its class: it has no name of its own.
            is_named = hasattr(self._function, "__qualname__")
            named = self._function if is_named else type(self._function)
            what["function"] = f"{named.__module__}.{named.__qualname__}"
        return what | self._told_by

    @cached_property
    def _told_by(self) -> JSON:
        """The digest of the source, where it says all, and the `version` that the user gives. Where
        neither is there, answers are used again in this run alone."""
        source = source_of(self._code())
        if source:
            return {"source": digest(source), **self.given(("version",))}
        # An entry is found anew by each call of `evaluate`, and is the same in one process.
        run = _PROCESS if "entry" in self.spec else uuid4().hex[:8]
        return {"version": version_of(self.spec, run)}

    def answer(self, examples: Iterable[Example]) -> Answers:
        """A batch at a time, in the order given. An example for which the function returns None or
        raises has failed."""
        if self._function is None:
            with loading(self.name, f"entry {self.spec['entry']}"):
                self._function = self._code()(**self.spec.get("entry_with", {}))

        source, works = iter(examples), False
        while batch := list(islice(source, self.spec.get("batch_size", BATCH_SIZE))):
            said = self._call(batch)
            works = works or not all(isinstance(one, Exception) for one in said)
            if not works and len(batch) >= BATCH_SIZE:
                raise UserError(
                    f"model {self.name}: none of its first {len(batch)} prompts was answered, the "
                    f"function raised {raised(said[0])}: correct it, then the same command asks "
                    "again"
                )

            for example, text in zip(batch, said, strict=True):
                if isinstance(text, str):
                    refuse_echo(self.name, example, text)  # before it is cut
                    most = self.most_tokens(example)
                    yield example, cut(text, self.prompt_format.tokenizer, most)
                else:
                    what = "returned None" if text is None else f"raised {raised(text)}"
                    yield example, Failure(f"example {example.index}: the function {what}")

    def _call(self, batch: list[Example]) -> list[Any]:
        """What the function returns for a batch; in place of a text the exception that it
        raises."""
        prompts: list[Any] = []
        for example in batch:
            if self.takes == "parts":
                prompts.append(split_prompt(example, self.prompt_format))
            else:
                prompts.append(example.ids if self.takes == "ids" else example.prompt)
        options: JSON = {}
        # Of some objects nobody knows the parameters; what is longer is cut in any case.
        with suppress(TypeError, ValueError):
            if "max_new_tokens" in inspect.signature(self._function).parameters:
                options["max_new_tokens"] = max(map(self.most_tokens, batch))

        try:
            texts = self._function(prompts, **options)
        except UserError:
            raise
        except Exception as error:  # it is the user's code
            if len(batch) == 1:
                return [error]
            # Nobody knows which prompt it was: each is asked alone.
            return [text for example in batch for text in self._call([example])]

        is_list = isinstance(texts, list | tuple) and len(texts) == len(batch)
        if not is_list or not all(isinstance(text, str | None) for text in texts):
            raise UserError(
                f"model {self.name}: the function returned {reprlib.repr(texts)}; it must return a "
                f"list of {len(batch)} texts (str), or None where there is no answer"
            )
        return list(texts)

    def close(self) -> None:
        """Frees what `entry` loaded; a function that the caller passed in stays."""
        if "entry" in self.spec:
            self._function = None

    def _code(self) -> Any:
        """The function, or the one that `entry` names: of an installed module, one under the
        project root or one of the kit's."""
        if "entry" not in self.spec:
            return self._function
        # Modules of the project are found from a notebook's folder, too.
        for root in (home(), KIT):
            if str(root) not in sys.path:
                sys.path.append(str(root))
        entry = self.spec["entry"]
        with loading(self.name, f"entry {entry} (`module:function`, installed or in {home()})"):
            return resolve_name(entry)


def raised(error: Exception) -> str:
    """What was raised and where, in one line: the user's own code, not a trace through ours."""
    place = extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {first_line(error)}"
    return f"{what} ({place.filename}, line {place.lineno})"


def version_of(spec: Spec, run: str) -> str:
    """The `version` of a function or a loaded checkpoint; where none is given that of one run,
    whose answers no other run uses, and a line says so."""
    if "version" in spec:
        return str(spec["version"])
    remark(
        f"{spec['name']}: nothing shows whether its code has changed, so another run uses its "
        'answers again only with the same `version`: give one, such as version="1", and change it '
        "with the code"
    )
    return f"none, run {run}"


def source_of(function: Any) -> str | None:
    """The source of a function and its defaults, where they say all that it does; None for one
    that has no source, holds values, or names something of the user's."""
    if not isinstance(function, FunctionType) or function.__closure__:
        return None
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return None
    # A line with several lambdas does not say which of them it is.
    if function.__name__ == "<lambda>" and source.count("lambda") > 1:
        return None
    source += repr((function.__defaults__, function.__kwdefaults__))

    codes = [function.__code__]
    for code in codes:  # which grows by the functions inside
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        steps = get_instructions(code)
        modules = [step.argval for step in steps if step.opname == "IMPORT_NAME"]
        for name in set(code.co_names) & set(function.__globals__):
            value = function.__globals__[name]
            # Anything else may hold values.
            if not isinstance(value, ModuleType):
                return None
            modules.append(value.__name__)
        if not all(map(is_installed, modules)):
            return None
    return source


def is_installed(module: str) -> bool:
    """Whether a module belongs to Python, an installed package or the kit."""
    try:
        spec = find_spec(module.partition(".")[0])
    except ValueError:  # a module made by hand
        return False
    return spec is not None and str(spec.origin).startswith(_INSTALLED)
