"""verify_tree in Triton: check the trees, rank the rows of all nodes in parallel, then walk.

What it means is said in ops/verify_tree.py. The rows off the accepted path are read for nothing; in return no row
waits for another, and one launch walks every tree through tokens that are known. The depth of a node, which is the
position of its row, is the length of its path: it is walked here, since `depths` of a broken tree may say anything.
Every step of any walk goes to a smaller node on the way up and to a larger one on the way down, so it ends.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..types import Outcomes, Penalties, SamplingTensors, Status
from .launch import grid_of, launch, rows_a_program
from .penalties import tables
from .ranking import NO_TOKEN, best_split, rank
from .rows import Rows, Sampling, any_of

NO_FINITE_LOGIT = tl.constexpr(int(Status.NO_FINITE_LOGIT))
BAD_TREE = tl.constexpr(int(Status.BAD_TREE))
BAD_TOKEN = tl.constexpr(int(Status.BAD_TOKEN))
UNREACHABLE = tl.constexpr(-1)  # the depth of a node that no walk can come to: its row is not read


def verify_tree(
    logits: Tensor,
    row_starts: Tensor | None,
    token_ids: Tensor,
    parents: Tensor,
    depths: Tensor,
    node_counts: Tensor,
    sampling: SamplingTensors,
    root_positions: Tensor,
    penalties: Penalties | None,
    accepted_nodes: Tensor,
    num_accepted: Tensor,
    bonus_ids: Tensor,
    status: Tensor,
    outcome_index: Tensor | None,
    outcomes: Outcomes | None,
) -> None:
    batch, nodes = token_ids.shape
    vocab = logits.shape[-1]
    token_ids, parents = token_ids.contiguous(), parents.contiguous()
    trees = (token_ids, parents, node_counts)
    padded_nodes = triton.next_power_of_2(nodes)

    walked = torch.empty(batch, nodes, dtype=torch.int32, device=logits.device)
    launch(check_kernel, grid_of(batch), *trees, walked, status, batch, nodes, vocab, padded_nodes)

    *outer, inner_stride, _ = logits.stride()
    rows = Rows(logits, outer[0] if outer else 0, inner_stride, row_starts, None, root_positions, walked)
    known = tables(penalties, logits, batch, token_ids, parents)
    found, splits = rank(rows, Sampling(*sampling.tensors()), known, batch * nodes, nodes)

    verdict = (accepted_nodes, num_accepted, bonus_ids, status, outcome_index)
    expected, count = (None, None), 0
    if outcomes is not None and outcomes.token_ids.numel():
        expected = outcomes.parent_node.contiguous(), outcomes.token_ids.contiguous()
        count = outcomes.token_ids.shape[1]
    launch(
        walk_kernel, grid_of(batch), *trees, row_starts, found, *verdict, *expected,
        batch, nodes, logits.shape[0], splits, count, padded_nodes, triton.next_power_of_2(max(count, 1)),
    )  # fmt: skip


@rows_a_program
@triton.jit(do_not_specialize=["batch", "num_nodes", "vocab"])
def check_kernel(
    token_ids, parents, node_counts, walked, status,
    batch, num_nodes, vocab, NODES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Status bits of each tree, and the depth of each of its nodes."""
    request = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tree = request.to(tl.int64)[:, None] * num_nodes
    node = tl.arange(0, NODES)[None, :] + tl.zeros([ROWS, NODES], tl.int32)
    inside = (request < batch)[:, None] & (node < num_nodes)
    count = tl.minimum(tl.load(node_counts + request, mask=request < batch, other=0), num_nodes)
    drafted = inside & (node > 0) & (node < count[:, None])
    parent = tl.load(parents + tree + node, mask=drafted, other=0)
    token = tl.load(token_ids + tree + node, mask=drafted, other=0)
    bad_parent = drafted & ((parent < 0) | (parent >= node))
    bad_token = drafted & ((token < 0) | (token >= vocab))
    flags = tl.max(tl.where(bad_parent, BAD_TREE, 0), 1) | tl.max(tl.where(bad_token, BAD_TOKEN, 0), 1)
    tl.store(status + request, flags, mask=request < batch)

    depth = tl.where(node < count[:, None], 0, UNREACHABLE)
    at = tl.where(drafted, node, 0)
    while any_of(at > 0):
        above = tl.load(parents + tree + at, mask=at > 0, other=0)
        its_token = tl.load(token_ids + tree + at, mask=at > 0, other=0)
        broken = (above < 0) | (above >= at) | (its_token < 0) | (its_token >= vocab)
        stepped = (at > 0) & (broken == 0)
        depth = tl.where(stepped, depth + 1, tl.where(at > 0, UNREACHABLE, depth))
        at = tl.where(stepped, above, 0)
    tl.store(walked + tree + node, depth, mask=inside)


@rows_a_program
@triton.jit(do_not_specialize=["batch", "num_nodes", "packed_rows", "num_splits", "num_outcomes"])
def walk_kernel(
    token_ids, parents, node_counts, row_starts, found, accepted_nodes, num_accepted, bonus_ids, status, outcome_index,
    outcome_parents, outcome_ids, batch, num_nodes, packed_rows, num_splits, num_outcomes,
    NODES: tl.constexpr, OUTCOMES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """From the root to the lowest child that carries the node's token, until there is none; then the lowest outcome
    that this verdict is."""
    request = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = request < batch
    tree = request.to(tl.int64)[:, None] * num_nodes
    node = tl.arange(0, NODES)[None, :]
    count = tl.minimum(tl.load(node_counts + request, mask=present, other=0), num_nodes)
    drafted = (node > 0) & (node < count[:, None])
    parent = tl.load(parents + tree + node, mask=drafted, other=-1)
    token = tl.load(token_ids + tree + node, mask=drafted, other=-1)
    start = tl.zeros([ROWS], tl.int64)
    if row_starts is not None:
        start = tl.load(row_starts + request, mask=present, other=0).to(tl.int64)

    flags = tl.load(status + request, mask=present, other=0)
    accepted = tl.full([ROWS, NODES], -1, tl.int32)
    length = tl.zeros([ROWS], tl.int32)
    last = tl.zeros([ROWS], tl.int32)  # node accepted so far, or the root
    bonus = tl.where(count > 0, 0, -1)
    at = bonus
    while any_of(at >= 0):
        if row_starts is not None:
            # Nothing is known about what follows a row outside the logits: its node stays the bonus.
            outside = (at >= 0) & ((start + at < 0) | (start + at >= packed_rows))
            flags |= tl.where(outside, BAD_TREE, 0)
            at = tl.where(outside, -1, at)
        accepted = tl.where((at > 0)[:, None] & (node == length[:, None]), at[:, None], accepted)
        length += (at > 0).to(tl.int32)
        last = tl.where(at > 0, at, last)
        y = best_split(found, request * num_nodes + at, at >= 0, num_splits)
        flags |= tl.where((at >= 0) & (y == NO_TOKEN), NO_FINITE_LOGIT, 0)
        y = tl.where(y == NO_TOKEN, 0, y)
        bonus = tl.where(at >= 0, y, bonus)
        child = (node > at[:, None]) & drafted & (parent == at[:, None]) & (token == y[:, None])
        lowest = tl.min(tl.where(child, node, NODES), 1)
        at = tl.where((at >= 0) & (lowest < NODES), lowest, -1)

    tl.store(accepted_nodes + tree + node, accepted, mask=present[:, None] & (node < num_nodes))
    tl.store(num_accepted + request, length, mask=present)
    tl.store(bonus_ids + request, bonus.to(tl.int64), mask=present)
    tl.store(status + request, tl.where(count > 0, flags, 0), mask=present)
    if outcome_index is not None:
        index = tl.full([ROWS], -1, tl.int32)
        if outcome_parents is not None:
            outcome = tl.arange(0, OUTCOMES)[None, :]
            at = request.to(tl.int64)[:, None] * num_outcomes + outcome
            listed = (present & (bonus >= 0))[:, None] & (outcome < num_outcomes)
            match = tl.load(outcome_parents + at, mask=listed, other=-1) == last[:, None]
            match &= tl.load(outcome_ids + at, mask=listed, other=-1) == bonus[:, None]
            lowest = tl.min(tl.where(match & listed, outcome, OUTCOMES), 1)
            index = tl.where(lowest < OUTCOMES, lowest, -1)
        tl.store(outcome_index + request, index, mask=present)
