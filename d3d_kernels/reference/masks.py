"""Masks as bits and as booleans: bit j % 32 of word j // 32."""

from __future__ import annotations

import torch
from torch import Tensor


def unpack(bits: Tensor, width: int) -> Tensor:
    """[..,W] i32 -> [..,width] bool."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    return (bits[..., None] >> shifts & 1).bool().flatten(-2)[..., :width]


def pack(seen: Tensor, word: int = 32) -> Tensor:
    """[..,n] bool -> [..,ceil(n/word)] i64, each the value of ``word`` bits."""
    padding = -seen.shape[-1] % word
    seen = torch.nn.functional.pad(seen, (0, padding)).unflatten(-1, (-1, word))
    return (seen.long() << torch.arange(word, device=seen.device)).sum(-1)
