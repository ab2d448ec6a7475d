"""The rows of the drafter's pass ahead of a verdict: the tree without its root, then E branches of g and masks."""

from __future__ import annotations

import torch
from torch import Tensor

from . import masks


def frontier_inputs(
    token_ids: Tensor,
    depths: Tensor,
    node_counts: Tensor,
    mask_bits: Tensor,
    outcome_parents: Tensor,
    outcome_ids: Tensor,
    root_positions: Tensor,
    page_table: Tensor,
    page_size: int,
    block_size: int,
    mask_token_id: int,
    row_token_ids: Tensor,
    row_positions: Tensor,
    row_slots: Tensor,
    row_mask_bits: Tensor,
    draft_positions: Tensor,
    request_ids: Tensor,
) -> None:
    (batch, nodes), branches, device = token_ids.shape, outcome_ids.shape[1], token_ids.device
    rows, root = row_token_ids.shape[1], root_positions[:, None]
    node_exists = torch.arange(1, nodes, device=device) < node_counts[:, None]
    parent_exists = (outcome_parents >= 0) & (outcome_parents < node_counts[:, None].clamp(max=nodes))
    branch_exists = parent_exists & (outcome_ids >= 0)
    parent = outcome_parents.where(branch_exists, 0).long()
    anchor_depth = depths.gather(1, parent).long() + 1
    exists = torch.cat((node_exists, branch_exists.repeat_interleave(block_size, 1)), dim=1)

    masked = torch.full((batch, branches, block_size - 1), mask_token_id, device=device)
    blocks = torch.cat((outcome_ids[:, :, None], masked), dim=2)
    row_token_ids.copy_(torch.cat((token_ids[:, 1:], blocks.flatten(1)), dim=1).clamp(min=0).where(exists, 0))
    block_depths = anchor_depth[:, :, None] + torch.arange(block_size, device=device)
    row_positions.copy_((root + torch.cat((depths[:, 1:], block_depths.flatten(1)), dim=1)).where(exists, 0))
    draft_positions.copy_((root + anchor_depth + 1).where(branch_exists, -1))
    request_ids.copy_(torch.arange(batch, device=device)[:, None].where(branch_exists, -1))

    logical = root + 1 + torch.arange(rows, device=device)
    width = page_table.shape[1]
    paged = exists & (root >= 0) & (logical < width * page_size)
    row_slots.fill_(-1)
    if width:
        page = page_table.gather(1, (logical // page_size).clamp(0, width - 1)).long()
        row_slots.copy_((page * page_size + logical % page_size).where(paged & (page >= 0), -1))

    path = masks.unpack(mask_bits, nodes)  # [b, i, j]: j is node i or its ancestor
    of_branch = path.gather(1, parent[:, :, None].expand(-1, -1, nodes)).repeat_interleave(block_size, 1)
    row = torch.arange(branches * block_size, device=device)
    branch, offset = row // block_size, row % block_size
    own = (branch[:, None] == branch) & ((offset[:, None] > 0) | (offset == 0))
    seen = torch.zeros(batch, rows, rows, dtype=torch.bool, device=device)
    seen[:, :, : nodes - 1] = torch.cat((path[:, 1:], of_branch), dim=1)[:, :, 1:]
    seen[:, nodes - 1 :, nodes - 1 :] = own
    row_mask_bits.copy_(masks.pack(seen & exists[:, :, None]).to(torch.int32))  # keeps the low 32 bits
