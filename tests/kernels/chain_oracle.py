"""The rules for drafted chains in plain Python: exact when given fractions, and a verdict for given seeds.

States the rules as the papers do: probabilities of each accepted length, given the drafts. Shares no code with the
reference.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction

from . import oracle

ACCEPTANCE, RESIDUAL = 1, 2  # purposes
Number = Fraction | float
Prefix = tuple[int, ...]
Model = Callable[[Prefix], Sequence[Number]]  # the distribution behind a prefix


def carry(before: Number, p: Number, q: Number) -> Number:
    """min(1, before p / q); nothing if p has none of the token, all of it if only q has none."""
    if before * p == 0:
        return before * 0
    return min(before * 0 + 1, before * p / q) if q else before * 0 + 1


def left_over(scale: Number, p: Sequence[Number], q: Sequence[Number]) -> list[Number]:
    return [max(scale * a - b, a * 0) for a, b in zip(p, q, strict=True)]


def tests(rule: str, ps: Sequence, qs: Sequence, drafts: Prefix) -> tuple[list[Number], list[Number]]:
    """Scales of the residuals behind 0 .. n drafts, and the chance that the test of prefix 1 .. n passes."""
    one, n = ps[0][0] * 0 + 1, len(drafts)
    if rule == "ratio":
        return [one] * (n + 1), [carry(one, p[x], q[x]) for p, q, x in zip(ps, qs, drafts, strict=False)]
    scales = [one]
    for p, q, x in zip(ps, qs, drafts, strict=False):
        scales.append(carry(scales[-1], p[x], q[x]))
    chances = []
    for j in range(1, n):
        rest = sum(left_over(scales[j], ps[j], qs[j]))
        chances.append(rest / (rest + 1 - scales[j]) if rest + 1 - scales[j] else one)
    return scales, [*chances, scales[n]] if n else []


def lengths(rule: str, chances: list[Number]) -> list[Number]:
    """P(accepted = 0 .. n): up to the first test that fails, or (block) the last one that passes."""
    n = len(chances)
    if rule == "ratio":
        return [math.prod(chances[:j]) * (1 - chances[j] if j < n else 1) for j in range(n + 1)]
    return [(chances[j - 1] if j else 1) * math.prod(1 - c for c in chances[j:]) for j in range(n + 1)]


def emissions(rule: str, p: Model, q: Model, n: int) -> tuple[dict[Prefix, Number], Number]:
    """The probability of each emitted sequence, over drafts from q, and the expected number of accepted drafts."""
    found: dict[Prefix, Number] = defaultdict(Fraction)
    mean: Number = Fraction(0)
    for drafts in itertools.product(range(len(p(()))), repeat=n):
        ps = [p(drafts[:j]) for j in range(n + 1)]
        qs = [q(drafts[:j]) for j in range(n)]
        drawn = math.prod(row[x] for row, x in zip(qs, drafts, strict=True))
        if drawn == 0:
            continue
        scales, chances = tests(rule, ps, qs, drafts)
        for j, chance in enumerate(lengths(rule, chances)):
            if chance == 0:
                continue
            mean += drawn * chance * j
            rest = left_over(scales[j], ps[j], qs[j]) if j < n else ps[n]
            for token, weight in enumerate(rest):
                if weight:
                    found[(*drafts[:j], token)] += drawn * chance * weight / sum(rest)
    return found, mean


def verdict(
    rule: str,
    targets: Sequence[Sequence[float]],
    drafters: Sequence[Sequence[float]],
    drafts: Sequence[int],
    seed: int,
    first: int,
) -> tuple[int, int, float]:
    """Accepted drafts, bonus, and how close any decision was: distributions in, seeds as the op uses them."""
    uniforms = [(oracle.draw(seed, first, j, ACCEPTANCE) + 0.5) / 2**32 for j in range(len(drafts))]
    scales, chances = tests(rule, targets, drafters, tuple(drafts))
    passed = [u < c for u, c in zip(uniforms, chances, strict=True)]
    if rule == "ratio":
        accepted = (passed + [False]).index(False)
    else:
        accepted = max((j + 1 for j, p in enumerate(passed) if p), default=0)
    rest = targets[accepted]
    if accepted < len(drafts):
        rest = left_over(scales[accepted], targets[accepted], drafters[accepted])
    ranked = sorted(
        ((math.log(w) + oracle.noise(seed, first + accepted, v, RESIDUAL), v) for v, w in enumerate(rest) if w > 0),
        reverse=True,
    )
    gaps = [abs(u - c) for u, c in zip(uniforms, chances, strict=True)]
    gaps += [ranked[0][0] - ranked[1][0]] if len(ranked) > 1 else []
    return accepted, ranked[0][1], min(gaps, default=1.0)
