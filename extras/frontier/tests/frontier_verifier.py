"""Verifies examples of the frontier suite from what their files hold: `input`, `outputs`, `length`.

Written from the description of the tasks; it shares no code with the generator, on purpose. Each
family has one function, which takes the text of a prompt apart into a `Parsed`; `verify` applies to
it the rules that hold for all families.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import pairwise, permutations
from pathlib import Path
from typing import NamedTuple

import yaml

import rulerkit_frontier


class Parsed(NamedTuple):
    """A prompt, taken apart."""

    question: str
    lines: list[str]
    """The lines of the context, between the instruction and the blank line before the question."""
    form: str
    """A regular expression that matches every line (V3)."""
    answer: Callable[[Sequence[str]], list[str]]
    """What lines of a context answer to the question, in order (V2)."""
    is_about: Callable[[str], bool]
    """Whether a line has to do with what is asked; all others are filler (V4, V7)."""
    names: frozenset[str] = frozenset()
    """What is asked about, word for word: it stands in no line of filler (V4)."""
    wrong: Sequence[str] = ()
    """What is wrong by the rules of the family alone (V8)."""
    in_order: bool = False
    """Whether the order of the outputs counts."""
    nothing: str = "last of ten"
    """Which examples ask for nothing: the `last of ten`, those that are `drawn` so, or `none`."""
    nothing_outputs: Sequence[str] = ()
    """The outputs of an example that asks for nothing."""
    removed: Callable[[list[str], int], list[str]] = lambda lines, at: lines[:at] + lines[at + 1 :]
    """The lines without a line of filler."""


def verify(parse, rows, counts, most_removed=50) -> None:
    """One example at several lengths; raises AssertionError with the number of the rule.

    `rows`: length -> the row of its file; `counts`: length -> the tokens of its prompt, counted by
    the caller with the tokenizer's own encoding. At 4K every line of filler is removed once, at
    other lengths `most_removed` drawn ones.
    """
    about = []
    for length, row in rows.items():
        parsed = parse(row["input"])
        where = f"{row['task']} {row['index']} at {length}"
        lines, outputs = parsed.lines, row["outputs"]

        found = parsed.answer(lines)
        if not parsed.in_order:
            found, outputs = sorted(found), sorted(outputs)
        assert found == outputs, f"{where}: V2: {found} for {outputs}"
        strange = [line for line in lines if not re.fullmatch(parsed.form, line)]
        assert not strange, f"{where}: V3: {strange[:3]}"

        filler = [at for at, line in enumerate(lines) if not parsed.is_about(line)]
        named = [lines[at] for at in filler if any(n in lines[at] for n in parsed.names)]
        assert not named, f"{where}: V4: {named[:3]}"
        about.append(
            (
                parsed.question,
                row["outputs"],
                sorted(line for line in lines if parsed.is_about(line)),
            )
        )

        if parsed.nothing != "drawn":
            wants_nothing = parsed.nothing == "last of ten" and row["empty"]
            is_nothing = row["outputs"] == list(parsed.nothing_outputs)
            is_last = row["index"] % 10 == 9
            assert is_nothing == (wants_nothing and is_last), f"{where}: V5"
        assert row["length"] == length
        assert counts[length] + row["max_new_tokens"] <= length, f"{where}: V6"

        chosen = filler
        if length > 4096 and len(filler) > most_removed:
            chosen = random.Random(where).sample(filler, most_removed)
        for at in chosen:
            without = parsed.answer(parsed.removed(lines, at))
            assert sorted(without) == sorted(found), f"{where}: V7: {lines[at]}"
        assert not parsed.wrong, f"{where}: V8: {parsed.wrong[:3]}"
    assert all(one == about[0] for one in about), f"{row['task']} {row['index']}: V5"


FORM = "Write your final answer in the very last line of your response, in the form 'Final Answer: "


def split(
    text: str, opening: str, question: str, border: str = "\n\n"
) -> tuple[list[str], re.Match]:
    """The lines of a context and the match of its question, of which there is one, at the end."""
    assert text.count(opening) == 1 or text.startswith(opening), "V1: the instruction"
    body = text[text.index(opening) + len(opening) :]
    found = list(re.finditer(question, body))
    assert len(found) == 1, f"V1: {len(found)} questions"
    assert found[0].end() == len(body), f"V1: {body[found[0].end() :]!r} is behind the question"
    context = body[: found[0].start()]
    assert context.endswith(border), "V1: no border before the question"
    return context.removesuffix(border).split("\n"), found[0]


def at_end(form: str, nothing: str) -> str:
    return re.escape(f"{FORM}[{form}]', or 'Final Answer: []' {nothing}.")


# --- graph ----------------------------------------------------------------------------------------

HEX = "[0-9a-f]{10}"


@cache
def edge(line: str) -> tuple[str, str]:
    """A node and the one that an edge leads to from it."""
    a, _, b = line.partition(" -> ")
    return a, b


def levels(lines: Sequence[str], start: str, depth: int) -> list[set[str]]:
    """The nodes at each distance, with a visited set; once more by shortest paths."""
    after = defaultdict(set)
    for a, b in map(edge, lines):
        after[a].add(b)
    found, visited = [{start}], {start}
    for _ in range(depth):
        found.append({b for a in found[-1] for b in after[a]} - visited)
        visited |= found[-1]

    # Every edge may lower the distance of its end, until none does.
    distance = {start: 0}
    is_changed = True
    while is_changed:
        is_changed = False
        for a, targets in after.items():
            for b in targets:
                if a in distance and distance[a] + 1 < distance.get(b, depth + 1):
                    distance[b], is_changed = distance[a] + 1, True
    for steps, level in enumerate(found):
        assert level == {node for node in distance if distance[node] == steps}
    return found


def graph(text: str) -> Parsed:
    opening = (
        "<end example>\nHere is the graph to operate on:\nThe graph has the following edges:\n"
    )
    closing = (
        "\n\nYou should immediately return the set of nodes that the operation results in, with no "
        "additional text. Return your final answer as a list of nodes in the very last line of "
        "your response. For example, if the operation returns the set of nodes [node1, node2, "
        "node3], your response should be:\nFinal Answer: [node1, node2, node3]\nIf the operation "
        "returns the empty set, your response should be:\nFinal Answer: []"
    )
    question = (
        rf"Operation:\n(?:Perform a BFS from node ({HEX}) and return only the nodes at exactly "
        rf"depth (\d+) \(not nodes at intermediate depths\)|Find the parents of node ({HEX}))\."
    )
    lines, asked = split(text, opening, question + re.escape(closing))
    start, depth, child = asked[1], int(asked[2] or 0), asked[3]

    def answer(lines):
        if child:
            return [a for a, b in map(edge, lines) if b == child]
        return sorted(levels(lines, start, depth)[-1])

    core = {child, *answer(lines)} if child else set().union(*levels(lines, start, depth))
    times = Counter(lines)
    wrong = [line for line in lines if len({*edge(line)}) == 1 or times[line] > 1]
    return Parsed(
        asked[0],
        lines,
        rf"{HEX} -> {HEX}",
        answer,
        lambda line: bool(core & {*edge(line)}),
        wrong=wrong,
    )


# --- state ----------------------------------------------------------------------------------------

PUT = r"Put the (.+) into locker (\d{5}), in place of what is in it\."
SWAP = r"Swap what is in lockers (\d{5}) and (\d{5})\."
CLEAR = r"Empty locker (\d{5})\."


@cache
def operation(line: str) -> tuple[str, str, str]:
    """What a line puts somewhere, the locker, and the one that it is swapped with; "" for none."""
    if found := re.fullmatch(PUT, line):
        return found[1], found[2], ""
    if found := re.fullmatch(SWAP, line):
        return "", found[1], found[2]
    return "", re.fullmatch(CLEAR, line)[1], ""


def state(text: str) -> Parsed:
    opening = (
        "Below is a log of what happened to some lockers, in order. Every locker was empty at "
        "first. Keep track of what is in which locker. Swapping works with empty lockers, too.\n"
    )
    question = r"What is in locker (\d{5}) at the end of the log\?\n"
    lines, asked = split(text, opening, question + at_end("blue-door", "if it is empty"))

    def answer(lines):
        inside = {}
        for line in lines:
            thing, locker, other = operation(line)
            if thing:
                inside[locker] = thing
            elif other:
                values = inside.get(other), inside.get(locker)
                inside[locker], inside[other] = values
            else:
                inside[locker] = None
        return [thing for thing in [inside.get(asked[1])] if thing]

    # The group is what swaps connect with the locker that is asked about.
    operations = list(map(operation, lines))
    pairs = [{locker, other} for _, locker, other in operations if other]
    group, size = {asked[1]}, 0
    while len(group) > size:
        size = len(group)
        group |= set().union(*(pair for pair in pairs if group & pair))

    def is_about(line):
        return bool(group & {*operation(line)[1:]})

    things = {thing for thing, locker, _ in operations if thing and locker in group}
    return Parsed(
        asked[0],
        lines,
        f"{PUT}|{SWAP}|{CLEAR}",
        answer,
        is_about,
        names=frozenset(f" {thing} into" for thing in things) | group,
        wrong=["a swap of one locker" for pair in pairs if len(pair) == 1],
    )


# --- missing --------------------------------------------------------------------------------------


def missing(text: str) -> Parsed:
    opening = (
        "Here is a list, and below it a copy of the list in the same order. I will ask which lines "
        "were left out of the copy.\nList:\n"
    )
    question = "Which lines of the list are missing from the copy\\?\n"
    form = at_end("blue-door 11111, red-roof 22222", "if none is")
    lines, asked = split(text, opening, question + form)

    def answer(lines):
        border = lines.index("Copy:")
        copied = set(lines[border:])
        return [line for line in lines[:border] if line not in copied]

    def removed(lines, at):
        return [line for line in lines if line != lines[at]]

    border = lines.index("Copy:")
    listed, copied, lost = lines[:border], lines[border + 1 :], set(answer(lines))
    wrong = [line for line, times in Counter(listed).items() if times > 1]
    # The copy is the list in its order, without what is missing.
    if copied != [line for line in listed if line not in lost]:
        wrong.append("the copy is in another order")
    return Parsed(
        asked[0],
        lines,
        r".+ \d{5}|Copy:",
        answer,
        lambda line: line in lost or line == "Copy:",
        names=frozenset(lost),
        wrong=wrong,
        removed=removed,
    )


# --- order ----------------------------------------------------------------------------------------

ENTRY = r"Day (\d+): (\w+) (\w+) brought the (.+)\."


@cache
def entry(line: str) -> tuple[int, str, str, str]:
    """Day, first name, last name, thing."""
    day, first, last, thing = re.fullmatch(ENTRY, line).groups()
    return int(day), first, last, thing


def order(text: str) -> Parsed:
    opening = (
        "Below are entries of a diary, not in the order of the days. I will ask about one person.\n"
    )
    question = (
        r"What did (\w+) (\w+) bring\? List everything in the order of the (?:days, the earliest "
        r"day first|(text), the first entry first)\.\n"
    )
    form = at_end("blue-door, red-roof", "for nothing")
    lines, asked = split(text, opening, question + form)
    first, last, by_text = asked.groups()

    def brought(lines):
        found = map(entry, lines)
        return [(day, thing) for day, a, b, thing in found if (a, b) == (first, last)]

    def answer(lines):
        things = brought(lines)
        return [thing for _, thing in (things if by_text else sorted(things))]

    def is_about(line):
        return bool({first, last} & {*entry(line)[1:3]})

    days = Counter(entry(line)[0] for line in lines)
    wrong = [day for day, times in days.items() if times > 1 or not 1 <= day <= 99_999]
    in_text = brought(lines)
    pairs = list(pairwise(in_text))
    if sum(a > b for a, b in pairs) * 2 < len(pairs):
        wrong.append("the text has nearly the order of the days")
    return Parsed(
        asked[0],
        lines,
        ENTRY,
        answer,
        is_about,
        names=frozenset(f" {entry(line)[3]}." for line in lines if is_about(line)),
        wrong=wrong,
        in_order=True,
    )


# --- ordinal_copy ---------------------------------------------------------------------------------

REQUEST = r"User: Write a ([a-z ]+) about ([a-z ]+)s in ([a-z]+) style\."
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]


def ordinal_copy(text: str) -> Parsed:
    shown, border, body = text.partition("======== END EXAMPLE ========\n\n")
    assert border, "V1: no example"
    assert border not in body, "V1: two examples"
    question = (
        r"User: Prepend (\w{12}) to the (\w+) (.+) about (.+)s in a (.+) style\. Do not include any "
        r"other text in your response\.\n\nAssistant:"
    )
    lines, asked = split(body, "", question)
    hash_, ordinal, *words = asked.groups()

    # A line is an exchange of two turns.
    lines = re.split(r"\n\n(?=User: )", "\n".join(lines))

    def taken_apart(line):
        turn, _, reply = line.partition("\n\nAssistant: ")
        return re.fullmatch(REQUEST, turn).groups(), reply

    def replies(lines):
        return [reply for request, reply in map(taken_apart, lines) if [*request] == words]

    def is_about(line):
        request, _ = taken_apart(line)
        return sum(a == b for a, b in zip(request, words, strict=True)) >= 2

    wrong = []
    if hash_ in body[: asked.start()] or hash_ in shown:
        wrong.append("the hash stands in the text")
    alike = [
        (a, b)
        for a, b in permutations(replies(lines), 2)
        if SequenceMatcher(a=a, b=b).ratio() > 0.25
    ]
    if alike:
        wrong.append(f"replies are alike: {alike[0]}")
    sentences = [reply.count(". ") + 1 for _, reply in map(taken_apart, lines)]
    if sorted(sentences)[:-1] != [6] * (len(lines) - 1):
        wrong.append("a reply has not six sentences")
    return Parsed(
        asked[0],
        lines,
        REQUEST + r"\n\nAssistant: \w[^\n]+",
        lambda lines: [f"{hash_} {replies(lines)[ORDINALS.index(ordinal)]}"],
        is_about,
        wrong=wrong,
        nothing="none",
    )


# --- count ----------------------------------------------------------------------------------------

SOLD = r"Order (\d+): (\w+ \w+) bought a (\w+) (\w+)\."


def count(text: str) -> Parsed:
    opening = (
        "Below is a log of orders, one in each line. Read all of it: I will ask how many of them "
        "fit a description.\n"
    )
    question = (
        r"(?:How many orders in the log are for a (\w+ \w+)\? Several orders of one buyer count "
        r"each\.|How many different people bought a (\w+ \w+)\?)\n"
    )
    form = re.escape(f"{FORM}7', or 'Final Answer: 0' if there is none.")
    lines, asked = split(text, opening, question + form)
    wanted = asked[1] or asked[2]

    def answer(lines):
        found = [re.fullmatch(SOLD, line).groups() for line in lines]
        buyers = [name for _, name, *what in found if " ".join(what) == wanted]
        return [str(len(buyers) if asked[1] else len(set(buyers)))]

    numbers = Counter(re.fullmatch(SOLD, line)[1] for line in lines)
    wrong = [number for number, times in numbers.items() if times > 1]
    others = [line for line in lines if f" {wanted}." not in line]
    near = sum(
        bool({*wanted.split()} & {*re.fullmatch(SOLD, line).groups()[2:]}) for line in others
    )
    if not 0.3 < near / len(others) < 0.7:
        wrong.append(f"{near} of {len(others)} other lines are near")
    return Parsed(
        asked[0],
        lines,
        SOLD,
        answer,
        lambda line: f" {wanted}." in line,
        wrong=wrong,
        nothing_outputs=["0"],
    )


# --- absent ---------------------------------------------------------------------------------------

MAGIC = r'The special magic number for "([^"]+)" is: (\d{7})'


def absent(text: str) -> Parsed:
    opening = "Please read and memorize the text below. I will ask you about it later.\n\n<text>\n"
    question = (
        r"</text>\n\n<Question> What special magic numbers associated with (.+) are mentioned in "
        r"the provided text\? Please list all that apply\. If no such numbers exist, please answer "
        r'"none"\.</Question>\n\n'
    )
    form = at_end("1111111, 2222222", "for none")
    lines, asked = split(text, opening, question + form, border="\n")
    keys = re.findall('"([^"]+)"', asked[1])

    def answer(lines):
        pairs = [re.fullmatch(MAGIC, line).groups() for line in lines]
        return [value for wanted in keys for key, value in pairs if key == wanted]

    words = {word for key in keys for word in key.split("-")}

    def is_about(line):
        return bool(words & {*re.fullmatch(MAGIC, line)[1].split("-")})

    pairs = [re.fullmatch(MAGIC, line).groups() for line in lines]
    wrong = [
        text
        for column in zip(*pairs, strict=True)
        for text, times in Counter(column).items()
        if times > 1
    ]
    near = sum(map(is_about, lines)) - len(answer(lines))
    if near == 0 or near % len(keys):
        wrong.append("the number of near keys")
    return Parsed(
        asked[0],
        lines,
        MAGIC,
        answer,
        is_about,
        names=frozenset(f'"{key}"' for key in keys),
        wrong=wrong,
        nothing="drawn",
    )


# --- latent ---------------------------------------------------------------------------------------


def relations():
    """The relations of the package: needle, question, pairs. They are data, not code."""
    return yaml.safe_load(
        Path(rulerkit_frontier.__file__).with_name("data").joinpath("relations.yaml").read_text()
    )


def latent(text: str) -> Parsed:
    opening = (
        "Read the text below. I will ask about one person in it; for who did what, only the text "
        "counts.\n"
    )
    form = at_end("Jane Doe", "for nobody")
    told = relations()
    questions = "|".join(re.escape(r["question"]).replace(r"\{y\}", ".+") for r in told)
    lines, asked = split(text, opening, rf"({questions})\n{form}", border="\n")
    context = "\n".join(lines)
    ((relation, x, y),) = [
        (r, x, y)
        for r in told
        for x, y in r["pairs"].items()
        if r["question"].format(y=y) == asked[1]
    ]

    # Essays have no lines: what counts are the needles in them.
    def sentences(r):
        before, between, after = re.split(r"\{name\}|\{x\}", r["needle"])
        return re.findall(
            rf"({before}(\w+ \w+){between}({'|'.join(r['pairs'])}){re.escape(after)})", context
        )

    told_x = [name for _, name, what in sentences(relation) if what == x]
    wrong = []
    plain = re.sub("^(the|an?) ", "", y)
    if re.search(rf"\b{plain}\b", context, re.IGNORECASE):
        wrong.append(f"{y} stands in the text")
    if [len(sentences(r)) for r in told if r is not relation] != [0, 0, 0]:
        wrong.append("a needle of another relation")
    others = {what for _, _, what in sentences(relation)} - {x}
    if len(others) < 3 or len(sentences(relation)) != len(others) + len(told_x):
        wrong.append("the number of needles")
    return Parsed(
        asked[0],
        [sentence for sentence, *_ in sentences(relation)],
        ".+",
        lambda lines: [
            name for sentence, name, what in sentences(relation) if what == x and sentence in lines
        ],
        lambda line: True,
        wrong=wrong,
    )


FAMILIES = {
    "graph": graph,
    "state": state,
    "missing": missing,
    "order": order,
    "ordinal_copy": ordinal_copy,
    "count": count,
    "absent": absent,
    "latent": latent,
}
"""Family -> how its prompts are taken apart."""
