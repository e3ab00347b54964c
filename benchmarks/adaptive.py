"""What adaptive runs cost and how often they are wrong, on simulated models: `python
benchmarks/adaptive.py [--repetitions 50] [--confidence 0.95]`.

A model is a curve: the mean of each of the 13 tasks at six lengths. Its full grid, 500 examples a
cell, is drawn: right or wrong for tasks with one reference, shares of so many references for the
others, correlated within an example. `rulerkit.scoring.adaptive.replay` sees as much of it as it
asks for.
The curves: the 24 of the paper (its means by category; tasks within one apart by fixed offsets);
generated ones that the settings of `adaptive` were chosen on; and generated ones from wider
distributions and another seed that nothing was chosen on.

The floor is what no rule can do without that is wrong in at most 5 %: at each length that the
answer rests on (the effective one and every longer one), evidence of kl(0.05, 0.95) nats that the
mean of the grid is on its side of the threshold (Wald 1945), with the spread of every task known in
advance, and counting that the rest of a finite grid is uncertain only.
"""

import argparse
import math
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

import rulerkit as rk
from rulerkit.generation.tasks import THIRTEEN
from rulerkit.report.paper import PAPER_LENGTHS, paper_scores
from rulerkit.scoring.adaptive import FULL_GRID, StoppingRule, replay
from rulerkit.scoring.effective_length import THRESHOLDS, effective_length, possible_lengths

REFERENCES = {"niah_multivalue": 4, "niah_multiquery": 4, "vt": 5, "cwe": 10, "fwe": 3}
CONCENTRATION = 2.3  # of the chances of an example's references: alike, but not all or nothing
APART = {"niah": [0.3, 0.5, -0.4, -1.2, 0.2, 0.6], "aggregation": [-0.6, 0.6], "qa": [0.4, -0.4]}
"""Logits between the tasks of a category of the paper (the first two needle tasks are printed)."""
PROFILE = np.array([3, 2.5, 1.5, 1.5, 0.5, -0.5, 0.5, 1, 0.5, -1, 0, -1.2, -2])
"""Logits between the thirteen tasks of a generated curve."""
THRESHOLD = THRESHOLDS["chat"]["all"]
FULL_TOKENS = FULL_GRID * len(THIRTEEN) * sum(PAPER_LENGTHS)
Cells = dict[tuple[str, int], np.ndarray]


class Curve(NamedTuple):
    kind: str
    aligned: str
    means: np.ndarray
    """Task x length, 0..1."""


def apart(mean: float, logits: np.ndarray) -> np.ndarray:
    """Means of tasks whose mean is given, apart by so many logits."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        tasks = 1 / (1 + np.exp(-middle - logits))
        low, high = (middle, high) if tasks.mean() < mean else (low, middle)
    return tasks


def paper_curves() -> Iterator[Curve]:
    keys = {"index": ["slug", "aligned"], "columns": ["category", "length"]}
    table = paper_scores().pivot_table(values="score", **keys) / 100
    for (slug, aligned), row in table.iterrows():
        if not slug.startswith("llama2-7b-"):  # the thresholds, at 4K only
            columns = [paper_tasks(row.xs(n, level="length")) for n in PAPER_LENGTHS]
            yield Curve("paper", aligned, np.stack(columns, 1))


def paper_tasks(printed: dict[str, float]) -> np.ndarray:
    rest = (8 * printed["niah"] - printed["passkey"] - printed["vanilla_niah"]) / 6
    means = {"niah": min(1, max(0, rest))} | {kind: printed[kind] for kind in ("aggregation", "qa")}
    tasks = {kind: apart(mean, np.array(APART[kind])) for kind, mean in means.items()}
    niah = [printed["passkey"], printed["vanilla_niah"], *tasks["niah"]]
    return np.array([*niah, printed["vt"], *tasks["aggregation"], *tasks["qa"]])


def generated(seed: int, number: int, wide: float) -> Iterator[Curve]:
    """Steps, plateaus, dips of 3 points, and curves with a length exactly at the threshold."""
    random, places = np.random.default_rng(seed), np.arange(6)
    for _ in range(number):
        for kind in ("step", "plateau", "dip", "threshold"):
            at = random.integers(1, 6)
            if kind == "step":
                top, bottom = random.uniform(87, 97), random.uniform(20, 83)
                curve = np.where(places < at + random.integers(-1, 2), top, bottom)
            elif kind == "plateau":
                bottom, top = np.sort(random.uniform(78 - 8 * wide, 93 + 3 * wide, 2))
                curve = np.where(places < at, top, bottom) - places * random.uniform(0, 0.5)
            else:
                curve = np.linspace(random.uniform(88, 96), random.uniform(60, 88), 6)
                curve += random.normal(0, 0.5 * wide, 6)
                if kind == "dip":
                    curve[random.integers(0, 6)] -= 3
                else:
                    curve += THRESHOLD - curve[at]
            logits = PROFILE * random.uniform(0.5, 1.2) + random.normal(0, 0.5 * wide, 13)
            means = [apart(mean / 100, logits) for mean in np.clip(curve, 1, 99)]
            yield Curve(kind, "chat", np.stack(means, 1))


def draw(random: np.random.Generator, curve: Curve) -> Cells:
    """The full grid of a model."""
    grid = {}
    for task, means in zip(THIRTEEN, curve.means, strict=True):
        number = REFERENCES.get(task, 1)
        for length, mean in zip(PAPER_LENGTHS, np.clip(means, 1e-9, 1 - 1e-9), strict=True):
            chance = np.full(FULL_GRID, mean)
            if number > 1:
                chance = random.beta(mean * CONCENTRATION, (1 - mean) * CONCENTRATION, FULL_GRID)
            grid[task, length] = random.binomial(number, chance) / number
    return grid


def floor(grid: Cells, means: dict[int, float], threshold: float) -> float:
    """Tokens that any rule needs, as a share of the full grid's."""
    answer = possible_lengths({n: (mean, mean) for n, mean in means.items()}, threshold)[0]
    above = {n: abs(mean - threshold + 0.05) for n, mean in means.items() if n >= answer}
    return sum(least_tokens(grid, n, gap) for n, gap in above.items()) / FULL_TOKENS


def least_tokens(grid: Cells, length: int, gap: float, sure: float = 0.95) -> float:
    """The tokens that no rule of the same error can do without, on average (Wald 1945): for
    kl(error, confidence) nats of evidence that the mean at a length is so many points off a limit,
    with spreads known in advance and what is left of the grid as the only unknown."""
    cells = [key for key in grid if key[1] == length]
    spread = np.array([grid[key].std() for key in cells]) / len(cells)
    evidence = 2 * (2 * sure - 1) * math.log(sure / (1 - sure))

    # The cheapest allocation whose variance shows the gap with that evidence.
    low, high = 1e-9, 1e9
    for _ in range(80):
        middle = math.sqrt(low * high)
        n = np.clip(middle * spread / math.sqrt(length), 1e-9, FULL_GRID)
        variance = (spread**2 * (1 / n - 1 / FULL_GRID)).sum()
        low, high = (low, middle) if variance <= (gap / 100) ** 2 / evidence else (middle, high)
    return float(n.sum() * length)


def simulate(
    title: str, curves: list[Curve], repetitions: int, rule: StoppingRule, seed: int
) -> None:
    """Print a row of the table, and one for each kind of curve."""
    random, rows = np.random.default_rng(seed), []
    for curve in curves:
        threshold = THRESHOLDS[curve.aligned]["all"]
        for _ in range(repetitions):
            grid = draw(random, curve)
            means = {
                n: 100 * np.mean([grid[task, n].mean() for task in THIRTEEN]) for n in PAPER_LENGTHS
            }
            state = replay(rule, grid, curve.aligned)
            tokens = sum(count * length for (_, length), count in state.counts.items())
            same = state.answer == effective_length(means, threshold)
            rows.append((same, state.settled, tokens / FULL_TOKENS, floor(grid, means, threshold)))
    kinds = [curve.kind for curve in curves for _ in range(repetitions)]
    for kind in dict.fromkeys([title, *kinds]):
        some = [row for row, of in zip(rows, kinds, strict=True) if kind in (of, title)]
        same, settled, tokens, least = np.array(some, float).T
        wrong = (1 - same[settled > 0]).mean() if settled.any() else 0.0
        name = kind if kind == title else f"- {kind}"
        print(
            f"| {name} | {len(some):,} | {100 * same.mean():.1f} % | {100 * tokens.mean():.1f} % | "
            f"{100 * least.mean():.1f} % | {tokens.mean() / least.mean():.2f} | "
            f"{100 * settled.mean():.1f} % | {100 * wrong:.1f} % |",
            flush=True,
        )


def simulate_readers(repetitions: int, drop: float = 0.06) -> None:
    """Print how often a reader with a window of 2K that leaves out a share of the items of `vt` is
    certified 2K, by whole runs of `rulerkit.evaluate`, each with another seed."""
    model = {"base": "reader-2048", "engine": "planted", "drop": drop, "name": "noisy"}
    right, certain, examples = 0, 0, 0
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()):
        for seed in range(repetitions):
            study = rk.study(
                plugins=["tests.planted_readers"],
                model=model,
                tasks=["vt"],
                lengths=[1024, 2048, 4096],
                num_examples="adaptive",
                seed=seed,
                outputs=f"{folder}/{seed}",
            )
            cells = rk.evaluate(study, progress=False)
            models = rk.summarize(rk.score(cells), ["vt"]).models.set_index("category")
            is_certain = ", certain" in models.loc["vt", "adaptive"]
            certain += is_certain
            right += is_certain and models.loc["vt", "effective_length"] == "2K"
            examples += sum(len(cell.rows) for cell in cells)
    print(
        f"\nreaders with a window of 2K that leave out {drop:.0%} of the items, {repetitions} runs: "
        f"{certain} certain, {right} of them 2K; {examples / repetitions:.0f} examples of 1500"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--max-examples", type=int, default=FULL_GRID)
    parser.add_argument("--readers", type=int, default=0, help="runs of a reader, and nothing else")
    given = parser.parse_args()
    if given.readers:
        return simulate_readers(given.readers)
    repetitions, rule = (given.repetitions, StoppingRule(given.confidence, given.max_examples))
    print(
        "| curves | runs | same | tokens | floor | tokens / floor | certain | certain and wrong |"
    )
    print("|---|---|---|---|---|---|---|---|")
    paper = list(paper_curves())
    simulate("the paper's 24", paper, repetitions, rule, 1)
    simulate("generated, for tuning", list(generated(7, 10, 0.0)), repetitions, rule, 2)
    simulate("generated, held out", list(generated(4711, 20, 1.0)), repetitions, rule, 3)
    at = [apart(THRESHOLD / 100, PROFILE)] * 6
    six = [Curve("six lengths at the threshold", "chat", np.stack(at, 1))]
    simulate("six lengths at the threshold", six, 4 * repetitions, rule, 4)


if __name__ == "__main__":
    main()
