"""Question answering about an invented world, in SQuAD's and in HotpotQA's shape, and a rule that reads it.

No answer can be known from the real world: people, places, rivers, ships and books are made up of syllables, dates and
numbers are drawn. The rule-based reader knows how facts are worded, never which facts there are.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from rulerkit.corpora.stand_ins import Dice, Form, listed, prose_tables, sections

Row = tuple[str, tuple[str, ...], tuple[int, ...], tuple[int, ...]]  # question, answers, gold, related
Table = tuple[list[str], list[int], list[Row]]  # documents, groups, questions

_ANSWERS = {
    "person": r"[A-Z][a-z]+ [A-Z][a-z]+",
    "place": r"[A-Z][a-z]+",
    "name": r"[A-Z][a-z]+",
    "date": r"\d\d [A-Z][a-z]+ \d{4}",
    "number": r"\d\d,\d{3}",
}
_KINDS = {"person": "person", "place": "town"}  # what an answer of this type can be asked about in turn
_MONTHS = listed("January, February, March, April, May, June, July, August, September, October, November, December")
_ONSETS = listed("b, br, c, d, dr, f, fl, g, gr, h, j, k, l, m, n, p, pr, qu, r, s, sk, st, t, tr, v, w, z")
_VOWELS = listed("a, e, i, o, u, ae, ei, ou, y")
_MIDDLES = listed("l, ld, lm, m, mb, n, nd, nt, r, rd, rk, rm, rv, s, sk, ss, st, t, th, v, z, x, lt, pt, ff, g, k")
_ENDS = {
    "first": listed("a, o, e, in, en, is, or, an, iel, ek, us, ya"),
    "last": listed("ak, ane, aro, eck, ell, enko, idge, ik, imar, oth, ovan, ulk, und, uvar, yne, ostin, emet, avray"),
    "place": listed("aven, holt, mere, stead, gard, wick, burn, ford, dale, mouth, haven, low, combe, ness, vik"),
    "name": listed("ava, ela, une, ith, orra, ain, iss, ole, ede, umna"),
    "land": listed("ia, mark, ova, ania, land, esse"),
}


@dataclass(frozen=True)
class _Relation:
    """One thing that can be said of a kind of thing: its statements, questions and two-hop phrases."""

    kind: str
    name: str
    answer: str
    statements: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    phrases: list[str] = field(default_factory=list)

    @property
    def behind(self) -> re.Pattern[str]:
        """What stands behind the entity's name where the fact is stated; the answer is the last group matched."""
        tails = [re.escape(form.partition("{e}")[2]) for form in self.statements]
        slot = re.escape("{a}")
        return re.compile("|".join(tail.replace(slot, f"({_ANSWERS[self.answer]})") for tail in tails))


@cache
def _relations() -> list[_Relation]:
    relations = []
    for heading, lines in sections("fictional.txt").items():
        if len(parts := heading.split()) == 3:
            kind, name, answer = parts
            relation = _Relation(kind, name, answer)
            store = {"?": relation.questions, "~": relation.phrases, "=": relation.statements}
            for line in lines:
                store[line[0]].append(line[2:])
            relations.append(relation)
    return relations


# The reader ---------------------------------------------------------------------------------------------------


@cache
def _patterns() -> tuple[list[tuple[re.Pattern[str], re.Pattern[str]]], list[tuple[re.Pattern[str], re.Pattern[str]]]]:
    """Forms of questions and of two-hop phrases, each with what stands behind the entity where it is answered."""

    def compiled(forms: list[str], behind: re.Pattern[str]) -> Iterator[tuple[re.Pattern[str], re.Pattern[str]]]:
        for form in forms:
            yield re.compile(re.escape(form).replace(re.escape("{e}"), "(.+)")), behind

    questions: list[tuple[re.Pattern[str], re.Pattern[str]]] = []
    phrases: list[tuple[re.Pattern[str], re.Pattern[str]]] = []
    for relation in _relations():
        questions += compiled(relation.questions, relation.behind)
        phrases += compiled(relation.phrases, relation.behind)
    return questions, phrases


def answer_fictional(documents_text: str, question: str) -> str | None:
    """Reads the answer to a fictional question (either set) in a prompt's text, by rule; None if the text lacks it.

    Only the text given and the forms of sentences are used. Every statement names its subject before its answer, so in
    a text that was cut at the front a fact is there whole or not at all; of a two-hop question both must be there.
    """
    questions, _ = _patterns()
    for form, behind in questions:
        if found := form.fullmatch(question.strip()):
            return _stated(documents_text, _entity(documents_text, found[1]), behind)
    return None


def _entity(text: str, phrase: str) -> str | None:
    """What a phrase stands for: "the founder of the X" is looked up in the text, a name stands for itself."""
    for form, behind in _patterns()[1]:
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


# The writer ---------------------------------------------------------------------------------------------------


class _World:
    """Invents names, dates and numbers, none twice, and writes documents about them."""

    def __init__(self, seed: str) -> None:
        self.dice = Dice(seed)
        self._used: set[str] = set()
        self._first_names = [self._word("first") for _ in range(400)]
        self.lands = [self._word("land") for _ in range(60)]
        table = sections("fictional.txt")
        self._stock = {name: listed(table[name][0]) for name in ("trade", "institution", "ship", "bridge", "book")}
        self._intros = {h.split()[1]: [Form(f) for f in lines] for h, lines in table.items() if h.startswith("intro ")}
        self._fillers = {
            h.split()[1]: [Form(f) for f in lines] for h, lines in table.items() if h.startswith("filler ")
        }
        self._of_kind: dict[str, list[_Relation]] = {}
        for relation in _relations():
            self._of_kind.setdefault(relation.kind, []).append(relation)
        self.kinds = list(self._of_kind)

    def _word(self, kind: str) -> str:
        """A new capitalised word that is not the beginning or the end of another, so none is found inside another."""
        pick = self.dice.pick
        while True:
            word = pick(_ONSETS) + pick(_VOWELS) + pick(_MIDDLES)
            if kind != "first" and self.dice.random() < 0.5:
                word += pick(_VOWELS) + pick(_MIDDLES[:8])
            word += pick(_ENDS[kind])
            parts = [part for n in range(4, len(word)) for part in (f"{word[:n]}-", f"-{word[-n:]}")]
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
        """A new answer of a type of `_ANSWERS`."""
        dice = self.dice
        if kind == "person":
            return f"{dice.pick(self._first_names)} {self._word('last')}"
        if kind in ("place", "name"):
            return self._word(kind)
        while True:
            if kind == "date":
                value = self._new(f"{10 + dice.below(19)} {dice.pick(_MONTHS)} {1400 + dice.below(560)}")
            else:
                value = self._new(f"{10 + dice.below(90)},{dice.below(1000):03d}")
            if value:
                return value

    def entity(self, kind: str, like: str | None = None) -> str:
        """A new thing of this kind; `like`: one that shares its distinctive word, where the kind allows it."""
        if kind == "town":
            return self._word("place")
        if kind == "person":
            while True:
                first = self.dice.pick(self._first_names)
                if name := self._new(f"{first} {like.split()[1] if like else self._word('last')}"):
                    return name
        word = "" if like is None else like.split()[-1 if kind == "book" else 0]
        while True:
            stem, part = word or self._word("name"), self.dice.pick(self._stock[kind])
            if name := self._new(f"{part} {stem}" if kind == "book" else f"{stem} {part}"):
                return name

    def relations(self, kind: str) -> list[_Relation]:
        return self._of_kind[kind]

    def document(self, kind: str, entity: str, land: str, facts: list[tuple[_Relation, str]], words: range) -> str:
        """Some sentences about one thing that state these facts in random order; `words`: how many words it may have
        (filled up to somewhere in the upper part of that range)."""
        dice = self.dice
        forms, shared, topics = prose_tables()
        slots = shared | dice.pick(topics) | {"trade": [dice.pick(self._stock["trade"])]}
        slots |= {"e": [entity], "land": [land]}
        stated = [dice.pick(r.statements).replace("{e}", entity).replace("{a}", answer) for r, answer in facts]
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
    """Single-hop, in SQuAD's shape: 60 articles, one a land, of 20 paragraphs (90 to 180 words), each with the
    questions that it answers; every answer stands in its own paragraph and nowhere else."""
    world = _World("fictional")
    documents: list[str] = []
    groups: list[int] = []
    rows: list[Row] = []
    for article, land in enumerate(world.lands):
        for _ in range(20):
            kind = world.dice.pick(world.kinds)
            entity = world.entity(kind)
            facts = [(r, world.value(r.answer)) for r in world.relations(kind)]
            for relation, answer in facts:
                question = world.dice.pick(relation.questions).replace("{e}", entity)
                rows.append((question, (answer,), (len(documents),), ()))
            documents.append(world.document(kind, entity, land, facts, range(90, 181)))
            groups.append(article)
    return documents, groups, rows


def fictional_two_hop(rounds: int = 127) -> Table:
    """Two-hop, in HotpotQA's shape: titled documents (40 to 120 words); each question needs two of them, and has eight
    others about things of the same kinds, some of the same name. A round has one question for each first step."""
    world = _World("fictional two hop")
    dice = world.dice
    firsts = [r for r in _relations() if r.phrases]
    documents: list[str] = []
    rows: list[Row] = []

    def write(kind: str, entity: str, known: dict[str, str]) -> int:
        chosen = [r for r in world.relations(kind) if r.name in known]
        chosen += dice.some([r for r in world.relations(kind) if r.name not in known], 3 - len(chosen))
        facts = [(r, known.get(r.name) or world.value(r.answer)) for r in chosen]
        text = world.document(kind, entity, dice.pick(world.lands), facts, range(40, 119))
        documents.append(f"{entity}\n{text}")
        return len(documents) - 1

    for first in firsts * rounds:
        bridge_kind = _KINDS[first.answer]
        second = dice.pick(world.relations(bridge_kind))
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
    # The other eight: the three look-alikes written with the question, and the five documents of the next question
    # with the same first step.
    finished: list[Row] = []
    for number, (text, answers, golds, _) in enumerate(rows):
        follower = (number + len(firsts)) % len(rows)
        related = (*range(5 * number + 2, 5 * number + 5), *range(5 * follower, 5 * follower + 5))
        finished.append((text, answers, golds, related))
    return documents, list(range(len(documents))), finished
