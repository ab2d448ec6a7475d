"""build_tree against the enumeration of all prefixes: exactly the N best, and exactly the next E."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import d3d_kernels as dk

from . import cases, oracle
from .harness import Target, call


def prefixes_of(tree: dk.DraftTree, ids: list[list[int]]) -> list[tuple[int, ...]]:
    """Each node as the ranks of the candidates on its path; candidates of a position are distinct."""
    found: list[tuple[int, ...]] = []
    for i in range(int(tree.num_nodes[0])):
        parent, token = int(tree.parents[0, i]), int(tree.token_ids[0, i])
        if parent < 0:
            assert i == 0
            found.append(())
        else:
            ranks = found[parent]
            found.append((*ranks, ids[len(ranks)].index(token)))
        assert int(tree.depths[0, i]) == len(found[i])
    return found


def problem(length: int, k: int, ties: bool, *seed: object):
    """Distinct candidates and sorted, never positive scores for each position."""
    g = cases.generator("build", length, k, ties, *seed)
    ids = [torch.randperm(20, generator=g)[:k].tolist() for _ in range(length)]
    scores = -torch.rand(length, k, generator=g) * 5
    if ties:
        scores = scores.round()
    return ids, scores.sort(dim=1, descending=True).values.tolist()


@pytest.mark.parametrize("length,k", [(1, 4), (2, 3), (3, 3), (4, 2), (4, 4)])
@pytest.mark.parametrize("nodes,outcomes", [(1, 3), (2, 0), (6, 6), (13, 4), (40, 10), (400, 500)])
@pytest.mark.parametrize("stops", [frozenset(), frozenset(range(0, 20, 3))], ids=["no-stops", "stops"])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_the_n_best_prefixes_and_the_next_e(on: Target, length, k, nodes, outcomes, stops, ties) -> None:
    ids, scores = problem(length, k, ties, nodes, outcomes)
    for max_depth in (None, 0, 1, length):
        limit = max_depth if max_depth is not None else length - 1 if outcomes else length
        candidates = dk.Candidates(torch.tensor([ids]), torch.zeros(1, length, k), torch.tensor([scores]))
        stop_ids = torch.tensor(sorted(stops)) if stops else None
        arguments = (torch.tensor([9]), candidates, nodes, outcomes, max_depth, stop_ids)
        tree, drafted = call(on, "build_tree", *arguments)

        values = oracle.all_prefixes(ids, scores, stops)
        eligible = [ranks for ranks in values if len(ranks) <= limit]
        chosen = prefixes_of(tree, ids)
        assert len(set(chosen)) == len(chosen) == min(nodes, len(eligible))
        best = sorted((values[ranks] for ranks in eligible), reverse=True)[: len(chosen)]
        assert [values[ranks] for ranks in chosen] == best, "nodes come in the order of their value"
        if not ties:
            assert chosen == sorted(eligible, key=lambda ranks: -values[ranks])[: len(chosen)]

        members = set(chosen)
        next_up = [
            (values[ranks], ranks)
            for ranks in values
            if ranks and ranks not in members and ranks[:-1] in members and ids[len(ranks) - 1][ranks[-1]] not in stops
        ]
        next_up.sort(key=lambda entry: -entry[0])
        count = min(outcomes, len(next_up))
        assert drafted.scores[0, :count].tolist() == [value for value, _ in next_up[:count]]
        got = [(int(drafted.parent_node[0, e]), int(drafted.token_ids[0, e])) for e in range(count)]
        as_ranks = [(*chosen[node], ids[len(chosen[node])].index(token)) for node, token in got]
        assert len(set(as_ranks)) == count
        assert all(values[r] == score for r, score in zip(as_ranks, drafted.scores[0].tolist(), strict=False))
        assert set(as_ranks) <= {r for _, r in next_up}
        if not ties:
            assert as_ranks == [r for _, r in next_up[:count]]
        assert (drafted.parent_node[0, count:] == -1).all() and (drafted.token_ids[0, count:] == -1).all()
        assert (drafted.scores[0, count:] == -torch.inf).all()


def test_ties_go_to_the_smaller_parent_then_the_better_rank(on: Target) -> None:
    """All scores equal: breadth first by discovery, each list in the order of its ranks."""
    ids = torch.tensor([[[1, 2], [3, 4], [5, 6]]])
    candidates = dk.Candidates(ids, torch.zeros(1, 3, 2), torch.zeros(1, 3, 2))
    tree, outcomes = call(on, "build_tree", torch.tensor([0]), candidates, 7, 4, 2)
    assert tree.parents[0].tolist() == [-1, 0, 0, 1, 1, 2, 2]
    assert tree.token_ids[0].tolist() == [0, 1, 2, 3, 4, 3, 4]
    assert outcomes.parent_node[0].tolist() == [3, 3, 4, 4]
    assert outcomes.token_ids[0].tolist() == [5, 6, 5, 6]


def test_a_stop_id_is_a_node_but_grows_nothing_and_is_no_outcome(on: Target) -> None:
    ids = torch.tensor([[[7, 1], [2, 7]]])
    scores = torch.tensor([[[-0.1, -1.0], [-0.1, -0.2]]])
    candidates = dk.Candidates(ids, scores, scores)
    for stop_ids in (torch.tensor([7]), torch.tensor([[7, -1]])):
        tree, outcomes = call(on, "build_tree", torch.tensor([7]), candidates, 4, 3, 1, stop_ids)
        assert tree.token_ids[0].tolist() == [7, 7, 1, -1], "the root may be a stop id; node 1 has no children"
        assert outcomes.token_ids[0].tolist() == [2, -1, -1]
        assert outcomes.parent_node[0].tolist() == [2, -1, -1]


@given(st.data())
def test_mask_bits_are_the_node_and_its_ancestors(on: Target, data: st.DataObject) -> None:
    length, k = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    nodes = data.draw(st.integers(1, 90))
    ids, scores = problem(length, k, False, data.draw(st.integers(0, 1000)))
    candidates = dk.Candidates(torch.tensor([ids]), torch.zeros(1, length, k), torch.tensor([scores]))
    tree, _ = call(on, "build_tree", torch.tensor([1]), candidates, nodes)
    count = int(tree.num_nodes[0])
    for i in range(nodes):
        ancestors, node = set(), i if i < count else -1
        while node >= 0:
            ancestors.add(node)
            node = int(tree.parents[0, node])
        words = tree.mask_bits[0, i].tolist()
        assert {j for j in range(32 * len(words)) if words[j // 32] >> j % 32 & 1} == ancestors


def test_failure_22_mask_words_are_cleared_on_reuse(on: Target) -> None:
    """Packed mask rows kept the bits of the previous, larger tree; here nothing of it is left."""
    ids, scores = problem(4, 4, False)
    root, scores = torch.tensor([1]).to(on.device), torch.tensor([scores])
    large = dk.Candidates(torch.tensor([ids]), scores, scores).to(on.device)
    small = dk.Candidates(torch.full((1, 4, 4), -1), scores, scores).to(on.device)
    reused = dk.build_tree(root, large, 40, 5, backend=on.backend)
    assert reused[0].mask_bits[0, 39].any(), "the larger tree must fill the rows"
    dk.build_tree(root, small, 40, 5, out=reused, backend=on.backend)
    tree, outcomes = reused
    assert int(tree.num_nodes[0]) == 1
    assert tree.mask_bits[0, 0].tolist() == [1, 0] and not tree.mask_bits[0, 1:].any()
    assert (tree.token_ids[0, 1:] == -1).all() and (outcomes.token_ids == -1).all()
