"""`frontier_inputs`: the rows of a draft ahead of the verdict. Warm, through torch and the C ABI."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk
from bench.harness import CALLS, c_abi, compare
from bench.structures import BLOCK, NODES, OUTCOMES, trees

PAGE, MASK, ROOT = 16, 3, 500


def torch_rows(tree: dk.DraftTree, outcomes: dk.Outcomes, root: torch.Tensor, table: torch.Tensor) -> tuple:
    """The same rows from torch ops, with a boolean mask."""
    batch, nodes = tree.token_ids.shape
    rows = nodes - 1 + OUTCOMES * BLOCK
    parent = outcomes.parent_node.clamp(min=0).long()
    depth = tree.depths.gather(1, parent) + 1
    masks = torch.full((batch, OUTCOMES, BLOCK - 1), MASK)
    blocks = torch.cat((outcomes.token_ids.clamp(min=0)[:, :, None], masks), dim=2)
    token_ids = torch.cat((tree.token_ids[:, 1:].clamp(min=0), blocks.flatten(1)), dim=1)
    block_depths = depth[:, :, None] + torch.arange(BLOCK)
    positions = root[:, None] + torch.cat((tree.depths[:, 1:], block_depths.flatten(1)), dim=1)
    exists = torch.cat(
        (
            torch.arange(1, nodes) < tree.num_nodes[:, None],
            (outcomes.parent_node >= 0).repeat_interleave(BLOCK, dim=1),
        ),
        dim=1,
    )
    logical = root[:, None] + 1 + torch.arange(rows)
    slots = (table.gather(1, logical // PAGE) * PAGE + logical % PAGE).where(exists, -1)
    path = (tree.mask_bits[..., None] >> torch.arange(32, dtype=torch.int32) & 1).bool().flatten(2)[..., :nodes]
    of_branch = path.gather(1, parent[:, :, None].expand(-1, -1, nodes)).repeat_interleave(BLOCK, dim=1)
    row = torch.arange(OUTCOMES * BLOCK)
    own = (row[:, None] // BLOCK == row // BLOCK) & ((row[:, None] % BLOCK > 0) | (row % BLOCK == 0))
    seen = torch.zeros(batch, rows, rows, dtype=torch.bool)
    seen[:, :, : nodes - 1] = torch.cat((path[:, 1:], of_branch), dim=1)[:, :, 1:]
    seen[:, nodes - 1 :, nodes - 1 :] = own
    return token_ids, positions, slots, seen


@pytest.mark.parametrize("wrap", [lambda run: run, c_abi], ids=["torch", "C ABI"])
@pytest.mark.parametrize("batch", [1, 8])
def bench_frontier_inputs(benchmark, batch, wrap):
    tree, outcomes = trees(batch)
    root, table = torch.full((batch,), ROOT), torch.arange(batch * 64).view(batch, 64)
    out = dk.FrontierInputs.empty(batch, NODES, OUTCOMES, BLOCK)
    compare(
        benchmark,
        wrap(lambda: dk.frontier_inputs(tree, outcomes, root, table, PAGE, BLOCK, MASK, out=out)),
        lambda: torch_rows(tree, outcomes, root, table),
        peer_name="torch, boolean mask",
        moved=sum(t.nbytes for t in out.tensors()),
        calls=CALLS,
    )
