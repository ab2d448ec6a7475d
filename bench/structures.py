"""Drafts, trees and outcomes of the size that structural ops are measured at, and the published tree builder."""

from __future__ import annotations

import heapq

import torch

import d3d_kernels as dk

NODES, LENGTH, K, OUTCOMES, BLOCK = 64, 15, 16, 16, 16


def candidates(batch: int, length: int = LENGTH, k: int = K) -> dk.Candidates:
    """Peaked like a trained drafter's: the best of many."""
    best = (3 * torch.randn(batch, length, 64)).log_softmax(-1).sort(-1, descending=True)
    scores = best.values[..., :k].contiguous()
    return dk.Candidates(best.indices[..., :k].contiguous(), scores, scores)


def trees(batch: int) -> tuple[dk.DraftTree, dk.Outcomes]:
    return dk.build_tree(torch.zeros(batch, dtype=torch.int64), candidates(batch), NODES, OUTCOMES)


def heap_tree(scores: list[list[float]], nodes: int) -> list[tuple[int, int, int]]:
    """The best-first enumeration with a Python heap, as DDTree publishes it: (parent, depth, rank) of each node."""
    heap, tree = [(-scores[0][0], 0, 0, 0)], [(-1, 0, 0)]
    while heap and len(tree) < nodes:
        value, parent, depth, rank = heapq.heappop(heap)
        tree.append((parent, depth, rank))
        if rank + 1 < len(scores[0]):
            heapq.heappush(heap, (value + scores[depth][rank] - scores[depth][rank + 1], parent, depth, rank + 1))
        if depth + 1 < len(scores):
            heapq.heappush(heap, (value - scores[depth + 1][0], len(tree) - 1, depth + 1, 0))
    return tree
