"""Where a layer's keys and values come from, and who may see whom.

`causal_attention` and `MaskedAttention` keep nothing (training); `PagedAttention` writes the new rows into a paged
cache and attends over the committed context and the new rows together (serving).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from d3d_runtime.kv_cache import KVCache


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """q [B, Q, H, D], k and v [B, S, H_kv, D], mask [B or 1, 1, Q, S] bool or additive -> [B, Q, H, D]."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True).transpose(1, 2)


def causal_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _sdpa(q, k, v, None, causal=True)


@dataclass(frozen=True)
class MaskedAttention:
    """Attention among the rows of one batch; mask [B, 1, Q, Q] bool, True = may see."""

    mask: Tensor

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _sdpa(q, k, v, self.mask)


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
        return _sdpa(q, keys, values, self.mask)
