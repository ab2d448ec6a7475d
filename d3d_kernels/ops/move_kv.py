"""move_kv: KV rows from slot to slot, for all layers at once."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from ..types import KVLayout
from . import _library


def move_kv(layout: KVLayout, src: Tensor, dst: Tensor, counts: Tensor, *, backend: str | None = None) -> None:
    """Copy KV rows src -> dst in every layer's keys and values (and scales), in place.

    Args:
        layout: the caches.
        src, dst: [B,M] i64 slots (page * page_size + offset). Moves of one request run in list order; no
            earlier entry may write a row that a later one reads, which is true of every rollback. Requests
            own disjoint slots.
        counts: [B] i32: the first counts[b] entries of each row are moved (at most M).
        backend: forces one backend for this call.

    A negative slot, or one outside the cache, is skipped; src == dst moves nothing. Rows move bit for bit,
    whatever their dtype. In-place order: destinations never pass sources and sources ascend, so no staging is
    needed.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device or stride, by name.
    """
    if _library.tracing():
        _op(layout, src, dst, counts, backend)
    else:
        _eager(layout, src, dst, counts, backend)


def _eager(layout, src, dst, counts, backend):
    if not isinstance(layout, KVLayout):
        raise TypeError(f"layout: expected KVLayout, got {type(layout).__name__}")
    device = layout.device
    batch, moves = checks.is_tensor("src", src).shape if src.ndim == 2 else (-1, -1)
    checks.dense_rows("src", src, torch.int64, (batch, moves), device)
    checks.dense_rows("dst", dst, torch.int64, (batch, moves), device)
    checks.vector("counts", counts, torch.int32, (batch,), device)
    if batch and moves:
        registry.kernel("move_kv", device, backend)(layout, src, dst, counts)


def _fake(*_):
    return None


_op = _library.register(
    "move_kv",
    ("layout", "Tensor src", "Tensor dst", "Tensor counts", "str? backend=None"),
    "()",
    _eager,
    _fake,
)
