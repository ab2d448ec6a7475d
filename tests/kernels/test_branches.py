"""From a verdict to the next tree: the match inside verify_tree, and the branch that came true, read in place."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk

from . import cases
from .harness import Target, assert_same, call, place
from .test_build_tree import problem

BATCH, NODES, OUTCOMES, LENGTH, K = 20, 6, 5, 3, 4


def branches(g: torch.Generator, strided: bool = False) -> dk.Candidates:
    """What was drafted behind each of the outcomes, [B * E, L, K]; some lists end early."""
    shape = (BATCH * OUTCOMES, LENGTH + strided, K + 2 * strided)
    ids = torch.randint(0, 30, shape, generator=g)
    ids[torch.rand(shape, generator=g) < 0.1] = -1
    scores = -torch.rand(shape, generator=g).mul(4).round(decimals=1)
    record = dk.Candidates(ids, scores.clone(), scores.sort(dim=2, descending=True).values)
    return dk.Candidates(*(t[:, :LENGTH, :K] for t in record.tensors()))


def indices(g: torch.Generator) -> torch.Tensor:
    """Hits, and misses of all kinds: what is no branch must not be read."""
    index = torch.randint(-1, OUTCOMES, (BATCH,), generator=g).int()
    index[:5] = torch.tensor([-1, OUTCOMES, 2**31 - 1, -(2**31), 0])
    return index


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("nodes,outcomes", [(1, 0), (9, 4), (40, 0)])
def test_a_tree_from_the_branch_that_came_true(on: Target, strided, nodes, outcomes) -> None:
    g = cases.generator("branch", strided, nodes)
    candidates, index = branches(g, strided), indices(g)
    roots = torch.randint(-1, 30, (BATCH,), generator=g)
    stops, positions = torch.randint(-1, 30, (BATCH, 2), generator=g), cases.positions(BATCH, g)
    links = dk.TreeLinks.empty(BATCH, nodes)
    options = {"stop_ids": stops, "outcome_index": index, "root_positions": positions}
    got = call(on, "build_tree", roots, candidates, nodes, outcomes, written={"links": links}, **options)

    hit = (index >= 0) & (index < OUTCOMES)
    row = torch.arange(BATCH) * OUTCOMES + index.clamp(0, OUTCOMES - 1)
    gathered = dk.Candidates(*(t[row].clone() for t in candidates.tensors()))
    gathered.token_ids[~hit] = -1
    plain = dk.TreeLinks.empty(BATCH, nodes)
    options = {"stop_ids": stops, "root_positions": positions, "written": {"links": plain}}
    assert_same(got, call(on, "build_tree", roots, gathered, nodes, outcomes, **options))
    assert_same(links, plain)
    tree, expected = got
    assert tree.num_nodes[~hit].tolist() == (roots[~hit] >= 0).int().tolist(), "a miss verifies its root alone"
    assert (tree.mask_bits[~hit][:, 0, 0] == (roots[~hit] >= 0)).all() and not tree.mask_bits[~hit][:, 1:].any()
    assert (expected.parent_node[~hit] == -1).all()


def test_one_missed_row_among_hits_of_every_branch(on: Target) -> None:
    """Branch e of request b is row b * E + e: each branch says its own name."""
    ids = torch.arange(4 * 3).view(12, 1, 1) + 100
    scores = torch.full((12, 1, 1), -0.5)
    candidates = dk.Candidates(ids, scores, scores)
    index = torch.tensor([2, -1, 0, 1], dtype=torch.int32)
    tree, _ = call(on, "build_tree", torch.arange(4), candidates, 2, 0, outcome_index=index)
    assert tree.token_ids.tolist() == [[0, 102], [1, -1], [2, 106], [3, 110]]
    nobody = torch.zeros(0, dtype=torch.int32)
    none = dk.Candidates.empty(0, 2, 2)
    assert call(on, "build_tree", nobody.long(), none, 3, 1, outcome_index=nobody)[0].token_ids.shape == (0, 3)
    without = call(on, "build_tree", torch.arange(4), none, 2, 1, outcome_index=index)  # E' = 0: all miss
    assert without[0].num_nodes.tolist() == [1] * 4


@pytest.mark.parametrize("nodes", [1, 33, 90])
def test_links_are_the_tree(on: Target, nodes) -> None:
    ids, scores = problem(4, 5, True, nodes)
    roots, scores = torch.tensor([3, -1, 7]), torch.tensor([scores] * 3)
    candidates = dk.Candidates(torch.tensor([ids] * 3), scores, scores)
    candidates.token_ids[2, 1] = -1
    positions, links = torch.tensor([10, 20, 2**40]), dk.TreeLinks.empty(3, nodes)
    for given in (positions, None):
        tree, _ = call(on, "build_tree", roots, candidates, nodes, 2, root_positions=given, written={"links": links})
        for b in range(3):
            parents, count = tree.parents[b].tolist(), int(tree.num_nodes[b])
            children = [[j for j in range(count) if parents[j] == i] for i in range(nodes)]
            root = 0 if given is None else int(given[b])
            for i in range(nodes):
                exists = i < count
                siblings = children[parents[i]] if exists and i else []
                later = [j for j in siblings if j > i]
                assert links.positions[b, i] == (root + int(tree.depths[b, i]) if exists else -1)
                assert links.first_child[b, i] == (children[i][0] if exists and children[i] else -1)
                assert links.next_sibling[b, i] == (later[0] if later else -1)


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
def test_select_outcome_gathers_the_next_draft(on: Target, strided) -> None:
    g = cases.generator("gather", strided)
    candidates = branches(g, strided)
    accepted = torch.full((BATCH, NODES), -1, dtype=torch.int32)
    bonus = torch.randint(-1, 3, (BATCH,), generator=g)
    none = torch.zeros(BATCH, dtype=torch.int32)
    verdict = dk.Verdict(accepted, none, bonus, none)
    tokens = torch.randint(-1, 3, (BATCH, OUTCOMES), generator=g)
    outcomes = dk.Outcomes(torch.zeros(BATCH, OUTCOMES, dtype=torch.int32), tokens, torch.zeros(BATCH, OUTCOMES))
    index, drafts = call(on, "select_outcome", verdict, outcomes, candidates)
    assert_same(index, call(on, "select_outcome", verdict, outcomes))
    assert (index >= 0).any() and (index < 0).any()
    for b, e in enumerate(index.tolist()):
        for got, branch, padding in zip(drafts.tensors(), candidates.tensors(), (-1, -torch.inf, -torch.inf)):
            assert_same(got[b], branch[b * OUTCOMES + e] if e >= 0 else torch.full_like(got[b], padding))


def verification(*seed: object):
    """A batch with empty lanes and broken trees, and outcomes of which some come true."""
    g = cases.generator("verification", *seed)
    vocab = 4
    logits = cases.logits(BATCH, NODES, vocab, g=g)
    tree = cases.random_trees(BATCH, NODES, vocab, g)
    tree.parents[3, 2] = 2
    tree.token_ids[6, 1] = 2**40
    parent = torch.randint(-1, NODES, (BATCH, 8), generator=g).int()
    tokens = torch.randint(-1, vocab, (BATCH, 8), generator=g)
    outcomes = dk.Outcomes(parent, tokens, torch.zeros(BATCH, 8))
    return (logits, tree, cases.sampling(BATCH, g), cases.positions(BATCH, g)), outcomes, vocab, g


@pytest.mark.parametrize("seed", range(6))
def test_the_match_inside_the_verdict_is_select_outcome(on: Target, seed) -> None:
    arguments, outcomes, vocab, g = verification(seed)
    penalties = cases.penalties(BATCH, vocab, g) if seed % 2 else None
    plain = call(on, "verify_tree", *arguments, penalties)
    assert (plain.outcome_index == -1).all()
    verdict = call(on, "verify_tree", *arguments, penalties, outcomes=outcomes)
    assert_same(verdict.tensors()[:4], plain.tensors()[:4])
    assert_same(verdict.outcome_index, call(on, "select_outcome", plain, outcomes))
    assert (verdict.outcome_index >= 0).any() and (verdict.outcome_index < 0).any()
    assert verdict.outcome_index[4] == -1, "an empty lane misses, though padded outcomes are (-1, -1) too"
    strided = dk.Outcomes(*(t.repeat_interleave(2, 0)[::2] for t in outcomes.tensors()))
    assert_same(call(on, "verify_tree", *arguments, penalties, outcomes=strided), verdict)


def test_packed_rows_and_rows_outside_the_logits_match_alike(on: Target) -> None:
    logits = torch.zeros(4, 6)
    logits[:, 3] = 60.0
    tree = cases.tree_of([[-1, 0, 1]] * 4, [[3, 3, 3]] * 4)
    starts = torch.tensor([1, 2, 4, -1], dtype=torch.int32)
    parent = torch.tensor([[2, 1, 0]] * 4, dtype=torch.int32)
    outcomes = dk.Outcomes(parent, torch.full((4, 3), 3), torch.zeros(4, 3))
    arguments = logits, tree, dk.SamplingTensors.greedy(4), torch.arange(4)
    verdict = call(on, "verify_tree", *arguments, row_starts=starts, outcomes=outcomes)
    assert verdict.outcome_index.tolist() == [0, 1, -1, -1]
    assert_same(verdict.outcome_index, call(on, "select_outcome", verdict, outcomes))


def test_a_verdict_without_an_index(on: Target) -> None:
    """Hand-made verdicts have none; as out= it serves as long as no outcomes are asked about."""
    arguments, outcomes, _, _ = verification("bare")
    bare = dk.Verdict(*dk.Verdict.empty(BATCH, NODES).tensors()[:4])
    bare, arguments, outcomes = place((bare, arguments, outcomes), on.device)
    returned = dk.verify_tree(*arguments, out=bare, backend=on.backend)
    assert returned is bare and bare.outcome_index is None
    assert_same(bare.tensors()[:4], dk.verify_tree(*arguments, backend=on.backend).tensors()[:4])
    with pytest.raises(ValueError, match="outcome_index: expected a tensor, since outcomes are given"):
        dk.verify_tree(*arguments, outcomes=outcomes, out=bare, backend=on.backend)


def test_a_hit_is_two_calls_from_verdict_to_tree(on: Target) -> None:
    """Verdict with the outcome, next tree from the branch: the tree of a draft made after the verdict."""
    g = cases.generator("hit")
    vocab, batch = 7, 8
    sampling = dk.SamplingTensors.full(batch, temperature=1.0, seed=3)
    positions, roots = torch.arange(batch) * 10, torch.randint(0, vocab, (batch,), generator=g)
    draft = 2 * torch.randn(batch, LENGTH, vocab, generator=g)
    tree, outcomes = call(on, "draft_tree", draft, roots, sampling, positions, NODES, OUTCOMES, K)
    table = 2 * torch.randn(vocab, LENGTH, vocab, generator=g)  # what is drafted behind a token
    at = torch.arange(batch).repeat_interleave(OUTCOMES)
    bonus_at = tree.depths.gather(1, outcomes.parent_node.clamp(min=0).long()) + 1 + positions[:, None]
    ahead = table[outcomes.token_ids.clamp(min=0).flatten()]
    candidates = call(on, "draft_candidates", ahead, K, sampling, bonus_at.flatten() + 1, at.int())

    logits = draft.mean(1, keepdim=True).expand(-1, NODES, -1) + torch.randn(batch, NODES, vocab, generator=g)
    verdict = call(on, "verify_tree", logits, tree, sampling, positions, outcomes=outcomes)
    index = verdict.outcome_index
    assert (index >= 0).any() and (index < 0).any()
    following, _ = call(on, "build_tree", verdict.bonus_ids, candidates, NODES, OUTCOMES, outcome_index=index)
    root = positions + verdict.num_accepted + 1
    late, _ = call(on, "draft_tree", table[verdict.bonus_ids], verdict.bonus_ids, sampling, root, NODES, OUTCOMES, K)
    hit = index >= 0
    assert_same(following.select(hit), late.select(hit))
    assert (following.num_nodes[~hit] == 1).all()
