"""`draft_candidates`: the K best of each row, and log q."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk
from bench.harness import VOCAB, compare, read_bandwidth
from bench.inputs import LOGITS

LENGTH, K = 15, 16


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["T=0", "T=1"])
def bench_draft_candidates(benchmark, temperature, kind):
    rows = 4
    logits = LOGITS[kind](rows, LENGTH)
    sampling, positions = dk.SamplingTensors.full(rows, temperature=temperature), torch.arange(rows)
    out = dk.Candidates.empty(rows, LENGTH, K)

    def peer():
        log_q = logits.log_softmax(-1)
        noise = -torch.empty_like(log_q).exponential_().log() if temperature else 0.0
        return (log_q + noise).topk(K)

    compare(
        benchmark,
        lambda: dk.draft_candidates(logits, K, sampling, positions, out=out),
        peer,
        peer_name="torch log_softmax + noise + topk",
        moved=rows * LENGTH * VOCAB * 4,
        ceiling=read_bandwidth(),
    )
