"""`rollback_kv`: 5 of 64 nodes, 36 layers of 8 heads x 128, all layers in one call."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk
from bench.harness import compare, copy_bandwidth

LAYERS, HEADS, SIZE, NODES, PAGE, CONTEXT = 36, 8, 128, 64, 16, 256
ACCEPTED = [3, 9, 20, 41, 60]


@pytest.mark.parametrize("batch", [1, 8])
def bench_rollback_kv(benchmark, batch):
    pages_each = (CONTEXT + NODES) // PAGE
    shape = (batch * pages_each, PAGE, HEADS, SIZE)
    keys, values = ([torch.randn(shape) for _ in range(LAYERS)] for _ in range(2))
    layout = dk.KVLayout(keys=keys, values=values)
    slots = torch.arange(NODES) + CONTEXT + torch.arange(batch)[:, None] * pages_each * PAGE
    accepted = torch.full((batch, NODES), -1, dtype=torch.int32)
    accepted[:, : len(ACCEPTED)] = torch.tensor(ACCEPTED, dtype=torch.int32)
    verdict = dk.Verdict(
        accepted,
        torch.full((batch,), len(ACCEPTED), dtype=torch.int32),
        torch.zeros(batch, dtype=torch.int64),
        torch.zeros(batch, dtype=torch.int32),
    )

    def peer():
        src = slots.gather(1, accepted[:, : len(ACCEPTED)].long()).flatten()
        dst = slots[:, 1 : len(ACCEPTED) + 1].flatten()
        for layer in (*keys, *values):
            rows = layer.view(-1, HEADS, SIZE)
            rows.index_copy_(0, dst, rows.index_select(0, src))

    row = 2 * LAYERS * HEADS * SIZE * 4
    compare(
        benchmark,
        lambda: dk.rollback_kv(layout, slots, verdict),
        peer,
        peer_name="torch index loop over layers",
        moved=2 * batch * len(ACCEPTED) * row,
        ceiling=copy_bandwidth(),
    )
