"""frontier_inputs: the rows of the drafter's pass ahead of a verdict."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from ..types import DraftTree, FrontierInputs, Outcomes, frontier_rows, mask_words
from . import _arguments, _library


def frontier_inputs(
    tree: DraftTree,
    outcomes: Outcomes,
    root_positions: Tensor,
    page_table: Tensor,
    page_size: int,
    block_size: int,
    mask_token_id: int,
    *,
    out: FrontierInputs | None = None,
    backend: str | None = None,
) -> FrontierInputs:
    """Token ids, positions, KV slots and masks of one pass over the tree and E branches behind it.

    While the target verifies a tree, the drafter drafts behind each of its outcomes (m, g). Q = N - 1 +
    E * block_size rows a request:

        rows 0 .. N-2               tree node i + 1, clean
        rows N-1 + e*block_size ..  branch e: its bonus token g, then block_size - 1 masks

    The cache holds the committed tokens, root included; row i stands in logical slot root_positions[b] + 1 + i,
    behind the root. A node sees its ancestors and itself, a branch what m sees; of its own branch g sees only
    itself, a mask all of it. Bit j of mask_bits says that the row sees row j; all rows see every slot up to the
    root's.

    Args:
        tree: B trees of at most N nodes; token_ids, depths, num_nodes and mask_bits are read.
        outcomes: of these trees.
        root_positions: [B] i64, absolute position of the root, which is its logical slot too.
        page_table: [B,P] i32 or i64: logical slot s is in page page_table[b, s // page_size] at offset
            s % page_size. A negative page is none.
        page_size: >= 1.
        block_size: rows of a branch, >= 1.
        mask_token_id: the drafter's mask token.
        out: FrontierInputs to write and return.
        backend: forces one backend for this call.

    Returns:
        FrontierInputs: token_ids, positions, slots [B,Q] i64, mask_bits [B,Q,ceil(Q/32)] i32; and what
        ``draft_candidates`` wants to know of each branch: draft_positions [B,E] i64, the position behind g, and
        request_ids [B,E] i32. A padded node, a branch whose outcome is none (parent_node not a node, token
        negative) and every row of an empty lane do not exist: token 0, position 0, slot -1, no bits, request -1.
        A row whose slot has no page has slot -1 too: it cannot write.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device, stride or range, by name.
    """
    arguments = tree, outcomes, root_positions, page_table, page_size, block_size, mask_token_id
    if _library.tracing():
        return _library.copy_record(out, FrontierInputs(*_op(*arguments, backend)))
    return _eager(*arguments, out, backend)


def _eager(tree, outcomes, root_positions, page_table, page_size, block_size, mask_token_id, out, backend):
    batch, nodes, _ = _arguments.sizes_of("tree", tree, DraftTree)
    device = tree.checked("tree").device
    _, num_outcomes = _arguments.sizes_of("outcomes", outcomes, Outcomes)
    outcomes.expect("outcomes", device, batch)
    checks.vector("root_positions", root_positions, torch.int64, (batch,), device)
    pages = checks.is_tensor("page_table", page_table).shape[-1] if page_table.ndim else -1
    dtype = torch.int32 if page_table.dtype is torch.int32 else torch.int64
    checks.dense_rows("page_table", page_table, dtype, (batch, pages), device)
    checks.at_least("page_size", page_size, 1)
    checks.at_least("block_size", block_size, 1)
    if out is None:
        out = FrontierInputs.empty(batch, nodes, num_outcomes, block_size, device)
    else:
        rows = frontier_rows(nodes, num_outcomes, block_size)
        _arguments.sizes_of("out", out, FrontierInputs)
        out.expect("out", device, batch, rows, mask_words(rows), num_outcomes, contiguous=True)
    if batch:
        run = registry.kernel("frontier_inputs", device, backend)
        run(
            tree.token_ids,
            tree.depths,
            tree.num_nodes,
            tree.mask_bits,
            outcomes.parent_node,
            outcomes.token_ids,
            root_positions,
            page_table,
            page_size,
            block_size,
            mask_token_id,
            *out.tensors(),
        )
    return out


def _run(*arguments):
    *inputs, backend = arguments
    return _eager(*inputs, None, backend).tensors()


def _fake(tree, outcomes, root_positions, page_table, page_size, block_size, *_):
    batch, nodes = tree.token_ids.shape
    num_outcomes = outcomes.token_ids.shape[1]
    return FrontierInputs.empty(batch, nodes, num_outcomes, block_size, tree.token_ids.device).tensors()


_op = _library.register(
    "frontier_inputs",
    (
        "tree",
        "outcomes",
        "Tensor root_positions",
        "Tensor page_table",
        "int page_size",
        "int block_size",
        "int mask_token_id",
        "str? backend=None",
    ),
    "(Tensor token_ids, Tensor positions, Tensor slots, Tensor mask_bits, Tensor draft_positions, Tensor request_ids)",
    _run,
    _fake,
)
