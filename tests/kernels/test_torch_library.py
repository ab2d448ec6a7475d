"""The ops as torch.ops.d3d.*: schemas and fakes that agree with the real thing, torch.compile and export."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import d3d_kernels as dk
from d3d_kernels import registry

from . import cases
from .harness import assert_same
from .test_arguments import CORRECT

OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def flat_arguments() -> dict[str, tuple]:
    """Arguments of each registered op, records spelled out."""
    g = cases.generator("library")
    batch, nodes, length, vocab, k = 3, 4, 2, 40, 3
    sampling, positions = cases.sampling(batch, g).tensors(), cases.positions(batch, g)
    penalties = cases.penalties(batch, vocab, g).tensors()
    tree = cases.random_trees(batch, nodes, vocab, g).tensors()
    logits = cases.logits(batch, nodes, vocab, g=g)
    drafts_of = cases.logits(batch, length, vocab, g=g)
    rows = torch.arange(batch).int()
    greedy = dk.SamplingTensors.greedy(batch)
    candidates = dk.draft_candidates(drafts_of, k, greedy, positions, backend="reference").tensors()
    cache = [torch.randn(2, 4, 1, 8, generator=g) for _ in range(4)]
    slots = torch.tensor([[1, 2], [5, 6], [7, 7]])
    counts = torch.tensor([2, 1, 0], dtype=torch.int32)
    verdict = dk.Verdict(*(t.fill_(0) for t in dk.Verdict.empty(batch, nodes).tensors())).tensors()
    outcomes = dk.Outcomes(*(t.fill_(0) for t in dk.Outcomes.empty(batch, 2).tensors())).tensors()
    branches = tuple(t.repeat(2, 1, 1) for t in candidates)
    index, drafted = torch.tensor([1, -1, 0]).int(), dk.Candidates.empty(batch, length, k).tensors()
    links, drafts = dk.TreeLinks.empty(batch, nodes).tensors(), dk.Candidates.empty(batch, length, k).tensors()
    table = torch.arange(12).view(3, 4)
    return {
        "sample": (logits[:, 0], *sampling, positions, rows, *penalties),
        "draft_candidates": (drafts_of, k, *sampling, positions, None, 0.5, -1),
        "build_tree": (positions, *branches, nodes, 3, None, torch.tensor([5]), index, positions, *links),
        "draft_tree": (drafts_of, positions, *sampling, positions, nodes, 3, k, 0.5, -1, None, None, *penalties)
        + (*drafted, *links),
        "verify_tree": (logits, None, *tree, *sampling, positions, *penalties, *outcomes),
        "verify_chain": (logits, tree[0][:, 1:], logits[:, 1:].bfloat16(), *sampling, positions, "block"),
        "select_outcome": (*verdict, *outcomes, *branches, *drafts),
        "frontier_inputs": (*tree, *outcomes, positions % 7, table, 4, 2, 1),
        "dense_mask": (tree[4], positions % 7, 9, torch.float16),
        "packed_mask": (tree[4], positions % 7, 9, tree[3]),
        "move_kv": (cache[:2], cache[2:], "NHD", [], [], slots, slots - 1, counts),
        "rollback_kv": (cache[:2], cache[2:], "NHD", [], [], tree[0], *verdict, 0, 0),
    }


@pytest.mark.parametrize("op", flat_arguments())
def test_opcheck(op: str) -> None:
    torch.library.opcheck(getattr(torch.ops.d3d, op).default, flat_arguments()[op], test_utils=OPCHECKS)


# Outputs that the caller may bring, besides out=.
WRITTEN = {"sample": {"status"}, "build_tree": {"links"}, "draft_tree": {"candidates", "links"}}


@pytest.mark.parametrize("op", [op for op in registry.OPS if not op.endswith("_kv")])
def test_the_registered_op_is_the_public_one(op: str) -> None:
    """Called through torch.ops, traced, and called directly: the same bits."""
    arguments = CORRECT[op]()
    written = {"out", *WRITTEN.get(op, ())}
    plain = {name: value for name, value in arguments.items() if name not in written}
    expected = getattr(dk, op)(**plain)
    torch.compiler.reset()
    traced = torch.compile(lambda kw: getattr(dk, op)(**kw), fullgraph=True, backend="eager")
    assert_same(traced(plain), expected)
    eager = CORRECT[op]()
    getattr(dk, op)(**eager)
    assert_same(traced(arguments), expected)
    for name in written:
        assert_same(arguments[name], eager[name])


def decision(logits, drafts, roots, sampling, positions, keys, values, slots):
    """A whole round's decisions: draft, verify, select, roll back."""
    tree, outcomes = dk.draft_tree(drafts, roots, sampling, positions, 4, 3, 2)
    verdict = dk.verify_tree(logits, tree, sampling, positions)
    dk.rollback_kv(dk.KVLayout([keys], [values]), slots, verdict)
    return verdict.bonus_ids, verdict.num_accepted, dk.select_outcome(verdict, outcomes)


def decision_arguments() -> tuple:
    g = cases.generator("decision")
    batch, vocab = 3, 8
    return (
        torch.randn(batch, 4, vocab, generator=g),
        torch.randn(batch, 3, vocab, generator=g),
        torch.tensor([1, 2, 3]),
        dk.SamplingTensors.full(batch, seed=4),
        torch.tensor([5, 6, 7]),
        torch.randn(batch, 4, 1, 2, generator=g),
        torch.randn(batch, 4, 1, 2, generator=g),
        torch.arange(batch * 4).view(batch, 4),
    )


def test_a_round_compiles_without_graph_breaks() -> None:
    torch.compiler.reset()
    plain, compiled = decision_arguments(), decision_arguments()
    expected = decision(*plain)
    got = torch.compile(decision, fullgraph=True, backend="aot_eager")(*compiled)
    assert_same(tuple(got), tuple(expected))
    assert_same(compiled[5:7], plain[5:7])
    assert not torch.equal(plain[5], decision_arguments()[5]), "the case must move something"


def test_export() -> None:
    class Greedy(torch.nn.Module):
        def forward(self, logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return dk.sample(logits, dk.SamplingTensors.greedy(2), positions)

    logits = torch.randn(2, 9, generator=cases.generator("export"))
    program = torch.export.export(Greedy(), (logits, torch.tensor([1, 2])))
    assert any("d3d.sample" in str(node.target) for node in program.graph.nodes)
    assert program.module()(logits, torch.tensor([1, 2])).tolist() == logits.argmax(1).tolist()


def test_fake_tensors() -> None:
    with FakeTensorMode():
        sampling = dk.SamplingTensors.greedy(2)
        token_ids, status = torch.ops.d3d.sample(
            torch.empty(2, 9), *sampling.tensors(), torch.empty(2, dtype=torch.int64), None
        )
    assert (token_ids.shape, token_ids.dtype, status.dtype) == ((2,), torch.int64, torch.int32)
