"""The candidates of the logits, then the tree over them."""

from __future__ import annotations

from torch import Tensor

from ..types import Candidates, Penalties, SamplingTensors, TreeLinks
from .build_tree import build_tree
from .draft_candidates import draft_candidates


def draft_tree(
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
    batch, length, _ = logits.shape
    if candidates is None:
        candidates = Candidates.empty(batch, length, k, logits.device)
    draft_candidates(
        logits, k, sampling, root_positions + 1, None, penalties, beta, mask_token_id, *candidates.tensors()
    )
    build_tree(
        root_ids,
        candidates.token_ids,
        candidates.scores,
        num_nodes,
        num_outcomes,
        max_depth,
        stop_ids,
        token_ids,
        parents,
        depths,
        node_counts,
        mask_bits,
        outcome_parents,
        outcome_ids,
        outcome_scores,
        None,
        root_positions,
        links,
    )
