"""draft_tree in Triton: its candidates; the tree over them is built by whoever builds trees."""

from __future__ import annotations

from torch import Tensor

from .. import registry
from ..types import Candidates, Penalties, SamplingTensors, TreeLinks
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
    if length:
        first = root_positions + 1
        draft_candidates(logits, k, sampling, first, None, penalties, beta, mask_token_id, *candidates.tensors())
    build_tree = registry.kernel("build_tree", logits.device, "triton")
    tree = token_ids, parents, depths, node_counts, mask_bits
    outcomes = outcome_parents, outcome_ids, outcome_scores
    build_tree(
        root_ids, candidates.token_ids, candidates.scores, num_nodes, num_outcomes, max_depth, stop_ids,
        *tree, *outcomes, None, root_positions, links,
    )  # fmt: skip
