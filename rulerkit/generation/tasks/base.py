"""What every family of tasks has in common: the task as a value, how it is judged, the rules for
failures, and what a reference reader finds."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields, replace
from functools import cached_property
from random import Random
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from rulerkit.common.errors import UserError, shortened
from rulerkit.common.plugins import errors_of, is_outside
from rulerkit.generation.corpora import BASES, KINDS, choices
from rulerkit.generation.example import ContextBudget, Draft, Example, ExampleStream, Piece

Protocol = Literal["clean", "paper", "upstream"]
"""How prompts are made. `clean` draws everything freely for each example, with upstream's wording
of 2025. `paper` has the wording and the layouts of upstream at the time of the paper, 2024,
`upstream` those of 2025: in both, shuffles begin with the same seed in every example."""
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
MOST = 100_000
"""The largest number that a setting of a task takes."""
Positive = Annotated[int, Field(ge=1, le=MOST)]
"""A setting that is a number of things."""
CorpusName = Annotated[str, BeforeValidator(str)]
"""A setting that names a corpus or is the path of one."""
RULES = ("all", "part")
"""The rules of RULER, which `match` of a family names: `string_match_all`, `string_match_part`."""

_DRAWS = 100
"""For each text that is to be drawn, the draws after which there are too few different ones."""


# --- judging --------------------------------------------------------------------------------------


def string_match_all(prediction: str, references: Collection[str]) -> float:
    """Share (0..1) of the references that occur in the prediction, whatever their case: niah, vt,
    cwe, fwe."""
    answer = prediction.lower()
    return sum(reference.lower() in answer for reference in references) / len(references)


def string_match_part(prediction: str, references: Collection[str]) -> float:
    """1 if any of the references occurs in the prediction, whatever its case, else 0: question
    answering."""
    answer = prediction.lower()
    return float(any(reference.lower() in answer for reference in references))


@plain_dataclass(frozen=True)
class JudgedAnswer:
    """One answer: its text as it is judged, the references, and the example, which is made when a
    rule needs it."""

    text: str
    references: tuple[str, ...]
    score: float
    finish_reason: str
    in_thought: bool
    settings: Mapping[str, Any]
    """The task's settings, as its record holds them."""
    judge: "Task"
    make: Callable[[], Example]
    without_context: str | None = None
    """What the same model answered to the question alone."""

    @cached_property
    def example(self) -> Example:
        return self.make()

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The references that were not given, by the task's rule."""
        return self.judge.missing(self.text, self.references)

    @cached_property
    def words(self) -> list[str]:
        return [word.lower() for word in re.findall(r"\w+(?:-\w+)*", self.text)]

    @cached_property
    def needles(self) -> list[tuple[Piece, int]]:
        """Needles and distractors, those of runs of lines too, with the tokens before them."""
        before = 0
        pieces = []
        for piece in self.example.pieces:
            if piece.role in ("needle", "distractor"):
                pieces.append((piece, before))
            before += piece.num_tokens
        return pieces


class FailureRule(NamedTuple):
    """A label for what went wrong with an answer, and its definition in one sentence."""

    label: str
    definition: str
    test: Callable[[JudgedAnswer], str | None]
    """The detail that was seen, or None where the label does not fit."""


class Growth(NamedTuple):
    """How upstream finds the size of its contexts: it lengthens its first example from `start` by
    `step` until it does not fit, keeps that size for all, and shortens by `step` an example that is
    too long."""

    start: int
    step: int
    answer: str | None = None
    """What upstream counted behind its first example in 2024; since 2025 it searches the longest
    example that fits, instead. None: it does neither, and in 2024 left no room for an answer."""
    most: int | None = None
    """The largest size there is."""
    draws: int = 9
    """The examples that may be the first one, where the size depends on what is drawn."""


# --- tasks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="forbid"))
class Task(ABC):
    """One named setting of a family: a value.

    A family is a subclass with typed settings, which pydantic checks, in one file that holds all
    that knows the family's text. It may stand outside the package: `docs/extend.md` says what it
    must bring, and what the kit does without where it leaves something out.
    """

    family: ClassVar[str]
    category: ClassVar[str]
    """The group its scores are averaged in; the name of the family where it names none."""
    match: ClassVar[str] = "all"
    """One of RULES, or another word, such as `own`: then the family brings `score`."""
    threshold: ClassVar[float | None] = None
    """Percent that the mean of the category must reach so that a length is effective; RULER's own
    are in `scoring.effective_length`."""
    separator: ClassVar[str] = ", "
    """What stands between several items of an answer."""
    nothing: ClassVar[str] = ""
    """What a reference reader answers where it finds no item."""
    failure_rules: ClassVar[tuple[FailureRule, ...]] = ()
    """The rules for what goes wrong in this family alone, in the order in which they are tried."""
    beginning_scores: ClassVar[bool] = False
    """Whether the beginning of the context, copied, names some of what is asked for: then tables
    show its score below the task."""
    judges_prefix: ClassVar[bool] = False
    """Whether the answer prefix is a part of the answer. Then base models alone get it, and what
    they write is judged behind it."""
    short_name: ClassVar[str]
    """The first letters of the names of all its tasks; the name of the family where it names
    none."""
    new_tokens: ClassVar[tuple[int, int]]
    """The answer tokens that the benchmark gives, and to how many items."""
    question_form: ClassVar[str] = ""
    """A regular expression for the question; the last match is what a prompt asks. Without it no
    reference reader answers the family."""

    name: str
    protocol: Protocol = "clean"
    """It belongs to the study, not to the task's settings."""
    suite: str = ""
    """`ruler` (where nothing is said), `small`, or one of a plug-in's: no mean, table or threshold
    mixes suites. A family says `suite = NAME`, a variant `suite: NAME` among its settings."""
    max_new_tokens: Positive | None = None
    """The most tokens of an answer; None takes the benchmark's number, raised in proportion to what
    is asked for."""

    def __init_subclass__(cls) -> None:
        """What a family calls its tasks and category is its own name unless it says more."""
        for name in ("category", "short_name"):
            if "family" in vars(cls) and not hasattr(cls, name):
                setattr(cls, name, cls.family)

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, given: Any, validate: Callable[[Any], Any]) -> Any:
        """The task; what pydantic says of a wrong setting is one line here."""
        try:
            task = validate(given)
            # The default of a field hides what the class of a family says.
            object.__setattr__(task, "suite", task.suite or cls.suite or "ruler")
            return task
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
        name = f"the task {(given.kwargs or {}).get('name', cls.family)}"
        if first["type"] == "value_error":  # what a family says of several settings
            raise UserError(f"{name}: {first['ctx']['error']}")
        expected = first["msg"].replace("Input should be", "it must be")
        raise UserError(f"{first['loc'][0]} of {name} is {shortened(first['input'])}: {expected}")

    @classmethod
    def tasks(cls) -> "Sequence[Task]":
        """The named tasks of a plug-in's family: one with its name, unless it says more."""
        return [cls(name=cls.family)]

    @abstractmethod
    def make(self, stream: ExampleStream, length: int) -> Draft:
        """What example `stream.index` asks. Only demonstrations may depend on the length."""

    @abstractmethod
    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        """The context: as many pieces as fit into `budget.tokens` tokens, or as make up
        `budget.size`, for a family with a `growth`. None where it cannot hold the needles."""

    def growth(self, draft: Draft, length: int) -> Growth | None:
        """How upstream finds the size of this context; None where upstream has no such task: then
        all protocols fill the budget."""
        return None

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str] | None:
        """The items of the answer that the text of a prompt before its question gives; None where
        a reader cannot tell."""
        return None

    @classmethod
    def read(cls, text: str) -> list[str] | None:
        """The items of the answer that the text of a prompt gives, without the references; None if
        it is not of this family, or the family brings no reader."""
        if not cls.question_form:
            return None
        # A demonstration asks the same question; the last one is what is asked.
        questions = list(re.finditer(cls.question_form, text))
        if not questions:
            return None
        asked = questions[-1]
        with errors_of(cls, "reading a prompt"):
            items = cls.read_context(text[: asked.start()], asked)
        is_list = isinstance(items, list) and all(isinstance(item, str) for item in items)
        if not (items is None or is_list):
            raise UserError(
                f"the reader of the family {cls.family} gave {shortened(items)}: `read_context` "
                "must give a list of texts, or None"
            )
        return items

    @classmethod
    def join(cls, items: Sequence[str]) -> str:
        """Several items as an answer writes them."""
        return cls.separator.join(items)

    @property
    def num_items(self) -> int:
        """How many items an answer names."""
        return 1

    @property
    def answer_tokens(self) -> int:
        """The tokens kept free for the answer: in proportion to its items, at least the
        benchmark's."""
        tokens, usual = self.new_tokens
        return self.max_new_tokens or max(tokens, -(-tokens * self.num_items // usual))

    # --- judging ----------------------------------------------------------------------------------

    @property
    def any_is_enough(self) -> bool:
        """Whether the references are alternatives, of which one is enough."""
        return self.match == "part"

    def can_judge(self, references: Sequence[str] | None) -> bool:
        """Whether there are references, none of them empty: an empty text is in every answer. A
        family with a `score` of its own may have none."""
        if not references:
            may_be_none = self.match not in RULES and not self.any_is_enough
            return may_be_none and references is not None
        # One text would be taken for its letters.
        return not isinstance(references, str) and all(map(str.strip, references))

    def score(self, text: str, references: Sequence[str], /) -> float:
        """The score of an answer, 0 to 1, by the family's match rule. `text` is without a thought,
        and with the answer prefix where this is a part of the answer. Raises UserError where there
        is no reference, or an empty one, and for one that is no list."""
        if not self.can_judge(references):
            raise UserError(
                f"task {self.name}: the references are {references!r}: expected a list of "
                "texts, none of them empty"
            )
        match = string_match_part if self.match == "part" else string_match_all
        return match(text, references)

    def missing(self, text: str, references: Sequence[str], /) -> tuple[str, ...]:
        """The references that an answer does not give."""
        if self.match in RULES:
            answer = text.lower()
            return tuple(one for one in references if one.lower() not in answer)
        return () if self.score(text, references) == 1 else tuple(references)

    @classmethod
    def items_of(cls, text: str) -> list[str]:
        """The long words and numbers of an answer, lower case."""
        return [word for word in re.findall(r"\w+(?:-\w+)*", text.lower()) if len(word) > 3]

    def in_another_form(self, text: str, references: Sequence[str], /) -> bool:
        """Whether a wrong answer holds all references in a form that the rule does not see, as
        beside an answer line."""
        return False

    # --- settings ---------------------------------------------------------------------------------

    def shuffle(self, entries: np.ndarray, budget: ContextBudget) -> np.ndarray:
        """The entries in a random order, which is the same in all examples of a cell unless the
        protocol is `clean`."""
        if self.protocol != "clean":
            return np.asarray(entries[shuffled_alike(len(entries), budget.seed)])
        return budget.random.permutation(entries)

    def settings(self) -> dict[str, Any]:
        """All that defines this task, ready for JSON."""
        family = type(self)
        settings: dict[str, Any] = {"name": self.name}
        for name in self.setting_names():
            if getattr(self, name) is not None:
                settings[name] = getattr(self, name)
        settings |= {
            "family": self.family,
            "category": self.category,
            "match": self.match,
            "max_new_tokens": self.answer_tokens,
        }
        if is_outside(family):
            settings["module"] = family.__module__
        return settings

    @classmethod
    def setting_names(cls) -> list[str]:
        """The names of the settings that a variant of this task may change."""
        return [
            field.name for field in fields(cls) if field.name not in ("name", "protocol", "suite")
        ]

    @property
    def corpora(self) -> tuple[tuple[str, str], ...]:
        """The corpora that the task reads: their kinds, with the settings that name them."""
        return ()

    def with_corpora(self, corpora: str | Mapping[str, Any]) -> Self:
        """The same task over the `original` corpora, the `builtin` synthetic texts, or files: a
        mapping of `essay`, `qa` and `words` to paths, with `base` for what it does not name. Its
        name stays, and so does a file that a setting of the task names."""
        chosen = choices(corpora)
        swapped = BASES[chosen["base"]]
        names: Any = {}
        for kind, setting in self.corpora:
            name = getattr(self, setting)
            if name in KINDS[kind]:
                names[setting] = chosen.get(kind, swapped.get(name, name))
        return replace(self, **names)


def score_of(task: Task, text: str, references: Sequence[str]) -> float:
    """The score that a task gives an answer; UserError where code of a plug-in gives no number from
    0 to 1."""
    if not is_outside(type(task)):
        return task.score(text, references)
    with errors_of(type(task), f"the score of the answer {shortened(text)}"):
        value = task.score(text, references)
    is_number = isinstance(value, int | float | np.number)
    if not is_number or not 0 <= value <= 1:  # also where it is NaN
        raise UserError(
            f"the score of the family {task.family} gave {shortened(value)} for the answer "
            f"{shortened(text)}: it must give a number from 0 to 1"
        )
    return float(value)


def shuffled_alike(size: int, seed: int) -> list[int]:
    """The positions 0 to size - 1, shuffled with Python's own generator, as upstream does: the same
    order in every example with this seed."""
    order = list(range(size))
    Random(seed).shuffle(order)
    return order


def distinct(count: int, draw: Callable[[], str], first: Iterable[str] = ()) -> list[str]:
    """Draws until there are `count` different texts with the first ones, in the order of drawing
    (upstream draws with replacement)."""
    texts = dict.fromkeys(first)
    for _ in range(_DRAWS * count + 1):
        if len(texts) >= count:
            return list(texts)
        texts[draw()] = None
    raise UserError(
        f"corpora: words: {len(texts)} different texts can be drawn where {count} are needed: give "
        "a longer list, or a shorter length"
    )
