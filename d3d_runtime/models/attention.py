"""Attention that keeps nothing, as training needs it. `paged_attention.py` serves from a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """q [B, Q, H, D], k and v [B, S, H_kv, D], mask [B or 1, 1, Q, S] bool or additive -> [B, Q, H, D]."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True).transpose(1, 2)


def causal_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return grouped_attention(q, k, v, None, causal=True)


@dataclass(frozen=True)
class MaskedAttention:
    """Attention among the rows of one batch; mask [B, 1, Q, Q] bool, True = may see."""

    mask: Tensor

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return grouped_attention(q, k, v, self.mask)
