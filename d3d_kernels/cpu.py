"""CPU backend: tensors to the compiled library. What each op means is said in d3d_kernels.ops.

Arguments have been checked by the ops: dtypes, shapes, devices, a dense last dimension, outputs contiguous.
"""

from __future__ import annotations

from torch import Tensor, get_num_threads

from . import _C
from .addresses import CHAIN_RULES, DRAFT_KINDS, DTYPES, id_lists, penalty_record, sampling_addresses
from .types import KVLayout, Penalties, SamplingTensors


def sample(
    logits: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    request_ids: Tensor | None,
    penalties: Penalties | None,
    token_ids: Tensor,
    status: Tensor,
) -> None:
    rows, vocab = logits.shape
    _C.sample(
        logits.data_ptr(),
        DTYPES[logits.dtype],
        vocab,
        rows,
        logits.stride(0),
        *sampling_addresses(sampling),
        positions.data_ptr(),
        0 if request_ids is None else request_ids.data_ptr(),
        None if penalties is None else penalty_record(_C, penalties),
        token_ids.data_ptr(),
        status.data_ptr(),
        0,
        get_num_threads(),
    )


def draft_candidates(
    logits: Tensor,
    k: int,
    sampling: SamplingTensors,
    positions: Tensor,
    request_ids: Tensor | None,
    penalties: Penalties | None,
    beta: float,
    mask_token_id: int,
    token_ids: Tensor,
    log_probs: Tensor,
    scores: Tensor,
) -> None:
    rows, length, vocab = logits.shape
    row_stride, position_stride, _ = logits.stride()
    _C.draft_candidates(
        logits.data_ptr(),
        DTYPES[logits.dtype],
        vocab,
        rows,
        length,
        row_stride,
        position_stride,
        k,
        mask_token_id,
        beta,
        *sampling_addresses(sampling),
        positions.data_ptr(),
        0 if request_ids is None else request_ids.data_ptr(),
        None if penalties is None else penalty_record(_C, penalties),
        token_ids.data_ptr(),
        log_probs.data_ptr(),
        scores.data_ptr(),
        get_num_threads(),
    )


def build_tree(
    root_ids: Tensor,
    candidate_ids: Tensor,
    candidate_scores: Tensor,
    num_nodes: int,
    num_outcomes: int,
    max_depth: int,
    stop_ids: Tensor | None,
    token_ids: Tensor,
    parents: Tensor,
    depths: Tensor,
    node_counts: Tensor,
    mask_bits: Tensor,
    outcome_parents: Tensor,
    outcome_ids: Tensor,
    outcome_scores: Tensor,
) -> None:
    batch, length, k = candidate_ids.shape
    candidate_ids, candidate_scores = candidate_ids.contiguous(), candidate_scores.contiguous()
    _C.build_tree(
        batch,
        length,
        k,
        num_nodes,
        num_outcomes,
        max_depth,
        root_ids.data_ptr(),
        candidate_ids.data_ptr(),
        candidate_scores.data_ptr(),
        *id_lists(stop_ids),
        token_ids.data_ptr(),
        parents.data_ptr(),
        depths.data_ptr(),
        node_counts.data_ptr(),
        mask_bits.data_ptr(),
        outcome_parents.data_ptr(),
        outcome_ids.data_ptr(),
        outcome_scores.data_ptr(),
        get_num_threads(),
    )


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
) -> None:
    batch, nodes = token_ids.shape
    token_ids, parents = token_ids.contiguous(), parents.contiguous()
    *outer_strides, _ = logits.stride()
    _C.verify_tree(
        logits.data_ptr(),
        DTYPES[logits.dtype],
        logits.shape[-1],
        batch,
        nodes,
        outer_strides[0],
        outer_strides[-1],
        0 if row_starts is None else row_starts.data_ptr(),
        logits.shape[0],
        token_ids.data_ptr(),
        parents.data_ptr(),
        node_counts.data_ptr(),
        *sampling_addresses(sampling),
        root_positions.data_ptr(),
        None if penalties is None else penalty_record(_C, penalties),
        accepted_nodes.data_ptr(),
        num_accepted.data_ptr(),
        bonus_ids.data_ptr(),
        status.data_ptr(),
        get_num_threads(),
    )


def verify_chain(
    target_logits: Tensor,
    draft_ids: Tensor,
    draft_rows: Tensor | None,
    draft_kind: str,
    rule: str,
    sampling: SamplingTensors,
    positions: Tensor,
    penalties: Penalties | None,
    accepted_nodes: Tensor,
    num_accepted: Tensor,
    bonus_ids: Tensor,
    status: Tensor,
) -> None:
    batch, rows, vocab = target_logits.shape
    request_stride, row_stride, _ = target_logits.stride()
    drafter = (0, 0, DRAFT_KINDS[draft_kind], 0, 0)
    if draft_rows is not None:
        drafter = (draft_rows.data_ptr(), DTYPES[draft_rows.dtype], DRAFT_KINDS[draft_kind], *draft_rows.stride()[:2])
    _C.verify_chain(
        target_logits.data_ptr(),
        DTYPES[target_logits.dtype],
        vocab,
        batch,
        rows - 1,
        CHAIN_RULES[rule],
        request_stride,
        row_stride,
        draft_ids.data_ptr(),
        draft_ids.stride(0),
        *drafter,
        *sampling_addresses(sampling),
        positions.data_ptr(),
        None if penalties is None else penalty_record(_C, penalties),
        accepted_nodes.data_ptr(),
        num_accepted.data_ptr(),
        bonus_ids.data_ptr(),
        status.data_ptr(),
        get_num_threads(),
    )


def select_outcome(
    accepted_nodes: Tensor,
    num_accepted: Tensor,
    bonus_ids: Tensor,
    outcome_parents: Tensor,
    outcome_ids: Tensor,
    index: Tensor,
) -> None:
    accepted_nodes = accepted_nodes.contiguous()
    outcome_parents, outcome_ids = outcome_parents.contiguous(), outcome_ids.contiguous()
    _C.select_outcome(
        *accepted_nodes.shape,
        outcome_ids.shape[1],
        accepted_nodes.data_ptr(),
        num_accepted.data_ptr(),
        bonus_ids.data_ptr(),
        outcome_parents.data_ptr(),
        outcome_ids.data_ptr(),
        index.data_ptr(),
        1,
    )


def move_kv(layout: KVLayout, src: Tensor, dst: Tensor, counts: Tensor) -> None:
    table = layout.tables.get("cpu") or layout.tables.setdefault("cpu", kv_table(layout))
    src, dst = src.contiguous(), dst.contiguous()
    _C.move_kv(
        table,
        layout.num_pages,
        layout.page_size,
        *src.shape,
        src.data_ptr(),
        dst.data_ptr(),
        counts.data_ptr(),
        get_num_threads(),
    )


def kv_table(layout: KVLayout) -> _C.KVTable:
    """Where the rows of each tensor lie, in bytes. A row whose heads follow each other is one piece."""
    table = _C.KVTable()
    for tensors in (layout.keys, layout.values, layout.key_scales, layout.value_scales):
        for tensor in tensors or ():
            strides = [stride * tensor.element_size() for stride in tensor.stride()]
            page, offset, head = strides[:3] if layout.order == "NHD" else (strides[0], strides[2], strides[1])
            heads = tensor.shape[2 if layout.order == "NHD" else 1]
            piece = (tensor.shape[3] if tensor.ndim == 4 else 1) * tensor.element_size()
            if head == piece:
                heads, piece = 1, heads * piece
            table.add(tensor.data_ptr(), page, offset, head, heads, piece)
    return table
