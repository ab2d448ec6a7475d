"""The K best tokens of each draft position, under the noise that the target will use there.

    T < 1e-5   ranked by the penalised logits; score = log-softmax of them
    T >= 1e-5  ranked by x = s + G; score = log-softmax over the K values x / beta

A raw x is no log-probability, and sums of it distort the tree; normalised over the row's candidates and
tempered by beta it ranks prefixes by how likely the coupled target is to take them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import Penalties, SamplingTensors
from .vocab import read_rows


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
    requests = torch.arange(rows, device=logits.device) if request_ids is None else request_ids
    perturbed, tempered, greedy = read_rows(
        logits.reshape(rows * length, vocab),
        sampling,
        (positions[:, None] + torch.arange(length, device=logits.device)).flatten(),
        requests.repeat_interleave(length),
        penalties,
        mask_token_id,
    )

    found = min(k, vocab)
    values, ids = perturbed.sort(dim=1, descending=True, stable=True)  # stable: the lowest id among equals
    values, ids = values[:, :found], ids[:, :found]
    log_q = tempered.log_softmax(1).gather(1, ids)
    sharpened = (values - values[:, :1]) / beta  # relative to the best: an infinite logit must not overflow
    score = torch.where(greedy[:, None], log_q, sharpened.log_softmax(1))
    missing = values == -torch.inf

    for out, value, padding in (
        (token_ids, ids, -1),
        (log_probs, log_q, -torch.inf),
        (scores, score, -torch.inf),
    ):
        out.fill_(padding)
        out.view(rows * length, k)[:, :found] = torch.where(missing, padding, value.to(out.dtype))
