"""Counter-based noise: Philox4x32-10 in int64 arithmetic, and the Gumbel noise made from it.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A draw is a pure function
of

    key = (seed low, seed high)     counter = (position low, position high, v // 4, purpose)     lane = v % 4

so the noise of token v at a position is the same in every batch, tree and mode, and for target and drafter.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Purposes. The sampler's noise, which the drafter shares; whether verify_chain accepts a draft; the token behind.
GUMBEL, ACCEPTANCE, RESIDUAL = 0, 1, 2
MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Low and high 32 bits of int64 values, each as a value in [0, 2^32)."""
    return x & MASK, (x >> 32) & MASK


def philox4x32(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four 32-bit words for each counter of four words. All words are int64 tensors in [0, 2^32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # The product wraps modulo 2^64 as a bit pattern, so its halves are the exact ones.
        low0, high0 = halves(c0 * MULTIPLIERS[0])
        low1, high1 = halves(c2 * MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def uniform(words: Tensor) -> Tensor:
    """u = min(fma(r, 2^-32, 2^-33), 1 - 2^-24), r and u in fp32: strictly inside (0, 1).

    f64 holds the product and the sum exactly, so rounding once to fp32 is the fused multiply-add.
    """
    return (words.float().double() * 2.0**-32 + 2.0**-33).float().clamp(max=1.0 - 2.0**-24)


def gumbel(u: Tensor) -> Tensor:
    """-log(-log1p(-u)), rounded to fp32 from f64. log1p keeps the resolution of the upper tail."""
    return (-torch.log(-torch.log1p(-u.double()))).float()


def words(seeds: Tensor, positions: Tensor, count: int, purpose: int) -> Tensor:
    """The first ``count`` words of each (seed, position, purpose). seeds[R], positions[R] i64 -> [R, count]."""
    block = torch.arange((count + 3) // 4, device=seeds.device)[None, :]
    zero = torch.zeros_like(block)
    position_low, position_high = (half[:, None] for half in halves(positions))
    key_low, key_high = (half[:, None] for half in halves(seeds))
    lanes = philox4x32(
        (position_low + zero, position_high + zero, block + 0 * position_low, zero + purpose),
        (key_low, key_high),
    )
    return torch.stack(lanes, dim=-1).flatten(1)[:, :count]  # word v is lane v % 4 of block v // 4


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab: int, purpose: int = GUMBEL) -> Tensor:
    """G(seed, position, v) for v in [0, vocab). seeds[R] i64, positions[R] i64 -> [R, vocab] f32."""
    return gumbel(uniform(words(seeds, positions, vocab, purpose)))
