"""y(t) for each row: the argmax of the perturbed values."""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import Penalties, SamplingTensors, Status
from .vocab import read_rows


def sample(
    logits: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    request_ids: Tensor | None,
    penalties: Penalties | None,
    token_ids: Tensor,
    status: Tensor,
) -> None:
    perturbed = read_rows(logits, sampling, positions, request_ids, penalties).perturbed
    best, first = perturbed.max(1).values, perturbed.argmax(1)  # argmax: the lowest id among equals
    nothing = best == -torch.inf
    token_ids.copy_(torch.where(nothing, 0, first))
    status.copy_(torch.where(nothing, int(Status.NO_FINITE_LOGIT), int(Status.OK)))
