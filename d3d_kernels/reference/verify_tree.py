"""Walk each draft tree with the target's own seeded sample.

At a node at position t the target's token is y(t + 1). If a child carries it, that child is accepted and the
walk goes on from there; otherwise it is the bonus token. So the accepted path and the bonus are exactly the
tokens that sampling one at a time would have given, whatever the tree proposed.

All requests walk in step: one turn of the loop reads one row of each tree that is still being walked.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..types import Outcomes, Penalties, SamplingTensors, Status
from .sample import sample
from .select_outcome import select_outcome


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
    outcome_index: Tensor | None,
    outcomes: Outcomes | None,
) -> None:
    batch, nodes = token_ids.shape
    vocab, device = logits.shape[-1], logits.device
    usable = _check_nodes(token_ids, parents, node_counts, vocab, status)
    accepted_nodes.fill_(-1)
    num_accepted.zero_()
    bonus_ids.fill_(-1)
    bonus_ids[node_counts > 0] = 0

    path_tokens = torch.full((batch, nodes), -1, device=device)
    lane = (node_counts > 0).nonzero().squeeze(1)  # the trees that are still being walked, and
    node = torch.zeros_like(lane)  # the node that each has reached
    while len(lane):
        if row_starts is None:
            rows = logits[lane, node]
        else:
            # Nothing can be said about what follows a row that is missing: its node is not accepted, and the
            # node's own token stays the bonus.
            index = row_starts[lane] + node
            present = (index >= 0) & (index < logits.shape[0])
            status[lane[~present]] |= int(Status.BAD_TREE)
            lane, node, rows = lane[present], node[present], logits[index[present]]

        moved = lane[node > 0]
        accepted_nodes[moved, num_accepted[moved].long()] = node[node > 0].int()
        path_tokens[moved, num_accepted[moved].long()] = token_ids[moved, node[node > 0]]
        num_accepted[moved] += 1

        token, flags = torch.empty_like(lane), torch.empty_like(lane, dtype=torch.int32)
        position = root_positions[lane] + num_accepted[lane] + 1
        seen = _with_path(penalties, lane, path_tokens)
        sample(rows, sampling.select(lane), position, None, seen, token, flags)
        bonus_ids[lane] = token
        status[lane] |= flags

        child = usable[lane] & (parents[lane] == node[:, None]) & (token_ids[lane] == token[:, None])
        found = child.any(1)
        lane, node = lane[found], child.int().argmax(1)[found]  # argmax: the lowest of duplicate siblings

    if outcome_index is not None:
        outcome_index.fill_(-1)
        if outcomes is not None:
            expected = outcomes.parent_node, outcomes.token_ids
            select_outcome(accepted_nodes, num_accepted, bonus_ids, *expected, outcome_index)


def _check_nodes(token_ids: Tensor, parents: Tensor, node_counts: Tensor, vocab: int, status: Tensor) -> Tensor:
    """Which nodes can be accepted at all [B,N]; what is wrong with the others goes to ``status``."""
    index = torch.arange(token_ids.shape[1], device=token_ids.device)
    drafted = (index > 0) & (index < node_counts[:, None])
    bad_parent = drafted & ((parents < 0) | (parents >= index))
    bad_token = drafted & ((token_ids < 0) | (token_ids >= vocab))
    status.copy_(bad_parent.any(1) * int(Status.BAD_TREE) + bad_token.any(1) * int(Status.BAD_TOKEN))
    return drafted & ~bad_parent & ~bad_token


def _with_path(penalties: Penalties | None, lane: Tensor, path_tokens: Tensor) -> Penalties | None:
    """Penalties as each node sees them: the tokens of its path count as output already."""
    if penalties is None:
        return None
    own, path = penalties.select(lane), path_tokens[lane]
    return replace(own, output_ids=path if own.output_ids is None else torch.cat([own.output_ids, path], dim=1))
