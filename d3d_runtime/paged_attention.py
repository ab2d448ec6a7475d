"""Attention over a paged cache, and who may see whom.

A forward writes its new rows into the cache and attends over the committed context and the new rows together. What
differs between prefill, tree verification and frontier drafting is only the visibility of logical slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from d3d_runtime.kv_cache import KVCache
from d3d_runtime.models.attention import grouped_attention


class PagedAttention:
    """Writes the new rows to `slots`, then attends over the pages of each request.

    slots [B, Q] i64 (padding rows point into the dummy page), pages [B, P] i64, visible [B, Q, P * page_size] bool:
    which logical slots of its own pages a row may see, its own included. Every row must see at least one slot, or
    the softmax of a padding row would put NaN into the dummy page, which masked columns then multiply by zero.
    """

    def __init__(self, cache: KVCache, slots: Tensor, pages: Tensor, visible: Tensor):
        self.cache, self.pages, self.shape = cache, pages.flatten(), pages.shape
        self.slots = slots.flatten()
        blocked = torch.zeros(visible.shape, dtype=cache.dtype, device=visible.device)
        self.mask = blocked.masked_fill_(~visible, -torch.inf).unsqueeze(1)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = self.cache.rows[layer]
        rows.index_copy_(0, self.slots, torch.cat((k, v), dim=-2).flatten(0, 1))
        context = self.cache.pages[layer].index_select(0, self.pages)
        context = context.view(self.shape[0], -1, *context.shape[2:])
        keys, values = context.chunk(2, dim=-2)
        return grouped_attention(q, keys, values, self.mask)


def first_slots_visible(limits: Tensor, num_slots: int) -> Tensor:
    """limits [B, Q] i64 -> [B, Q, num_slots] bool: a row sees the logical slots below its limit."""
    return torch.arange(num_slots, device=limits.device) < limits.unsqueeze(-1)


def show_tree(visible: Tensor, first_row: int, first_slot: Tensor, seen: Tensor) -> None:
    """Adds what rows see beyond the committed context, in place.

    visible [B, Q, S] bool; seen [B, M, N] bool: row `first_row + i` sees the logical slot `first_slot[b] + j`.
    """
    rows, columns = seen.shape[1:]
    slots = first_slot[:, None] + torch.arange(columns, device=seen.device)
    part = visible[:, first_row : first_row + rows]
    slots = slots[:, None].expand(-1, rows, -1)
    part.scatter_(2, slots, seen | part.gather(2, slots))


def unpack_mask_bits(mask_bits: Tensor, num_nodes: int) -> Tensor:
    """[B, N, W] i32 of a DraftTree -> [B, N, N] bool: node i sees node j (itself and its ancestors)."""
    shifts = torch.arange(32, dtype=torch.int32, device=mask_bits.device)
    return ((mask_bits.unsqueeze(-1) >> shifts) & 1).bool().flatten(2)[..., :num_nodes]
