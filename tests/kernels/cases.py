"""Inputs for kernel tests: every kind of row, stride and parameter that an op must cope with."""

from __future__ import annotations

import random

import torch
from torch import Tensor

import d3d_kernels as dk

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
STRIDES = ("dense", "padded", "strided")
VOCABS = (1, 2, 5, 33, 257, 1030)

# (temperature, top_k, top_p, min_p): requests of one batch cycle through them.
PARAMETERS = (
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (1.3, 0, 1.0, 0.1),
    (0.8, 20, 0.8, 0.05),
    (1e-8, 3, 0.5, 0.5),
    (1e-4, 0, 0.9, 0.0),
    (2.0, 1, 1.0, 0.0),
    (1.0, 0, 0.0, 0.0),
    (1.0, 0, 1.0, 2.0),
    (-1.0, -1, 2.0, -1.0),
    (5.0, 10**9, 1.0, 0.01),
)


def generator(*seed: object) -> torch.Generator:
    """Random numbers that depend on the case alone, so that tests can run in any order."""
    return torch.Generator().manual_seed(random.Random(repr(seed)).getrandbits(63))


def sampling(batch: int, g: torch.Generator) -> dk.SamplingTensors:
    """Mixed parameters, seeds of either sign."""
    temperature, top_k, top_p, min_p = zip(*(PARAMETERS[b % len(PARAMETERS)] for b in range(batch)), strict=True)
    return dk.SamplingTensors(
        torch.tensor(temperature, dtype=torch.float32),
        torch.tensor(top_k, dtype=torch.int32),
        torch.tensor(top_p, dtype=torch.float32),
        torch.tensor(min_p, dtype=torch.float32),
        torch.randint(-(2**63), 2**63 - 1, (batch,), generator=g),
    )


def positions(batch: int, g: torch.Generator) -> Tensor:
    """Absolute positions; every third needs more than 32 bits."""
    small = torch.randint(0, 40_000, (batch,), generator=g)
    return small + (torch.arange(batch) % 3 == 2) * 2**33


def penalties(batch: int, vocab: int, g: torch.Generator) -> dk.Penalties:
    """All of them at once, with padding, foreign ids, repeated bias ids and bans."""

    def ids(width: int) -> Tensor:
        return torch.randint(-2, vocab + 2, (batch, width), generator=g)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=g) * (high - low) + low

    bias = uniform(-3, 3, batch, 7)
    bias[:, 3] = -torch.inf
    repetition = uniform(0.7, 1.6, batch)
    repetition[::4] = 1.0
    return dk.Penalties(
        prompt_ids=ids(9),
        output_ids=ids(14)[:, :11],
        presence=uniform(-0.5, 1.0, batch),
        frequency=uniform(-0.5, 1.0, batch),
        repetition=repetition,
        bias_ids=ids(7),
        bias_values=bias,
        allowed_bits=torch.randint(-(2**31), 2**31, (batch, (vocab + 31) // 32), generator=g).int()
        | torch.randint(-(2**31), 2**31, (batch, (vocab + 31) // 32), generator=g).int(),
    )


def logits(*shape: int, g: torch.Generator, dtype: torch.dtype = torch.float32, stride: str = "dense") -> Tensor:
    """Rows of all kinds, cycling: spread, flat, coarse (ties), sparse (-inf), with NaN and +inf.

    padded: a slice of a longer vocabulary whose rest would win; strided: every second row of a batch.
    """
    *lead, vocab = shape
    if stride == "padded":
        base = torch.full((*lead, vocab + 7), 1e4, dtype=dtype)
        view = base[..., :vocab]
    elif stride == "strided":
        base = torch.full((lead[0] * 2, *lead[1:], vocab), 1e4, dtype=dtype)
        view = base[::2]
    else:
        view = torch.empty(shape, dtype=dtype)
    values = torch.randn(shape, generator=g) * 3
    rows = values.view(-1, vocab)
    rows[1::7] *= 0.1
    rows[2::7] = rows[2::7].round()
    rows[3::7][torch.rand(rows[3::7].shape, generator=g) < 0.7] = -torch.inf
    rows[4::7][torch.rand(rows[4::7].shape, generator=g) < 0.1] = torch.nan
    rows[5::21, vocab // 2] = torch.inf
    rows[6::21] = -torch.inf
    view.copy_(values)
    return view


def random_parents(nodes: int, g: torch.Generator) -> list[int]:
    return [-1] + [int(torch.randint(0, i, (1,), generator=g)) for i in range(1, nodes)]


def tree_of(parents: list[list[int]], token_ids: list[list[int]]) -> dk.DraftTree:
    """Trees from lists, padded to the largest; a tree without nodes is an empty lane."""
    nodes = max(1, *(len(p) for p in parents))
    tree = dk.DraftTree.empty(len(parents), nodes)
    for t, padding in zip(tree.tensors(), (-1, -1, 0, 0, 0), strict=True):
        t.fill_(padding)
    for b, (row_parents, row_tokens) in enumerate(zip(parents, token_ids, strict=True)):
        n = len(row_parents)
        depths = [0] * n
        for i in range(1, n):
            depths[i] = depths[row_parents[i]] + 1 if 0 <= row_parents[i] < i else 0
        tree.num_nodes[b] = n
        tree.parents[b, :n] = torch.tensor(row_parents, dtype=torch.int32)
        tree.token_ids[b, :n] = torch.tensor(row_tokens)
        tree.depths[b, :n] = torch.tensor(depths, dtype=torch.int32)
    return tree


def random_trees(batch: int, nodes: int, vocab: int, g: torch.Generator) -> dk.DraftTree:
    """Ragged trees; the first lane is full, every fifth is empty."""
    counts = [nodes if b == 0 else int(torch.randint(1, nodes + 1, (1,), generator=g)) for b in range(batch)]
    counts = [0 if b % 5 == 4 else count for b, count in enumerate(counts)]
    return tree_of(
        [random_parents(count, g)[:count] for count in counts],
        [torch.randint(0, vocab, (count,), generator=g).tolist() for count in counts],
    )
