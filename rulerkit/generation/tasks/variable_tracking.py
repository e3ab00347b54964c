"""Variable tracking (paper, section 3.2): follow a chain of assignments between haystack
sentences.

A prompt of `{base: vt, demonstration: false}` in 256 tokens, its lines wrapped:

    Memorize and track the chain(s) of variable assignment hidden in the following text.

    VAR HWHFH = 14118
    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    VAR LCPPJ = VAR HWHFH
    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    VAR GTQTD = VAR LCPPJ
    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    VAR KAYIC = VAR GTQTD
    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    VAR NYDWX = VAR KAYIC
    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    Question: Find all variables that are assigned the value 14118 in the text above. Answer:
    According to the chain(s) of variable assignment in the text above, 5 variables are assigned
    the value 14118, they are:

References: HWHFH, LCPPJ, GTQTD, KAYIC, NYDWX.

With the demonstration, as in the benchmark, a solved example of the same form and names of three
letters comes first: opening, lines, question and answer, then a blank line. The answer prefix ends
in a blank; an empty line follows each opening.
"""

import re
from collections.abc import Iterable
from random import Random
from string import ascii_uppercase
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.tasks.base import (
    FailureRule,
    Growth,
    JudgedAnswer,
    Positive,
    Task,
    distinct,
)
from rulerkit.generation.tasks.haystacks import LINE, fill_with_sentences

_OPENING = "Memorize and track the chain(s) of variable assignment hidden in the following text."
_QUESTION = "Question: Find all variables that are assigned the value {value} in the text above."
_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {n} variables "
    "are {assigned} the value "
    "{value}, they are: "
)

_MOST_CHAINS = 100
"""And names in each: 10,000 of the 17,576 names of three letters that a demonstration has."""


_Chains = dict[str, list[str]]
"""Value -> the names that hold it, in order; the first chain is the queried one."""


def _variables_of_other_chains(answer: JudgedAnswer) -> str | None:
    # Distractors of this family are the statements of other chains.
    names = {str(piece.key) for piece, _ in answer.needles if piece.role == "distractor"}
    written = [word.upper() for word in dict.fromkeys(answer.words)]
    return " ".join(name for name in written if name in names) or None


@dataclass(frozen=True, kw_only=True)
class VariableTracking(Task):
    """Name all variables that hold one value: `num_hops` + 1 names in the queried chain, the first
    of `num_chains`."""

    family = "variable_tracking"
    category = "vt"

    separator = " "
    short_name = "vt"
    new_tokens = (30, 5)
    question_form = r"Find all variables that are assigned the value (\d+) in the text"
    failure_rules = (
        FailureRule("wrong chain", "A variable of another chain.", _variables_of_other_chains),
    )

    num_chains: Annotated[Positive, Field(le=_MOST_CHAINS)] = 1
    num_hops: Annotated[Positive, Field(lt=_MOST_CHAINS)] = 4
    demonstration: bool = True

    @property
    def num_items(self) -> int:
        return self.num_hops + 1

    def make(self, stream: ExampleStream, length: int) -> Draft:
        # The demonstration of `paper` is one and the same; its values are not asked for again.
        shown: _Chains = {}
        if self.protocol == "paper":
            shown = self._chains(Random(f"demonstration/{self.num_chains}/{self.num_hops}"), 3)
        chains = self._chains(stream.random, 5, shown)
        statements = _statements(stream.random, chains)

        demonstration = ""
        if self.demonstration and self.protocol == "paper":
            demonstration = self._solved(shown, Random("places in the demonstration"))
        elif self.demonstration:
            shown = self._chains(stream.random, 3, chains)
            demonstration = self._solved(shown, stream.random)

        # The first chain is the one that is asked for.
        value, names = next(iter(chains.items()))
        return Draft(
            demonstration=demonstration,
            instruction=_OPENING + "\n\n",
            question=_QUESTION.format(value=value),
            answer_prefix=self._prefix(value),
            references=tuple(names),
            hidden=statements,
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        return fill_with_sentences(draft.hidden, budget, blanks=self.protocol == "paper")

    def growth(self, draft: Draft, length: int) -> Growth:
        # Since 2025 by five lines below 4096 tokens.
        step = 5 if length < 4096 and self.protocol != "paper" else 10
        return Growth(step, step, f" {list(draft.references)}", draws=1)

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        # A solved example may stand before the text; its chains are not those that are asked.
        asked = text[max(0, text.rfind(_OPENING)) :]

        # Statements are read in order: the value of a variable is that of its source so far.
        values: dict[str, str] = {}
        for name, source, value in re.findall(r"VAR ([A-Z]+) = (?:VAR ([A-Z]+)|(\d+))", asked):
            values[name] = value or values.get(source, "")
        return [name for name, value in values.items() if value == question[1]]

    def _prefix(self, value: str) -> str:
        assigned = "assgined" if self.protocol == "paper" else "assigned"  # upstream's spelling
        return _PREFIX.format(n=self.num_items, value=value, assigned=assigned)

    def _chains(self, random: Random, letters: int, taken: Iterable[str] = ()) -> _Chains:
        """Chains with distinct names and values."""
        # All names are drawn at once, so that none stands in two chains.
        size = self.num_items
        count = self.num_chains * size
        names = distinct(count, lambda: "".join(random.choices(ascii_uppercase, k=letters)))
        chains: _Chains = {}
        while len(chains) < self.num_chains:
            value = str(random.randrange(10000, 99999))
            if value not in taken and value not in chains:
                chains[value] = names[len(chains) * size :][:size]
        return chains

    def _solved(self, chains: _Chains, random: Random) -> str:
        """A solved example of about 500 tokens, to stand before the question."""
        statements = _statements(random, chains)

        # As many lines as upstream takes, or about 500 tokens whatever the number of statements is.
        upstreams = {"paper": 10, "upstream": 16}
        least_lines = upstreams.get(self.protocol, max(5, 16 - 2 * len(statements) // 5))

        # From the last statement to the first, so that inserting one does not move the others.
        num_lines = max(len(statements), least_lines)
        lines = [LINE] * num_lines
        for statement in sorted(statements, key=lambda statement: -statement.depth):
            lines.insert(int(statement.depth * num_lines), statement.text.removesuffix("\n"))
        value, names = next(iter(chains.items()))
        question = _QUESTION.format(value=value)
        answer = f"{self._prefix(value)} {self.join(names)}"
        if self.protocol == "paper":
            context = " ".join(line + "\n" if line == LINE else line for line in lines)
            question = question.removesuffix(" above.")
            return f" {_OPENING} {context} {question}{answer}\n\n\n\n"
        context = "".join(line + "\n" for line in lines)
        return f"{_OPENING}\n\n{context}{question}{answer}\n\n"


def _statements(random: Random, chains: _Chains) -> list[Piece]:
    """The assignments of all chains at free depths, those of one chain in order; the queried chain
    is the needle. Each hop has a blank behind it, as upstream writes it."""
    statements = []
    for number, (value, names) in enumerate(chains.items()):
        role = "needle" if number == 0 else "distractor"
        depths = sorted(random.random() for _ in names)
        sources = [value, *(f"VAR {name} " for name in names)]
        for depth, name, source in zip(depths, names, sources, strict=False):
            text = f"VAR {name} = {source}\n"
            statements.append(Piece(text, role, key=name, value=value, depth=depth))
    return statements
