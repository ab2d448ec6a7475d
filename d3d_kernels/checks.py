"""Argument checks: metadata only, so they never synchronise with a device, and cheap enough for every call.

Each check is one fused comparison; only a failing one pays for finding out which part failed. Errors name the
argument, what was expected and what came: TypeError for the wrong kind or dtype, ValueError for shape,
device, stride.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOGIT_DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
MAX_VOCAB = 1 << 22  # the fixed-point probability mass of a row must fit 63 bits


def is_tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
    return value


def dense_rows(name: str, t: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    """An input: any strides, but the last dimension dense."""
    try:
        dense = t.is_contiguous() or shape[-1] <= 1 or t.stride(-1) == 1
        if dense and t.dtype is dtype and t.shape == shape and t.device == device:
            return
    except AttributeError:
        pass
    _explain(name, t, dtype, shape, device, "its last dimension dense (stride 1)")


vector = dense_rows  # [n]: the same rule, under the name that reads best


def output(name: str, t: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    """A preallocated output: contiguous."""
    try:
        if t.dtype is dtype and t.shape == shape and t.device == device and t.is_contiguous():
            return
    except AttributeError:
        pass
    _explain(name, t, dtype, shape, device, "a contiguous tensor")


def _explain(
    name: str, t: object, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device, strides: str
) -> None:
    t = is_tensor(name, t)
    if t.dtype is not dtype:
        raise TypeError(f"{name}: expected {dtype}, got {t.dtype}")
    if t.shape != shape:
        wanted = tuple("any" if n < 0 else n for n in shape)
        raise ValueError(f"{name}: expected shape {wanted}, got {tuple(t.shape)}")
    if t.device != device:
        raise ValueError(f"{name}: expected device {device}, got {t.device}")
    raise ValueError(f"{name}: expected {strides}, got strides {t.stride()} for shape {tuple(t.shape)}")


def logits(name: str, t: Tensor, ndims: tuple[int, ...]) -> None:
    """Logits: a supported dtype, the vocabulary last and dense."""
    if not isinstance(t, Tensor):
        is_tensor(name, t)
    if t.dtype not in LOGIT_DTYPES:
        raise TypeError(f"{name}: expected float32, bfloat16, float16 or float64, got {t.dtype}")
    if t.ndim not in ndims:
        wanted = " or ".join(str(n) for n in ndims)
        raise ValueError(f"{name}: expected {wanted} dimensions, got shape {tuple(t.shape)}")
    vocab = t.shape[-1]
    if not 0 < vocab < MAX_VOCAB:
        raise ValueError(f"{name}: expected a vocabulary of 1 to {MAX_VOCAB - 1}, got {vocab}")
    if vocab > 1 and t.stride(-1) != 1:
        raise ValueError(f"{name}: expected its last dimension dense (stride 1), got strides {t.stride()}")


def at_least(name: str, value: int, low: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}")
    if value < low:
        raise ValueError(f"{name}: expected at least {low}, got {value}")
