"""`verify_chain` under each rule, at accepted lengths that the rules themselves decide."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import d3d_kernels as dk
from bench.harness import VOCAB, compare, read_bandwidth
from bench.inputs import SAMPLERS, peaked_logits, torch_sample, torch_softmax

# Sampler, drafts, batch. Torch sorts every row for top-p, so that is measured at one size.
CASES = [("T=1", n, b) for n in (7, 15) for b in (1, 8)] + [("T=1 top-p .9", 7, 1)]


def chains(batch: int, drafts: int, settings: dict) -> tuple:
    """Peaked targets, a blurred drafter, drafts drawn from it."""
    target = peaked_logits(batch, drafts + 1)
    drafter = target[:, :drafts] + torch.randn(batch, drafts, VOCAB) * 0.4
    sampling, positions = dk.SamplingTensors.full(batch, **settings), torch.arange(1, batch + 1)
    ids = torch.stack([dk.sample(drafter[:, j], sampling, positions + j) for j in range(drafts)], dim=1)
    return target, ids, drafter, sampling, positions


def torch_coupled(target: Tensor, ids: Tensor, drafter: Tensor, settings: dict) -> tuple[Tensor, Tensor]:
    sampled = torch_sample(target.flatten(0, 1), **settings).view(target.shape[:2])
    accepted = (sampled[:, :-1] == ids).int().cumprod(1).sum(1)
    return accepted, sampled.gather(1, accepted[:, None])


def _distributions(target: Tensor, ids: Tensor, drafter: Tensor, settings: dict) -> tuple[Tensor, ...]:
    """p, q, and p / q at the drafts."""
    p, q = torch_softmax(target, **settings), torch_softmax(drafter, **settings)
    at = ids[..., None]
    return p, q, (p[:, :-1].gather(2, at) / q.gather(2, at)).squeeze(2)


def _draw(p: Tensor, q: Tensor, accepted: Tensor, scale: Tensor) -> Tensor:
    at = accepted[:, None, None].expand(-1, 1, p.shape[2])
    q = torch.nn.functional.pad(q, (0, 0, 0, 1))
    return torch.multinomial((scale[:, None] * p.gather(1, at)[:, 0] - q.gather(1, at)[:, 0]).clamp(min=0), 1)


def torch_ratio(target: Tensor, ids: Tensor, drafter: Tensor, settings: dict) -> tuple[Tensor, Tensor]:
    p, q, ratio = _distributions(target, ids, drafter, settings)
    accepted = (torch.rand_like(ratio) < ratio).int().cumprod(1).sum(1)
    return accepted, _draw(p, q, accepted, torch.ones(len(p)))


def torch_block(target: Tensor, ids: Tensor, drafter: Tensor, settings: dict) -> tuple[Tensor, Tensor]:
    p, q, ratio = _distributions(target, ids, drafter, settings)
    reach = [torch.ones(len(p))]
    for j in range(ratio.shape[1]):
        reach.append((reach[j] * ratio[:, j]).clamp(max=1))
    reach = torch.stack(reach, dim=1)
    rest = (reach[:, 1:-1, None] * p[:, 1:-1] - q[:, 1:]).clamp(min=0).sum(2)
    chance = torch.cat([rest / (rest + 1 - reach[:, 1:-1]), reach[:, -1:]], dim=1)
    passes = torch.rand_like(chance) < chance
    accepted = (passes * torch.arange(1, chance.shape[1] + 1)).amax(1)
    return accepted, _draw(p, q, accepted, reach.gather(1, accepted[:, None])[:, 0])


PEERS = {"coupled": torch_coupled, "ratio": torch_ratio, "block": torch_block}


@pytest.mark.parametrize("name,drafts,batch", CASES, ids=[f"{name} n={n} B={b}" for name, n, b in CASES])
@pytest.mark.parametrize("rule", PEERS)
def bench_verify_chain(benchmark, rule, name, drafts, batch):
    settings = SAMPLERS[name]
    target, ids, drafter, sampling, positions = chains(batch, drafts, settings)
    out = dk.Verdict.empty(batch, drafts + 1)
    verdict = dk.verify_chain(target, ids, drafter, sampling, positions, rule)
    # What must be read once: the target's rows up to the bonus, and the drafter's; under "block" those of all drafts.
    accepted = int(verdict.num_accepted.sum())
    rows = {
        "coupled": accepted + batch,
        "ratio": 2 * accepted + batch + int((verdict.num_accepted < drafts).sum()),
        "block": 2 * batch * drafts + int((verdict.num_accepted == drafts).sum()),
    }[rule]
    compare(
        benchmark,
        lambda: dk.verify_chain(target, ids, drafter, sampling, positions, rule, out=out),
        lambda: PEERS[rule](target, ids, drafter, settings),
        peer_name=f"torch over all rows (tau {1 + accepted / batch:.1f})",
        moved=rows * VOCAB * target.element_size(),
        ceiling=read_bandwidth(),
    )


def bench_verify_chain_call(benchmark):
    """The coupled rule on tiny inputs: what a call costs."""
    target, ids = torch.randn(1, 8, 64), torch.randint(64, (1, 7))
    sampling, positions = dk.SamplingTensors.full(1), torch.tensor([5])
    out = dk.Verdict.empty(1, 8)
    compare(
        benchmark,
        lambda: dk.verify_chain(target, ids, None, sampling, positions, out=out),
        lambda: torch_coupled(target, ids, None, {"temperature": 1.0}),
        peer_name="torch over all rows",
        moved=64 * 4,
    )
