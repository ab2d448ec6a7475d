"""Each request's rows of [context | new] as bits without gaps, requests at whole bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from . import masks
from .dense_mask import columns_seen


def packed_mask(
    mask_bits: Tensor,
    context_lengths: Tensor,
    max_context: int,
    counts: Tensor | None,
    bits: Tensor,
    byte_starts: Tensor,
) -> None:
    batch, rows, _ = mask_bits.shape
    contexts = context_lengths.clamp(0, max_context)
    lengths = [rows] * batch if counts is None else counts.clamp(0, rows).tolist()
    bits.zero_()
    start, starts = 0, [0]
    for b, (context, count) in enumerate(zip(contexts.tolist(), lengths, strict=True)):
        seen = columns_seen(mask_bits[b : b + 1, :count], contexts[b : b + 1], context + count)
        packed = masks.pack(seen.flatten(), 8)
        bits[start : start + len(packed)] = packed.to(torch.uint8)
        start += len(packed)
        starts.append(start)
    byte_starts.copy_(torch.tensor(starts))
