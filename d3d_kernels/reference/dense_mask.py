"""Each row sees its context, and of the columns behind it those whose bit it has."""

from __future__ import annotations

import torch
from torch import Tensor

from . import masks


def dense_mask(mask_bits: Tensor, context_lengths: Tensor, out: Tensor) -> None:
    visible = columns_seen(mask_bits, context_lengths.clamp(min=0), out.shape[2])
    if out.dtype is torch.bool:
        out.copy_(visible)
    else:
        out.zero_().masked_fill_(~visible, -torch.inf)


def columns_seen(mask_bits: Tensor, context: Tensor, columns: int) -> Tensor:
    """[B,Q,columns] bool."""
    column = torch.arange(columns, device=mask_bits.device)
    new = column - context[:, None]  # [b, c]: which new row the column is
    bits = masks.unpack(mask_bits, 32 * mask_bits.shape[2])
    inside = (new >= 0) & (new < bits.shape[2])
    if not bits.shape[2]:
        return (new < 0)[:, None].expand(-1, mask_bits.shape[1], -1)
    index = new.clamp(0, bits.shape[2] - 1)[:, None].expand(-1, mask_bits.shape[1], -1)
    return (bits.gather(2, index) & inside[:, None]) | (new < 0)[:, None]
