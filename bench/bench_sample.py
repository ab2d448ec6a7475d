"""`sample`: one pass over the rows."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk
from bench.harness import VOCAB, compare, read_bandwidth
from bench.inputs import LOGITS, SAMPLERS, torch_sample


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("name", SAMPLERS)
def bench_sample(benchmark, name, kind, dtype):
    rows, settings = 64, SAMPLERS[name]
    logits = LOGITS[kind](rows, dtype=dtype)
    sampling, positions = dk.SamplingTensors.full(rows, **settings), torch.arange(rows)
    out = torch.empty(rows, dtype=torch.int64)
    compare(
        benchmark,
        lambda: dk.sample(logits, sampling, positions, out=out),
        lambda: torch_sample(logits, **settings),
        peer_name="torch",
        moved=rows * VOCAB * logits.element_size(),
        ceiling=read_bandwidth(),
    )
