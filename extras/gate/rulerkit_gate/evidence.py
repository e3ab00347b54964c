"""What the answers of one server prove about it: bets on pairs, and leaks. Pure: nothing is asked.

A *pair* is two answers to the same prompt: a control, asked cold and alone, and a probe, asked
under a condition. Where the condition does not matter, either could have been the other one, so a
loss and a gain are equally likely, and `1 + 0.9 x` with x = -1, 0, 1 has the mean 1. The product
over the pairs of a probe therefore is a fair game, whatever the noise and however the next prompt
is chosen: the mean of the products of all probes ever reaches 100 with a chance of 1 % (Ville).

A *leak* is a value in an answer that stands only in another prompt of the run. A model that makes
numbers up hits one of M values among 9 million with a chance of M / 9,000,000 for each wrong number
that it writes.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from rulerkit_gate.twins import numbers_in

STAKE = 0.9
PROOF = 100.0
"""The mean evidence that proves a loss: reached by chance in 1 of 100 runs at most."""
DOUBT = 10.0
"""The mean evidence from which a server is not called sound: in 1 of 10 runs at most by chance."""
LEAK_CHANCE = 0.001
_NUMBERS = 9 * 10**6  # of seven digits

PROBES = {
    "warm": "from its cache",
    "partial": "after a twin, whose beginning is cached",
    "back": "again after its twin",
    "turn": "in the next turn",
    "crowd": "in a crowd",
    "after": "from a cache that a crowd has filled",
    "late": "in a new prompt after eviction",
    "return": "in an earlier prompt after eviction",
}
"""The conditions, in the order in which they are asked, and what each is in words."""


class Pair(NamedTuple):
    """The scores, 0 to 1, of one prompt: asked alone and cold, and under a condition."""

    length: int
    control: float
    probe: float

    @property
    def sign(self) -> int:
        """1 for a loss, -1 for a gain, 0 where both are equal."""
        return (self.control > self.probe) - (self.control < self.probe)


class Leak(NamedTuple):
    """A value that stands only in another prompt."""

    request: int
    value: str
    of: int
    """The request that held it."""


@dataclass
class Evidence:
    """All that the answers of a run say so far."""

    pairs: dict[str, list[Pair]] = field(default_factory=lambda: {name: [] for name in PROBES})
    leaks: list[Leak] = field(default_factory=list)
    num_wrong: int = 0
    """Numbers of seven digits that were written and do not stand in the prompt."""
    first_held: dict[str, int] = field(default_factory=dict)
    """Value -> the first request whose prompt holds it."""

    def add(self, probe: str, length: int, control: float, score: float) -> Pair:
        """Take a pair of scores."""
        pair = Pair(length, control, score)
        self.pairs[probe].append(pair)
        return pair

    def hold(self, request: int, values: Collection[str]) -> None:
        """Take the values of a prompt that is about to be asked."""
        for value in values:
            self.first_held.setdefault(value, request)

    def read(self, request: int, prompt: str, answer: str) -> None:
        """Take an answer, and the values of other prompts that it holds."""
        own = set(numbers_in(prompt))
        for value in dict.fromkeys(numbers_in(answer)):
            if value in own:
                continue
            self.num_wrong += 1
            if value in self.first_held:
                self.leaks.append(Leak(request, value, self.first_held[value]))

    def of(self, probe: str) -> float:
        """The evidence of one probe; 1 where it says nothing."""
        product = 1.0
        for pair in self.pairs[probe]:
            product *= 1 + STAKE * pair.sign
        return product

    @property
    def mean(self) -> float:
        """The mean evidence over all probes, that decides."""
        return sum(map(self.of, PROBES)) / len(PROBES)

    @property
    def is_worse(self) -> bool:
        return self.mean >= PROOF

    @property
    def leak_chance(self) -> float:
        """How likely so many values of other prompts are by chance."""
        from scipy.stats import binom

        if not self.leaks:
            return 1.0
        share = len(self.first_held) / _NUMBERS
        return float(binom.sf(len(self.leaks) - 1, max(self.num_wrong, len(self.leaks)), share))

    @property
    def has_leaked(self) -> bool:
        return self.leak_chance < LEAK_CHANCE

    def counts(self, probe: str) -> tuple[int, int, int]:
        """The pairs of a probe, and how many were lost and gained."""
        signs = [pair.sign for pair in self.pairs[probe]]
        return len(signs), signs.count(1), signs.count(-1)

    def unseen(self, probe: str) -> float | None:
        """The share of prompts that a condition may harm and that was not seen, with 95 %
        confidence; None where a loss was seen, or no control was right."""
        _, lost, _ = self.counts(probe)
        right = sum(pair.control == 1 for pair in self.pairs[probe])
        if lost or not right:
            return None
        return float(1 - 0.05 ** (1 / right))
