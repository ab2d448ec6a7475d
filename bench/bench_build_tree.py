"""`build_tree` and `select_outcome`: structure only, nothing of vocabulary size."""

from __future__ import annotations

import heapq

import pytest
import torch

import d3d_kernels as dk
from bench.harness import compare

LENGTH, K, OUTCOMES = 16, 8, 8


def candidates(batch: int) -> dk.Candidates:
    scores = torch.randn(batch, LENGTH, K).sort(-1, descending=True).values.log_softmax(-1)
    return dk.Candidates(torch.randint(1000, (batch, LENGTH, K)), scores, scores)


def heap_tree(scores: list[list[float]], nodes: int) -> list[tuple[int, int, int]]:
    """The best-first enumeration with a Python heap, as DDTree publishes it."""
    heap, tree = [(-scores[0][0], 0, 0, 0)], [(-1, 0, 0)]
    while heap and len(tree) < nodes:
        value, parent, depth, rank = heapq.heappop(heap)
        tree.append((parent, depth, rank))
        if rank + 1 < K:
            heapq.heappush(heap, (value + scores[depth][rank] - scores[depth][rank + 1], parent, depth, rank + 1))
        if depth + 1 < LENGTH:
            heapq.heappush(heap, (value - scores[depth + 1][0], len(tree) - 1, depth + 1, 0))
    return tree


@pytest.mark.parametrize("batch, nodes", [(1, 16), (1, 64), (8, 64)])
def bench_build_tree(benchmark, batch, nodes):
    drafts, roots = candidates(batch), torch.zeros(batch, dtype=torch.int64)
    compare(
        benchmark,
        lambda: dk.build_tree(roots, drafts, num_nodes=nodes, num_outcomes=OUTCOMES),
        lambda: [heap_tree(scores, nodes) for scores in drafts.scores.tolist()],
        peer_name="Python heap, tree only",
        moved=drafts.scores.nbytes + drafts.token_ids.nbytes,
    )


@pytest.mark.parametrize("batch", [1, 8])
def bench_select_outcome(benchmark, batch):
    _, outcomes = dk.build_tree(
        torch.zeros(batch, dtype=torch.int64), candidates(batch), num_nodes=16, num_outcomes=OUTCOMES
    )
    verdict = dk.Verdict(
        torch.full((batch, 16), -1, dtype=torch.int32),
        torch.zeros(batch, dtype=torch.int32),
        outcomes.token_ids[:, 2].clone(),
        torch.zeros(batch, dtype=torch.int32),
    )

    def peer():
        last = torch.where(
            verdict.num_accepted > 0,
            verdict.accepted_nodes.gather(1, (verdict.num_accepted[:, None].long() - 1).clamp(min=0))[:, 0],
            0,
        )
        match = (outcomes.parent_node == last[:, None]) & (outcomes.token_ids == verdict.bonus_ids[:, None])
        return torch.where(match.any(1), match.int().argmax(1), -1)

    compare(
        benchmark,
        lambda: dk.select_outcome(verdict, outcomes),
        peer,
        peer_name="torch",
        moved=sum(t.nbytes for t in outcomes.tensors()),
    )
