"""`dense_mask` and `packed_mask` of trees behind a context. Warm, through torch and the C ABI."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import d3d_kernels as dk
from bench.harness import CALLS, c_abi, compare, copy_bandwidth
from bench.structures import NODES, trees

CONTEXT = 512
through = pytest.mark.parametrize("wrap", [lambda run: run, c_abi], ids=["torch", "C ABI"])


def torch_mask(tree: dk.DraftTree, context: torch.Tensor) -> torch.Tensor:
    """[B, N, CONTEXT + N] bool, for contexts that are all of one length."""
    path = (tree.mask_bits[..., None] >> torch.arange(32, dtype=torch.int32) & 1).bool().flatten(2)[..., :NODES]
    column = torch.arange(CONTEXT + NODES)
    mask = (column < context[:, None])[:, None].repeat(1, NODES, 1)
    mask[:, :, CONTEXT:] = path
    return mask


@through
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=["bool", "fp32"])
@pytest.mark.parametrize("batch", [1, 8])
def bench_dense_mask(benchmark, batch, dtype, wrap):
    tree, context = trees(batch)[0], torch.full((batch,), CONTEXT)
    out = torch.empty(batch, NODES, CONTEXT + NODES, dtype=dtype)

    def peer():
        mask = torch_mask(tree, context)
        return mask if dtype is torch.bool else torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)

    compare(
        benchmark,
        wrap(lambda: dk.dense_mask(tree.mask_bits, context, CONTEXT + NODES, dtype, out=out)),
        peer,
        peer_name="torch",
        moved=out.nbytes,
        ceiling=copy_bandwidth(),
        calls=CALLS,
    )


@through
@pytest.mark.parametrize("batch", [1, 8])
def bench_packed_mask(benchmark, batch, wrap):
    tree, context = trees(batch)[0], torch.full((batch,), CONTEXT)
    out = dk.PackedMask.empty(batch, NODES, CONTEXT)
    compare(
        benchmark,
        wrap(lambda: dk.packed_mask(tree.mask_bits, context, CONTEXT, tree.num_nodes, out=out)),
        lambda: np.packbits(torch_mask(tree, context).flatten(1).numpy(), axis=1, bitorder="little"),
        peer_name="torch mask, numpy packbits",
        moved=out.bits.nbytes,
        calls=CALLS,
    )
