"""draft_tree: one call, bit for bit what draft_candidates and build_tree give one after the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import d3d_kernels as dk

from . import cases, oracle
from .harness import Target, assert_same, call, place
from .test_build_tree import prefixes_of


def in_two_calls(on: Target, logits, roots, sampling, positions, nodes, outcomes, k, penalties=None, **options):
    limits = {key: options.pop(key) for key in ("max_depth", "stop_ids") if key in options}
    candidates = call(on, "draft_candidates", logits, k, sampling, positions + 1, None, penalties, **options)
    links = dk.TreeLinks.empty(len(roots), nodes)
    written = {"links": links}
    tree = call(
        on, "build_tree", roots, candidates, nodes, outcomes, root_positions=positions, written=written, **limits
    )
    return tree, candidates, links


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
@pytest.mark.parametrize("stride", cases.STRIDES)
@pytest.mark.parametrize(
    "batch,length,k,nodes,outcomes", [(13, 4, 5, 12, 4), (3, 1, 1, 1, 0), (2, 0, 3, 4, 2), (5, 9, 32, 70, 33)]
)
def test_it_is_candidates_then_tree(on: Target, dtype, stride, batch, length, k, nodes, outcomes) -> None:
    g = cases.generator("draft tree", dtype, stride, batch)
    vocab = 50
    logits = cases.logits(batch, length, vocab, g=g, dtype=dtype, stride=stride)
    roots = torch.randint(-1, vocab, (batch,), generator=g)
    arguments = logits, roots, cases.sampling(batch, g), cases.positions(batch, g), nodes, outcomes, k
    options = {"penalties": cases.penalties(batch, vocab, g), "beta": 0.7, "mask_token_id": 3}
    options["stop_ids"] = torch.randint(-1, vocab, (batch, 2), generator=g)
    expected, candidates, links = in_two_calls(on, *arguments, **options)
    drafted = dk.Candidates.empty(batch, length, k), dk.TreeLinks.empty(batch, nodes)
    written = dict(zip(("candidates", "links"), drafted, strict=True))
    assert_same(call(on, "draft_tree", *arguments, written=written, **options), expected)
    assert_same(drafted, (candidates, links))
    assert_same(call(on, "draft_tree", *arguments, **options), expected)  # candidates and links unwanted
    shallow, _, _ = in_two_calls(on, *arguments, **options, max_depth=1)
    assert_same(call(on, "draft_tree", *arguments, **options, max_depth=1), shallow)


def test_the_largest_sizes(on: Target) -> None:
    """N = 256, K = 32, L = 64."""
    g = cases.generator("largest")
    logits = 3 * torch.randn(2, 64, 90, generator=g)
    sampling = cases.sampling(2, g)
    arguments = logits, torch.tensor([1, 2]), sampling, torch.tensor([7, 2**33]), 256, 64, 32
    (tree, outcomes), _, links = in_two_calls(on, *arguments)
    assert_same(call(on, "draft_tree", *arguments, written={"links": links}), (tree, outcomes))
    assert tree.num_nodes.tolist() == [256, 256] and (outcomes.parent_node >= 0).all()


@given(st.data())
def test_exactly_the_n_best_prefixes_of_the_logits(on: Target, data: st.DataObject) -> None:
    """Against the enumeration of all prefixes, from the scores that the call itself reports."""
    length, k, vocab = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    nodes, outcomes = data.draw(st.integers(1, 30)), data.draw(st.integers(0, 12))
    g = cases.generator("enumeration", data.draw(st.integers(0, 10**6)))
    temperature = data.draw(st.sampled_from([0.0, 0.7, 1.0]))
    sampling = dk.SamplingTensors.full(1, temperature=temperature, seed=data.draw(st.integers(-9, 9)))
    candidates = dk.Candidates.empty(1, length, k)
    logits = torch.randn(1, length, vocab, generator=g) * 2
    arguments = logits, torch.tensor([0]), sampling, torch.tensor([5]), nodes, outcomes, k
    tree, expected = call(on, "draft_tree", *arguments, written={"candidates": candidates})

    ids, scores = candidates.token_ids[0].tolist(), candidates.scores[0].tolist()
    values = oracle.all_prefixes(ids, scores, frozenset())
    limit = length - 1 if outcomes else length
    eligible = [ranks for ranks in values if len(ranks) <= limit]
    chosen = prefixes_of(tree, ids)
    assert len(set(chosen)) == len(chosen) == min(nodes, len(eligible))
    best = sorted((values[ranks] for ranks in eligible), reverse=True)[: len(chosen)]
    assert [values[ranks] for ranks in chosen] == best
    members = set(chosen)
    behind = sorted((v for r, v in values.items() if r and r not in members and r[:-1] in members), reverse=True)
    count = min(outcomes, len(behind))
    assert expected.scores[0, :count].tolist() == behind[:count]
    assert (expected.parent_node[0, count:] == -1).all()


def test_threads_that_finish_in_any_order_and_callers_at_once(on: Target) -> None:
    """The last position of a request to be done grows its tree, whoever has it; counters start anew each call."""
    g = cases.generator("arrivals")
    batch, length, vocab = 9, 7, 3000
    logits = cases.logits(batch, length, vocab, g=g)
    roots, sampling, positions = torch.arange(batch), cases.sampling(batch, g), cases.positions(batch, g)
    arguments = place((logits, roots, sampling, positions, 20, 6, 4), on.device)
    expected = dk.draft_tree(*arguments, backend=on.backend)

    def run(_: int):
        torch.set_num_threads(3)
        return dk.draft_tree(*arguments, backend=on.backend)

    with ThreadPoolExecutor(2) as pool:
        for got in pool.map(run, range(20 if on.backend != "reference" else 2)):
            assert_same(got, expected)
    order = torch.randperm(batch, generator=g)
    shuffled = (logits[order], roots[order], sampling.select(order), positions[order], 20, 6, 4)
    alone = dk.draft_tree(*place(shuffled, on.device), backend=on.backend)
    assert_same(alone, tuple(record.select(order.to(on.device)) for record in expected))


def test_empty_batches_lanes_and_drafts(on: Target) -> None:
    none = dk.SamplingTensors.full(0), torch.zeros(0, dtype=torch.int64)
    tree, outcomes = call(on, "draft_tree", torch.zeros(0, 3, 9), none[1], *none, 4, 2)
    assert tree.token_ids.shape == (0, 4) and outcomes.token_ids.shape == (0, 2)
    lanes = torch.tensor([-1, 4])
    sampling, positions = dk.SamplingTensors.greedy(2), torch.zeros(2, dtype=torch.int64)
    tree, outcomes = call(on, "draft_tree", torch.randn(2, 3, 9), lanes, sampling, positions, 4, 2)
    assert tree.num_nodes.tolist() == [0, 4] and (outcomes.parent_node[0] == -1).all() and not tree.mask_bits[0].any()
    nothing = torch.full((2, 3, 9), -torch.inf)
    tree, outcomes = call(on, "draft_tree", nothing, lanes, sampling, positions, 4, 2)
    assert tree.num_nodes.tolist() == [0, 1] and (outcomes.token_ids == -1).all()
