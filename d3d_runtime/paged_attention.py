"""Attention over a paged cache, and who may see whom.

A forward writes its new rows into the cache and attends over the committed context and the new rows together. What
differs between prefill, tree verification and frontier drafting is only the mask over logical slots: the first so many
of them here, `dk.dense_mask` of ancestor bits for a tree and for the branches behind it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from d3d_runtime.kv_cache import KVCache
from d3d_runtime.models.attention import grouped_attention


class PagedAttention:
    """Writes the new rows to `slots`, then attends over the pages of each request.

    slots [B, Q] i64 (padding rows point into the dummy page), pages [B, P] i64, mask [B, Q, P * page_size] of the
    cache's dtype: 0 for the logical slots of its own pages that a row may see, its own included, -inf elsewhere. Every
    row must see at least one slot, or the softmax of a padding row would put NaN into the dummy page, which masked
    columns then multiply by zero.
    """

    def __init__(self, cache: KVCache, slots: Tensor, pages: Tensor, mask: Tensor):
        self.cache, self.pages, self.shape = cache, pages.flatten(), pages.shape
        self.slots, self.mask = slots.flatten(), mask.unsqueeze(1)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = self.cache.rows[layer]
        rows.index_copy_(0, self.slots, torch.cat((k, v), dim=-2).flatten(0, 1))
        context = self.cache.pages[layer].index_select(0, self.pages)
        context = context.view(self.shape[0], -1, *context.shape[2:])
        keys, values = context.chunk(2, dim=-2)
        return grouped_attention(q, keys, values, self.mask)


def first_slots_mask(limits: Tensor, num_slots: int, dtype: torch.dtype) -> Tensor:
    """limits [B, Q] i64 -> [B, Q, num_slots]: a row sees the logical slots below its limit."""
    hidden = torch.arange(num_slots, device=limits.device) >= limits.unsqueeze(-1)
    return torch.zeros(hidden.shape, dtype=dtype, device=limits.device).masked_fill_(hidden, -torch.inf)
