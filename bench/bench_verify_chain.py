"""`verify_chain`, rule "coupled": 15 drafts, 5 of them accepted."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk
from bench.harness import VOCAB, compare, read_bandwidth
from bench.inputs import SAMPLERS, agreeing_tree, random_logits, torch_sample

DRAFTS, ACCEPTED = 15, 5


@pytest.mark.parametrize("name", SAMPLERS)
def bench_verify_chain(benchmark, name):
    batch, settings = 4, SAMPLERS[name]
    logits = random_logits(batch, DRAFTS + 1)
    sampling, positions = dk.SamplingTensors.full(batch, **settings), torch.arange(1, batch + 1)
    drafts = agreeing_tree(logits, sampling, positions - 1, ACCEPTED).token_ids[:, 1:].contiguous()

    def peer():
        sampled = torch_sample(logits.flatten(0, 1), **settings).view(batch, -1)
        accepted = (sampled[:, :-1] == drafts).int().cumprod(1).sum(1)
        return accepted, sampled.gather(1, accepted[:, None])

    compare(
        benchmark,
        lambda: dk.verify_chain(logits, drafts, None, sampling, positions),
        peer,
        peer_name="torch over all rows",
        moved=batch * (ACCEPTED + 1) * VOCAB * 4,
        ceiling=read_bandwidth(),
    )
