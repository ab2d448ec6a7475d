"""packed_mask: bit masks as FlashInfer's packed custom mask."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from ..types import PackedMask, mask_words, packed_bytes
from . import _arguments, _library


def packed_mask(
    mask_bits: Tensor,
    context_lengths: Tensor,
    max_context: int,
    counts: Tensor | None = None,
    *,
    out: PackedMask | None = None,
    backend: str | None = None,
) -> PackedMask:
    """The mask over [context | new rows] in the layout of FlashInfer's ``packed_custom_mask``.

    Request b has counts[b] rows of context_lengths[b] + counts[b] columns; its masks follow each other row by
    row without a gap, bit row * columns + column, the lowest bit of a byte first, and begin at a whole byte.
    The size depends on lengths that only the device knows, so the memory is that of the largest context, and
    nothing is read back.

    Args:
        mask_bits: [B,Q,W] i32, W >= ceil(Q/32), as in ``dense_mask``.
        context_lengths: [B] i64, clamped to [0, max_context].
        max_context: >= 0, the host's upper bound of the contexts.
        counts: [B] i32, clamped to [0, Q]: rows of each request, DraftTree.num_nodes for instance; None: Q.
        out: PackedMask to write and return, bits of B * ceil(Q * (max_context + Q) / 8) bytes.
        backend: forces one backend for this call.

    Returns:
        PackedMask: bits [C] u8, 0 behind the last request, and byte_starts [B+1] i32. FlashInfer's kernels read
        request b from byte_starts[b] on (``custom_mask_buf`` and ``mask_indptr_buf`` of its wrappers).

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device, stride or range, by name; a mask of
            2^31 bytes or more, which byte_starts cannot say.
    """
    if _library.tracing():
        result = PackedMask(*_op(mask_bits, context_lengths, max_context, counts, backend))
        return _library.copy_record(out, result)
    return _eager(mask_bits, context_lengths, max_context, counts, out, backend)


def _eager(mask_bits, context_lengths, max_context, counts, out, backend):
    shape = checks.is_tensor("mask_bits", mask_bits).shape if mask_bits.ndim == 3 else (-1, -1, -1)
    device, (batch, rows, words) = mask_bits.device, shape
    checks.dense_rows("mask_bits", mask_bits, torch.int32, tuple(shape), device)
    if words < mask_words(rows):
        raise ValueError(f"mask_bits: expected at least {mask_words(rows)} words for Q = {rows}, got {words}")
    checks.vector("context_lengths", context_lengths, torch.int64, (batch,), device)
    checks.at_least("max_context", max_context, 0)
    if counts is not None:
        checks.vector("counts", counts, torch.int32, (batch,), device)
    capacity = packed_bytes(batch, rows, max_context)
    if capacity >= 1 << 31:
        raise ValueError(f"max_context: expected a mask below 2^31 bytes, got {capacity} for {max_context}")
    if out is None:
        out = PackedMask.empty(batch, rows, max_context, device)
    else:
        _arguments.sizes_of("out", out, PackedMask)
        out.expect("out", device, capacity, batch + 1, contiguous=True)
    if batch:
        registry.kernel("packed_mask", device, backend)(mask_bits, context_lengths, max_context, counts, *out.tensors())
    else:
        out.byte_starts.zero_()
    return out


def _run(*arguments):
    *inputs, backend = arguments
    return _eager(*inputs, None, backend).tensors()


def _fake(mask_bits, context_lengths, max_context, *_):
    batch, rows, _ = mask_bits.shape
    return PackedMask.empty(batch, rows, max_context, mask_bits.device).tensors()


_op = _library.register(
    "packed_mask",
    (
        "Tensor mask_bits",
        "Tensor context_lengths",
        "SymInt max_context",
        "Tensor? counts=None",
        "str? backend=None",
    ),
    "(Tensor bits, Tensor byte_starts)",
    _run,
    _fake,
)
