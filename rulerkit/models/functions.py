"""Any Python function as a model: a patched attention, a pipeline, a server of one's own.

The function takes a list of prompts or of token ids and returns as many texts. In a parameter file `entry:
package.module:load` names a function that, called without arguments, returns it, or a loaded checkpoint with its
tokenizer; modules are looked for in the project root too.
"""

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from typing import Any

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.models import Answer, Engine, Model, cut, model
from rulerkit.models.spec import Key, one_of, text, whole
from rulerkit.paths import home
from rulerkit.tokenizers import Tokenizer

KEYS = {
    "entry": Key("package.module:function, a function that returns the model", text),
    "takes": one_of("prompts", "ids"),
    "batch_size": Key("a whole number of at least 1 (default 8)", whole),
}


class Function(Engine):
    """Asks a function, `batch_size` prompts at a time."""

    on_gpu = False

    def __init__(self, spec: Mapping[str, Any], target: Any = None) -> None:
        super().__init__(spec)
        self._target = target
        self._inner: Model | None = None  # where the entry returns a loaded checkpoint
        self.takes: str = spec.get("takes", "prompts")
        entry = spec.get("entry")
        if target is None and not (entry and all(entry.partition(":"))):
            raise UserError(f"model {self.name}: entry: {entry!r} is not allowed; it takes {KEYS['entry'].help}")
        if self.takes == "ids" and "tokenizer" not in spec and target is not None:
            raise UserError(f"model {self.name}: a function that takes ids needs the `tokenizer` that they belong to")

    def identity(self) -> dict[str, Any]:
        """The entry or the function's own name; what stands behind it is the user's to name."""
        if entry := self.spec.get("entry"):
            return {"engine": "function", "entry": entry, "takes": self.takes}
        named = self._target if hasattr(self._target, "__qualname__") else type(self._target)
        return {"engine": "function", "function": f"{named.__module__}.{named.__qualname__}", "takes": self.takes}

    def environment(self) -> dict[str, Any]:
        """That of the checkpoint behind the entry, where there is one."""
        return self._inner.environment() if self._inner else {}

    def tokenizer(self) -> Tokenizer:
        """The spec's, else that of the checkpoint behind the entry, else `builtin`."""
        if "tokenizer" not in self.spec and self._load() is None and self._inner:
            return self._inner.prompt_format.tokenizer
        return super().tokenizer()

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """In the order given, a batch at a time."""
        function = self._load()
        if self._inner:
            yield from self._inner.answer(examples)
            return
        told = "max_new_tokens" in inspect.signature(function).parameters
        tokenizer, source = self.prompt_format.tokenizer, iter(examples)
        while batch := list(islice(source, self.spec.get("batch_size", 8))):
            most = {"max_new_tokens": max(self.most_tokens(example) for example in batch)} if told else {}
            asked = [example.ids if self.takes == "ids" else example.prompt for example in batch]
            texts = function(asked, **most)
            self._check(batch, texts)
            for example, answer in zip(batch, texts, strict=True):
                yield example, cut(answer, tokenizer, self.most_tokens(example))

    def close(self) -> None:
        """Forgets what `entry` loaded; a function that was handed over stays."""
        if "entry" in self.spec:
            self._target = None
        if self._inner:
            self._inner.close()
            self._inner = None

    def _load(self) -> Any:
        """The function, or None where the entry returned a checkpoint, which is then `_inner`."""
        if self._target is None and self._inner is None:
            found = self._enter()
            if callable(found) and not isinstance(found, tuple):
                self._target = found
            else:
                spec = {key: value for key, value in self.spec.items() if key not in ("engine", "entry", "takes")}
                self._inner = model(found, **spec)
        return self._target

    def _enter(self) -> Any:
        """What the entry's function returns."""
        module_name, _, function_name = self.spec["entry"].partition(":")
        if str(home()) not in sys.path:
            sys.path.append(str(home()))
        try:
            module = import_module(module_name)
        except ImportError as error:
            raise UserError(
                f"model {self.name}: entry {self.spec['entry']}: {error}; the module must be installed or lie under "
                f"the project root {home()}"
            ) from error
        load = getattr(module, function_name, None)
        if not callable(load):
            found = [n for n, v in vars(module).items() if inspect.isfunction(v)]
            raise UserError(
                f"model {self.name}: {module_name} has no function {function_name!r}; it has "
                f"{', '.join(found) or 'none'}"
            )
        return load()

    def _check(self, batch: list[Example], texts: Any) -> None:
        """As many texts as prompts, and none of them the prompt itself, which would score 100 everywhere."""
        listed = isinstance(texts, list | tuple)
        if not listed or len(texts) != len(batch) or not all(isinstance(text, str) for text in texts):
            kinds = ", ".join(sorted({type(text).__name__ for text in texts})) if listed else ""
            seen = f"{len(texts)} answers ({kinds})" if listed else f"a {type(texts).__name__}"
            raise UserError(
                f"model {self.name}: the function returned {seen}; it must return a list of {len(batch)} texts (str), "
                "one for each prompt"
            )
        for example, answer in zip(batch, texts, strict=True):
            if len(answer) > len(example.prompt) // 2 and example.input[:200] in answer:
                raise UserError(
                    f"model {self.name}: the function returned the prompt together with the answer; it must return the "
                    "new text alone (a transformers pipeline: return_full_text=False)"
                )
