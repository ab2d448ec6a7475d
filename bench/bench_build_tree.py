"""`build_tree` and `select_outcome`: structure only, nothing of vocabulary size. Warm, through torch and the C ABI."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk
from bench.harness import CALLS, c_abi, compare
from bench.structures import LENGTH, NODES, OUTCOMES, K, candidates, heap_tree, trees

through = pytest.mark.parametrize("wrap", [lambda run: run, c_abi], ids=["torch", "C ABI"])


@through
@pytest.mark.parametrize("batch, nodes", [(1, 16), (1, NODES), (8, NODES)])
def bench_build_tree(benchmark, batch, nodes, wrap):
    drafts, roots = candidates(batch), torch.zeros(batch, dtype=torch.int64)
    out = dk.DraftTree.empty(batch, nodes), dk.Outcomes.empty(batch, OUTCOMES)
    compare(
        benchmark,
        wrap(lambda: dk.build_tree(roots, drafts, nodes, OUTCOMES, out=out)),
        lambda: [heap_tree(scores, nodes) for scores in drafts.scores.tolist()],
        peer_name="Python heap, bare tree",
        moved=drafts.scores.nbytes + drafts.token_ids.nbytes,
        calls=CALLS,
    )


@through
@pytest.mark.parametrize("batch", [1, 8])
def bench_build_tree_of_a_branch(benchmark, batch, wrap):
    """From the hit branch of an earlier draft, against gathering it first."""
    drafts, roots = candidates(batch * OUTCOMES), torch.zeros(batch, dtype=torch.int64)
    index = torch.arange(batch, dtype=torch.int32) % OUTCOMES
    out = dk.DraftTree.empty(batch, NODES), dk.Outcomes.empty(batch, OUTCOMES)

    def peer():
        row = torch.arange(batch) * OUTCOMES + index
        chosen = dk.Candidates(*(t.index_select(0, row) for t in drafts.tensors()))
        return dk.build_tree(roots, chosen, NODES, OUTCOMES, out=out)

    compare(
        benchmark,
        wrap(lambda: dk.build_tree(roots, drafts, NODES, OUTCOMES, outcome_index=index, out=out)),
        peer,
        peer_name="index_select, then build_tree",
        moved=batch * LENGTH * K * 12,
        calls=CALLS,
    )


def accepted_roots(batch: int, outcomes: dk.Outcomes) -> dk.Verdict:
    """Nothing accepted, and the bonus token of the third outcome."""
    nothing = torch.zeros(batch, dtype=torch.int32)
    return dk.Verdict(
        torch.full((batch, NODES), -1, dtype=torch.int32), nothing, outcomes.token_ids[:, 2].clone(), nothing
    )


@through
@pytest.mark.parametrize("gather", [False, True], ids=["index", "draft"])
@pytest.mark.parametrize("batch", [1, 8])
def bench_select_outcome(benchmark, batch, gather, wrap):
    _, outcomes = trees(batch)
    verdict = accepted_roots(batch, outcomes)
    branches = candidates(batch * OUTCOMES) if gather else None
    index = torch.empty(batch, dtype=torch.int32)
    out = (index, dk.Candidates.empty(batch, LENGTH, K)) if gather else index

    def peer():
        last = torch.where(
            verdict.num_accepted > 0,
            verdict.accepted_nodes.gather(1, (verdict.num_accepted[:, None].long() - 1).clamp(min=0))[:, 0],
            0,
        )
        match = (outcomes.parent_node == last[:, None]) & (outcomes.token_ids == verdict.bonus_ids[:, None])
        found = torch.where(match.any(1), match.int().argmax(1), -1)
        if branches is None:
            return found
        row = torch.arange(batch) * OUTCOMES + found.clamp(min=0)
        return [torch.where(found[:, None, None] >= 0, t.index_select(0, row), -1) for t in branches.tensors()]

    compare(
        benchmark,
        wrap(lambda: dk.select_outcome(verdict, outcomes, branches, out=out)),
        peer,
        peer_name="torch",
        moved=sum(t.nbytes for t in outcomes.tensors()) + gather * batch * LENGTH * K * 32,
        calls=CALLS,
    )
