"""draft_candidates against the oracle: the target's noise, the filtered q, and the scores."""

from __future__ import annotations

import math

import pytest
import torch

import d3d_kernels as dk

from . import cases, oracle
from .harness import Target, call
from .test_oracle import PARAMETERS, sampling_of

VOCAB, LENGTH, ROWS = 9, 3, 20


def ranked(row: list[float], p: oracle.Parameters, seed: int, position: int) -> list[tuple[float, int]]:
    """(perturbed value, token), best first; T = 0: penalised logits."""
    if p.temperature == 0:
        values = {v: x for v, x in enumerate(row) if x > -math.inf}
    else:
        values = {
            v: float(torch.tensor(row[v]) / torch.tensor(p.temperature)) + float(oracle.noise(seed, position, v))
            for v in oracle.survivors(row, p)
        }
    return sorted(((x, v) for v, x in values.items()), key=lambda entry: (-entry[0], entry[1]))


@pytest.mark.parametrize("p", PARAMETERS, ids=str)
@pytest.mark.parametrize("k", [1, 4, 12])
@pytest.mark.parametrize("mask_token_id", [-1, 2])
def test_candidates_log_probs_and_scores(on: Target, p: oracle.Parameters, k, mask_token_id) -> None:
    g = cases.generator("candidates", p, k)
    logits = torch.randn(ROWS, LENGTH, VOCAB, generator=g) * 1.5
    logits[:, 1, 5:] = -torch.inf
    logits[3, 0] = -torch.inf
    seeds, positions, beta = torch.arange(ROWS) - 7, torch.arange(ROWS) * 50, 0.7
    arguments = logits, k, sampling_of([p] * ROWS, seeds), positions
    got = call(on, "draft_candidates", *arguments, beta=beta, mask_token_id=mask_token_id)
    for r in range(ROWS):
        for slot in range(LENGTH):
            row = logits[r, slot].tolist()
            if mask_token_id >= 0:
                row[mask_token_id] = -math.inf
            finite = max(row) > -math.inf
            best = ranked(row, p, int(seeds[r]), int(positions[r]) + slot)[:k] if finite else []
            padding = k - len(best)
            assert got.token_ids[r, slot].tolist() == [v for _, v in best] + [-1] * padding
            soft = oracle.Parameters(1.0) if p.temperature == 0 else p
            q = oracle.distribution(row, soft) if finite else []
            log_q = [math.log(q[v]) for _, v in best]
            if p.temperature == 0:
                scores = log_q
            else:
                total = math.log(sum(math.exp(x / beta) for x, _ in best)) if best else 0.0
                scores = [x / beta - total for x, _ in best]
            infinite = [-math.inf] * padding
            assert got.log_probs[r, slot].tolist() == pytest.approx(log_q + infinite, abs=2e-5)
            assert got.scores[r, slot].tolist() == pytest.approx(scores + infinite, abs=5e-5)


HALF = -math.log(2)  # its weight is exactly one half in fp32


@pytest.mark.parametrize(
    "filters,survivors",
    [
        ({"top_k": 1}, 1),
        ({"top_k": 2}, 3),  # a tie on the border stays in
        ({"top_k": 3}, 3),
        ({"top_p": 0.5}, 1),  # the maximum holds half of the mass: enough
        ({"top_p": 0.500001}, 3),
        ({"top_p": 0.999}, 3),
        ({"min_p": 0.5}, 3),
        ({"min_p": 0.500001}, 1),
        ({"top_k": 2, "top_p": 0.6}, 3),
        ({"top_p": 0.5, "min_p": 0.1}, 1),
        ({"temperature": 0.0, "top_k": 1, "top_p": 0.1, "min_p": 0.9}, 5),  # greedy: filters are off
    ],
    ids=str,
)
def test_borders_of_the_filters(on: Target, filters: dict, survivors: int) -> None:
    """One token of weight 1, two of one half, two of next to nothing."""
    row = torch.tensor([HALF, -30.0, 0.0, HALF, -31.0])
    sampling = dk.SamplingTensors.full(4, **filters)
    drafted = call(on, "draft_candidates", row.expand(4, 1, 5), 5, sampling, torch.arange(4))
    assert (drafted.token_ids >= 0).sum(2).flatten().tolist() == [survivors] * 4


@pytest.mark.parametrize(
    "filters,survivors",
    [
        ({"top_k": 1}, {2}),
        ({"top_k": 2}, {0, 2, 3}),
        ({"top_p": 0.5}, {2}),
        ({"top_p": 0.500001}, {0, 2, 3}),
        ({"min_p": 0.5}, {0, 2, 3}),
        ({"min_p": 0.500001}, {2}),
    ],
    ids=str,
)
def test_borders_of_the_filters_of_a_sample(on: Target, filters: dict, survivors: set[int]) -> None:
    """The same row sampled so often that every survivor comes out, and nothing else."""
    row = torch.tensor([HALF, -30.0, 0.0, HALF, -31.0])
    sampling = dk.SamplingTensors.full(100, **filters)
    tokens = call(on, "sample", row.expand(100, 5), sampling, torch.arange(100))
    assert set(tokens.tolist()) == survivors


@pytest.mark.parametrize("p", PARAMETERS, ids=str)
def test_the_first_candidate_of_the_target_is_its_sample(on: Target, p: oracle.Parameters) -> None:
    """Coupling: a drafter with the target's own logits guesses every token, at any temperature and filter."""
    g = cases.generator("coupling", p)
    logits = torch.randn(ROWS, LENGTH, VOCAB, generator=g) * 2
    sampling = sampling_of([p] * ROWS, torch.randint(0, 2**40, (ROWS,), generator=g))
    positions = torch.randint(0, 9999, (ROWS,), generator=g)
    drafted = call(on, "draft_candidates", logits, 1, sampling, positions).token_ids.squeeze(2)
    verdict = call(
        on,
        "verify_chain",
        torch.cat([logits, logits[:, :1]], dim=1),
        drafted,
        None,
        sampling,
        positions,
    )
    assert verdict.num_accepted.tolist() == [LENGTH] * ROWS


@pytest.mark.parametrize("vocab", [1, 5, 64, 65, 1030, 9000])
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_the_mass_of_a_row_is_one_number(on: Target, dtype, vocab) -> None:
    """A row without filters is added up in another way than a filtered one; here the filter lets all pass."""
    g = cases.generator("mass", dtype, vocab)
    logits = cases.logits(21, 2, vocab, g=g, dtype=dtype) * torch.tensor([0.1, 1.0, 7.0]).repeat(7)[:, None, None]
    positions = cases.positions(21, g)
    plain, filtered = (
        dk.draft_candidates(
            logits.to(dtype).to(on.device),
            4,
            dk.SamplingTensors.full(21, on.device, min_p=min_p),
            positions.to(on.device),
            backend=on.backend,
        )
        for min_p in (0.0, 1e-38)
    )
    kept = filtered.token_ids >= 0  # a weight below 1e-38 is no mass, but it is cut
    assert kept.any() and torch.equal(plain.token_ids[kept], filtered.token_ids[kept])
    assert torch.equal(plain.log_probs[kept], filtered.log_probs[kept])
