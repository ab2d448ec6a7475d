"""Each op on a GPU: as on the CPU, bit for bit; in a graph; a thousand times; on its own stream; in one launch."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk
from tests.kernels import cases
from tests.kernels.harness import assert_same, place

from .calls import CALLS, Call, runs

VOCAB = 5003
REAL_VOCAB = 151_936
ONE_LAUNCH = ("sample", "draft_candidates", "build_tree", "verify_tree", "verify_penalised_tree", "select_outcome",
              "move_kv")  # fmt: skip

ops = pytest.mark.parametrize("name", CALLS)
dtypes = pytest.mark.parametrize("dtype", cases.DTYPES, ids=lambda d: str(d).removeprefix("torch."))
strides = pytest.mark.parametrize("stride", cases.STRIDES)


def made(name: str, seed: int, backend: str) -> Call:
    if not runs(name, backend):
        pytest.skip(f"{backend} has no {name}")
    return CALLS[name](seed, VOCAB)


def expected(call: Call, backend: str) -> object:
    """What the CPU library says; or, of a backend whose logarithms are not ours, what it said without a graph."""
    if backend == "cuda":
        return call.to("cpu")("cpu")
    return place(call.to("cuda")(backend), "cpu")


@ops
def test_as_on_the_cpu(name, backend) -> None:
    call = made(name, 0, backend)
    if backend != "cuda":
        pytest.skip("near ties are allowed; the parity suite counts them")
    assert_same(place(call.to("cuda")(backend), "cpu"), call("cpu"))


@dtypes
@strides
@pytest.mark.parametrize("rows", [1, 8, 300])
def test_rows_of_a_real_vocabulary(backend, dtype, stride, rows) -> None:
    """One row on eight multiprocessors, eight rows, and more rows than multiprocessors."""
    if backend != "cuda":
        pytest.skip("bit for bit is what the CUDA library promises")
    g = cases.generator("real", dtype, stride, rows)
    batch = min(rows, 14)
    logits = cases.logits(batch, REAL_VOCAB, g=g, dtype=dtype, stride=stride)
    request_ids = torch.arange(rows).remainder(batch).int()
    if rows > batch:
        logits = logits[request_ids.long()]
    inputs = logits, cases.sampling(batch, g), cases.positions(rows, g), request_ids
    there = place(inputs, "cuda")
    assert_same(dk.sample(*there, backend=backend).cpu(), dk.sample(*inputs, backend="cpu"))
    if rows > 14:
        return
    drafted = dk.draft_candidates(there[0][:, None], 32, *there[1:], backend=backend)
    assert_same(place(drafted, "cpu"), dk.draft_candidates(inputs[0][:, None], 32, *inputs[1:], backend="cpu"))


@dtypes
@pytest.mark.parametrize("batch,nodes", [(1, 64), (1, 128), (4, 33)], ids=["all rows", "lazy", "lazy batch"])
def test_trees_of_a_real_vocabulary(backend, dtype, batch, nodes) -> None:
    if backend != "cuda":
        pytest.skip("bit for bit is what the CUDA library promises")
    g = cases.generator("real tree", dtype, batch, nodes)
    tree = cases.random_trees(batch, nodes, REAL_VOCAB, g)
    row = cases.logits(batch, REAL_VOCAB, g=g, dtype=dtype)
    logits = row[:, None].expand(batch, nodes, REAL_VOCAB)
    sampling, positions = cases.sampling(batch, g), cases.positions(batch, g)
    for depth in range(1, 5):  # make the walk go on: children carry what is sampled at their depth
        tokens = dk.sample(row, sampling, positions + depth, backend="cpu")
        tree.token_ids[tree.depths == depth] = tokens[:, None].expand(batch, nodes)[tree.depths == depth]
    inputs = logits, tree, sampling, positions
    want = dk.verify_tree(*inputs, backend="cpu")
    assert want.num_accepted.max() > 1
    assert_same(place(dk.verify_tree(*place(inputs, "cuda"), backend=backend), "cpu"), want)


@ops
def test_failures_10_and_33_a_graph_takes_what_its_inputs_hold_now(name, backend) -> None:
    """A captured seed drew the same token in every replay; a launch outside the graph made it faster and wrong."""
    call, other = made(name, 0, backend).to("cuda"), made(name, 1, backend)
    want = expected(other, backend)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(backend)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(backend)
    for _ in range(3):
        call.take_inputs_of(other.to("cuda"))
        call.poison()
        graph.replay()
        torch.cuda.synchronize()
        assert_same(place(call.results(), "cpu"), want)


@ops
def test_failure_19_a_thousand_runs_give_the_same_bits(name, backend) -> None:
    """Float atomics: accept counts differed between runs and ranks."""
    call = made(name, 2, backend).to("cuda")
    if call.out is None:
        pytest.skip("works in place: the second run has other inputs")
    first = [t.clone() for t in _tensors(call(backend))]
    differences = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        call.poison()
        for mine, theirs in zip(_tensors(call(backend)), first, strict=True):
            same = mine.view(torch.int32) == theirs.view(torch.int32) if mine.is_floating_point() else mine == theirs
            differences += (~same).sum()
    assert differences.item() == 0


@ops
def test_failure_33_work_goes_to_the_current_stream(name, backend) -> None:
    """While the default stream is busy, another one gets its results."""
    call, want = made(name, 3, backend), None
    want = expected(call, backend)
    call = call.to("cuda")
    call(backend)  # tables and counters are made
    call.take_inputs_of(made(name, 3, backend).to("cuda"))
    call.poison()
    torch.cuda.synchronize()
    busy, done, stream = torch.cuda.Event(), torch.cuda.Event(), torch.cuda.Stream()
    torch.cuda._sleep(2_000_000_000)
    busy.record()
    with torch.cuda.stream(stream):
        call(backend)
        done.record()
    done.synchronize()
    assert not busy.query(), "waited for the default stream"
    assert_same(place(call.results(), "cpu"), want)
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", ONE_LAUNCH)
def test_each_op_is_one_launch(name) -> None:
    call = made(name, 4, "cuda").to("cuda")
    call("cuda")
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call("cuda")
        torch.cuda.synchronize()
    kernels = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 1, kernels


def _tensors(value) -> list[torch.Tensor]:
    from tests.kernels.harness import tensors_in

    return list(tensors_in(value))
