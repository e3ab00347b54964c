"""Any Python function as a model: a patched attention, a pipeline, a custom server.

The function takes a list of prompts or of token ids and returns as many texts. In a parameter file,
`entry: package.module:load` names a function without arguments that returns this function, or a
loaded checkpoint with its tokenizer. Modules in the project root can be imported too.
"""

import inspect
import reprlib
import sys
import weakref
from collections.abc import Callable, Iterable
from itertools import islice
from pkgutil import resolve_name
from traceback import extract_tb
from typing import Any

from rulerkit.common.errors import UserError, first_line
from rulerkit.common.paths import home
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.generation.tokenizers import Tokenizer
from rulerkit.inference.fingerprints import code_digest
from rulerkit.inference.model import (
    Answers,
    Engine,
    Model,
    cut,
    model,
    refuse_echo,
)
from rulerkit.inference.object_state import state_of

_Reference = Callable[[], Any]
_CALLED: dict[int, tuple[_Reference, str | None, str | None]] = {}
"""By the id of a function: a reference to it, and its state before and after its calls."""


def _reference(function: Any) -> _Reference:
    """A weak reference, so that nothing is held; to nothing where there is no weak one."""
    try:
        return weakref.ref(function)
    except TypeError:
        return lambda: None


class Function(Engine):
    """Calls a function, `batch_size` prompts at a time; with `entry`, passes examples on to the
    model made of its result."""

    on_gpu = False

    def __init__(self, spec: Spec, function: Any = None) -> None:
        super().__init__(spec)
        self._function = function
        self._loaded: Model | None = None  # made of what `entry` returns
        self.takes: str = spec.get("takes", "prompts")
        if (
            self.takes == "ids"
            and "tokenizer" not in spec
            and function is not None
        ):
            raise UserError(
                f"model {self.name}: a function that takes ids needs the `tokenizer` that they "
                "belong to"
            )

    def identity(self) -> JSON:
        """The entry, or the function's qualified name, and its code; the user names what the
        function stands for."""
        # An object that is called is named by its class: it has no name of its own.
        entry, function = self.spec.get("entry"), self._function
        named = function if hasattr(function, "__qualname__") else type(function)
        what = (
            {"entry": entry}
            if entry
            else {"function": f"{named.__module__}.{named.__qualname__}"}
        )
        code = code_digest(self._entry() if entry else function)
        identity = {
            "engine": "function",
            **what,
            "takes": self.takes,
            "code": code,
        }
        # What lies in the object decides its answers as its code does.
        state = None if entry else self._current_state()
        return identity if state is None else {**identity, "state": state}

    def _current_state(self) -> str | None:
        """What lies in the function, less what its own calls have changed: many count, or keep what
        they saw."""
        now, key = state_of(self._function), id(self._function)
        called, before, after = _CALLED.get(key, (None, None, None))
        same_object = called is not None and called() is self._function
        if same_object and now == after:
            return before
        _CALLED[key] = (_reference(self._function), now, now)
        return now

    def _remember_state(self) -> None:
        """Note the state of the function after its calls."""
        key = id(self._function)
        called, before, _ = _CALLED[key]
        _CALLED[key] = (called, before, state_of(self._function))

    def environment(self) -> JSON:
        """That of the checkpoint which the entry returned, if any."""
        return self._loaded.environment() if self._loaded else {}

    def tokenizer(self) -> Tokenizer:
        """The spec's tokenizer, else that of the checkpoint which the entry returns, else
        `builtin`."""
        if "entry" in self.spec and "tokenizer" not in self.spec:
            return self._load().prompt_format.tokenizer
        return super().tokenizer()

    def answer(self, examples: Iterable[Example]) -> Answers:
        """In the order given, a batch at a time."""
        if "entry" in self.spec:
            yield from self._load().answer(examples)
            return

        self._current_state()
        try:
            yield from self._answer_batches(examples)
        finally:
            self._remember_state()

    def _answer_batches(self, examples: Iterable[Example]) -> Answers:
        # A function that takes no limit is cut afterwards, as every answer is.
        limited = "max_new_tokens" in inspect.signature(self._function).parameters
        source = iter(examples)
        while batch := list(islice(source, self.spec.get("batch_size", 8))):
            options = (
                {"max_new_tokens": max(map(self.most_tokens, batch))}
                if limited
                else {}
            )
            prompts = [
                example.ids if self.takes == "ids" else example.prompt
                for example in batch
            ]
            texts = self._function(prompts, **options)

            # What is returned is the user's code: it is checked before anything is
            # stored.
            listed = isinstance(texts, list | tuple) and all(
                isinstance(t, str) for t in texts
            )
            if not listed or len(texts) != len(batch):
                raise UserError(
                    f"model {self.name}: the function returned {reprlib.repr(texts)}; it must "
                    f"return a list of {len(batch)} texts (str), one for each prompt"
                )
            for example, text in zip(batch, texts, strict=True):
                refuse_echo(self.name, example, text)  # before it is cut
                yield (
                    example,
                    cut(
                        text,
                        self.prompt_format.tokenizer,
                        self.most_tokens(example),
                    ),
                )

    def close(self) -> None:
        """Frees what `entry` loaded; a function that the caller passed in stays."""
        self._loaded = None

    def _load(self) -> Model:
        """The model made of the function, or of the checkpoint and its tokenizer, that the entry
        returns."""
        if self._loaded is None:
            # What the entry raises is told with its own place, not with a trace through
            # ours.
            load, spec = self._entry(), dict(self.spec)
            entry = spec.pop("entry")
            try:
                returned = load()
            except UserError:
                raise
            except Exception as error:  # it is the user's code
                file, line, *_ = extract_tb(error.__traceback__)[-1]
                raise UserError(
                    f"model {self.name}: entry {entry}, which is called without arguments, raised "
                    f"{type(error).__name__}: {first_line(error)} ({file}, line {line})"
                ) from error
            try:
                self._loaded = model(returned, **spec)
            except UserError as error:
                raise UserError(
                    f"{error}; this is what entry {entry} returned"
                ) from None
        return self._loaded

    def _entry(self) -> Any:
        """The function that the entry names."""
        # Modules of the project are found from a notebook's folder, too.
        if str(home()) not in sys.path:
            sys.path.append(str(home()))
        try:
            return resolve_name(self.spec["entry"])
        except (AttributeError, ImportError, ValueError) as error:
            raise UserError(
                f"model {self.name}: entry {self.spec['entry']}: {first_line(error)}; give "
                "`module:function`, of an installed module or one under the project root "
                f"{home()}"
            ) from error
