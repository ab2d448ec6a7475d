"""draft_tree: from the drafter's logits to the tree to verify, in one call."""

from __future__ import annotations

from torch import Tensor

from ..types import Candidates, DraftTree, Outcomes, Penalties, SamplingTensors
from .build_tree import build_tree
from .draft_candidates import draft_candidates


def draft_tree(
    logits: Tensor,
    root_ids: Tensor,
    sampling: SamplingTensors,
    root_positions: Tensor,
    num_nodes: int,
    num_outcomes: int = 0,
    k: int = 8,
    *,
    penalties: Penalties | None = None,
    beta: float = 0.5,
    mask_token_id: int = -1,
    max_depth: int | None = None,
    stop_ids: Tensor | None = None,
    workspace: Candidates | None = None,
    out: tuple[DraftTree, Outcomes] | None = None,
    backend: str | None = None,
) -> tuple[DraftTree, Outcomes]:
    """``draft_candidates`` of logits[B,L,V], then ``build_tree`` over them; see there for contracts.

    root_positions[B] i64 is the position of the root itself, one before the first drafted token.
    ``workspace`` holds the candidates if given, so that the call allocates nothing.
    """
    candidates = draft_candidates(
        logits,
        k,
        sampling,
        root_positions + 1,
        penalties=penalties,
        beta=beta,
        mask_token_id=mask_token_id,
        out=workspace,
        backend=backend,
    )
    return build_tree(root_ids, candidates, num_nodes, num_outcomes, max_depth, stop_ids, out=out, backend=backend)
