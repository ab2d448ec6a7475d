"""The generator: published vectors, the ends of the uniform's range, the distribution."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from d3d_kernels.reference.philox import gumbel, gumbel_noise, philox4x32, uniform

from . import oracle

# Known-answer vectors of Philox4x32-10 as distributed with Random123: counter, key, result.
VECTORS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@pytest.mark.parametrize("counter,key,result", VECTORS)
def test_philox_known_answers(counter, key, result) -> None:
    words = philox4x32(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(map(int, words)) == result
    assert tuple(oracle.philox(counter, key)) == result


def test_noise_matches_its_definition() -> None:
    seeds = torch.tensor([0, -1, 2**63 - 1, -(2**63), 12345])
    positions = torch.tensor([0, 1, 2**32, 2**40 + 7, 2**32 - 1])
    noise = gumbel_noise(seeds, positions, 601)
    for r, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
        for v in range(601):  # enough to meet words that round to fp32 on a tie
            assert noise[r, v].item() == oracle.noise(seed, position, v)


def test_noise_is_gumbel_and_uncorrelated() -> None:
    noise = gumbel_noise(torch.arange(400), torch.arange(400) * 3, 250)
    assert stats.kstest(noise.flatten().numpy(), "gumbel_r").pvalue > 1e-3
    for a, b in ((noise[:, 1:], noise[:, :-1]), (noise[1:], noise[:-1])):
        assert abs(stats.pearsonr(a.flatten().numpy(), b.flatten().numpy()).statistic) < 0.02


def test_failure_15_uniform_stays_strictly_inside_0_1() -> None:
    """A uniform draw was exactly 0 once in 220 draws: 0/0, or a token without mass was accepted.

    Here both ends of the generator's range give a finite perturbation.
    """
    u = uniform(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    assert u.dtype == torch.float32 and (u > 0).all() and (u < 1).all()
    g = gumbel(u)
    assert g.isfinite().all() and (g[1:] <= g[:-1]).all()
    assert math.isclose(g[0], 22.88, abs_tol=0.01) and math.isclose(g[-1], -2.82, abs_tol=0.01)
