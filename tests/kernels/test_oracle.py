"""Against brute force: every tree of up to eight nodes, walked by an oracle that shares no code with the ops.

The distribution is checked too, so that both cannot agree on the wrong thing: for each tree shape, the
emitted token sequences over many seeds must follow the product of the filtered softmaxes.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from scipy import stats

import d3d_kernels as dk

from . import cases, oracle
from .harness import Target, call

VOCAB, NODES = 6, 8
PARAMETERS = (
    oracle.Parameters(0.0),
    oracle.Parameters(1.0),
    oracle.Parameters(0.8, top_k=3),
    oracle.Parameters(1.2, top_p=0.85),
    oracle.Parameters(1.0, min_p=0.15),
    oracle.Parameters(0.9, top_k=4, top_p=0.9, min_p=0.05),
)
SIGNIFICANCE = 1e-6  # of one chi-square test, with hundreds of them in a run


def sampling_of(parameters: list[oracle.Parameters], seeds: torch.Tensor) -> dk.SamplingTensors:
    return dk.SamplingTensors(
        torch.tensor([p.temperature for p in parameters], dtype=torch.float32),
        torch.tensor([p.top_k for p in parameters], dtype=torch.int32),
        torch.tensor([p.top_p for p in parameters], dtype=torch.float32),
        torch.tensor([p.min_p for p in parameters], dtype=torch.float32),
        seeds,
    )


def planted_tokens(parents, rows, p, seed, root_position, plant: list[bool], others: list[int]) -> list[int]:
    """Draft tokens, many of which the target will agree with if the walk gets there."""
    tokens, depths = [others[0]], [0]
    for i in range(1, len(parents)):
        depths.append(depths[parents[i]] + 1)
        y = oracle.target_token(rows[parents[i]], p, seed, root_position + depths[i])
        tokens.append(y if plant[i] else others[i])
    return tokens


@functools.cache
def every_tree() -> tuple:
    """verify_tree's arguments for all 5,913 trees, equal siblings included, and the oracle's walks."""
    trees = list(oracle.all_trees(NODES))
    g = cases.generator("oracle")
    logits = torch.randn(len(trees), NODES, VOCAB, generator=g) * 2
    parameters = [p for p, _ in zip(itertools.cycle(PARAMETERS), trees, strict=False)]
    seeds = torch.randint(-(2**63), 2**63 - 1, (len(trees),), generator=g)
    positions = torch.randint(0, 2**33, (len(trees),), generator=g)
    plant = (torch.rand(len(trees), NODES, generator=g) < 0.8).tolist()
    others = torch.randint(0, VOCAB, (len(trees), NODES), generator=g).tolist()
    tokens, walks = [], []
    for b, (parents, rows) in enumerate(zip(trees, logits.tolist(), strict=True)):
        request = parameters[b], int(seeds[b]), int(positions[b])
        tokens.append(planted_tokens(parents, rows, *request, plant[b], others[b]))
        walks.append(oracle.walk(rows, parents, tokens[b], *request))
    tree = cases.tree_of([list(parents) for parents in trees], tokens)
    return (logits, tree, sampling_of(parameters, seeds), positions), walks


def test_every_tree_of_up_to_eight_nodes(on: Target) -> None:
    arguments, walks = every_tree()
    verdict = call(on, "verify_tree", *arguments)
    assert not verdict.status.any()
    assert set(verdict.num_accepted.tolist()) == set(range(NODES)), "the cases must cover every accepted length"
    for b, (path, bonus) in enumerate(walks):
        assert verdict.accepted_nodes[b].tolist() == path + [-1] * (NODES - len(path))
        assert (int(verdict.num_accepted[b]), int(verdict.bonus_ids[b])) == (len(path), bonus)


def emission_distribution(parents, tokens, rows, p: oracle.Parameters) -> dict[tuple[int, int], float]:
    """Exact probability of each (last accepted node, bonus token), that is, of each emitted sequence."""
    found: dict[tuple[int, int], float] = {}
    reach = [1.0] + [0.0] * (len(parents) - 1)
    for node in range(len(parents)):
        for token, q in enumerate(oracle.distribution(rows[node], p)):
            children = [i for i, parent in enumerate(parents) if parent == node and tokens[i] == token]
            if children:
                reach[children[0]] += reach[node] * q
            else:
                found[node, token] = reach[node] * q
    return found


def chi_square(observed: dict, expected: dict, draws: int) -> float:
    """p-value; cells that expect fewer than five draws are pooled."""
    assert all(expected.get(key, 0) > 0 for key in observed), "emitted what has no probability"
    cells = [(observed.get(key, 0), q * draws) for key, q in expected.items() if q > 0]
    large, small = [c for c in cells if c[1] >= 5], [c for c in cells if c[1] < 5]
    pooled = (sum(c[0] for c in small), sum(c[1] for c in small))
    if pooled[1] >= 5:
        large.append(pooled)
    if len(large) < 2:
        return 1.0
    seen, wanted = np.array(large).T
    return float(stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue)


@pytest.mark.parametrize("p", PARAMETERS[1:], ids=str)
def test_emitted_sequences_follow_the_product_distribution(on: Target, p: oracle.Parameters) -> None:
    """One tree of each of the 200 shapes of up to eight nodes, two thousand seeds each, packed rows."""
    trees, draws = oracle.tree_shapes(NODES), 2000
    assert len(trees) == 200
    g = cases.generator("distribution", p)
    tokens = [torch.randint(0, VOCAB, (len(parents),), generator=g).tolist() for parents in trees]
    rows = torch.randn(len(trees) * NODES, VOCAB, generator=g)
    tree = cases.tree_of([list(parents) for parents in trees], tokens)
    each = torch.arange(len(trees)).repeat_interleave(draws)
    seeds = torch.arange(len(each)) * 7919 + 13
    verdict = dk.verify_tree(
        rows.to(on.device),
        tree.select(each).to(on.device),
        sampling_of([p] * len(each), seeds).to(on.device),
        (torch.arange(len(each)) % 101).to(on.device),
        row_starts=(each * NODES).int().to(on.device),
        backend=on.backend,
    ).to("cpu")
    last = verdict.accepted_nodes.gather(1, (verdict.num_accepted.long() - 1).clamp(min=0)[:, None]).squeeze(1)
    last = torch.where(verdict.num_accepted > 0, last, 0)
    codes = (last * VOCAB + verdict.bonus_ids).view(len(trees), draws)
    for c, parents in enumerate(trees):
        values, counts = codes[c].unique(return_counts=True)
        observed = {divmod(code, VOCAB): n for code, n in zip(values.tolist(), counts.tolist(), strict=True)}
        own_rows = rows[c * NODES :][: len(parents)].tolist()
        expected = emission_distribution(parents, tokens[c], own_rows, p)
        assert chi_square(observed, expected, draws) > SIGNIFICANCE, f"tree {parents}"


@pytest.mark.parametrize("p", PARAMETERS[1:], ids=str)
def test_sample_follows_the_filtered_softmax(on: Target, p: oracle.Parameters) -> None:
    vocab, draws = 30, 20_000
    row = torch.randn(vocab, generator=cases.generator("softmax", p)) * 1.5
    tokens = dk.sample(
        row.expand(draws, vocab).to(on.device),
        sampling_of([p] * draws, torch.arange(draws)).to(on.device),
        torch.full((draws,), 17).to(on.device),
        backend=on.backend,
    ).cpu()
    values, counts = tokens.unique(return_counts=True)
    observed = dict(zip(values.tolist(), counts.tolist(), strict=True))
    expected = dict(enumerate(oracle.distribution(row.tolist(), p)))
    assert chi_square(observed, expected, draws) > SIGNIFICANCE


def test_positions_of_one_request_are_independent(on: Target) -> None:
    """y(t) and y(t + 1) of one seed: the joint counts must be those of a product."""
    vocab, draws = 5, 20_000
    row = torch.randn(vocab, generator=cases.generator("independence"))
    p = oracle.Parameters()
    tokens = dk.sample(
        row.expand(draws, vocab).to(on.device),
        sampling_of([p], torch.tensor([42])).to(on.device),
        torch.arange(draws).to(on.device),
        torch.zeros(draws, dtype=torch.int32).to(on.device),
        backend=on.backend,
    ).tolist()
    q = oracle.distribution(row.tolist(), p)
    pairs = list(zip(tokens[::2], tokens[1::2], strict=True))
    observed = {pair: pairs.count(pair) for pair in set(pairs)}
    expected = {(a, b): q[a] * q[b] for a in range(vocab) for b in range(vocab)}
    assert chi_square(observed, expected, len(pairs)) > SIGNIFICANCE
