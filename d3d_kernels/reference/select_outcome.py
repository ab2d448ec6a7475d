"""Which pre-drafted outcome came true: the lowest whose (last node, bonus token) is the verdict's."""

from __future__ import annotations

import torch
from torch import Tensor


def select_outcome(
    accepted_nodes: Tensor,
    num_accepted: Tensor,
    bonus_ids: Tensor,
    outcome_parents: Tensor,
    outcome_ids: Tensor,
    index: Tensor,
) -> None:
    if outcome_ids.shape[1] == 0:
        index.fill_(-1)
        return
    last = accepted_nodes.gather(1, (num_accepted.long() - 1).clamp(min=0)[:, None])
    last = torch.where(num_accepted[:, None] > 0, last, 0)  # nothing accepted: the root
    match = (outcome_parents == last) & (outcome_ids == bonus_ids[:, None]) & (bonus_ids[:, None] >= 0)
    index.copy_(torch.where(match.any(1), match.int().argmax(1), -1))
