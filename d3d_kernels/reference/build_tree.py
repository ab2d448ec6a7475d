"""The N likeliest prefixes of the drafter's product distribution, and the E likeliest verdicts on them.

A node's value is the sum of the scores on its path. Scores are sorted and never positive, so no prefix is
likelier than its parent or its better sibling, and a best-first search that keeps only each list's next entry
in a heap meets the prefixes in order of their value: the first N popped are the N best (DDTree's
enumeration). An outcome (last accepted node m, bonus token g) is a prefix whose parent is in the tree and
which is not a node itself; what the same search pops next, without descending further, are the E likeliest of
them.

    entry   (value, parent, rank): candidate `rank` of position depth(parent) + 1 below node `parent`
    order   larger value, then smaller parent, then smaller rank
    values  fp32 sums, root to leaf
"""

from __future__ import annotations

import math
from ctypes import c_float
from heapq import heapify, heappop, heappush

import torch
from torch import Tensor

from ..types import TreeLinks

Entry = tuple[float, int, int]  # (-value, parent, rank): Python's heap pops the smallest


def build_tree(
    root_ids: Tensor,
    candidate_ids: Tensor,
    candidate_scores: Tensor,
    num_nodes: int,
    num_outcomes: int,
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
    outcome_index: Tensor | None,
    root_positions: Tensor | None,
    links: TreeLinks | None,
) -> None:
    candidate_ids, candidate_scores = _drafts_of(outcome_index, candidate_ids, candidate_scores)
    for out, padding in ((token_ids, -1), (parents, -1), (depths, 0), (node_counts, 0), (mask_bits, 0)):
        out.fill_(padding)
    for out, padding in ((outcome_parents, -1), (outcome_ids, -1), (outcome_scores, -math.inf)):
        out.fill_(padding)

    stops = None if stop_ids is None else stop_ids.tolist()
    for b, root in enumerate(root_ids.tolist()):
        if root < 0:
            continue
        row_stops = frozenset() if stops is None else frozenset(stops[b] if stop_ids.ndim == 2 else stops)
        search = _Search(candidate_ids[b].tolist(), candidate_scores[b].tolist(), row_stops)
        search.grow(root, num_nodes, max_depth)
        count = len(search.token_ids)
        node_counts[b] = count
        token_ids[b, :count] = torch.tensor(search.token_ids)
        parents[b, :count] = torch.tensor(search.parents, dtype=torch.int32)
        depths[b, :count] = torch.tensor(search.depths, dtype=torch.int32)
        mask_bits[b, :count] = _mask_words(search.parents, mask_bits.shape[2])
        for e, (value, parent, token) in enumerate(search.outcomes(num_outcomes)):
            outcome_parents[b, e], outcome_ids[b, e], outcome_scores[b, e] = parent, token, value
    if links is not None:
        _link(parents, depths, node_counts, root_positions, links)


def _drafts_of(outcome_index: Tensor | None, ids: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The candidates [B,L,K] of each request: of the outcome that came true, none on a miss."""
    if outcome_index is None:
        return ids, scores
    batch = outcome_index.shape[0]
    branches = ids.shape[0] // batch
    hit = ((outcome_index >= 0) & (outcome_index < branches)).nonzero().squeeze(1)
    row = hit * branches + outcome_index[hit]
    drafts = ids.new_full((batch, *ids.shape[1:]), -1), scores.new_full((batch, *scores.shape[1:]), -math.inf)
    for draft, branch in zip(drafts, (ids, scores), strict=True):
        draft[hit] = branch[row]
    return drafts


def _link(
    parents: Tensor, depths: Tensor, node_counts: Tensor, root_positions: Tensor | None, links: TreeLinks
) -> None:
    """Position of each node, its lowest child and its next sibling."""
    nodes = parents.shape[1]
    node = torch.arange(nodes, device=parents.device)
    exists = node < node_counts[:, None]
    root = 0 if root_positions is None else root_positions[:, None]
    links.positions.copy_((depths + root).where(exists, -1))

    child = (parents[:, None, :] == node[:, None]) & exists[:, None, :]  # [b, i, j]: j is a child of i
    sibling = (parents[:, None, :] == parents[:, :, None]) & (node > node[:, None]) & exists[:, None, :] & (node > 0)
    for out, found in ((links.first_child, child), (links.next_sibling, sibling)):
        out.copy_(torch.where(found.any(2) & exists, found.int().argmax(2), -1))


class _Search:
    """Best-first enumeration for one request."""

    def __init__(self, ids: list[list[int]], scores: list[list[float]], stops: frozenset[int]) -> None:
        self.ids, self.scores, self.stops = ids, scores, stops
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.values: list[float] = []
        self.open: list[Entry] = []  # heap of entries that may become nodes
        self.too_deep: list[Entry] = []  # entries below max_depth: outcomes only

    def grow(self, root: int, num_nodes: int, max_depth: int) -> None:
        self._add_node(root, -1, 0, 0.0, max_depth)
        while self.open and len(self.token_ids) < num_nodes:
            negative, parent, rank = heappop(self.open)
            self._push(self.open, parent, rank + 1)
            depth = self.depths[parent] + 1
            self._add_node(self.ids[depth - 1][rank], parent, depth, -negative, max_depth)

    def outcomes(self, count: int):
        """Yields (value, parent, token), likeliest first."""
        entries = self.open + self.too_deep
        heapify(entries)
        while entries and count > 0:
            negative, parent, rank = heappop(entries)
            self._push(entries, parent, rank + 1)
            token = self.ids[self.depths[parent]][rank]
            if token not in self.stops:  # a stop id as bonus token ends the request: nothing to draft ahead
                yield -negative, parent, token
                count -= 1

    def _add_node(self, token: int, parent: int, depth: int, value: float, max_depth: int) -> None:
        self.token_ids.append(token)
        self.parents.append(parent)
        self.depths.append(depth)
        self.values.append(value)
        if parent < 0 or token not in self.stops:
            self._push(self.open if depth < max_depth else self.too_deep, len(self.token_ids) - 1, 0)

    def _push(self, heap: list[Entry], parent: int, rank: int) -> None:
        position = self.depths[parent]  # candidates of depth d are row d - 1
        if position >= len(self.ids) or rank >= len(self.ids[position]):
            return
        score = self.scores[position][rank]
        if self.ids[position][rank] >= 0 and math.isfinite(score):  # anything else ends its list
            heappush(heap, (-c_float(self.values[parent] + score).value, parent, rank))


def _mask_words(parents: list[int], words: int) -> Tensor:
    """[count, words] i32: bit j of a node's mask is set for itself and its ancestors (unsigned pattern)."""
    masks: list[int] = []
    for node, parent in enumerate(parents):
        masks.append((masks[parent] if parent >= 0 else 0) | 1 << node)
    rows = [[mask >> 32 * word & 0xFFFFFFFF for word in range(words)] for mask in masks]
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32)  # keeps the low 32 bits
