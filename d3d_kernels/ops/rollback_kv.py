"""rollback_kv: keep the KV rows of what was accepted, for all layers of target and drafter at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import checks, registry
from ..types import CacheRows, KVLayout, Rollback, Verdict
from . import _arguments, _library


def rollback_kv(
    layout: KVLayout,
    slots: Tensor,
    verdict: Verdict,
    *,
    drafter: CacheRows | None = None,
    num_outcomes: int = 0,
    out: Rollback | None = None,
    backend: str | None = None,
) -> Rollback | None:
    """Pack the accepted path behind the root: the row of the j-th accepted node goes to slots[b, j].

    Args:
        layout: the target's caches.
        slots: [B,N] i64, slot of each tree node's KV row; slots[b, 0] is the root's and stays. Rows of one page follow
            each other. A negative slot, or one outside the cache, moves nothing.
        verdict: of the same trees. Nothing accepted and a negative bonus token: an empty lane, of which nothing stays.
        drafter: the same rows in a second cache, rolled back in the same call; and behind them, from N on, the rows of
            the branches it drafted. If outcome verdict.outcome_index[b] came true, the first row of that branch, which
            holds the bonus token, goes right behind the path.
        num_outcomes: E, the branches of the drafter.
        out: written and returned if given: how many of slots[b] stay, and which pages hold none of them.
        backend: forces one backend for this call.

    Rows move bit for bit, whatever their dtype, from a plan that never leaves the device. Parents come before their
    children and branches behind the tree, so targets never pass sources, sources ascend, and rows are copied in order
    without staging; a row that is in place already is not touched.

    Returns:
        ``out``. A request's cache is longer by kept_rows - 1 tokens if its root was counted before, else by kept_rows.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device or stride, by name.
    """
    caches = [CacheRows(layout, slots)] + ([] if drafter is None else [drafter])
    if _library.tracing():
        for rows in caches:
            result = Rollback(*_op(rows.layout, rows.slots, verdict, rows.block_size, num_outcomes, backend))
            if rows is caches[0] and out is not None:
                _library.copy_record(out, Rollback(result.kept_rows, result.freed_pages[:, : out.freed_pages.shape[1]]))
        return out
    return _eager(caches, verdict, num_outcomes, out, backend)


def _eager(
    caches: Sequence[CacheRows], verdict: Verdict, num_outcomes: int, out: Rollback | None, backend: str | None
) -> Rollback | None:
    batch, nodes, *_ = _arguments.sizes_of("verdict", verdict, Verdict)
    checks.at_least("num_outcomes", num_outcomes, 0)
    for name, rows in zip(("", "drafter."), caches):
        if not isinstance(rows, CacheRows):
            raise TypeError(f"drafter: expected CacheRows, got {type(rows).__name__}")
        if not isinstance(rows.layout, KVLayout):
            raise TypeError(f"{name}layout: expected KVLayout, got {type(rows.layout).__name__}")
        verdict.expect("verdict", rows.layout.device)
        checks.at_least(f"{name}block_size", rows.block_size, 0)
        branches = num_outcomes * rows.block_size
        width = checks.is_tensor(f"{name}slots", rows.slots).shape[-1] if branches else nodes
        checks.dense_rows(f"{name}slots", rows.slots, torch.int64, (batch, width), rows.layout.device)
        if width < nodes + branches:
            raise ValueError(f"{name}slots: expected at least {nodes} + {branches} rows, got {width}")
        if branches and verdict.outcome_index is None:
            raise ValueError("verdict.outcome_index: expected a tensor, since there are branches, got None")
    if out is not None:
        _arguments.sizes_of("out", out, Rollback)
        out.expect("out", caches[0].layout.device, batch, contiguous=True)
    if batch:
        run = registry.kernel("rollback_kv", caches[0].layout.device, backend)
        kept, freed = (None, None) if out is None else out.tensors()
        run(
            verdict.accepted_nodes,
            verdict.num_accepted,
            verdict.bonus_ids,
            verdict.outcome_index,
            caches,
            num_outcomes,
            kept,
            freed,
        )
    return out


def _run(layout, slots, verdict, block_size, num_outcomes, backend):
    out = Rollback.empty(*slots.shape, slots.device)
    _eager([CacheRows(layout, slots, block_size)], verdict, num_outcomes, out, backend)
    return out.tensors()


def _fake(layout, slots, *_):
    return Rollback.empty(*slots.shape, slots.device).tensors()


_op = _library.register(
    "rollback_kv",
    ("layout", "Tensor slots", "verdict", "int block_size", "int num_outcomes", "str? backend=None"),
    "(Tensor kept_rows, Tensor freed_pages)",
    _run,
    _fake,
)
