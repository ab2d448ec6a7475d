"""verify_chain in Triton: the coupled rule as verify_tree of chains. The other rules run on the reference.

What it means is said in ops/verify_chain.py.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import registry
from ..types import Penalties, SamplingTensors, Status
from .verify_tree import verify_tree


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
    verdict = accepted_nodes, num_accepted, bonus_ids, status
    if rule != "coupled":
        run = registry.fall_back("verify_chain", "triton", f"rule {rule!r} of verify_chain")
        run(target_logits, draft_ids, draft_rows, draft_kind, rule, sampling, positions, penalties, *verdict)
        return
    batch, rows, _ = target_logits.shape
    index = torch.arange(-1, rows, dtype=torch.int32, device=target_logits.device).expand(batch, rows + 1)
    tree = pad(draft_ids, (1, 0)), index[:, :-1], index[:, 1:], index.new_full((batch,), rows)
    verify_tree(target_logits, None, *tree, sampling, positions - 1, penalties, *verdict, None, None)
    status.bitwise_and_(~int(Status.BAD_TOKEN))  # a token outside the vocabulary ends its chain; padding is no error
