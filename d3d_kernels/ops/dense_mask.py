"""dense_mask: bit masks as the mask of a dense attention."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from . import _library

DTYPES = frozenset((torch.bool, *checks.LOGIT_DTYPES))


def dense_mask(
    mask_bits: Tensor,
    context_lengths: Tensor,
    num_columns: int,
    dtype: torch.dtype = torch.bool,
    *,
    out: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """The mask over [context | new rows] for scaled_dot_product_attention.

    A row sees the context_lengths[b] columns of its context and those behind them whose bit it has: column
    context_lengths[b] + j for bit j. Nothing else.

    Args:
        mask_bits: [B,Q,W] i32, bit j % 32 of word j // 32: of a DraftTree (Q = N, the context ends before the
            root) or of FrontierInputs (the context ends behind the root).
        context_lengths: [B] i64; below 0: 0.
        num_columns: S >= 0; columns from there on are cut off.
        dtype: bool, True where a row sees a column; or f32, bf16, f16, f64: 0 there and -inf elsewhere.
        out: [B,Q,S] of that dtype, written and returned if given.
        backend: forces one backend for this call.

    Returns:
        [B,Q,S]. A row that sees nothing at all (of an empty lane without context) is all False or -inf.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device, stride or range, by name.
    """
    if _library.tracing():
        mask = _op(mask_bits, context_lengths, num_columns, dtype, backend)
        return mask if out is None else out.copy_(mask)
    return _eager(mask_bits, context_lengths, num_columns, dtype, out, backend)


def _eager(mask_bits, context_lengths, num_columns, dtype, out, backend):
    shape = checks.is_tensor("mask_bits", mask_bits).shape if mask_bits.ndim == 3 else (-1, -1, -1)
    device, (batch, rows, _) = mask_bits.device, shape
    checks.dense_rows("mask_bits", mask_bits, torch.int32, tuple(shape), device)
    checks.vector("context_lengths", context_lengths, torch.int64, (batch,), device)
    checks.at_least("num_columns", num_columns, 0)
    if dtype not in DTYPES:
        raise TypeError(f"dtype: expected bool, float32, bfloat16, float16 or float64, got {dtype}")
    if out is None:
        out = torch.empty((batch, rows, num_columns), dtype=dtype, device=device)
    else:
        checks.output("out", out, dtype, (batch, rows, num_columns), device)
    if out.numel():
        registry.kernel("dense_mask", device, backend)(mask_bits, context_lengths, out)
    return out


def _run(mask_bits, context_lengths, num_columns, dtype, backend):
    return _eager(mask_bits, context_lengths, num_columns, dtype, None, backend)


def _fake(mask_bits, context_lengths, num_columns, dtype, *_):
    return mask_bits.new_empty((*mask_bits.shape[:2], num_columns), dtype=dtype)


_op = _library.register(
    "dense_mask",
    ("Tensor mask_bits", "Tensor context_lengths", "SymInt num_columns", "ScalarType dtype", "str? backend=None"),
    "Tensor",
    _run,
    _fake,
)
