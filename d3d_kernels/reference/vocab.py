"""A vocabulary row on its way from logits to the value whose argmax is the token.

    l   logits in the compute type (f64 for f64, else f32): NaN -> -inf, +inf -> the largest finite value
        then penalties, bias, allowed tokens
    s   l / T
    m   fixed-point mass of v: round(2^40 * exp(s_v - max s)), an integer, so that sums do not depend on their
    order x   s + G on the tokens that top-k, top-p and min-p leave, -inf elsewhere

    T < 1e-5 (greedy): x = s = l; filters cannot change an argmax.

Gumbel-max: argmax of s + G is an exact sample of softmax(s) over the tokens that are left.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..types import Penalties, SamplingTensors
from .philox import GUMBEL, gumbel_noise

GREEDY_BELOW = 1e-5
MASS_ONE = 2.0**40  # fixed-point 1.0; V < 2^22 keeps a row's sum below 2^63


class Rows(NamedTuple):
    perturbed: Tensor  # [R,V] x: its argmax is the token
    tempered: Tensor  # [R,V] s with -inf where filtered: its softmax is the distribution
    greedy: Tensor  # [R] bool


def read_rows(
    logits: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    request_ids: Tensor | None,
    penalties: Penalties | None,
    excluded_id: int = -1,
    purpose: int = GUMBEL,
) -> Rows:
    """logits[R,V] and positions[R]; row r belongs to request request_ids[r], or r.

    A row of no request (an id outside [0, B)) reads as one without a finite logit.
    """
    compute = torch.float64 if logits.dtype == torch.float64 else torch.float32
    rows = _bounded(logits.to(compute))
    if request_ids is not None:
        request = request_ids.long().clamp(0, sampling.batch - 1)
        rows = torch.where((request == request_ids)[:, None], rows, -torch.inf)
        sampling = sampling.select(request)
        penalties = None if penalties is None else penalties.select(request)
    if 0 <= excluded_id < rows.shape[1]:
        rows[:, excluded_id] = -torch.inf
    if penalties is not None:
        rows = _bounded(_penalise(rows, penalties))
    greedy = ~(sampling.temperature >= GREEDY_BELOW)  # NaN is greedy
    temperature = torch.where(greedy, 1.0, sampling.temperature).to(compute)
    tempered = _bounded(rows / temperature[:, None])
    keep = greedy[:, None] | _filter(tempered, sampling)
    tempered = torch.where(keep, tempered, -torch.inf)
    noise = gumbel_noise(sampling.seed, positions, rows.shape[1], purpose)
    return Rows(torch.where(greedy[:, None], tempered, tempered + noise), tempered, greedy)


def _bounded(x: Tensor) -> Tensor:
    """NaN -> -inf, +inf -> the largest finite value: an infinite logit wins, and inf - inf never happens."""
    return torch.nan_to_num(x, nan=-torch.inf, posinf=torch.finfo(x.dtype).max, neginf=-torch.inf)


def _penalise(rows: Tensor, penalties: Penalties) -> Tensor:
    vocab, compute = rows.shape[1], rows.dtype
    in_prompt = _counts(penalties.prompt_ids, rows)
    in_output = _counts(penalties.output_ids, rows)
    if penalties.repetition is not None:
        repetition = penalties.repetition.to(compute)[:, None]
        seen = ((in_prompt + in_output) > 0) & (repetition != 1)
        rows = torch.where(seen, torch.where(rows > 0, rows / repetition, rows * repetition), rows)
    if penalties.frequency is not None:
        rows = rows - penalties.frequency.to(compute)[:, None] * in_output.to(compute)
    if penalties.presence is not None:
        rows = torch.where(in_output > 0, rows - penalties.presence.to(compute)[:, None], rows)
    if penalties.bias_ids is not None:
        rows = rows.clone()
        row = torch.arange(rows.shape[0], device=rows.device)
        for ids, values in zip(penalties.bias_ids.T, penalties.bias_values.T, strict=True):  # duplicates in list order
            valid = (ids >= 0) & (ids < vocab)
            rows[row[valid], ids[valid]] += values[valid].to(compute)
    if penalties.allowed_bits is not None:
        token = torch.arange(vocab, device=rows.device)
        allowed = (penalties.allowed_bits[:, token // 32] >> (token % 32)) & 1
        rows = torch.where(allowed.bool(), rows, -torch.inf)
    return rows


def _counts(ids: Tensor | None, rows: Tensor) -> Tensor:
    """How often each token occurs in ids[R,n]; ids outside the vocabulary are ignored. -> [R,V] i64"""
    vocab = rows.shape[1]
    counts = torch.zeros(rows.shape[0], vocab + 1, dtype=torch.int64, device=rows.device)
    if ids is not None:
        column = torch.where((ids >= 0) & (ids < vocab), ids, vocab)
        counts.scatter_add_(1, column, torch.ones_like(column))
    return counts[:, :vocab]


def _filter(tempered: Tensor, sampling: SamplingTensors) -> Tensor:
    """Which tokens top-k, then top-p, then min-p leave: [R,V] bool. Ties on a border stay in."""
    vocab = tempered.shape[1]
    ordered, order = tempered.sort(dim=1, descending=True, stable=True)
    best = ordered[:, :1]
    k = torch.where((sampling.top_k <= 0) | (sampling.top_k >= vocab), vocab, sampling.top_k).long()
    keep = ordered >= ordered.gather(1, k[:, None] - 1)

    # exp is taken in f64 and rounded to fp32, where min-p compares; an all -inf row has no weights.
    difference = torch.where(best == -torch.inf, -torch.inf, ordered - best)
    weight = difference.float().double().exp().float()
    mass = torch.where(keep, (weight.double() * MASS_ONE).round().long(), 0)
    total = mass.sum(1, keepdim=True)
    limit = (sampling.top_p.double()[:, None] * total.double()).long()
    keep &= (_mass_above(ordered, mass) < limit) | ~(sampling.top_p < 1)[:, None]
    keep &= (weight >= sampling.min_p[:, None]) | ~(sampling.min_p > 0)[:, None]
    keep |= ordered == best
    return torch.zeros_like(keep).scatter_(1, order, keep)


def _mass_above(ordered: Tensor, mass: Tensor) -> Tensor:
    """For each token, the mass of all tokens with a strictly larger value. Both [R,V], values descending."""
    before = mass.cumsum(1) - mass
    index = torch.arange(ordered.shape[1], device=ordered.device).expand_as(ordered)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first_of_equals = torch.where(starts, index, 0).cummax(1).values
    return before.gather(1, first_of_equals)
