"""move_kv in Triton: all tensors of all layers in one launch, a program for each tensor and request.

A lane of the block owns the same columns of every row and takes the moves in list order. No move writes a row that a
later one reads, and no lane touches another's bytes, so there is nothing to wait for. Rows are addressed through the
table of pointers that the compiled library uses, made once a layout and kept on its device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import registry
from ..addresses import kv_buffers
from ..types import CacheRows, KVLayout
from .launch import launch

BLOCK = 512  # words of a row at a time
WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}  # by bytes


def move_kv(layout: KVLayout, src: Tensor, dst: Tensor, counts: Tensor) -> None:
    table, word = _table(layout)
    batch, moves = src.shape
    launch(
        move_kernel, (table.shape[0] * batch,), table, src.contiguous(), dst.contiguous(), counts,
        table.shape[0], layout.num_slots, layout.page_size, moves, word, BLOCK,
    )  # fmt: skip


def rollback_kv(
    accepted_nodes: Tensor,
    num_accepted: Tensor,
    bonus_ids: Tensor,
    outcome_index: Tensor | None,
    caches: Sequence[CacheRows],
    num_outcomes: int,
    kept_rows: Tensor | None,
    freed_pages: Tensor | None,
) -> None:
    """Lists of moves made by torch on the device, and a launch for each cache."""
    if kept_rows is not None or freed_pages is not None:
        run = registry.fall_back("rollback_kv", "triton", "out= of rollback_kv")
        run(accepted_nodes, num_accepted, bonus_ids, outcome_index, caches, num_outcomes, kept_rows, freed_pages)
        return
    nodes = accepted_nodes.shape[1]
    accepted = num_accepted.clamp(0, nodes)
    for rows in caches:
        width = rows.slots.shape[1]
        listed, count = accepted_nodes.long(), accepted
        if rows.block_size:
            hit = (bonus_ids >= 0) & (outcome_index >= 0) & (outcome_index < num_outcomes)
            listed = torch.nn.functional.pad(listed, (0, 1), value=-1)
            entry = torch.arange(nodes + 1, device=listed.device)
            branch = nodes + outcome_index.long() * rows.block_size
            listed = branch[:, None].where((entry == accepted[:, None]) & hit[:, None], listed)
            count = accepted + hit.int()
        listed = listed[:, : width - 1]
        inside = (listed >= 0) & (listed < width)
        source = rows.slots.gather(1, listed.clamp(0, width - 1)).where(inside, -1)
        move_kv(rows.layout, source, rows.slots[:, 1 : 1 + listed.shape[1]], count)


def _table(layout: KVLayout) -> tuple[Tensor, torch.dtype]:
    """[buffers, 6] i64 of d3d_kv_buffer records, and the widest word that every row is whole in."""
    known = layout.tables.get("triton")
    if known is None:
        records = list(kv_buffers(layout))
        widths = [value for record in records for value in (*record[:4], record[5])]
        word = next(size for size in WORDS if all(value % size == 0 for value in widths))
        known = torch.tensor(records, dtype=torch.int64, device=layout.device), WORDS[word]
        layout.tables["triton"] = known
    return known


@triton.jit(do_not_specialize=["num_buffers", "num_slots", "page_size", "num_moves"])
def move_kernel(
    table, sources, targets, counts, num_buffers, num_slots, page_size, num_moves,
    WORD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    size: tl.constexpr = WORD.primitive_bitwidth // 8
    record = table + tl.program_id(0) % num_buffers * 6
    request = (tl.program_id(0) // num_buffers).to(tl.int64)
    data, page, offset, head = tl.load(record), tl.load(record + 1), tl.load(record + 2), tl.load(record + 3)
    piece = tl.load(record + 5) // size
    words = tl.load(record + 4) * piece
    count = tl.minimum(tl.load(counts + request), num_moves)
    for first in range(0, words, BLOCK):
        column = first + tl.arange(0, BLOCK).to(tl.int64)
        at = column // piece * (head // size) + column % piece
        for j in range(0, count):
            source = tl.load(sources + request * num_moves + j)
            target = tl.load(targets + request * num_moves + j)
            moves = (source != target) & (source >= 0) & (target >= 0) & (source < num_slots) & (target < num_slots)
            mask = (column < words) & moves
            come = (data + source // page_size * page + source % page_size * offset).to(tl.pointer_type(WORD))
            go = (data + target // page_size * page + target % page_size * offset).to(tl.pointer_type(WORD))
            tl.store(go + at, tl.load(come + at, mask=mask), mask=mask)
