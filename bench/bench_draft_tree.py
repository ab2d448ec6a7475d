"""`draft_tree`: from logits to trees in one call."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk
from bench.harness import VOCAB, compare, read_bandwidth
from bench.inputs import LOGITS
from bench.structures import LENGTH, NODES, OUTCOMES, K, heap_tree


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["T=0", "T=1"])
def bench_draft_tree(benchmark, temperature, kind, dtype):
    batch = 8
    logits = LOGITS[kind](batch, LENGTH, dtype=dtype)
    sampling, positions = dk.SamplingTensors.full(batch, temperature=temperature), torch.arange(batch)
    out = dk.DraftTree.empty(batch, NODES), dk.Outcomes.empty(batch, OUTCOMES)

    def peer():
        log_q = logits.float().log_softmax(-1)
        if temperature:
            log_q = log_q - torch.empty_like(log_q).exponential_().log()
        best = log_q.topk(K)
        return [heap_tree(scores, NODES) for scores in best.values.tolist()]

    compare(
        benchmark,
        lambda: dk.draft_tree(logits, positions, sampling, positions, NODES, OUTCOMES, K, out=out),
        peer,
        peer_name="torch log_softmax (+ noise) + topk, Python heap",
        moved=batch * LENGTH * VOCAB * logits.element_size(),
        ceiling=read_bandwidth(),
    )
