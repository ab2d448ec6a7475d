"""Verdicts on drafted chains: the coupled walk, the ratio test and block verification.

    p_j, q_j   target and drafter behind j drafts, x_j the draft there, n drafts
    coupled    accept x_j while it is y, the target's own seeded sample; the first other y is the bonus
    ratio      accept x_j with probability min(1, p_j(x_j) / q_j(x_j))
    block      a_0 = 1, a_j+1 = min(1, a_j p_j(x_j) / q_j(x_j)), S_j = sum max(a_j p_j - q_j, 0)
               accept the longest prefix that passes: with probability a_n, or S_j / (S_j + 1 - a_j) for j < n
    bonus      behind j < n drafts from max(a_j p_j - q_j, 0) (ratio: a_j = 1), behind all n from p_n

The algebra is in csrc/include/d3d/chain.h. Here every row is read, in f64, whatever the verdict will be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..types import Penalties, SamplingTensors, Status
from .philox import ACCEPTANCE, RESIDUAL, gumbel_noise, words
from .sample import sample
from .vocab import MASS_ONE, read_rows


def verify_chain(
    target_logits: Tensor,
    draft_ids: Tensor,
    draft_rows: Tensor | None,
    draft_kind: str,
    rule: str,
    sampling: SamplingTensors,
    positions: Tensor,
    penalties: Penalties | None,
    accepted_nodes: Tensor,
    num_accepted: Tensor,
    bonus_ids: Tensor,
    status: Tensor,
) -> None:
    inside = (draft_ids >= 0) & (draft_ids < target_logits.shape[2])
    length = inside.int().cumprod(1).sum(1)  # drafts up to the first id outside the vocabulary
    status.zero_()
    if rule == "coupled":
        _follow_samples(
            target_logits, draft_ids, length, sampling, positions, penalties, num_accepted, bonus_ids, status
        )
    else:
        drafts = draft_ids.clamp(0, target_logits.shape[2] - 1)
        p, p_empty = _targets(target_logits, drafts, sampling, positions, penalties)
        q, q_empty = _drafters(draft_rows, draft_kind, drafts, sampling, positions, p)
        test = _test_ratios if rule == "ratio" else _test_prefixes
        found, reach, read = test(p, q, drafts, length, sampling, positions)
        num_accepted.copy_(found)
        lane, index = (torch.arange(size, device=p.device) for size in p.shape[:2])
        seen = penalties and _with_drafts(penalties, drafts.where(index[:-1] < found[:, None], -1))
        rows = read_rows(target_logits[lane, found], sampling, positions + found, None, seen, purpose=RESIDUAL)
        bonus_ids.copy_(_draw(p, q, found, length, reach, sampling, positions, rows.perturbed.argmax(1)))
        # Row j is read for draft j and for the bonus behind j drafts.
        read = (index < read[:, None]) | (index == found[:, None])
        empty = p_empty | torch.nn.functional.pad(q_empty & (index[:-1] < length[:, None]), (0, 1))
        status.copy_((empty & read).any(1) * int(Status.NO_FINITE_LOGIT))
    node = torch.arange(1, accepted_nodes.shape[1] + 1, device=draft_ids.device)
    accepted_nodes.copy_(torch.where(node <= num_accepted[:, None], node, -1))


def _follow_samples(
    target_logits: Tensor,
    draft_ids: Tensor,
    length: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    penalties: Penalties | None,
    num_accepted: Tensor,
    bonus_ids: Tensor,
    status: Tensor,
) -> None:
    num_accepted.zero_()
    lane = torch.arange(len(length), device=length.device)  # the chains that are still being walked
    for j in range(target_logits.shape[1]):
        token, flags = torch.empty_like(lane), torch.empty_like(lane, dtype=torch.int32)
        seen = None if penalties is None else _with_drafts(penalties.select(lane), draft_ids[lane, :j])
        sample(target_logits[lane, j], sampling.select(lane), positions[lane] + j, None, seen, token, flags)
        bonus_ids[lane] = token
        status[lane] |= flags
        if j < draft_ids.shape[1]:
            lane = lane[(j < length[lane]) & (draft_ids[lane, j] == token)]
            num_accepted[lane] += 1


class _Verdicts(NamedTuple):
    num_accepted: Tensor  # [B]
    reach: Tensor  # [B] a_j of the accepted prefix
    read: Tensor  # [B] drafts whose rows were read


def _test_ratios(p: Tensor, q: Tensor, drafts: Tensor, length: Tensor, sampling, positions) -> _Verdicts:
    one = torch.ones_like(length, dtype=p.dtype)
    ratios = [_carried(one, p[:, j], q[:, j], drafts[:, j]) for j in range(drafts.shape[1])]
    accepted = torch.zeros_like(length)
    if ratios:
        passes = _uniforms(sampling, positions, len(ratios)) < torch.stack(ratios, dim=1)
        accepted = passes.int().cumprod(1).sum(1).minimum(length)
    return _Verdicts(accepted, one, (accepted + 1).minimum(length))


def _test_prefixes(p: Tensor, q: Tensor, drafts: Tensor, length: Tensor, sampling, positions) -> _Verdicts:
    batch, count = drafts.shape
    reach = [torch.ones(batch, dtype=p.dtype, device=p.device)]
    for j in range(count):
        reach.append(_carried(reach[j], p[:, j], q[:, j], drafts[:, j]))
    accepted = torch.zeros_like(length)
    if count:
        uniform = _uniforms(sampling, positions, count)
    for j in range(1, count + 1):
        chance = reach[j]
        if j < count:
            rest = (reach[j][:, None] * p[:, j] - q[:, j]).clamp(min=0).sum(1)
            partial = (reach[j] > 0) & (reach[j] < 1) & (j < length)
            chance = torch.where(partial, rest / (rest + 1 - reach[j]), reach[j])
        accepted = torch.where((j <= length) & (uniform[:, j - 1] < chance), j, accepted)
    reached = torch.stack(reach, dim=1)
    alive = (reached[:, :-1] > 0).int().sum(1)  # nothing behind a reach of 0 is read
    return _Verdicts(accepted, reached.gather(1, accepted[:, None]).squeeze(1), alive.minimum(length))


def _carried(reach: Tensor, p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
    """a_j+1 of a_j. A draft without mass in p ends the reach, one without mass in q does not."""
    joint = reach * p.gather(1, drafts[:, None]).squeeze(1)
    q = q.gather(1, drafts[:, None]).squeeze(1)
    return torch.where(joint >= q, (joint > 0).to(p.dtype), joint / q)


def _draw(
    p: Tensor, q: Tensor, accepted: Tensor, length: Tensor, reach: Tensor, sampling, positions, by_itself
) -> Tensor:
    """The token behind the accepted drafts: Gumbel-max over the logarithm of what p has left over."""
    lane = torch.arange(len(accepted), device=p.device)
    left = torch.zeros_like(p[:, 0])
    stopped = lane[accepted < length]
    at = accepted[stopped]
    left[stopped] = (reach[stopped, None] * p[stopped, at] - q[stopped, at]).clamp(min=0)
    noise = gumbel_noise(sampling.seed, positions + accepted, p.shape[2], RESIDUAL)
    # Nothing left: all drafts accepted, or lost in rounding.
    return torch.where((left > 0).any(1), (left.log().float() + noise).argmax(1), by_itself)


def _uniforms(sampling: SamplingTensors, positions: Tensor, count: int) -> Tensor:
    """u[B,count], exact in f64, strictly inside (0, 1)."""
    return (words(sampling.seed, positions, count, ACCEPTANCE).double() + 0.5) * 2.0**-32


def _targets(target_logits, drafts, sampling, positions, penalties) -> tuple[Tensor, Tensor]:
    """p[B,n+1,V], and which of its rows offer nothing [B,n+1]."""
    rows = [
        _density(target_logits[:, j], sampling, positions + j, penalties and _with_drafts(penalties, drafts[:, :j]))
        for j in range(target_logits.shape[1])
    ]
    return tuple(torch.stack(parts, dim=1) for parts in zip(*rows, strict=True))


def _drafters(draft_rows, draft_kind, drafts, sampling, positions, p) -> tuple[Tensor, Tensor]:
    """q[B,n,V], and which of its rows offer nothing [B,n]."""
    batch, count = drafts.shape
    q, empty = torch.zeros_like(p[:, :count]), torch.zeros(batch, count, dtype=torch.bool, device=p.device)
    greedy = ~(sampling.temperature >= 1e-5)
    for j in range(count):
        q[torch.arange(batch), j, drafts[:, j]] = 1
        if draft_kind == "certain":
            continue
        if draft_kind == "logits":
            row, nothing = _density(draft_rows[:, j], sampling, positions + j, None)
        else:
            weights = draft_rows[:, j].nan_to_num(nan=0.0).clamp(0, 1).float().double()
            row, nothing = _normalised(weights)
        q[~greedy, j], empty[~greedy, j] = row[~greedy], nothing[~greedy]  # a greedy request does not read q
    return q, empty


def _density(logits, sampling, positions, penalties) -> tuple[Tensor, Tensor]:
    """The filtered, tempered softmax in fixed-point masses; greedy: all of it at the argmax. [B,V] f64, [B] bool"""
    rows = read_rows(logits, sampling, positions, None, penalties)
    top = rows.tempered.max(1, keepdim=True).values
    weights = (rows.tempered - torch.where(top == -torch.inf, 0, top)).float().double().exp().float().double()
    first = torch.zeros_like(weights).scatter_(1, rows.tempered.argmax(1, keepdim=True), 1)
    return _normalised(torch.where(rows.greedy[:, None] & (top > -torch.inf), first, weights))


def _normalised(weights: Tensor) -> tuple[Tensor, Tensor]:
    """A row that offers nothing is certain of token 0, as ``sample`` has it."""
    mass = (weights * MASS_ONE).round()
    empty = mass.sum(1) == 0
    mass[empty, 0] = 1
    return mass / mass.sum(1, keepdim=True), empty


def _with_drafts(penalties: Penalties, drafts: Tensor) -> Penalties:
    """Penalties as row j sees them: the first j drafts count as output already."""
    output = penalties.output_ids
    return replace(penalties, output_ids=drafts if output is None else torch.cat([output, drafts], dim=1))
