"""The CUDA library's own sources, run on the CPU by tests/cuda_emulation: bit for bit what the CPU library says.

Kernels, launches, bindings and d3d_kernels.cuda are those of a GPU. Devices: one too small for all rows at once; one
whose rows are split among clusters; one without clusters, where nodes fit.
"""

from __future__ import annotations

import sys

import pytest
import torch

import d3d_kernels as dk
from tests import cuda_emulation

from . import cases
from .harness import Target, assert_same, call
from .test_kv import Cache, move

if not cuda_emulation.COMPILER:
    pytest.skip("no C++ compiler", allow_module_level=True)

CPU, EMULATED = Target("cpu", "cpu"), Target("emulated", "cpu")
DEVICES = {"small": (4, True), "clusters": (150, True), "no clusters": (150, False)}

dtypes = pytest.mark.parametrize("dtype", cases.DTYPES, ids=lambda d: str(d).removeprefix("torch."))
penalised = pytest.mark.parametrize("penalised", [False, True], ids=["plain", "penalised"])


@pytest.fixture(params=["small", "clusters", pytest.param("no clusters", marks=pytest.mark.slow)], autouse=True)
def device(request):
    if "d3d_kernels._cuda" in sys.modules:  # its functions have the same names, and the loader takes the first
        pytest.skip("the CUDA library itself is loaded in this process; run this file alone, as .ci/run does")
    with cuda_emulation.registered("emulated", cuda_emulation.backend(*DEVICES[request.param])):
        yield request.param


def agree(op: str, *args, **kwargs) -> None:
    assert_same(call(EMULATED, op, *args, **kwargs), call(CPU, op, *args, **kwargs))


def inputs(*key: object) -> tuple[torch.Generator, str, int]:
    g = cases.generator(*key)
    stride = cases.STRIDES[int(torch.randint(3, (1,), generator=g))]
    vocab = cases.VOCABS[int(torch.randint(2, len(cases.VOCABS), (1,), generator=g))]
    return g, stride, vocab


@dtypes
@penalised
def test_sample(device, dtype, penalised) -> None:
    g, stride, vocab = inputs("sample", device, dtype, penalised)
    logits = cases.logits(13, vocab, g=g, dtype=dtype, stride=stride)
    request_ids = torch.randint(-1, 14, (13,), generator=g).int()
    penalties = cases.penalties(13, vocab, g) if penalised else None
    agree("sample", logits, cases.sampling(13, g), cases.positions(13, g), request_ids, penalties)


@dtypes
@penalised
def test_draft_candidates(device, dtype, penalised) -> None:
    g, stride, vocab = inputs("draft", device, dtype, penalised)
    logits = cases.logits(6, 2, vocab, g=g, dtype=dtype, stride=stride)
    request_ids = torch.randperm(13, generator=g)[:6].int()
    penalties = cases.penalties(13, vocab, g) if penalised else None
    arguments = cases.sampling(13, g), cases.positions(6, g), request_ids, penalties
    agree("draft_candidates", logits, 6, *arguments, mask_token_id=3)


@dtypes
@penalised
def test_verify_tree(device, dtype, penalised) -> None:
    g, stride, vocab = inputs("verify", device, dtype, penalised)
    logits = cases.logits(13, 9, vocab, g=g, dtype=dtype, stride=stride)
    tree = cases.random_trees(13, 9, min(vocab, 4), g)
    tree.parents[1, 2], tree.parents[2, 3], tree.token_ids[3, 1] = 2, -1, vocab
    penalties = cases.penalties(13, vocab, g) if penalised else None
    arguments = tree, cases.sampling(13, g), cases.positions(13, g), penalties
    agree("verify_tree", logits, *arguments)
    starts = torch.arange(13).int() * 9 - 2  # rows outside the logits at both ends
    agree("verify_tree", logits.reshape(-1, vocab)[:110], *arguments, row_starts=starts)


@pytest.mark.parametrize("order", ["ascending", "descending", "constant", "one rank"])
@pytest.mark.parametrize("k", [1, 32, 256])
def test_candidates_of_rows_in_the_worst_order(device, order, k) -> None:
    """The pool overflows when every token is better than those before it, or when one rank holds them all."""
    if device == "clusters" and k > 1:
        pytest.skip("the same tokens, by more ranks")
    vocab = 9000
    rows = {
        "ascending": torch.linspace(-9, 9, vocab),
        "descending": torch.linspace(9, -9, vocab),
        "constant": torch.full((vocab,), 2.0),
        "one rank": torch.where(torch.arange(vocab) // 8 % 256 == 7, 5.0, -5.0),
    }
    logits = rows[order].expand(2, 1, vocab)
    sampling = dk.SamplingTensors.full(2, temperature=0.7, top_k=k + 1)
    sampling.temperature[0] = 0
    agree("draft_candidates", logits, k, sampling, torch.tensor([5, 6]))


def test_filters_of_a_large_vocabulary(device) -> None:
    """top-k above what the pool selects goes by a histogram, and so does the nucleus of a draft."""
    vocab = 10_001
    g = cases.generator("large", device)
    logits = torch.randn(4, vocab, generator=g).mul(3).to(torch.bfloat16)
    sampling = dk.SamplingTensors.full(4, top_k=300, top_p=0.8, seed=3)
    sampling.top_k[1], sampling.top_p[2], sampling.min_p[3] = 50, 1.0, 0.05
    agree("sample", logits, sampling, torch.arange(4))
    agree("draft_candidates", logits[:, None], 8, sampling, torch.arange(4))


@pytest.mark.parametrize("rule", ["coupled", "ratio", "block"])
@pytest.mark.parametrize("drafter", ["certain", "logits", "probabilities"])
def test_verify_chain(device, rule, drafter) -> None:
    g, stride, vocab = inputs("chain", device, rule, drafter)
    batch, drafts, vocab = 13, 4, min(vocab, 33)
    dtype = cases.DTYPES[(len(device) + len(rule)) % 4]
    logits = cases.logits(batch, drafts + 1, vocab, g=g, dtype=dtype, stride=stride)
    draft_ids = torch.randint(-1, vocab, (batch, drafts), generator=g)
    draft_ids[:, 0] = logits[:, 0].float().nan_to_num(-9).argmax(1)
    rows = cases.logits(batch, drafts, vocab, g=g)
    draft_logits = rows if drafter == "logits" else None
    draft_probs = rows.softmax(-1) if drafter == "probabilities" else None
    sampling, positions = cases.sampling(batch, g), cases.positions(batch, g)
    for penalties in (None, cases.penalties(batch, vocab, g)):
        arguments = draft_ids, draft_logits, sampling, positions, rule, penalties
        agree("verify_chain", logits, *arguments, draft_probs=draft_probs)


@dtypes
@penalised
def test_draft_tree(device, dtype, penalised) -> None:
    g, stride, vocab = inputs("draft tree", device, dtype, penalised)
    logits = cases.logits(13, 3, vocab, g=g, dtype=dtype, stride=stride)
    roots, stops = torch.randint(-1, vocab, (13,), generator=g), torch.tensor([2, 5])
    penalties = cases.penalties(13, vocab, g) if penalised else None
    arguments = cases.sampling(13, g), cases.positions(13, g), 12, 4, 5
    agree("draft_tree", logits, roots, *arguments, penalties=penalties, stop_ids=stops)
    agree("draft_tree", logits[:, :0], roots, *arguments)


@pytest.mark.parametrize("nodes,outcomes", [(1, 3), (7, 0), (64, 16), (100, 40)])
def test_trees(nodes, outcomes) -> None:
    g = cases.generator("tree", nodes)
    ids = torch.randint(0, 12, (5, 4, 6), generator=g)
    scores = -torch.rand(5, 4, 6, generator=g).mul(4).round(decimals=1).sort(dim=2).values
    roots = torch.tensor([3, 0, -1, 1, 2])
    for stops in (None, torch.tensor([3, 5])):
        agree("build_tree", roots, dk.Candidates(ids, scores, scores), nodes, outcomes, None, stops)


def test_frontier_inputs_and_masks() -> None:
    g = cases.generator("frontier")
    tree = cases.random_trees(6, 40, 9, g)
    parents, tokens = torch.randint(-1, 40, (6, 5), generator=g).int(), torch.randint(-1, 9, (6, 5), generator=g)
    outcomes = dk.Outcomes(parents, tokens, torch.zeros(6, 5))
    roots, table = torch.tensor([0, 3, 15, 16, 100, 7]), torch.randint(-1, 30, (6, 8), generator=g)
    arguments = tree, outcomes, roots, table, 16, 4, 5
    agree("frontier_inputs", *arguments)
    bits = dk.frontier_inputs(*arguments, backend="cpu").mask_bits
    for dtype in (torch.bool, torch.bfloat16, torch.float32, torch.float64):
        agree("dense_mask", bits, roots, 170, dtype=dtype)
    agree("packed_mask", bits, roots, 100)


@pytest.mark.parametrize("outcomes", [0, 1, 40])
def test_select_outcome(outcomes) -> None:
    g = cases.generator("select", outcomes)
    count = torch.randint(0, 5, (20,), generator=g).int()
    accepted = torch.randint(1, 5, (20, 5), generator=g).int()
    verdict = dk.Verdict(accepted, count, torch.randint(-1, 4, (20,), generator=g), torch.zeros(20).int())
    parents, tokens = (torch.randint(-1, 5, (20, outcomes), generator=g) for _ in range(2))
    agree("select_outcome", verdict, dk.Outcomes(parents.int(), tokens, torch.zeros(20, outcomes)))


@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_move_kv(order, dtype) -> None:
    """Rows of 16 bytes, words and single bytes; a list longer than a batch of reads; padding; overlap."""
    cache = Cache(EMULATED, order, pages=8, page_size=16, dtype=dtype, scales=dtype.itemsize == 1)
    src, dst = [list(range(40, 52)), [-1, 3, 200, 9] + [7] * 8], [list(range(39, 51)), [4, 3, 5, 10] + [8] * 8]
    move(EMULATED, cache, src, dst, [12, 4])
    for source, target in zip(src[0], dst[0], strict=True):
        cache.expect_move(source, target)
    cache.expect_move(9, 10)
    cache.check()
