"""The ops of a compiled library on tensors. What each op means is said in d3d_kernels.ops.

Arguments have been checked by the ops: dtypes, shapes, devices, a dense last dimension, outputs contiguous.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .addresses import (
    CHAIN_RULES,
    DRAFT_KINDS,
    DTYPES,
    address,
    id_lists,
    link_addresses,
    penalty_record,
    sampling_addresses,
)
from .types import Candidates, KVLayout, Outcomes, Penalties, SamplingTensors, TreeLinks

# Bytes of an element, and the bits that say visible and hidden: True and False, or 0 and -inf.
MASK_ELEMENTS = {
    torch.bool: (1, 1, 0),
    torch.bfloat16: (2, 0, 0xFF80),
    torch.float16: (2, 0, 0xFC00),
    torch.float32: (4, 0, 0xFF80_0000),
    torch.float64: (8, 0, -(1 << 52)),  # 0xFFF0_0000_0000_0000, signed
}


class Compiled:
    """One library. A subclass says how a call is made: on threads of the CPU, or on a stream."""

    def __init__(self, library: ModuleType) -> None:
        self.library = library

    def _run(
        self,
        function: str,
        device: torch.device,
        arguments: tuple,
        *,
        workspace: tuple | None = None,
        counters: int | None = None,
    ) -> None:
        """Call ``library.function``. A GPU's takes a workspace, of as many bytes as its ``<function>_workspace_bytes``
        says of these sizes, or counters that are zero; a CPU's takes neither.
        """
        raise NotImplementedError

    def _kv_table(self, layout: KVLayout) -> Any:
        """The cache's tensors as the library takes them; made once."""
        raise NotImplementedError

    def sample(
        self,
        logits: Tensor,
        sampling: SamplingTensors,
        positions: Tensor,
        request_ids: Tensor | None,
        penalties: Penalties | None,
        token_ids: Tensor,
        status: Tensor,
    ) -> None:
        rows, vocab = logits.shape
        dtype = DTYPES[logits.dtype]
        self._run(
            "sample",
            logits.device,
            (
                logits.data_ptr(),
                dtype,
                vocab,
                rows,
                logits.stride(0),
                *sampling_addresses(sampling),
                positions.data_ptr(),
                address(request_ids),
                None if penalties is None else penalty_record(self.library, penalties),
                token_ids.data_ptr(),
                status.data_ptr(),
            ),
            workspace=(rows, vocab, dtype, penalties is not None),
        )

    def draft_candidates(
        self,
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
        dtype = DTYPES[logits.dtype]
        row_stride, position_stride, _ = logits.stride()
        self._run(
            "draft_candidates",
            logits.device,
            (
                logits.data_ptr(),
                dtype,
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
                address(request_ids),
                None if penalties is None else penalty_record(self.library, penalties),
                token_ids.data_ptr(),
                log_probs.data_ptr(),
                scores.data_ptr(),
            ),
            workspace=(rows * length, vocab, dtype, penalties is not None),
        )

    def build_tree(
        self,
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
        outcome_index: Tensor | None,
        root_positions: Tensor | None,
        links: TreeLinks | None,
    ) -> None:
        rows, length, k = candidate_ids.shape
        batch = root_ids.shape[0]
        candidate_ids, candidate_scores = candidate_ids.contiguous(), candidate_scores.contiguous()
        self._run(
            "build_tree",
            root_ids.device,
            (
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
                address(outcome_index),
                rows // batch,
                address(root_positions),
                *link_addresses(links),
            ),
        )

    def draft_tree(
        self,
        logits: Tensor,
        root_ids: Tensor,
        sampling: SamplingTensors,
        root_positions: Tensor,
        num_nodes: int,
        num_outcomes: int,
        k: int,
        penalties: Penalties | None,
        beta: float,
        mask_token_id: int,
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
        candidates: Candidates | None,
        links: TreeLinks | None,
    ) -> None:
        batch, length, vocab = logits.shape
        dtype = DTYPES[logits.dtype]
        row_stride, position_stride, _ = logits.stride()
        positions = root_positions.data_ptr()
        self._run(
            "draft_tree",
            logits.device,
            (
                logits.data_ptr(),
                dtype,
                vocab,
                batch,
                length,
                row_stride,
                position_stride,
                k,
                mask_token_id,
                beta,
                *sampling_addresses(sampling),
                positions,
                0,
                None if penalties is None else penalty_record(self.library, penalties),
                *((0, 0, 0) if candidates is None else map(Tensor.data_ptr, candidates.tensors())),
                batch,
                length,
                k,
                num_nodes,
                num_outcomes,
                max_depth,
                root_ids.data_ptr(),
                0,
                0,
                *id_lists(stop_ids),
                token_ids.data_ptr(),
                parents.data_ptr(),
                depths.data_ptr(),
                node_counts.data_ptr(),
                mask_bits.data_ptr(),
                outcome_parents.data_ptr(),
                outcome_ids.data_ptr(),
                outcome_scores.data_ptr(),
                0,
                0,
                positions,
                *link_addresses(links),
            ),
            workspace=(batch, length, vocab, k, dtype, penalties is not None, candidates is not None),
            counters=batch,
        )

    def verify_tree(
        self,
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
        vocab, dtype = logits.shape[-1], DTYPES[logits.dtype]
        expected, outcome_parents, outcome_ids = 0, None, None
        if outcomes is not None:
            expected = outcomes.token_ids.shape[1]
            outcome_parents, outcome_ids = outcomes.parent_node.contiguous(), outcomes.token_ids.contiguous()
        token_ids, parents = token_ids.contiguous(), parents.contiguous()
        *outer_strides, _ = logits.stride()
        self._run(
            "verify_tree",
            logits.device,
            (
                logits.data_ptr(),
                dtype,
                vocab,
                batch,
                nodes,
                outer_strides[0],
                outer_strides[-1],
                address(row_starts),
                logits.shape[0],
                token_ids.data_ptr(),
                parents.data_ptr(),
                node_counts.data_ptr(),
                *sampling_addresses(sampling),
                root_positions.data_ptr(),
                None if penalties is None else penalty_record(self.library, penalties),
                accepted_nodes.data_ptr(),
                num_accepted.data_ptr(),
                bonus_ids.data_ptr(),
                status.data_ptr(),
                expected,
                address(outcome_parents),
                address(outcome_ids),
                address(outcome_index),
            ),
            workspace=(batch, nodes, vocab, dtype, penalties is not None),
            counters=batch,
        )

    def verify_chain(
        self,
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
        dtype = DTYPES[target_logits.dtype]
        request_stride, row_stride, _ = target_logits.stride()
        kind = DRAFT_KINDS[draft_kind]
        drafter = (0, 0, kind, 0, 0)
        if draft_rows is not None:
            drafter = (draft_rows.data_ptr(), DTYPES[draft_rows.dtype], kind, *draft_rows.stride()[:2])
        self._run(
            "verify_chain",
            target_logits.device,
            (
                target_logits.data_ptr(),
                dtype,
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
                None if penalties is None else penalty_record(self.library, penalties),
                accepted_nodes.data_ptr(),
                num_accepted.data_ptr(),
                bonus_ids.data_ptr(),
                status.data_ptr(),
            ),
            workspace=(batch, rows - 1, vocab, dtype, penalties is not None),
        )

    def select_outcome(
        self,
        accepted_nodes: Tensor,
        num_accepted: Tensor,
        bonus_ids: Tensor,
        outcome_parents: Tensor,
        outcome_ids: Tensor,
        index: Tensor,
        candidates: Candidates | None,
        drafts: Candidates | None,
    ) -> None:
        accepted_nodes = accepted_nodes.contiguous()
        outcome_parents, outcome_ids = outcome_parents.contiguous(), outcome_ids.contiguous()
        gathered = (0,) * 8
        if candidates is not None:
            branches = [t.contiguous() for t in candidates.tensors()]  # held until the call is over
            gathered = (*drafts.token_ids.shape[1:], *map(Tensor.data_ptr, (*branches, *drafts.tensors())))
        self._run(
            "select_outcome",
            index.device,
            (
                *accepted_nodes.shape,
                outcome_ids.shape[1],
                accepted_nodes.data_ptr(),
                num_accepted.data_ptr(),
                bonus_ids.data_ptr(),
                outcome_parents.data_ptr(),
                outcome_ids.data_ptr(),
                index.data_ptr(),
                *gathered,
            ),
        )

    def frontier_inputs(
        self,
        token_ids: Tensor,
        depths: Tensor,
        node_counts: Tensor,
        mask_bits: Tensor,
        outcome_parents: Tensor,
        outcome_ids: Tensor,
        root_positions: Tensor,
        page_table: Tensor,
        page_size: int,
        block_size: int,
        mask_token_id: int,
        row_token_ids: Tensor,
        row_positions: Tensor,
        row_slots: Tensor,
        row_mask_bits: Tensor,
        draft_positions: Tensor,
        request_ids: Tensor,
    ) -> None:
        batch, nodes = token_ids.shape
        token_ids, depths, mask_bits = token_ids.contiguous(), depths.contiguous(), mask_bits.contiguous()
        outcome_parents, outcome_ids = outcome_parents.contiguous(), outcome_ids.contiguous()
        self._run(
            "frontier",
            token_ids.device,
            (
                batch,
                nodes,
                outcome_ids.shape[1],
                block_size,
                mask_token_id,
                token_ids.data_ptr(),
                depths.data_ptr(),
                node_counts.data_ptr(),
                mask_bits.data_ptr(),
                outcome_parents.data_ptr(),
                outcome_ids.data_ptr(),
                root_positions.data_ptr(),
                page_table.data_ptr(),
                page_table.element_size(),
                page_table.stride(0),
                page_table.shape[1],
                page_size,
                row_token_ids.data_ptr(),
                row_positions.data_ptr(),
                row_slots.data_ptr(),
                row_mask_bits.data_ptr(),
                draft_positions.data_ptr(),
                request_ids.data_ptr(),
            ),
        )

    def dense_mask(self, mask_bits: Tensor, context_lengths: Tensor, out: Tensor) -> None:
        mask_bits = mask_bits.contiguous()
        self._run(
            "dense_mask",
            mask_bits.device,
            (
                *mask_bits.shape,
                mask_bits.data_ptr(),
                context_lengths.data_ptr(),
                out.shape[2],
                *MASK_ELEMENTS[out.dtype],
                out.data_ptr(),
            ),
        )

    def packed_mask(
        self,
        mask_bits: Tensor,
        context_lengths: Tensor,
        max_context: int,
        counts: Tensor | None,
        bits: Tensor,
        byte_starts: Tensor,
    ) -> None:
        mask_bits = mask_bits.contiguous()
        self._run(
            "packed_mask",
            mask_bits.device,
            (
                *mask_bits.shape,
                mask_bits.data_ptr(),
                context_lengths.data_ptr(),
                address(counts),
                max_context,
                bits.data_ptr(),
                byte_starts.data_ptr(),
            ),
        )

    def move_kv(self, layout: KVLayout, src: Tensor, dst: Tensor, counts: Tensor) -> None:
        src, dst = src.contiguous(), dst.contiguous()
        self._run(
            "move_kv",
            src.device,
            (
                *self._kv_table(layout),
                layout.num_pages,
                layout.page_size,
                *src.shape,
                src.data_ptr(),
                dst.data_ptr(),
                counts.data_ptr(),
            ),
        )
