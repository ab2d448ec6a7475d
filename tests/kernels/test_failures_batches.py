"""How trees, chains and batches have failed elsewhere: a test for each report, named after its number.

Number 2 is also the subject of test_oracle, which walks every tree of up to eight nodes; 1, 16 and 17 stand in
test_chain_rules; 15 in test_noise and tests/native; 19 also in test_every_op; 20, 21 and 24 in test_kv; 22 in
test_build_tree, test_frontier_inputs and test_masks; 23 in test_frontier_inputs; 25 is what `harness.call` watches
over in every test.
"""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk

from . import cases
from .harness import Target, assert_same, call, sampled, within


@pytest.mark.parametrize("siblings", [33, 300])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_failure_02_more_than_32_siblings(on: Target, siblings, temperature) -> None:
    """More than 32 siblings overran a fixed array, and each was tested as if those before it had not been.

    Every token of the vocabulary is a child of the root, most of them twice: whatever the target says is
    accepted, and of two children that carry it, the lower one.
    """
    vocab, batch = siblings - 10, 200
    g = cases.generator("failure 2", siblings)
    logits = torch.randn(batch, siblings + 1, vocab, generator=g)
    tokens = [torch.cat([torch.randperm(vocab, generator=g), torch.arange(10)]).tolist() for _ in range(batch)]
    tree = cases.tree_of([[-1] + [0] * siblings] * batch, [[0, *row] for row in tokens])
    sampling, positions = dk.SamplingTensors.full(batch, temperature=temperature, seed=5), torch.arange(batch)
    verdict = call(on, "verify_tree", logits, tree, sampling, positions)
    said = call(on, "sample", logits[:, 0], sampling, positions + 1).tolist()
    first = [1 + row.index(token) for row, token in zip(tokens, said, strict=True)]
    assert verdict.accepted_nodes[:, 0].tolist() == first
    assert verdict.num_accepted.tolist() == [1] * batch


def test_failure_06_inputs_are_bit_identical_after_every_call(on: Target) -> None:
    """A kernel zeroed its input and restored it: ranks that shared the tensor diverged.

    ``call`` compares all inputs before and after; here every op sees NaN, -0.0 and penalties in them.
    """
    g = cases.generator("failure 6")
    batch, nodes, vocab = 13, 6, 70
    logits = cases.logits(batch, nodes, vocab, g=g)
    logits[..., 3] = -0.0
    sampling, positions = cases.sampling(batch, g), cases.positions(batch, g)
    penalties, tree = cases.penalties(batch, vocab, g), cases.random_trees(batch, nodes, vocab, g)
    call(on, "sample", logits[:, 0], sampling, positions, None, penalties)
    candidates = call(on, "draft_candidates", logits, 4, sampling, positions, None, penalties)
    _, outcomes = call(on, "build_tree", positions % 7 - 1, candidates, 9, 4, None, torch.tensor([3]))
    call(on, "draft_tree", logits, positions % 7 - 1, sampling, positions, 9, 4, penalties=penalties)
    verdict = call(on, "verify_tree", logits, tree, sampling, positions, penalties, outcomes=outcomes)
    branches = dk.Candidates(*(t.repeat(4, 1, 1) for t in candidates.tensors()))
    call(on, "select_outcome", verdict, outcomes, branches)
    call(on, "build_tree", positions % 7, branches, 9, 4, outcome_index=verdict.outcome_index)
    inputs = call(on, "frontier_inputs", tree, outcomes, positions % 7, torch.arange(13)[:, None], 64, 3, 5)
    call(on, "dense_mask", inputs.mask_bits, positions % 7, 30)
    call(on, "packed_mask", inputs.mask_bits, positions % 7, 7)
    call(on, "verify_chain", logits, tree.token_ids[:, 1:].contiguous(), None, sampling, positions)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_failure_09_draft_ids_outside_the_vocabulary(on: Target, temperature) -> None:
    """Ids of -1 and >= V in ragged tails were counted as emitted, or reached the embedding."""
    vocab = 8
    logits = torch.zeros(1, 6, vocab)
    logits[..., 2] = 60.0  # the target says 2 everywhere
    sampling, position = dk.SamplingTensors.full(1, temperature=temperature), torch.tensor([4])
    for bad in (-1, -(2**40), vocab, vocab + 2, 2**31, 2**32 + 2, 2**40):
        draft = torch.tensor([[2, 2, bad, 2, 2]])
        verdict = call(on, "verify_chain", logits, draft, None, sampling, position)
        assert verdict.num_accepted.tolist() == [2] and verdict.bonus_ids.tolist() == [2]
        assert verdict.status.tolist() == [0], "padding of a chain is no error"
        tree = cases.tree_of([[-1, 0, 0, 1, 2, 0]], [[0, bad, 2, 2, bad, bad]])
        verdict = call(on, "verify_tree", logits, tree, sampling, position)
        assert verdict.accepted_nodes[0].tolist() == [2, -1, -1, -1, -1, -1]
        assert verdict.bonus_ids.tolist() == [2] and verdict.status.tolist() == [int(dk.Status.BAD_TOKEN)]


@pytest.mark.parametrize(
    "parents",
    [
        [-1, 1, 1, 2],  # its own parent
        [-1, 2, 1, 2],  # a cycle of two
        [-1, 3, 0, 2],  # a parent behind its child
        [-1, -1, -1, -1],  # several roots
        [-1, -7, 0, 2],
        [-1, 2**31 - 1, 0, 2],
        [-1, -(2**31), 0, 2],
        [-1, 4, 0, 2],  # one past the end
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_failure_11_cyclic_or_missing_parent(on: Target, parents, temperature) -> None:
    """The walk followed a cycle of parents for ever. Here it ends, never uses such a node, and says so."""
    logits = torch.zeros(1, 4, 6)
    logits[..., 3] = 60.0
    tree = cases.tree_of([parents], [[3, 3, 3, 3]])
    sampling = dk.SamplingTensors.full(1, temperature=temperature)
    verdicts: list[dk.Verdict] = []
    within(20, lambda: verdicts.append(call(on, "verify_tree", logits, tree, sampling, torch.tensor([0]))))
    accepted, node = [], 0
    while node is not None:
        node = next((i for i in range(node + 1, 4) if parents[i] == node), None)
        accepted += [] if node is None else [node]
    assert verdicts[0].accepted_nodes[0].tolist() == accepted + [-1] * (4 - len(accepted))
    assert verdicts[0].bonus_ids.tolist() == [3]
    assert verdicts[0].status.tolist() == [int(dk.Status.BAD_TREE)]


@pytest.mark.parametrize("root_parent", [0, 2, 3, -9, 2**31 - 1])
def test_failure_11_a_root_that_claims_a_parent(on: Target, root_parent) -> None:
    """A cycle through the root: its own parent is never asked for."""
    logits = torch.zeros(1, 4, 6)
    logits[..., 3] = 60.0
    sampling, position = dk.SamplingTensors.greedy(1), torch.tensor([0])
    expected = call(on, "verify_tree", logits, cases.tree_of([[-1, 0, 1, 2]], [[3] * 4]), sampling, position)
    tree = cases.tree_of([[root_parent, 0, 1, 2]], [[3] * 4])
    verdicts: list[dk.Verdict] = []
    within(20, lambda: verdicts.append(call(on, "verify_tree", logits, tree, sampling, position)))
    assert_same(verdicts[0], expected)
    assert expected.accepted_nodes[0].tolist() == [1, 2, 3, -1]


def test_failure_13_empty_batches_and_filters_of_zero(on: Target) -> None:
    """B = 0, no rows, no drafts; top_k = 0, top_p = 0, min_p > 1."""
    none, nowhere = dk.SamplingTensors.full(0), torch.zeros(0, dtype=torch.int64)
    assert call(on, "sample", torch.zeros(0, 9), none, nowhere).shape == (0,)
    some = dk.SamplingTensors.full(3)
    no_ids = torch.zeros(0, dtype=torch.int32)
    assert call(on, "sample", torch.zeros(0, 9), some, nowhere, no_ids).shape == (0,)
    assert call(on, "draft_candidates", torch.zeros(0, 4, 9), 2, none, nowhere).token_ids.shape == (0, 4, 2)
    positions = torch.arange(3)
    no_drafts = call(on, "draft_candidates", torch.zeros(3, 0, 9), 2, some, positions)
    assert no_drafts.token_ids.shape == (3, 0, 2)
    tree, outcomes = call(on, "build_tree", positions, no_drafts, 4, 2)
    assert tree.num_nodes.tolist() == [1, 1, 1] and (outcomes.token_ids == -1).all()
    call(on, "build_tree", nowhere, dk.Candidates.empty(0, 4, 2), 4, 2)
    verdict = call(on, "verify_tree", torch.zeros(0, 5, 9), dk.DraftTree.empty(0, 5), none, nowhere)
    assert verdict.accepted_nodes.shape == (0, 5)
    assert call(on, "select_outcome", verdict, dk.Outcomes.empty(0, 3)).shape == (0,)

    logits = torch.randn(3, 1, 9, generator=cases.generator("failure 13"))
    chain = call(on, "verify_chain", logits, torch.zeros(3, 0, dtype=torch.int64), None, some, positions)
    assert_same(chain.bonus_ids, call(on, "sample", logits[:, 0], some, positions))
    assert not chain.num_accepted.any()

    lanes = cases.tree_of([[-1, 0], [], [-1]], [[0, 1], [], [2]])
    verdict = call(on, "verify_tree", torch.zeros(3, 2, 9), lanes, some, positions)
    assert verdict.bonus_ids[1] == -1 and verdict.num_accepted[1] == 0 and verdict.status[1] == 0

    best = logits[:, 0].argmax(1)
    for filters in ({"top_p": 0.0}, {"min_p": 1.5}, {"top_k": 1}):
        assert_same(sampled(on, logits[:, 0], dk.SamplingTensors.full(3, **filters)), best)
    free = sampled(on, logits[:, 0], dk.SamplingTensors.full(3))
    for filters in ({"top_k": 0}, {"top_k": -5}, {"top_k": 9}, {"min_p": 0.0}, {"top_p": 1.0}):
        assert_same(sampled(on, logits[:, 0], dk.SamplingTensors.full(3, **filters)), free)


def test_failure_19_results_repeat_and_do_not_depend_on_the_batch(on: Target) -> None:
    """Float atomics: accept counts differed between runs and ranks, and collectives hung.

    The same requests alone, in another order, among others, with another number of threads, and again.
    """
    g = cases.generator("failure 19")
    batch, nodes, vocab = 26, 5, 400
    logits = cases.logits(batch, nodes, vocab, g=g)
    tree = cases.random_trees(batch, nodes, 3, g)
    sampling, positions = cases.sampling(batch, g), cases.positions(batch, g)
    penalties = cases.penalties(batch, vocab, g)
    order = torch.randperm(batch, generator=g)

    def verdict(index: torch.Tensor) -> dk.Verdict:
        chosen = (
            logits[index],
            tree.select(index),
            sampling.select(index),
            positions[index],
            penalties.select(index),
        )
        return call(on, "verify_tree", *chosen)

    whole = verdict(torch.arange(batch))
    assert_same(verdict(order), whole.select(order))
    for b in (0, 7, 13):
        assert_same(verdict(torch.tensor([b])), whole.select(torch.tensor([b])))
    torch.set_num_threads(3)
    for _ in range(20):
        assert_same(verdict(order), whole.select(order))
    drafted = call(on, "draft_candidates", logits, 7, sampling, positions, None, penalties)
    torch.set_num_threads(1)
    assert_same(call(on, "draft_candidates", logits, 7, sampling, positions, None, penalties), drafted)


def test_a_packed_row_outside_the_logits(on: Target) -> None:
    """Rows that the batch does not hold were read. Here the walk ends before them, and says so."""
    logits = torch.zeros(4, 6)
    logits[:, 3] = 60.0
    tree = cases.tree_of([[-1, 0, 1]] * 4, [[3, 3, 3]] * 4)
    starts = torch.tensor([1, 2, 4, -1], dtype=torch.int32)
    verdict = call(on, "verify_tree", logits, tree, dk.SamplingTensors.greedy(4), torch.arange(4), row_starts=starts)
    bad = int(dk.Status.BAD_TREE)
    assert verdict.num_accepted.tolist() == [2, 1, 0, 0]
    assert verdict.bonus_ids.tolist() == [3, 3, 0, 0]
    assert verdict.status.tolist() == [0, bad, bad, bad]
