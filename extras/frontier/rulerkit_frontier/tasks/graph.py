"""Follow the edges of a directed graph: the nodes at exactly so many steps from one, or all parents
of one. The prompt is that of GraphWalks; `docs/frontier.md` says what differs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from random import Random
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.tasks.base import FailureRule, JudgedAnswer, Positive
from rulerkit.generation.tasks.haystacks import pool_size
from rulerkit_frontier.tasks.base import (
    ANSWER_PREFIX,
    Columns,
    Frontier,
    exact_lines,
    fill_with_lines,
    items_of,
    named,
    node_name,
    pool,
    said_nothing,
    with_items,
    wrong_items,
)

_OPENING = """\
You will be given a graph as a list of directed edges. All nodes are at least degree 1. You will \
also get a description of an operation to perform on the graph.
Your job is to execute the operation on the graph and return the set of nodes that the operation \
results in. If asked for a breadth-first search (BFS), only return the nodes that are both \
reachable and exactly at that depth (not nodes at intermediate depths), and do not return the \
starting node. If asked for the parents of a node, only return the nodes that have an edge leading \
to the given node, do not return the given node itself.

Here is an example:
<begin example>

The graph has the following edges:
uvwx -> alke
abcd -> uvwx
abcd -> efgh
efgh -> uvwx

Example 1:
Operation:
Perform a BFS from node abcd and return only the nodes at exactly depth 1 (not nodes at \
intermediate depths).
Final Answer: [uvwx, efgh]

Example 2:
Operation:
Perform a BFS from node alke and return only the nodes at exactly depth 1 (not nodes at \
intermediate depths).
Final Answer: []

Example 3:
Operation:
Find the parents of node uvwx.
Final Answer: [abcd, efgh]

Example 4:
Operation:
Find the parents of node abcd.
Final Answer: []

<end example>
"""
_START = "Here is the graph to operate on:\nThe graph has the following edges:\n"
_BFS = (
    "Operation:\nPerform a BFS from node {node} and return only the nodes at exactly depth {depth} "
    "(not nodes at intermediate depths)."
)
_PARENTS = "Operation:\nFind the parents of node {node}."
_CLOSING = """

You should immediately return the set of nodes that the operation results in, with no additional \
text. Return your final answer as a list of nodes in the very last line of your response. For \
example, if the operation returns the set of nodes [node1, node2, node3], your response should be:
Final Answer: [node1, node2, node3]
If the operation returns the empty set, your response should be:
Final Answer: []"""

_NODE = "[0-9a-f]{10}"
_EDGE = re.compile(rf"^(?P<source>{_NODE}) -> (?P<item>{_NODE})$", re.MULTILINE)
_NEAR_NODES = 16
"""From how many nodes of filler edges lead to the nodes of the core."""
_FIRST_NODES = 1024
"""Among how many nodes of filler they are chosen: so many has every pool."""
_NEAR_EDGES = 2
"""Edges from filler to each node of the core."""
_CORE = 10**9
"""Nodes of the core have numbers from here on; those of filler are numbered from 0."""
_OUT_DEGREE = 4
"""Edges from each node of filler, about."""
_TOKENS_FOR_A_NODE = 16
"""A context has fewer nodes than one in so many tokens."""
_MORE_LINES = 16
"""Lines beyond those that fit, so that there is a choice for the last ones."""
_ATTEMPTS = 50

_Edges = Mapping[str, Sequence[str]]
"""Node -> the nodes that edges lead to from it."""


def _steps(edges: _Edges, nodes: Iterable[str]) -> list[str]:
    """The nodes one step behind these, each once."""
    return list(dict.fromkeys(target for node in nodes for target in edges.get(node, ())))


def _levels(edges: _Edges, start: str, depth: int) -> list[list[str]]:
    """The nodes at each distance from 0 up to `depth`."""
    levels = [[start]]
    visited = {start}
    for _ in range(depth):
        found = _steps(edges, levels[-1])
        levels.append([node for node in found if node not in visited])
        visited.update(levels[-1])
    return levels


def _edges_of(text: str, start: int = 0) -> dict[str, list[str]]:
    edges: dict[str, list[str]] = {}
    for source, target in _EDGE.findall(text, start):
        edges.setdefault(source, []).append(target)
    return edges


# --- failures -------------------------------------------------------------------------------------


def _revisited(answer: JudgedAnswer) -> list[str]:
    """Wrong items that a walk of the asked number of steps reaches, though a shorter one does
    too."""
    question = re.search(Graph.question_form, answer.example.text_of("question"))
    if not question or not question["start"]:
        return []
    edges = _edges_of(answer.example.context_text)
    nodes = [question["start"]]
    for _ in range(int(question["depth"])):
        nodes = _steps(edges, nodes)
    return [item for item in wrong_items(answer) if item in nodes]


def _wrong_depth(answer: JudgedAnswer) -> str | None:
    question = re.search(Graph.question_form, answer.example.text_of("question"))
    if not question or not question["start"]:
        return None
    edges = _edges_of(answer.example.context_text)
    levels = _levels(edges, question["start"], int(question["depth"]) + 1)
    others = {node for level in levels for node in level}
    others -= set(_revisited(answer))
    return named(item for item in wrong_items(answer) if item in others)


def _children(answer: JudgedAnswer) -> str | None:
    question = re.search(Graph.question_form, answer.example.text_of("question"))
    if not question or question["start"]:
        return None
    children = _edges_of(answer.example.context_text).get(question["node"], ())
    return named(item for item in wrong_items(answer) if item in children)


def _invented(answer: JudgedAnswer) -> str | None:
    context = answer.example.context_text
    return named(item for item in items_of(answer) if item not in context)


# --- the family -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Graph(Frontier):
    """Name the nodes at exactly `depth` steps from a node, or all parents of a node, in a graph of
    as many edges as fit."""

    family = "graph"
    capability = "graph search"
    match = "f1"
    item_pattern = _NODE
    new_tokens = (128, 8)
    question_form = (
        r"Perform a BFS from node (?P<start>\w+) and return only the nodes at exactly depth "
        r"(?P<depth>\d+)|Find the parents of node (?P<node>\w+)"
    )
    failure_rules = (
        FailureRule(
            "wrong depth",
            "A node that lies at another distance from the one asked for.",
            _wrong_depth,
        ),
        FailureRule(
            "revisited node",
            "A node that so many steps reach, though it lies nearer: it was visited before.",
            lambda answer: named(_revisited(answer)),
        ),
        FailureRule(
            "children for parents",
            "A node that an edge leads to from the one whose parents are asked for.",
            _children,
        ),
        FailureRule("invented node", "A node that no edge names.", _invented),
        FailureRule(
            "said nothing",
            "The answer says that there is nothing, and there is something.",
            said_nothing,
        ),
    )

    operation: Literal["bfs", "parents"] = "bfs"
    depth: Annotated[Positive, Field(le=16)] = 2
    """How many steps from the first node the nodes lie that are asked for."""
    width: Annotated[Positive, Field(ge=2, le=64)] = 8
    """The most nodes at one distance, and the most parents; there are at least two."""
    back_edges: Positive = 3
    """Edges from the last nodes but one to nodes that were visited before, at most."""
    order: Literal["shuffled", "grouped"] = "shuffled"
    """`grouped` lets all edges from one node stand together."""

    @property
    def num_items(self) -> int:
        return self.width

    def make(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random
        is_empty = self.is_empty(stream.index)
        numbers = random.sample(range(_FIRST_NODES), _NEAR_NODES)
        near = [node_name(number) for number in numbers]
        draw = self._search if self.operation == "bfs" else self._parents
        core = draw(random, is_empty, near)

        form = _BFS if self.operation == "bfs" else _PARENTS
        return Draft(
            instruction=_OPENING + _START,
            question=form.format(node=core.node, depth=self.depth) + _CLOSING,
            answer_prefix=ANSWER_PREFIX,
            references=tuple(core.found),
            hidden=(near, self._pieces(random, core)),
        )

    def _search(self, random: Random, is_empty: bool, near: Sequence[str]) -> "_Core":
        """What a search finds. Where that is nothing, all paths end one step before, or lead
        back."""
        # Each node has one parent in the level above.
        names = _new_nodes(random, near)
        levels = [[next(names)]]
        edges = list[tuple[str, str]]()
        for _ in range(self.depth - is_empty):
            level = list(islice(names, random.randint(2, self.width)))
            edges += [(random.choice(levels[-1]), node) for node in level]
            levels.append(level)

        # From the last level but one edges lead back to nodes that were visited.
        last = levels[self.depth - 1]
        visited = [node for level in levels[: self.depth] for node in level]
        back = [(a, b) for a in last for b in visited if a != b]
        edges += random.sample(back, min(self.back_edges, len(back)))

        # One step too many leads to filler, and from filler edges lead to every node.
        found = [] if is_empty else levels[-1]
        others = [(node, random.choice(near)) for node in found]
        for node in chain.from_iterable(levels):
            others += [(n, node) for n in random.sample(near, _NEAR_EDGES)]
        return _Core(levels[0][0], found, edges, others)

    def _parents(self, random: Random, is_empty: bool, near: Sequence[str]) -> "_Core":
        """The parents of a node, beside its children and the parents' own parents."""
        node, *found = islice(
            _new_nodes(random, near), 1 if is_empty else 1 + random.randint(2, self.width)
        )
        children = random.randint(2, min(self.width, len(near)))
        others = [(node, child) for child in random.sample(near, children)]
        for parent in found:
            others += [(n, parent) for n in random.sample(near, _NEAR_EDGES)]
        return _Core(node, found, [(parent, node) for parent in found], others)

    def _pieces(self, random: Random, core: "_Core") -> list[Piece]:
        """The edges at free depths; with `order: grouped` those from one node have one depth."""
        pieces = []
        depth_of = dict[str, float]()
        for role, edges in (("needle", core.edges), ("distractor", core.others)):
            for source, target in edges:
                depth = random.random()
                if self.order == "grouped":
                    depth = depth_of.setdefault(source, depth)
                text = f"{source} -> {target}\n"
                pieces.append(Piece(text, role, key=source, value=target, depth=depth))
        return pieces

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        size = pool_size(budget.length, _TOKENS_FOR_A_NODE)
        sources = pool("nodes", "{}", size, budget.encoder)
        targets = pool("nodes", " -> {}\n", size, budget.encoder)

        # Nodes of filler that the core knows come first, then any others.
        near, edges = draft.hidden
        known = [sources.position[node] for node in near]
        named = {node for edge in edges for node in (edge.key, edge.value)}
        others = sources.others(sorted({*near, *named}), budget.random)
        nodes = np.concatenate([known, others])
        seed = budget.random.randint(2**31)

        # What all edges from and to a node take, as each node has so many of either kind.
        tokens = _OUT_DEGREE * (sources.counts + targets.counts)
        together = np.cumsum(tokens[nodes])

        def choose(left: int) -> Columns | None:
            # A few lines more than fit.
            more = _MORE_LINES * tokens.mean() / _OUT_DEGREE
            number = int(np.searchsorted(together, left + more)) + 1
            used = nodes[: max(len(known), number)]
            for attempt in range(_ATTEMPTS):
                random = np.random.RandomState([seed, attempt])
                columns = list(zip((sources, targets), _random_edges(used, random), strict=True))
                chosen = exact_lines(left, columns, (0, 1))
                # Exchanges among the last lines may make an edge that is there already.
                if chosen is None or not len(_repeated(*_orders(chosen))):
                    return chosen
            return None

        build = partial(_grouped, seed=seed) if self.order == "grouped" else None
        return fill_with_lines(edges, budget, choose, build)

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        # The solved examples stand before the graph that is asked about.
        edges = _edges_of(text, max(0, text.rfind(_START)))
        if question["start"]:
            depth = int(question["depth"])
            return _levels(edges, question["start"], depth)[depth]
        return [source for source, found in edges.items() if question["node"] in found]


# --- drawing --------------------------------------------------------------------------------------


class _Core(NamedTuple):
    """What is asked about: the node, what is found, the edges that lead there, and edges that could
    mislead."""

    node: str
    found: list[str]
    edges: list[tuple[str, str]]
    others: list[tuple[str, str]]


def _new_nodes(random: Random, taken: Iterable[str]) -> Iterator[str]:
    """Names of nodes without end, each once, and none of those taken."""
    seen = set(taken)
    while True:
        name = node_name(random.randrange(_CORE, 1000 * _CORE))
        if name not in seen:
            seen.add(name)
            yield name


def _random_edges(
    nodes: np.ndarray, random: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """From each node and to each node so many edges as its degree, none of them twice, and none
    from a node to itself."""
    sources, targets = (random.permutation(np.tile(nodes, _OUT_DEGREE)) for _ in range(2))
    while len(repeated := _repeated(sources, targets)):
        for edge in repeated.tolist():
            other = random.randint(len(targets))
            targets[[edge, other]] = targets[[other, edge]]
    return sources, targets


def _repeated(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The positions of edges that were there before, and of those from a node to itself."""
    edges = sources.astype(np.int64) * (targets.max() + 1) + targets
    is_first = np.zeros(len(edges), dtype=bool)
    is_first[np.unique(edges, return_index=True)[1]] = True
    return np.flatnonzero(~is_first | (sources == targets))


def _orders(columns: Columns) -> list[np.ndarray]:
    return [order for _, order in columns]


def _grouped(
    items: Sequence[Piece], budget: ContextBudget, columns: Columns, seed: int
) -> list[Piece]:
    """The lines sorted so that all edges from one node stand together, items too."""
    # Each node has a place in the text, from 0 to 1; items know that of the node they lead from.
    sources, starts = columns[0]
    places = np.random.RandomState([seed, _ATTEMPTS]).random_sample(len(sources))
    for item in items:
        if item.key in sources.position:
            places[sources.position[item.key]] = item.depth
    order = np.argsort(places[starts], kind="stable")
    sorted_columns = [(units, column[order]) for units, column in columns]

    # Items stand before the lines of a node, never among them.
    places_of_lines = places[starts[order]]
    last = np.searchsorted(places_of_lines, places_of_lines[-1])
    moved = []
    for item in items:
        line = min(np.searchsorted(places_of_lines, item.depth), last)
        depth = (float(line) + 0.5) / len(order)
        moved.append(replace(item, depth=depth))
    return with_items(moved, budget, sorted_columns)
