"""Writes the built-in corpora into rulerkit/data: endless prose, and question answering about
invented worlds.

    python scripts/make_corpora.py

No answer can be known from the real world: people, places, rivers, ships and books are made up of
syllables, dates and numbers are drawn. Sentence forms and words are the files beside this script.
Random choices use `random()` alone, whose stream Python keeps from
version to version, so every machine writes the same texts.
"""

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
Row = tuple[
    str, tuple[str, ...], tuple[int, ...], tuple[int, ...]
]  # question, answers, gold, related
Table = tuple[list[str], list[int], list[Row]]  # documents, groups, questions

_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")
_SLOT = re.compile(r"\{(\w+?)2?\}")
_ALTERNATIVES = ("adj", "abstract", "time", "timeof", "tail", "view", "folk", "relative")
_SENTENCE_WORDS = range(6, 31)
_MEMORY = 100_000  # sentences remembered, so that none comes back soon


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


@cache
def relations() -> list[Relation]:
    """The relations of the invented worlds, in the order of their file."""
    text = Path(__file__).with_name("relations.txt").read_text(encoding="utf-8")
    table: list[Relation] = []
    for line in text.splitlines():
        if line.startswith("["):
            kind, name, answer = line.strip("[]").split()
            table.append(Relation(kind, name, answer))
        elif line[0] != "#":
            last = table[-1]
            forms = {"?": last.questions, "~": last.phrases, "=": last.statements}
            forms[line[0]].append(line[2:])
    return table


class Dice:
    """Random choices from one stream, the same on every machine and Python version."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed).random

    def below(self, n: int) -> int:
        return int(self.random() * n)

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.random() * len(items))]

    def some(self, items: Sequence[T], n: int) -> list[T]:
        """n distinct items (all, if there are fewer) in random order."""
        pool = list(items)
        n = min(n, len(pool))
        for i in range(n):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:n]


class Form:
    """A sentence with {slots}, each filled from the word list of that name; `{word2}` fills
    `{word}` a second time."""

    def __init__(self, text: str) -> None:
        self.slots: list[str] = _SLOT.findall(text)
        self.template = _SLOT.sub("%s", text)

    def fill(self, words: dict[str, Sequence[str]], random: Dice) -> str:
        """The sentence with words from the lists, no word twice."""
        pick = random.pick
        while True:
            chosen = [pick(words[slot]) for slot in self.slots]
            if len(set(chosen)) == len(chosen):
                sentence = _ARTICLE.sub(r"\1n ", self.template % tuple(chosen))
                return sentence[0].upper() + sentence[1:]


def sections(name: str) -> dict[str, list[str]]:
    """A file beside this script: the lines under each [heading], in order."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


def listed(line: str) -> list[str]:
    """The entries of a line, between semicolons if it has any, else between commas."""
    return [entry.strip() for entry in line.split(";" if ";" in line else ",")]


@cache
def prose_tables() -> tuple[
    dict[str, list[Form]], dict[str, Sequence[str]], list[dict[str, Sequence[str]]]
]:
    """Sentence forms by place in the paragraph, the words that any topic uses, and each topic's own
    words."""
    table = sections("prose.txt")
    forms = {
        place: [Form(line) for line in table[place]]
        for place in ("open", "body", "thought", "close")
    }
    forms["longer"] = [Form(line) for line in _longer(table["body"])]
    shared: dict[str, Sequence[str]] = {name: listed(table[name][0]) for name in _ALTERNATIVES}
    topics: list[dict[str, Sequence[str]]] = []
    for heading, lines in table.items():
        if heading.startswith("topic "):
            topics.append(
                {name: listed(words) for name, words in (line.split(": ", 1) for line in lines)}
            )
    return forms, shared, topics


def _longer(lines: list[str]) -> Iterator[str]:
    """Longer forms of plain sentences: with a clause behind, with a view or a time before."""
    for line in lines:
        if "{tail}" not in line and ";" not in line:
            yield f"{line[:-1]}, {{tail}}."
        if not line.startswith(("{", "I ")):
            start = line[0].lower() + line[1:]
            yield from (f"{{view}} {start}", f"{{time}}, {start}")


def prose_essays(seed: str = "prose") -> Iterator[list[str]]:
    """Essays without end, each a list of sentences (6 to 30 words) on one topic; no sentence comes
    back for as long as `_MEMORY` sentences. Nothing in them looks like a needle: no digits, no
    names."""
    dice = Dice(seed)
    forms, shared, topics = prose_tables()
    seen: set[str] = set()
    previous = None
    while True:
        topic = dice.pick(topics)
        if topic is previous:
            continue
        previous = topic
        if len(seen) > _MEMORY:
            seen.clear()
        essay: list[str] = []
        for _ in range(8 + dice.below(12)):  # paragraphs
            essay += _paragraph(dice, forms, shared | topic, seen)
        yield essay


def _paragraph(
    dice: Dice, forms: dict[str, list[Form]], words: dict[str, Sequence[str]], seen: set[str]
) -> list[str]:
    """An opening, four to eight sentences and often a closing one, about a few of the topic's
    people and things."""
    words = words | {"who": dice.some(words["who"], 3), "place": dice.some(words["place"], 3)}
    middle = ("thought", "body", "body", "longer", "longer")
    places = ["open", *(dice.pick(middle) for _ in range(4 + dice.below(5)))]
    if dice.random() < 0.6:
        places.append("close")
    sentences = []
    for place in places:
        while True:
            sentence = dice.pick(forms[place]).fill(words, dice)
            if sentence not in seen and sentence.count(" ") + 1 in _SENTENCE_WORDS:
                break
        seen.add(sentence)
        sentences.append(sentence)
    return sentences


def prose_words(at_least: int) -> tuple[list[str], int]:
    """Whole essays until there are `at_least` words; the words, and the index where the second
    essay begins."""
    words: list[str] = []
    restart = 0
    for essay in prose_essays():
        words += " ".join(essay).split()
        restart = restart or len(words)
        if len(words) >= at_least and len(words) > restart:
            return words, restart
    raise AssertionError("the essays have no end")


# --- question answering ---------------------------------------------------------------------------

_KINDS = {
    "person": "person",
    "place": "town",
}  # what an answer of this type can be asked about in turn
_MONTHS = listed(
    "January, February, March, April, May, June, July, August, September, October, November, "
    "December"
)
_ONSETS = listed(
    "b, br, c, d, dr, f, fl, g, gr, h, j, k, l, m, n, p, pr, qu, r, s, sk, st, t, tr, v, w, z"
)
_VOWELS = listed("a, e, i, o, u, ae, ei, ou, y")
_MIDDLES = listed(
    "l, ld, lm, m, mb, n, nd, nt, r, rd, rk, rm, rv, s, sk, ss, st, t, th, v, z, x, lt, pt, ff, g, "
    "k"
)
_ENDS = {
    "first": listed("a, o, e, in, en, is, or, an, iel, ek, us, ya"),
    "last": listed(
        "ak, ane, aro, eck, ell, enko, idge, ik, imar, oth, ovan, ulk, und, uvar, yne, ostin, "
        "emet, avray"
    ),
    "place": listed(
        "aven, holt, mere, stead, gard, wick, burn, ford, dale, mouth, haven, low, combe, ness, vik"
    ),
    "name": listed("ava, ela, une, ith, orra, ain, iss, ole, ede, umna"),
    "land": listed("ia, mark, ova, ania, land, esse"),
}


class _World:
    """Invents names, dates and numbers, none twice, and writes documents about them."""

    def __init__(self, seed: str) -> None:
        self.dice = Dice(seed)
        self._used: set[str] = set()
        self._first_names = [self._word("first") for _ in range(400)]
        self.lands = [self._word("land") for _ in range(60)]
        table = sections("fictional.txt")
        self._stock = {
            name: listed(table[name][0])
            for name in ("trade", "institution", "ship", "bridge", "book")
        }
        self._intros = {
            h.split()[1]: [Form(f) for f in lines]
            for h, lines in table.items()
            if h.startswith("intro ")
        }
        self._fillers = {
            h.split()[1]: [Form(f) for f in lines]
            for h, lines in table.items()
            if h.startswith("filler ")
        }
        self._of_kind: dict[str, list[Relation]] = {}
        for relation in relations():
            self._of_kind.setdefault(relation.kind, []).append(relation)
        self.kinds = list(self._of_kind)

    def _word(self, kind: str) -> str:
        """A new capitalised word that is not the beginning or the end of another, so none is found
        inside another."""
        pick = self.dice.pick
        while True:
            word = pick(_ONSETS) + pick(_VOWELS) + pick(_MIDDLES)
            if kind != "first" and self.dice.random() < 0.5:
                word += pick(_VOWELS) + pick(_MIDDLES[:8])
            word += pick(_ENDS[kind])
            parts = [
                part for n in range(4, len(word)) for part in (f"{word[:n]}-", f"-{word[-n:]}")
            ]
            if (
                f"{word}-" in self._used
                or f"-{word}" in self._used
                or not self._used.isdisjoint(part.strip("-") for part in parts)
            ):
                continue
            self._used.update(parts, (word, f"{word}-", f"-{word}"))
            return word.capitalize()

    def _new(self, text: str) -> str | None:
        if text in self._used:
            return None
        self._used.add(text)
        return text

    def value(self, kind: str) -> str:
        """A new answer of a type that `relations.txt` names."""
        dice = self.dice
        if kind == "person":
            return f"{dice.pick(self._first_names)} {self._word('last')}"
        if kind in ("place", "name"):
            return self._word(kind)
        while True:
            if kind == "date":
                value = self._new(
                    f"{10 + dice.below(19)} {dice.pick(_MONTHS)} {1400 + dice.below(560)}"
                )
            else:
                value = self._new(f"{10 + dice.below(90)},{dice.below(1000):03d}")
            if value:
                return value

    def entity(self, kind: str, like: str | None = None) -> str:
        """A new thing of this kind; `like`: one that shares its distinctive word, where the kind
        allows it."""
        if kind == "town":
            return self._word("place")
        if kind == "person":
            while True:
                first = self.dice.pick(self._first_names)
                if name := self._new(f"{first} {like.split()[1] if like else self._word('last')}"):
                    return name
        word = "" if like is None else like.split()[-1 if kind == "book" else 0]
        while True:
            stem, part = (word or self._word("name"), self.dice.pick(self._stock[kind]))
            if name := self._new(f"{part} {stem}" if kind == "book" else f"{stem} {part}"):
                return name

    def relations_of(self, kind: str) -> list[Relation]:
        return self._of_kind[kind]

    def document(
        self, kind: str, entity: str, land: str, facts: list[tuple[Relation, str]], words: range
    ) -> str:
        """Some sentences about one thing that state these facts in random order; `words`: how many
        words it may have (filled up to somewhere in the upper part of that range)."""
        dice = self.dice
        forms, shared, topics = prose_tables()
        slots = shared | dice.pick(topics) | {"trade": [dice.pick(self._stock["trade"])]}
        slots |= {"e": [entity], "land": [land]}
        stated = [
            dice.pick(r.statements).replace("{e}", entity).replace("{a}", answer)
            for r, answer in facts
        ]
        stated.insert(0, dice.pick(self._intros[kind]).fill(slots, dice))
        target = words.start + dice.below(max(1, (len(words) - 1) * 2 // 3))
        count = sum(s.count(" ") + 1 for s in stated)
        fillers: list[str] = []
        for form in [*dice.some(self._fillers[kind], 3), *dice.some(forms["body"], 8)]:
            sentence = form.fill(slots, dice)
            if count >= target:
                break
            if count + sentence.count(" ") + 1 in range(words.stop):
                fillers.append(sentence)
                count += sentence.count(" ") + 1
        return " ".join([stated[0], *dice.some([*stated[1:], *fillers], 99)])


def fictional() -> Table:
    """Single-hop, in SQuAD's shape: 60 articles, one a land, of 20 paragraphs (90 to 180 words),
    each with the questions that it answers; every answer stands in its own paragraph and nowhere
    else."""
    world = _World("fictional")
    documents: list[str] = []
    groups: list[int] = []
    rows: list[Row] = []
    for article, land in enumerate(world.lands):
        for _ in range(20):
            kind = world.dice.pick(world.kinds)
            entity = world.entity(kind)
            facts = [(r, world.value(r.answer)) for r in world.relations_of(kind)]
            for relation, answer in facts:
                question = world.dice.pick(relation.questions).replace("{e}", entity)
                rows.append((question, (answer,), (len(documents),), ()))
            documents.append(world.document(kind, entity, land, facts, range(90, 181)))
            groups.append(article)
    return documents, groups, rows


def fictional_two_hop(rounds: int = 127) -> Table:
    """Two-hop, in HotpotQA's shape: titled documents (40 to 120 words); each question needs two of
    them, and has eight others about things of the same kinds, some of the same name. A round has
    one question for each first step."""
    world = _World("fictional two hop")
    dice = world.dice
    firsts = [r for r in relations() if r.phrases]
    documents: list[str] = []
    rows: list[Row] = []

    def write(kind: str, entity: str, known: dict[str, str]) -> int:
        chosen = [r for r in world.relations_of(kind) if r.name in known]
        chosen += dice.some(
            [r for r in world.relations_of(kind) if r.name not in known], 3 - len(chosen)
        )
        facts = [(r, known.get(r.name) or world.value(r.answer)) for r in chosen]
        text = world.document(kind, entity, dice.pick(world.lands), facts, range(40, 119))
        documents.append(f"{entity}\n{text}")
        return len(documents) - 1

    for first in firsts * rounds:
        bridge_kind = _KINDS[first.answer]
        second = dice.pick(world.relations_of(bridge_kind))
        subject, bridge = world.entity(first.kind), world.entity(bridge_kind)
        answer = world.value(second.answer)
        gold = (
            write(first.kind, subject, {first.name: bridge}),
            write(bridge_kind, bridge, {second.name: answer}),
        )
        for kind, like in ((first.kind, subject), (bridge_kind, bridge), (bridge_kind, None)):
            lookalike = world.entity(kind, like)
            write(kind, lookalike, {(first if kind == first.kind else second).name: ""})
        phrase = dice.pick(first.phrases).replace("{e}", subject)
        rows.append((dice.pick(second.questions).replace("{e}", phrase), (answer,), gold, ()))
    # The other eight: the three look-alikes written with the question, and the five documents of
    # the next question with the same first step.
    finished: list[Row] = []
    for number, (text, answers, golds, _) in enumerate(rows):
        follower = (number + len(firsts)) % len(rows)
        related = (*range(5 * number + 2, 5 * number + 5), *range(5 * follower, 5 * follower + 5))
        finished.append((text, answers, golds, related))
    return documents, list(range(len(documents))), finished


def corpora() -> dict[str, Any]:
    """Each built-in corpus as its file holds it."""
    words, restart = prose_words(400_000)
    sets = {"fictional": fictional(), "fictional_two_hop": fictional_two_hop()}
    tables = {
        name: dict(zip(("documents", "groups", "questions"), table, strict=True))
        for name, table in sets.items()
    }
    return {"prose": {"text": " ".join(words), "restart": restart}, **tables}


def main() -> None:
    """Write the files."""
    for name, content in corpora().items():
        path = Path(__file__).parents[1] / "rulerkit" / "data" / f"{name}.json.gz"
        path.write_bytes(
            gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)
        )


if __name__ == "__main__":
    main()
