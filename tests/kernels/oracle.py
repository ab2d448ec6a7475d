"""An independent, brute-force form of the contract in plain Python: slow, for tiny vocabularies only.

It shares no code with the reference, and states the rules differently where it can: filters by counting what
is larger, trees by enumeration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

WORD = 2**32
Parents = tuple[int, ...]


@dataclass(frozen=True)
class Parameters:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [right // WORD ^ c[1] ^ k[0], right % WORD, left // WORD ^ c[3] ^ k[1], left % WORD]
        k = [(k[0] + 0x9E3779B9) % WORD, (k[1] + 0xBB67AE85) % WORD]
    return c


def draw(seed: int, position: int, index: int, purpose: int) -> int:
    """The 32-bit word of a counter."""
    seed, position = seed % 2**64, position % 2**64
    words = philox((position % WORD, position // WORD, index // 4, purpose), (seed % WORD, seed // WORD))
    return words[index % 4]


def noise(seed: int, position: int, token: int, purpose: int = 0) -> np.float32:
    r = float(np.float32(draw(seed, position, token, purpose)))
    u = float(min(np.float32(r / WORD + 0.5 / WORD), np.float32(1 - 2**-24)))
    return np.float32(-math.log(-math.log1p(-u)))


def survivors(row: Sequence[float], p: Parameters) -> list[int]:
    """Tokens that the filters leave, at T > 0."""
    s = [np.float32(x) / np.float32(p.temperature) for x in row]
    best = max(s)
    k = p.top_k if 0 < p.top_k < len(s) else len(s)
    left = [v for v in range(len(s)) if s[v] > -math.inf and sum(x > s[v] for x in s) < k]
    weight = {v: np.float32(math.exp(np.float32(s[v] - best))) for v in left}
    mass = {v: round(float(weight[v]) * 2**40) for v in left}
    limit = int(float(np.float32(p.top_p)) * sum(mass.values()))
    return [
        v
        for v in left
        if s[v] == best
        or (
            (p.top_p >= 1 or sum(mass[w] for w in left if s[w] > s[v]) < limit)
            and (p.min_p <= 0 or weight[v] >= np.float32(p.min_p))
        )
    ]


def distribution(row: Sequence[float], p: Parameters) -> list[float]:
    """The filtered softmax."""
    kept = survivors(row, p)
    weights = {v: math.exp((row[v] - max(row)) / p.temperature) for v in kept}
    return [weights.get(v, 0.0) / sum(weights.values()) for v in range(len(row))]


def target_token(row: Sequence[float], p: Parameters, seed: int, position: int) -> int:
    """y(position)."""
    if p.temperature < 1e-5:
        return row.index(max(row))
    kept = survivors(row, p)
    scaled = {v: np.float32(row[v]) / np.float32(p.temperature) for v in kept}
    return max(kept, key=lambda v: (scaled[v] + noise(seed, position, v), -v))


def walk(
    rows: Sequence[Sequence[float]],
    parents: Sequence[int],
    tokens: Sequence[int],
    p: Parameters,
    seed: int,
    root_position: int,
) -> tuple[list[int], int]:
    """Accepted nodes and bonus token: follow y for as long as a child carries it."""
    node, path = 0, []
    while True:
        y = target_token(rows[node], p, seed, root_position + len(path) + 1)
        child = next((i for i, parent in enumerate(parents) if parent == node and tokens[i] == y), None)
        if child is None:
            return path, y
        path.append(child)
        node = child


def all_trees(max_nodes: int) -> Iterator[Parents]:
    """Every tree with parent < child and at most that many nodes."""
    for n in range(1, max_nodes + 1):
        for rest in itertools.product(*(range(i) for i in range(1, n))):
            yield (-1, *rest)


def shape(parents: Sequence[int], node: int = 0) -> str:
    """Equal for trees that differ only in the order of siblings."""
    children = (i for i, parent in enumerate(parents) if parent == node)
    return "(" + "".join(sorted(shape(parents, child) for child in children)) + ")"


def tree_shapes(max_nodes: int) -> list[Parents]:
    """One tree of each shape."""
    return list({shape(parents): parents for parents in all_trees(max_nodes)}.values())


def all_prefixes(
    ids: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], stops: frozenset[int]
) -> dict[tuple[int, ...], float]:
    """Every prefix of the product distribution, as ranks, with its fp32 value; nothing below a stop id."""
    found = {(): 0.0}
    for depth in range(len(ids)):
        for ranks, value in list(found.items()):
            if len(ranks) == depth and not (ranks and ids[depth - 1][ranks[-1]] in stops):
                for k, score in enumerate(scores[depth]):
                    if ids[depth][k] < 0 or not math.isfinite(score):
                        break
                    found[(*ranks, k)] = float(np.float32(value) + np.float32(score))
    return found


@dataclass(frozen=True)
class History:
    """What the penalties of one request depend on."""

    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    allowed: frozenset[int] | None = None


def penalised(row: Sequence[float], h: History) -> list[float]:
    """fp32, in the order repetition, frequency, presence, bias, allowed tokens."""
    found = []
    for v, logit in enumerate(row):
        x, count = np.float32(logit), h.output.count(v)
        if h.repetition != 1 and (v in h.prompt or count):
            x = x / np.float32(h.repetition) if x > 0 else x * np.float32(h.repetition)
        x = x - np.float32(h.frequency) * np.float32(count)
        x = x - np.float32(h.presence) if count else x
        for token, value in h.bias:
            x = x + np.float32(value) if token == v else x
        found.append(float(x) if h.allowed is None or v in h.allowed else -math.inf)
    return found
