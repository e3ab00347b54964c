"""Any Python function as a model: a patched attention, a pipeline, a compression, a custom server.

A function takes a list of prompts and returns as many texts; a coroutine function (`async def`)
takes one prompt and returns one text, and `concurrency` of its calls are under way at once. A
prompt is a text, its token ids, or its two parts (`takes`). In a parameter file,
`entry: package.module:load` names a function that returns this function, or a loaded checkpoint
with its tokenizer; `entry_with` holds its arguments. Modules in the project root can be imported
too.
"""

import asyncio
import inspect
import reprlib
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from itertools import islice
from typing import Any
from uuid import uuid4

from rulerkit.common.errors import UserError, remark
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example, split_prompt
from rulerkit.generation.tokenizers import Tokenizer
from rulerkit.inference.model import (
    COMPRESSED,
    Answers,
    Engine,
    Failure,
    Model,
    cut,
    event_loop,
    model,
    refuse_echo,
)
from rulerkit.inference.user_code import (
    MOST_RAISED,
    PROCESS,
    beside_source,
    code_identity,
    find_function,
    raised,
)

BATCH_SIZE = 8  # prompts of a batch, and calls under way, where the spec does not say
CONCURRENCY = 8


class Function(Engine):
    """Calls a function; with `entry`, passes examples on to the model made of its result."""

    on_gpu = False

    def __init__(self, spec: Spec, function: Any = None) -> None:
        super().__init__(spec)
        self._function = function
        self._loaded: Model | None = None  # made of what `entry` returns
        self._run = uuid4().hex[:8]
        self._has_said = False
        self._is_async = function is not None and _is_coroutine_function(function)
        self.takes: str = spec.get("takes", "prompts")
        if self.takes == "parts":
            self.protocol_note = spec.get("protocol_note", COMPRESSED)
        if function is not None:
            self._check_keys()

    def _check_keys(self) -> None:
        """Raise `UserError` for a key that the function needs, or that would be ignored."""
        if self.takes != "prompts" and "tokenizer" not in self.spec:
            raise UserError(
                f"model {self.name}: a function that takes {self.takes} needs the `tokenizer` that "
                "their ids belong to (`builtin` where it reads the texts of parts alone)"
            )
        if self._is_async and "batch_size" in self.spec:
            raise UserError(
                f"model {self.name}: a coroutine function takes one prompt, so batch_size does not "
                "apply: `concurrency` says how many calls are under way at once"
            )
        if not self._is_async and "concurrency" in self.spec:
            raise UserError(
                f"model {self.name}: concurrency applies to a coroutine function (async def), "
                "which takes one prompt; `batch_size` says how many prompts this one gets at once"
            )

    def identity(self) -> JSON:
        """The entry and its arguments, or the function's qualified name; and what tells its code
        from a changed one."""
        entry, version = self.spec.get("entry"), self.spec.get("version")
        what: JSON = {"engine": "function", "takes": self.takes}
        if entry:
            what |= self.given(("entry", "entry_with"))
            return what | code_identity(self._entry(), version, PROCESS)
        # An object that is called is named by its class: it has no name of its own.
        function = self._function
        named = function if hasattr(function, "__qualname__") else type(function)
        what["function"] = f"{named.__module__}.{named.__qualname__}"
        return what | code_identity(function, version, self._run)

    def _say_what_is_not_told(self) -> None:
        """One line, where answers cannot be used again."""
        function = self._entry() if "entry" in self.spec else self._function
        reason = beside_source(function)
        if reason and "version" not in self.spec and not self._has_said:
            self._has_said = True
            remark(
                f"{self.name}: its source does not say all that it does ({reason}), so another run "
                "uses its answers again only with the same `version`: give one, such as "
                'version="1", and change it with the function'
            )

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
        """A batch at a time, in the order given; those of a coroutine function as they end.

        An example for which the function returns None or raises has failed. Where it raises from
        the start, `MOST_RAISED` times, it is broken: a `UserError` names the first example.
        """
        self._say_what_is_not_told()
        if "entry" in self.spec:
            yield from self._load().answer(examples)
            return

        ask = self._ask_one_by_one if self._is_async else self._ask_batches
        reasons, works = list[str](), False
        for example, said in ask(examples):
            answer = self._read(example, said)
            yield example, answer
            if isinstance(said, Exception):
                reasons.append(f"{example.task}, {answer.reason}")
            else:
                works = True
            if not works and len(reasons) == MOST_RAISED:
                raise UserError(
                    f"model {self.name}: none of its first {MOST_RAISED} prompts was answered, "
                    f"the first: {reasons[0]}: correct it, then the same command asks again"
                )

    def _ask_batches(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Any]]:
        """Each example with what the function returns for it, or the exception that it raises."""
        source, size = iter(examples), self.spec.get("batch_size", BATCH_SIZE)
        while batch := list(islice(source, size)):
            yield from zip(batch, self._ask_batch(batch), strict=True)

    def _ask_batch(self, batch: list[Example]) -> list[Any]:
        prompts = [self._prompt(example) for example in batch]
        try:
            texts = self._function(prompts, **self._options(batch))
        except UserError:
            raise
        except Exception as error:  # it is the user's code
            if len(batch) == 1:
                return [error]
            # Nobody knows which prompt it was: each is asked alone, so that the others are
            # answered.
            return [text for example in batch for text in self._ask_batch([example])]

        if not isinstance(texts, list | tuple) or len(texts) != len(batch):
            raise UserError(
                f"model {self.name}: the function returned {reprlib.repr(texts)}; it must "
                f"return a list of {len(batch)} texts (str), one for each prompt"
            )
        return list(texts)

    def _ask_one_by_one(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Any]]:
        """Each example with what the coroutine function returns for it, or the exception that it
        raises, as the calls end."""
        # One loop for all calls: connections that the function keeps belong to it.
        source, most = iter(examples), self.spec.get("concurrency", CONCURRENCY)
        waiting: dict[Future[Any], Example] = {}
        try:
            while True:
                for example in islice(source, most - len(waiting)):
                    call = self._call(self._prompt(example), self._options([example]))
                    waiting[asyncio.run_coroutine_threadsafe(call, event_loop("functions"))] = (
                        example
                    )
                if not waiting:
                    return
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), _outcome(future)
        finally:
            for future in waiting:
                future.cancel()

    async def _call(self, prompt: Any, options: JSON) -> Any:
        return await self._function(prompt, **options)

    def _prompt(self, example: Example) -> Any:
        """What the function gets for an example."""
        if self.takes == "parts":
            return split_prompt(example, self.prompt_format)
        return example.ids if self.takes == "ids" else example.prompt

    def _options(self, batch: list[Example]) -> JSON:
        """The limit on the answers, where the function takes one; they are cut in any case."""
        if "max_new_tokens" not in inspect.signature(self._function).parameters:
            return {}
        return {"max_new_tokens": max(map(self.most_tokens, batch))}

    def _read(self, example: Example, said: Any) -> Any:
        """The answer in what the function returned for one prompt. It is the user's code: all is
        checked before anything is stored."""
        if isinstance(said, Exception):
            return Failure(f"example {example.index}: the function raised {raised(said)}")
        if said is None:
            return Failure(f"example {example.index}: the function returned None")
        if not isinstance(said, str):
            raise UserError(
                f"model {self.name}: the function returned {reprlib.repr(said)} for example "
                f"{example.index} of {example.task}; it must return a text (str), or None where "
                "there is no answer"
            )
        refuse_echo(self.name, example, said)  # before it is cut
        return cut(said, self.prompt_format.tokenizer, self.most_tokens(example))

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
            entry, arguments = spec.pop("entry"), spec.pop("entry_with", {})
            try:
                returned = load(**arguments)
            except UserError:
                raise
            except Exception as error:  # it is the user's code
                raise UserError(
                    f"model {self.name}: entry {entry} raised {raised(error)}"
                ) from error
            try:
                self._loaded = model(returned, **spec)
            except UserError as error:
                raise UserError(f"{error}; this is what entry {entry} returned") from None
            if isinstance(self._loaded, Function):
                self._loaded._has_said = True  # the entry speaks for what it returns
        return self._loaded

    def _entry(self) -> Any:
        """The function that the entry names."""
        return find_function(self.name, "entry", self.spec["entry"])


def _outcome(call: Future[Any]) -> Any:
    """What a call returned, or the exception that ended it; a `UserError` is raised."""
    error = CancelledError() if call.cancelled() else call.exception()
    if isinstance(error, UserError):
        raise error
    return error or call.result()


def _is_coroutine_function(function: Any) -> bool:
    """Also an object whose `__call__` is one."""
    call = getattr(function, "__call__", None)  # noqa: B004 (its kind is wanted)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
