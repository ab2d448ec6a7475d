"""Which pre-drafted outcome came true: the lowest whose (last node, bonus token) is the verdict's; and its draft."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..types import Candidates


def select_outcome(
    accepted_nodes: Tensor,
    num_accepted: Tensor,
    bonus_ids: Tensor,
    outcome_parents: Tensor,
    outcome_ids: Tensor,
    index: Tensor,
    candidates: Candidates | None = None,
    drafts: Candidates | None = None,
) -> None:
    outcomes = outcome_ids.shape[1]
    index.fill_(-1)
    if outcomes:
        index.copy_(_match(accepted_nodes, num_accepted, bonus_ids, outcome_parents, outcome_ids))
    if candidates is None:
        return
    hit = (index >= 0).nonzero().squeeze(1)
    row = hit * outcomes + index[hit]
    for draft, branch, padding in zip(drafts.tensors(), candidates.tensors(), (-1, -math.inf, -math.inf), strict=True):
        draft.fill_(padding)
        draft[hit] = branch[row]


def _match(
    accepted_nodes: Tensor, num_accepted: Tensor, bonus_ids: Tensor, outcome_parents: Tensor, outcome_ids: Tensor
) -> Tensor:
    last = accepted_nodes.gather(1, (num_accepted.long() - 1).clamp(min=0)[:, None])
    last = torch.where(num_accepted[:, None] > 0, last, 0)  # nothing accepted: the root
    match = (outcome_parents == last) & (outcome_ids == bonus_ids[:, None]) & (bonus_ids[:, None] >= 0)
    return torch.where(match.any(1), match.int().argmax(1), -1)
