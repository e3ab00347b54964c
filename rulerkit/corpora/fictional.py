"""A rule that reads the invented question answering sets: it knows how facts are worded, never
which facts there are."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Literal

_ANSWERS = {
    "person": r"[A-Z][a-z]+ [A-Z][a-z]+",
    "place": r"[A-Z][a-z]+",
    "name": r"[A-Z][a-z]+",
    "date": r"\d\d [A-Z][a-z]+ \d{4}",
    "number": r"\d\d,\d{3}",
}


@dataclass(frozen=True)
class Relation:
    """One thing that can be said of a kind of thing: its statements, questions and two-hop
    phrases."""

    kind: str
    name: str
    answer: str
    statements: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    phrases: list[str] = field(default_factory=list)

    @property
    def behind(self) -> re.Pattern[str]:
        """What stands behind the entity's name where the fact is stated; the answer is the last
        group matched."""
        tails = [re.escape(form.partition("{e}")[2]) for form in self.statements]
        slot = re.escape("{a}")
        return re.compile(
            "|".join(tail.replace(slot, f"({_ANSWERS[self.answer]})") for tail in tails)
        )


@cache
def relations() -> list[Relation]:
    """The relations of the invented worlds, in the order of their data file."""
    found: list[Relation] = []
    for line in (
        (resources.files("rulerkit") / "data/fictional.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    ):
        if line.startswith("["):
            kind, name, answer = line.strip("[]").split()
            found.append(Relation(kind, name, answer))
        elif line[0] != "#":
            last = found[-1]
            {"?": last.questions, "~": last.phrases, "=": last.statements}[line[0]].append(line[2:])
    return found


@cache
def _forms(kind: Literal["questions", "phrases"]) -> list[tuple[re.Pattern[str], re.Pattern[str]]]:
    """Forms of questions or of two-hop phrases, each with what stands behind the entity where it is
    answered."""

    def compiled() -> Iterator[tuple[re.Pattern[str], re.Pattern[str]]]:
        for relation in relations():
            for form in relation.questions if kind == "questions" else relation.phrases:
                yield re.compile(re.escape(form).replace(re.escape("{e}"), "(.+)")), relation.behind

    return list(compiled())


def answer_fictional(documents_text: str, question: str) -> str | None:
    """Reads the answer to a fictional question (either set) in a prompt's text, by rule; None if
    the text lacks it.

    Only the text given and the forms of sentences are used. Every statement names its subject
    before its answer, so in a text that was cut at the front a fact is there whole or not at all;
    of a two-hop question both must be there.
    """
    for form, behind in _forms("questions"):
        if found := form.fullmatch(question.strip()):
            return _stated(documents_text, _entity(documents_text, found[1]), behind)
    return None


def _entity(text: str, phrase: str) -> str | None:
    """What a phrase stands for: "the founder of the X" is looked up in the text, a name stands for
    itself."""
    for form, behind in _forms("phrases"):
        if found := form.fullmatch(phrase):
            return _stated(text, _entity(text, found[1]), behind)
    return phrase


def _stated(text: str, entity: str | None, behind: re.Pattern[str]) -> str | None:
    """The answer that a statement about the entity gives."""
    start = text.find(entity) if entity else -1
    while entity and start >= 0:
        end = start + len(entity)
        if (start == 0 or not text[start - 1].isalnum()) and (found := behind.match(text, end)):
            return found[found.lastindex or 0]
        start = text.find(entity, end)
    return None
