"""Walk each draft tree with the target's own seeded sample.

At a node at position t the target's token is y(t + 1). If a child carries it, that child is accepted and the
walk goes on from there; otherwise it is the bonus token. So the accepted path and the bonus are exactly the
tokens that sampling one at a time would have given, whatever the tree proposed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..types import Penalties, SamplingTensors, Status
from .sample import sample


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
) -> None:
    accepted_nodes.fill_(-1)
    num_accepted.zero_()
    bonus_ids.fill_(-1)
    status.zero_()
    vocab = logits.shape[-1]
    for b, count in enumerate(node_counts.tolist()):
        count = min(count, token_ids.shape[1])
        if count <= 0:
            continue
        rows = logits[b] if row_starts is None else logits
        first_row = 0 if row_starts is None else int(row_starts[b])
        nodes, flags = _usable_nodes(token_ids[b, :count].tolist(), parents[b, :count].tolist(), vocab)
        request = slice(b, b + 1)
        path, bonus = [], 0
        node: int | None = 0
        while node is not None:
            row = first_row + node
            if not 0 <= row < rows.shape[0]:
                # Nothing can be said about what follows this node: the bonus is its own token, not accepted.
                flags |= Status.BAD_TREE
                break
            path += [node] if node else []
            bonus, row_flags = _target_token(
                rows[row : row + 1],
                sampling.select(request),
                root_positions[request] + len(path) + 1,
                _with_path(penalties, request, [nodes[i][1] for i in path]),
            )
            flags |= row_flags
            node = next((i for i in range(node + 1, count) if nodes[i] == (node, bonus)), None)
        accepted_nodes[b, : len(path)] = torch.tensor(path, dtype=torch.int32)
        num_accepted[b] = len(path)
        bonus_ids[b] = bonus
        status[b] = int(flags)


def _usable_nodes(tokens: list[int], parents: list[int], vocab: int) -> tuple[list[tuple[int, int]], Status]:
    """(parent, token) of each node, (-1, -1) where it can never be accepted, and what is wrong with it."""
    usable, flags = [(-1, -1)], Status.OK
    for node in range(1, len(tokens)):
        good_parent, good_token = 0 <= parents[node] < node, 0 <= tokens[node] < vocab
        flags |= Status.OK if good_parent else Status.BAD_TREE
        flags |= Status.OK if good_token else Status.BAD_TOKEN
        usable.append((parents[node], tokens[node]) if good_parent and good_token else (-1, -1))
    return usable, flags


def _target_token(
    row: Tensor, sampling: SamplingTensors, position: Tensor, penalties: Penalties | None
) -> tuple[int, Status]:
    token = torch.empty(1, dtype=torch.int64, device=row.device)
    status = torch.empty(1, dtype=torch.int32, device=row.device)
    sample(row, sampling, position, None, penalties, token, status)
    return int(token), Status(int(status))


def _with_path(penalties: Penalties | None, request: slice, path_tokens: list[int]) -> Penalties | None:
    """The request's penalties as a node sees them: the tokens of its path count as output already."""
    if penalties is None:
        return None
    own = penalties.select(request)
    path = torch.tensor([path_tokens], dtype=torch.int64, device=own.device)
    return replace(
        own, output_ids=path if own.output_ids is None else torch.cat([own.output_ids, path], dim=1)
    )
