"""The k-th of several alike: copy one of the replies to a request that was made several times, by
its order, as in MRCR v2 (github.com/google-deepmind/eval_hub, eval_hub/mrcr_v2)."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache, partial
from itertools import product
from random import Random
from string import ascii_letters, digits
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.pieces import PieceEncoder, Units, encode_units, joined, row_by_row
from rulerkit.generation.tasks.base import FailureRule, JudgedAnswer, Positive
from rulerkit.generation.tasks.haystacks import by_depth, interleaved, pool_size
from rulerkit_frontier.data_files import read_data
from rulerkit_frontier.tasks.base import FrontierTask

_REPLIES = read_data("replies.yaml")
FORMATS, TOPICS, STYLES = (tuple(_REPLIES[name]) for name in ("formats", "topics", "styles"))
OPENINGS, SENTENCES = (tuple(_REPLIES[name]) for name in ("openings", "sentences"))
_WORDS = {"NOUN": _REPLIES["nouns"], "ADJECTIVE": _REPLIES["adjectives"]}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_MORE = 5
"""The sentences of a reply behind its opening."""

_BEGIN = (
    "Here is an example of a conversation and of a follow-up question answered correctly:\n"
    "======== EXAMPLE ========\n\n"
)
_END = "======== END EXAMPLE ========\n\n"
_EXAMPLE_TOPIC = "kite"
"""A topic that no other request has."""
_TURN = "User: Write a {format} about {topic}s in {style} style.\n\n"
_REPLY = "Assistant: {reply}\n\n"
_QUESTION = (
    "User: Prepend {hash} to the {ordinal} {format} about {topic}s in a {style} style. Do not "
    "include any other text in your response.\n\nAssistant:"
)
_HASH_LENGTH = 12

_SPARE = 40
"""How many sentences at most make the last reply longer: it takes less than a whole exchange."""
_OF_ANOTHER = 0.028
"""The mean ratio of a reply and another one to the same request."""
_ALIKE = 0.8
"""From which ratio on a copied text is that of another reply."""


class Request(NamedTuple):
    """What a turn of the user asks for."""

    format: str
    topic: str
    style: str

    @property
    def turn(self) -> str:
        return _TURN.format(**self._asdict())


REQUESTS = tuple(map(Request._make, product(FORMATS, TOPICS, STYLES)))
_CODES = np.array(list(product(range(len(FORMATS)), range(len(TOPICS)), range(len(STYLES)))))
"""Of each request the numbers of its three words."""


def _agreeing(request: int) -> np.ndarray:
    """In how many of the three words each request agrees with this one."""
    return np.asarray((_CODES[request] == _CODES).sum(axis=1))


# --- failures -------------------------------------------------------------------------------------


def _copied(answer: JudgedAnswer) -> str:
    """What an answer copies: the text behind the last hash, or all of it."""
    return answer.text.rpartition(_hash_of(answer))[2].strip()


def _hash_of(answer: JudgedAnswer) -> str:
    return answer.references[0].partition(" ")[0]


def _other_reply(answer: JudgedAnswer, same_request: bool) -> str | None:
    """The beginning of another reply that was copied."""
    asked = next(piece.key for piece, _ in answer.needles if piece.role == "needle")
    copied = _copied(answer)
    for piece, _ in answer.needles:
        if piece.role == "needle" or (piece.key == asked) != same_request:
            continue
        matcher = SequenceMatcher(a=str(piece.value), b=copied)
        if matcher.real_quick_ratio() > _ALIKE and matcher.ratio() > _ALIKE:
            return f"{piece.key} {str(piece.value)[:40]}..."
    return None


def _no_hash(answer: JudgedAnswer) -> str | None:
    return None if _hash_of(answer) in answer.text else answer.text[:40]


def _cut_copy(answer: JudgedAnswer) -> str | None:
    """How much of the reply was copied, where it is a beginning."""
    passage = answer.references[0].partition(" ")[2]
    copied = _copied(answer)
    is_cut = len(copied) < len(passage) and passage.startswith(copied)
    return f"{len(copied)} of {len(passage)} characters" if is_cut else None


# --- the family -----------------------------------------------------------------------------------


_MOST_NEAR = len(FORMATS) + len(TOPICS) + len(STYLES) - 3


@dataclass(frozen=True, kw_only=True)
class OrdinalCopy(FrontierTask):
    """Copy the k-th of `num_replies` replies to one and the same request, behind a hash.

    The text is a conversation. `near` further requests agree with the asked one in two of format,
    topic and style; all other requests agree in one at most.
    """

    family = "ordinal_copy"
    capability = "k-th occurrence"
    match = "ratio"
    new_tokens = (256, 1)
    question_form = (
        rf"User: Prepend (\w{{{_HASH_LENGTH}}}) to the (\w+) "
        rf"({'|'.join(FORMATS)}) about (.+?)s in a (.+?) style\. "
        r"Do not include any other text in your response\.\n"
    )
    failure_rules = (
        FailureRule(
            "other ordinal",
            f"Another reply to the same request (ratio above {_ALIKE}).",
            partial(_other_reply, same_request=True),
        ),
        FailureRule(
            "near request",
            "The reply to a request that differs in one word.",
            partial(_other_reply, same_request=False),
        ),
        FailureRule("no hash", "The answer lacks the hash.", _no_hash),
        FailureRule("cut copy", "The beginning of the right reply, and no more.", _cut_copy),
    )

    num_replies: Annotated[Positive, Field(ge=2, le=len(ORDINALS))] = 8
    near: Annotated[Positive, Field(le=_MOST_NEAR)] = 6
    """Requests that agree with the asked one in two of three words."""

    @property
    def floor(self) -> float:
        # Any of the replies to the request, behind the hash.
        return (1 + (self.num_replies - 1) * _OF_ANOTHER) / self.num_replies

    def make(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random

        # The replies to the asked request share no form of a sentence, so that a wrong one scores
        # next to nothing.
        number = random.randrange(len(REQUESTS))
        asked = REQUESTS[number]
        sentences = random.sample(SENTENCES, len(SENTENCES))
        replies = [
            _reply(random, asked, opening, sentences[_MORE * place :])
            for place, opening in enumerate(random.sample(OPENINGS, self.num_replies))
        ]
        exchanges = [(asked, reply) for reply in replies]

        # Each near request has one reply.
        near = np.flatnonzero(_agreeing(number) == 2).tolist()
        for other in random.sample(near, self.near):
            opening = random.choice(OPENINGS)
            sentences = random.sample(SENTENCES, _MORE)
            request = REQUESTS[other]
            reply = _reply(random, request, opening, sentences)
            exchanges.append((request, reply))

        # The replies to the asked request stand in their order.
        depths = sorted(random.random() for _ in replies)
        depths += [random.random() for _ in range(self.near)]
        right = stream.index % self.num_replies
        items = [
            Piece(
                request.turn + _REPLY.format(reply=reply),
                "needle" if place == right else "distractor",
                key=request.turn.strip(),
                value=reply,
                depth=depth,
            )
            for place, ((request, reply), depth) in enumerate(zip(exchanges, depths, strict=True))
        ]

        hash_ = _draw_hash(random)
        return Draft(
            demonstration=_demonstration(random),
            instruction=_END,
            question=_QUESTION.format(hash=hash_, ordinal=ORDINALS[right], **asked._asdict()),
            answer_prefix="",
            references=(f"{hash_} {replies[right]}",),
            hidden=(number, items),
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        asked, items = draft.hidden
        items, left = by_depth(items, budget)
        pools = _pools(budget.length, budget.encoder)

        # Of other requests none agrees with the asked one in two words.
        shortest = sum(
            int(units.counts.min()) * times
            for units, times in zip(pools, (1, 1, _MORE - 1, 1), strict=True)
        )
        requests = budget.random.choice(
            np.flatnonzero(_agreeing(asked) < 2), size=max(0, left) // shortest + 1
        )
        columns, spare = _columns(pools, requests, budget.random)

        # As many whole exchanges as fit; the reply of the last goes on until the budget is full.
        ends = np.cumsum(sum(units.counts[order] for units, order in columns))
        whole = int(np.searchsorted(ends, left, side="right")) - 1
        if whole < 0:
            return None
        turn, *sentences = (units.texts[order[whole]] for units, order in columns)
        rows = row_by_row([(units, order[:whole]) for units, order in columns])
        room = left - int(rows.counts.sum()) - len(budget.encoder.ids(turn))
        last = "".join(sentences).rstrip("\n") + spare
        words = _words_that_fit(last, room, budget.encoder)
        rows = joined([rows, encode_units([turn], budget.encoder), words])

        # An item stands before an exchange, or behind the last.
        borders = [*range(0, whole * len(columns) + 1, len(columns)), len(rows)]
        places = [borders[int(item.depth * len(borders))] for item in items]
        return interleaved(items, places, rows, len(rows))

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        hash_, ordinal, *words = question.groups()

        # Exchanges before the last mark belong to the demonstration.
        start = text.rfind(_END) + 1
        exchange = re.compile(r"(?P<turn>User: Write a [^\n]+\n\n)Assistant: (?P<item>[^\n]+)\n\n")
        asked = Request(*words).turn
        replies = [
            match["item"] for match in exchange.finditer(text, start) if match["turn"] == asked
        ]

        # The answer begins with the hash.
        place = ORDINALS.index(ordinal)
        return [f"{hash_} {reply}" for reply in replies[place : place + 1]]


# --- conversations --------------------------------------------------------------------------------


def _reply(random: Random, request: Request, opening: str, sentences: Sequence[str]) -> str:
    """An opening that names the topic, and five further sentences."""
    forms = [opening.replace("TOPIC", request.topic), *sentences[:_MORE]]
    return " ".join(_sentence(random, form) for form in forms)


def _sentence(random: Random, form: str) -> str:
    """A form with every word drawn."""
    return re.sub("NOUN|ADJECTIVE", lambda match: random.choice(_WORDS[match[0]]), form)


def _draw_hash(random: Random) -> str:
    return "".join(random.choices(ascii_letters + digits, k=_HASH_LENGTH))


def _demonstration(random: Random) -> str:
    """A conversation of one exchange, and the question about it answered."""
    request = Request(random.choice(FORMATS), _EXAMPLE_TOPIC, random.choice(STYLES))
    forms = random.sample(SENTENCES, _MORE)
    reply = _reply(random, request, random.choice(OPENINGS), forms)
    hash_ = _draw_hash(random)
    question = _QUESTION.format(hash=hash_, ordinal=ORDINALS[0], **request._asdict())
    exchange = request.turn + _REPLY.format(reply=reply)
    return f"{_BEGIN}{exchange}{question} {hash_} {reply}\n\n"


_Pools = tuple[Units, Units, Units, Units]
"""Turns of the user (one for each request), openings (as many for each topic), further sentences,
and the last ones of replies."""


@lru_cache(maxsize=16)
def _pools(length: int, encoder: PieceEncoder) -> _Pools:
    """What filler exchanges are made of: sizes follow from the length alone."""
    random = Random("pool of sentences")

    def sentences(count: int, ending: str = "") -> Units:
        forms = random.choices(SENTENCES, k=count)
        texts = [f" {_sentence(random, form)}{ending}" for form in forms]
        return encode_units(texts, encoder)

    # Each topic has the same number of openings.
    openings = [
        opening.replace("TOPIC", topic)
        for topic in TOPICS
        for opening in random.choices(OPENINGS, k=pool_size(length, 128) // len(TOPICS))
    ]
    return (
        encode_units([request.turn for request in REQUESTS], encoder),
        encode_units([f"Assistant: {_sentence(random, o)}" for o in openings], encoder),
        sentences(pool_size(length, 16)),
        sentences(pool_size(length, 64), "\n\n"),
    )


def _columns(
    pools: _Pools, requests: np.ndarray, random: np.random.RandomState
) -> tuple[list[tuple[Units, np.ndarray]], str]:
    """An exchange for each request, as columns, and further sentences for the last of them."""
    turns, openings, sentences, closings = pools
    per_topic = len(openings) // len(TOPICS)
    first = _CODES[requests][:, 1] * per_topic
    first += random.randint(per_topic, size=len(requests))

    # A sentence stands twice only where all others do, too.
    drawn = random.permutation(len(sentences))
    middle = np.resize(drawn, (len(requests), _MORE - 1))
    last = np.resize(random.permutation(len(closings)), len(requests))
    spare = "".join(sentences.texts[place] for place in drawn[-_SPARE:])
    columns = [
        (turns, requests),
        (openings, first),
        *((sentences, column) for column in middle.T),
        (closings, last),
    ]
    return columns, spare


def _words_that_fit(text: str, room: int, encoder: PieceEncoder) -> Units:
    """The first words of a text, as many as fit, with a blank line behind them."""
    words = re.findall(r" ?[^ ]+", text)
    units = encode_units(words, encoder)
    number = int(np.searchsorted(units.offsets, room, side="right")) - 1
    for count in range(number, 0, -1):
        ending = encode_units([words[count - 1] + "\n\n"], encoder)
        if units.offsets[count - 1] + ending.counts[0] <= room:
            return joined([units.first(count - 1), ending])
    return encode_units([], encoder)
