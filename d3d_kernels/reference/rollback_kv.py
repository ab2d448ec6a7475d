"""The accepted path behind the root, then the bonus token of the outcome that came true; and which pages stay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..types import CacheRows
from .move_kv import move_kv


def rollback_kv(
    accepted_nodes: Tensor,
    num_accepted: Tensor,
    bonus_ids: Tensor,
    outcome_index: Tensor | None,
    caches: Sequence[CacheRows],
    num_outcomes: int,
    kept_rows: Tensor | None,
    freed_pages: Tensor | None,
) -> None:
    nodes = accepted_nodes.shape[1]
    for index, rows in enumerate(caches):
        slots, moves = rows.slots, []
        for b, has_bonus in enumerate((bonus_ids >= 0).tolist()):
            path = accepted_nodes[b, : max(num_accepted[b].item(), 0)].tolist()
            if has_bonus and rows.block_size and 0 <= outcome_index[b].item() < num_outcomes:
                path.append(nodes + outcome_index[b].item() * rows.block_size)
            moves.append(path)
            kept = min(1 + len(path), slots.shape[1]) if has_bonus or path else 0
            if index == 0 and kept_rows is not None:
                kept_rows[b] = kept
            if index == 0 and freed_pages is not None:
                free = _pages_behind(slots[b].tolist(), kept, rows.layout.page_size)[: freed_pages.shape[1]]
                freed_pages[b] = -1
                freed_pages[b, : len(free)] = torch.tensor(free, dtype=torch.int64)
        width = max(map(len, moves), default=0)
        listed = torch.tensor([path + [-1] * (width - len(path)) for path in moves], device=slots.device).long()
        has_target = torch.arange(1, width + 1, device=slots.device) < slots.shape[1]
        inside = (listed >= 0) & (listed < slots.shape[1]) & has_target
        source = slots.gather(1, listed.clamp(0, slots.shape[1] - 1)).where(inside, -1)
        target = slots[:, 1:].new_full((len(moves), width), -1)
        own = min(width, slots.shape[1] - 1)
        target[:, :own] = slots[:, 1 : 1 + own]
        counts = torch.tensor([len(path) for path in moves], dtype=torch.int32, device=slots.device)
        move_kv(rows.layout, source, target, counts)


def _pages_behind(slots: list[int], kept: int, page_size: int) -> list[int]:
    """Pages that begin behind the rows that stay; rows of a page follow each other."""
    last = slots[kept - 1] // page_size if kept and slots[kept - 1] >= 0 else -1
    free = []
    for slot in slots[kept:]:
        if slot >= 0 and slot // page_size != last:
            last = slot // page_size
            free.append(last)
    return free
