"""Copy KV rows from slots src to slots dst, in list order, in every layer's keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import KVLayout


def move_kv(layout: KVLayout, src: Tensor, dst: Tensor, counts: Tensor) -> None:
    caches = [_slot_major(t, layout.order) for t in (*layout.keys, *layout.values)]
    for scales in (layout.key_scales, layout.value_scales):
        caches += [_slot_major(t[..., None], layout.order) for t in scales or ()]
    size, slots = layout.page_size, layout.num_slots
    for sources, targets, count in zip(src.tolist(), dst.tolist(), counts.tolist(), strict=True):
        for source, target in list(zip(sources, targets, strict=True))[: max(count, 0)]:
            if source == target or not (0 <= source < slots and 0 <= target < slots):
                continue
            for cache in caches:
                cache[target // size, target % size] = cache[source // size, source % size]


def _slot_major(cache: Tensor, order: str) -> Tensor:
    """A view [num_pages, page_size, H, D]; 8-bit payloads move as bytes, whatever they mean."""
    pages_first = cache if order == "NHD" else cache.transpose(1, 2)
    return pages_first.view(torch.uint8) if cache.dtype.itemsize == 1 else pages_first
