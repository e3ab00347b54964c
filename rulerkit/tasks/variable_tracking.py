"""Variable tracking (paper, section 3.2): follow a chain of assignments between haystack
sentences."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from string import ascii_uppercase

from rulerkit.example import ContextBudget, Draft, ExampleStream, Passage, Piece
from rulerkit.tasks.base import (
    JudgedAnswer,
    Reading,
    Rule,
    Task,
    distinct,
    in_proportion,
    too_short,
)
from rulerkit.tasks.haystacks import LINE, fill_with_sentences

_OPENING = "Memorize and track the chain(s) of variable assignment hidden in the following text."
_QUESTION = "Question: Find all variables that are assigned the value {value} in the text above."
_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {n} variables "
    "are {assigned} the value "
    "{value}, they are: "
)

_MOST_NAMES = 10_000  # of the 17,576 names of three letters that a demonstration has


_Chains = dict[str, list[str]]
"""Value -> the names that hold it, in order; the first chain is the queried one."""


@dataclass(frozen=True, kw_only=True)
class VariableTracking(Task):
    """Name all variables that hold one value: `num_hops` + 1 names in the queried chain, the first
    of `num_chains`."""

    family = "variable_tracking"
    category = "vt"

    short_name = "vt"
    answer_prefix_form = r"are ass(?:ig|gi)ned the value \S+ they are:( ?)"
    demonstration_opening = _OPENING
    failure_rules = (
        Rule(
            "wrong chain",
            "A variable of another chain.",
            lambda answer: _variables_of_other_chains(answer),
        ),
    )

    num_chains: int = 1
    num_hops: int = 4
    demonstration: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(
            self.num_chains * (self.num_hops + 1) <= _MOST_NAMES,
            "num_chains",
            f"such that num_chains times num_hops + 1 is at most {_MOST_NAMES}",
        )

    @property
    def default_new_tokens(self) -> int:
        return in_proportion(30, self.num_hops + 1, 5)

    def draft(self, stream: ExampleStream, length: int) -> Draft:
        fixed = self._fixed_chains() if self.edition == "2024" else ()
        chains = self._chains(stream.random, 5, fixed)
        statements = _statements(stream.random, chains)
        value, names = next(iter(chains.items()))
        shown = [self._demonstration(stream, chains)] if self.demonstration else []
        return Draft(
            head=(*shown, Passage("instruction", _OPENING + "\n\n")),
            tail=(Passage("question", _QUESTION.format(value=value)),),
            answer_prefix=self._prefix(value),
            references=tuple(names),
            plan=statements,
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece]:
        pieces = fill_with_sentences(draft.plan, budget, blanks=self.edition == "2024")
        if pieces is None:
            raise too_short(self, budget, draft.plan)
        return pieces

    @staticmethod
    def read(text: str) -> Reading | None:
        questions = re.findall(
            r"Find all variables that are assigned the value (\d+) in the text", text
        )
        if not questions:
            return None
        asked, opening = questions[-1], text.rfind(_OPENING)
        start = max(0, opening)
        assignment = re.compile(r"VAR (?P<item>[A-Z]+) = (?:VAR ([A-Z]+)|(\d+))")
        values: dict[str, str] = {}
        for name, source, value in assignment.findall(text, start):
            values[name] = value or values.get(source, "")
        return Reading(
            "variable_tracking",
            items=[name for name, value in values.items() if value == asked],
            others=[name for name, value in values.items() if value not in (asked, "")],
            occurrences=partial(assignment.finditer, text, start),
            demonstration="".join(
                re.findall(r"they are:\s+([A-Z]+(?: [A-Z]+)+)", text[:start])[-1:]
            ),
            opening=text[start:] if opening >= 0 else "",
            join=" ".join,
        )

    def _prefix(self, value: str) -> str:
        assigned = "assgined" if self.edition == "2024" else "assigned"  # upstream's spelling
        return _PREFIX.format(n=self.num_hops + 1, value=value, assigned=assigned)

    def _chains(self, random: Random, letters: int, taken: Iterable[str]) -> _Chains:
        """Chains with distinct names and values; upstream gives all chains of its demonstration one
        value."""
        size = self.num_hops + 1
        count = self.num_chains * size
        names = distinct(count, lambda: "".join(random.choices(ascii_uppercase, k=letters)))
        chains: _Chains = {}
        while len(chains) < self.num_chains:
            value = str(random.randrange(10000, 99999))
            if value not in taken and value not in chains:
                chains[value] = names[len(chains) * size :][:size]
        return chains

    def _fixed_chains(self) -> _Chains:
        """The chains of the 2024 edition's one demonstration."""
        return self._chains(Random(f"demonstration/{self.num_chains}/{self.num_hops}"), 3, ())

    def _demonstration(self, stream: ExampleStream, taken: Iterable[str]) -> Passage:
        """A solved example of about 500 tokens before the question: fresh names (2025) or one for
        all (2024)."""
        if self.edition == "2025":
            chains = self._chains(stream.random, 3, taken)
            items = _statements(stream.random, chains)
        else:
            chains = self._fixed_chains()
            items = _statements(Random("places in the demonstration"), chains)
        if self.protocol == "paper":  # as many as upstream's editions take
            num_lines = max(len(items), 10 if self.edition == "2024" else 16)
        else:
            num_lines = max(5, len(items), 16 - 2 * len(items) // 5)
        lines = [LINE] * num_lines
        for item in sorted(items, key=lambda item: -item.depth):
            lines.insert(int(item.depth * num_lines), item.text.removesuffix("\n"))
        value, names = next(iter(chains.items()))
        question = _QUESTION.format(value=value)
        answer = f"{self._prefix(value)} {' '.join(names)}"
        if self.edition == "2025":
            context = "".join(line + "\n" for line in lines)
            text = f"{_OPENING}\n\n{context}{question}{answer}\n\n"
        else:
            context = " ".join(line + "\n" if line == LINE else line for line in lines)
            question = question.removesuffix(" above.")
            text = f" {_OPENING} {context} {question}{answer}\n\n\n\n"
        return Passage("demonstration", text)


def _variables_of_other_chains(answer: JudgedAnswer) -> str | None:
    others = {
        str(piece.key).lower(): str(piece.key)
        for piece, _ in answer.needles
        if piece.role == "distractor"
    }
    return " ".join(others[word] for word in dict.fromkeys(answer.words) if word in others) or None


def _statements(random: Random, chains: _Chains) -> list[Passage]:
    """The assignments of all chains at free depths, those of one chain in order; the queried chain
    is the needle. Each hop has a blank behind it, as upstream writes it."""
    passages = []
    for number, (value, names) in enumerate(chains.items()):
        role = "needle" if number == 0 else "distractor"
        depths = sorted(random.random() for _ in names)
        sources = [value, *(f"VAR {name} " for name in names)]
        for depth, name, source in zip(depths, names, sources, strict=False):
            passages.append(Passage(role, f"VAR {name} = {source}\n", name, value, depth))
    return passages
