"""How reading vocabulary rows has failed elsewhere: a test for each report, named after its number."""

from __future__ import annotations

import itertools

import pytest
import torch

import d3d_kernels as dk

from . import cases
from .harness import Target, assert_same, call, sampled, within

# Places where a block of some size ends or begins.
BORDERS = (0, 1, 3, 4, 7, 8, 31, 32, 255, 256, 511, 1023, 1024, 4095, 4096, 8191, 8192, 9999)
LONG = 10_000


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_failure_03_nan_row_returned_an_id_outside_the_vocabulary(on: Target, temperature) -> None:
    """A NaN won every comparison or none: the id was V, or the last index of a block (8191).

    A NaN at every border, where the winner would be otherwise; rows that are NaN but for one place; a row of
    NaN.
    """
    n = len(BORDERS)
    logits = torch.zeros(2 * n + 1, LONG)
    logits[torch.arange(n), list(BORDERS)] = torch.nan
    logits[:n, 5_000] = 50.0
    logits[n : 2 * n] = torch.nan
    logits[torch.arange(n) + n, list(BORDERS)] = -3.0
    logits[2 * n] = torch.nan
    status = torch.empty(2 * n + 1, dtype=torch.int32, device=on.device)
    sampling = dk.SamplingTensors.full(2 * n + 1, on.device, temperature=temperature)
    positions = torch.arange(2 * n + 1, device=on.device)
    tokens = dk.sample(logits.to(on.device), sampling, positions, status=status, backend=on.backend)
    assert tokens.tolist() == [5_000] * n + list(BORDERS) + [0]
    assert status.tolist() == [0] * (2 * n) + [int(dk.Status.NO_FINITE_LOGIT)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_failure_04_row_offsets_past_two_to_the_31(on: Target, temperature) -> None:
    """963 requests with 15 drafts at V = 151,936: rows * V passed 2^31 and an int32 offset read another row.

    The rows lie in address space that is never touched but for the few rows that are read.
    """
    vocab, far = 151_936, 14_208  # far * vocab > 2^31
    assert far * vocab > 2**31
    storage = torch.empty((far + 3) * vocab, dtype=torch.bfloat16, device=on.device)
    logits = storage.view(far + 3, vocab)
    logits[far:] = 0
    for i, token in enumerate((77, 150_001, 99)):
        logits[far + i, token] = 60
    tree = cases.tree_of([[-1, 0, 1]], [[5, 77, 150_001]]).to(on.device)
    sampling = dk.SamplingTensors.full(1, on.device, temperature=temperature)
    start = torch.tensor([far], dtype=torch.int32, device=on.device)
    position = torch.tensor([10], device=on.device)
    verdict = dk.verify_tree(logits, tree, sampling, position, row_starts=start, backend=on.backend)
    assert verdict.accepted_nodes[0].tolist() == [1, 2, -1] and verdict.bonus_ids.tolist() == [99]

    # The same distance as a stride: two rows, or two draft positions, 2^31 elements apart.
    pair = storage.as_strided((2, vocab), ((far + 1) * vocab, 1), vocab)
    pair[0] = 0
    pair[0, 4] = 60
    two = dk.SamplingTensors.full(2, on.device, temperature=temperature)
    positions = torch.tensor([1, 2], device=on.device)
    assert dk.sample(pair, two, positions, backend=on.backend).tolist() == [4, 99]
    drafted = dk.draft_candidates(pair[None], 1, sampling, position, backend=on.backend)
    assert drafted.token_ids.flatten().tolist() == [4, 99]
    tree = cases.tree_of([[-1, 0]], [[0, 4]]).to(on.device)
    verdict = dk.verify_tree(pair[None], tree, sampling, position, backend=on.backend)
    assert verdict.num_accepted.tolist() == [1] and verdict.bonus_ids.tolist() == [99]


def test_failure_05_row_stride_of_a_padded_vocabulary(on: Target) -> None:
    """Logits were a slice [:, :V] of a padded vocabulary, and rows were read V apart.

    Here the padding would win every row, and each op must give what it gives on a copy without padding.
    """
    g = cases.generator("failure 5")
    vocab, batch = 100, 13
    padded = torch.full((batch, 4, vocab + 28), 1e4)
    padded[..., :vocab] = torch.randn(batch, 4, vocab, generator=g)
    view, copy = padded[..., :vocab], padded[..., :vocab].contiguous()
    sampling, positions = cases.sampling(batch, g), torch.arange(batch)
    tree = cases.random_trees(batch, 4, 5, g)
    chain = torch.randint(0, 5, (batch, 3), generator=g)
    starts = (torch.arange(batch) * 4).int()
    for op, of in (
        ("sample", lambda x: (x[:, 1], sampling, positions)),
        ("draft_candidates", lambda x: (x, 5, sampling, positions)),
        ("verify_tree", lambda x: (x, tree, sampling, positions)),
        ("verify_chain", lambda x: (x, chain, None, sampling, positions)),
        ("draft_tree", lambda x: (x, positions, sampling, positions, 9, 3)),
    ):
        assert_same(call(on, op, *of(view)), call(on, op, *of(copy)))
    packed = padded.view(-1, vocab + 28)[:, :vocab]
    assert_same(
        call(on, "verify_tree", packed, tree, sampling, positions, row_starts=starts),
        call(on, "verify_tree", copy, tree, sampling, positions),
    )


def hard_rows() -> torch.Tensor:
    """Rows on which a search for a threshold by halving may never end."""
    one = torch.ones(LONG)
    rows = [
        one * 0,
        one * -1e30,
        one.index_fill(0, torch.arange(LONG - 1), -torch.inf),
        one * -torch.inf,
        torch.where(torch.arange(LONG) % 2 == 0, 1.0, 1.0 + 2**-23),  # adjacent floats
        torch.where(torch.arange(LONG) % 2 == 0, 1e-45, 2e-45),  # subnormals
        torch.where(torch.arange(LONG) % 3 == 0, 3e38, -3e38),
        torch.where(torch.arange(LONG) % 3 == 0, torch.inf, 0.0),
        torch.arange(LONG) * -1e-45,
        torch.where(torch.arange(LONG) % 2 == 0, 0.0, -0.0),
        torch.arange(LONG).float(),
    ]
    return torch.stack(rows)


FILTERS = (  # top_k, top_p, min_p
    (3, 1.0, 0.0),
    (LONG - 1, 1.0, 0.0),
    (0, 0.5, 0.0),
    (0, 1e-30, 0.0),
    (0, 0.99999994, 0.0),
    (0, 1.0, 1e-38),
    (5_000, 0.3, 0.2),
    (1, 0.0, 1.0),
)


@pytest.mark.parametrize("temperature", [1e-5, 1.0, 1e30])
def test_failure_07_filter_search_that_never_ends(on: Target, temperature) -> None:
    """A threshold was searched by halving an interval of floats; on such rows the interval never shrank."""
    rows = hard_rows()

    def run() -> None:
        for top_k, top_p, min_p in FILTERS:
            sampling = dk.SamplingTensors.full(
                len(rows), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=3
            )
            tokens = sampled(on, rows, sampling)
            positions = torch.arange(len(rows))
            assert_same(tokens, dk.sample(rows, sampling, positions, backend="reference"))
            assert ((tokens >= 0) & (tokens < LONG)).all()

    within(60, run)


def test_failure_08_id_outside_the_vocabulary_once_in_a_million_draws(on: Target) -> None:
    """A missing barrier around a shared id gave an id >= V once in 10^6 draws."""
    draws = 50_000 if on.backend == "reference" else 1_000_000
    vocab = 37
    logits = torch.zeros(1, vocab, device=on.device).expand(draws, vocab)
    one = dk.SamplingTensors.full(1, on.device, top_p=0.95, seed=8)
    owner = torch.zeros(draws, dtype=torch.int32, device=on.device)
    tokens = dk.sample(logits, one, torch.arange(draws, device=on.device), owner, backend=on.backend)
    assert tokens.min() == 0 and tokens.max() == vocab - 1


def test_failure_10_seeds_and_positions_are_read_at_every_call(on: Target) -> None:
    """Seeds baked into a captured graph: every replay drew the same token.

    The same tensors, changed in place between calls, must give what new tensors give.
    """
    logits = torch.zeros(1, 1000, device=on.device)
    sampling, position = (
        dk.SamplingTensors.full(1, on.device),
        torch.zeros(1, dtype=torch.int64, device=on.device),
    )
    tokens = set()
    for step in range(20):
        sampling.seed.fill_(step)
        position.fill_(step // 2)
        again = dk.SamplingTensors.full(1, on.device, seed=step)
        token = dk.sample(logits, sampling, position, backend=on.backend)
        assert_same(token, dk.sample(logits, again, position.clone(), backend=on.backend))
        tokens.add(token.item())
    assert len(tokens) > 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_failure_10_a_replayed_graph_draws_fresh_samples() -> None:
    logits = torch.zeros(1, 1000, device="cuda")
    sampling, position = dk.SamplingTensors.full(1, "cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    out, status = (
        torch.empty(1, dtype=torch.int64, device="cuda"),
        torch.empty(1, dtype=torch.int32, device="cuda"),
    )
    dk.sample(logits, sampling, position, out=out, status=status)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dk.sample(logits, sampling, position, out=out, status=status)
    for step in range(10):
        position.fill_(step)
        graph.replay()
        expected = dk.sample(logits, sampling, position, backend="reference")
        assert out.tolist() == expected.tolist()


def test_failure_12_temperatures_0_and_1e_8_and_1_in_one_batch(on: Target) -> None:
    """Division by a temperature of zero. Each row must be what it is alone, the first two the argmax."""
    g = cases.generator("failure 12")
    row = torch.randn(1, 500, generator=g) * 5
    logits = row.expand(5, 500).contiguous()
    temperature = torch.tensor([0.0, 1e-8, 1.0, 1e-5, -3.0])
    sampling = dk.SamplingTensors.full(5, seed=2, top_p=0.9)
    sampling.temperature.copy_(temperature)
    tokens = sampled(on, logits, sampling)
    for b in range(5):
        assert tokens[b] == sampled(on, row, sampling.select(slice(b, b + 1)), first_position=b)[0]
    assert tokens[[0, 1, 3, 4]].tolist() == [row.argmax().item()] * 4


LOST_IN_ROUNDING = [
    (torch.float32, 1.0, 1e30),
    (torch.bfloat16, 1.0, 1e30),
]  # so large that noise changes nothing


@pytest.mark.parametrize(
    "dtype,temperature,value",
    [*((d, 0.0, v) for d in cases.DTYPES for v in (3.0, 0.0, -2.0)), *LOST_IN_ROUNDING],
    ids=str,
)
def test_failure_14_argmax_ties_go_to_the_lowest_id(on: Target, dtype, temperature, value) -> None:
    """One path resolved ties last-wins, another first-wins, and greedy outputs depended on the batch size.

    Two equal maxima on either side of block borders, and a row that is nothing but ties.
    """
    pairs = list(itertools.pairwise(BORDERS)) + [(a, BORDERS[-1]) for a in BORDERS[:-2]]
    logits = torch.full((len(pairs) + 1, LONG), value - 1 - abs(value), dtype=dtype)
    for row, (a, b) in enumerate(pairs):
        logits[row, [a, b]] = value
    logits[len(pairs)] = value
    sampling = dk.SamplingTensors.full(len(logits), temperature=temperature)
    assert sampled(on, logits, sampling).tolist() == [a for a, _ in pairs] + [0]
    some = dk.SamplingTensors.full(len(pairs), temperature=temperature)
    drafted = call(on, "draft_candidates", logits[:-1, None], 2, some, torch.arange(len(pairs)))
    assert drafted.token_ids.squeeze(1).tolist() == [list(pair) for pair in pairs]
