"""Every op on every backend against the reference, over dtypes, strides and shapes.

Structural ops must agree bit for bit. Tokens may differ only where two perturbed values are a near tie; those
are counted and reported at the end of the run.
"""

from __future__ import annotations

import functools

import pytest
import torch

import d3d_kernels as dk
from d3d_kernels.reference.vocab import read_rows

from . import cases
from .harness import Target, assert_same, assert_tokens_agree, call, near_ties, place

dtypes = pytest.mark.parametrize("dtype", cases.DTYPES, ids=lambda d: str(d).removeprefix("torch."))
kinds_of_rows = pytest.mark.parametrize(
    "dtype,stride,vocab",
    [
        pytest.param(dtype, stride, vocab, id=f"{str(dtype).removeprefix('torch.')}-{stride}-{vocab}")
        for i, dtype in enumerate(cases.DTYPES)
        for j, stride in enumerate(cases.STRIDES)
        for vocab in cases.VOCABS[(i + j) % 2 :: 2]  # every vocabulary with every dtype and every stride
    ],
)
penalised = pytest.mark.parametrize("penalised", [False, True], ids=["plain", "penalised"])


@kinds_of_rows
@penalised
def test_sample(on: Target, dtype, stride, vocab, penalised) -> None:
    g = cases.generator("sample", dtype, stride, vocab, penalised)
    rows, batch = 31, 13
    logits = cases.logits(rows, vocab, g=g, dtype=dtype, stride=stride)
    request_ids = torch.randint(-1, batch + 1, (rows,), generator=g).int()  # the ends belong to no request
    arguments = (
        logits,
        cases.sampling(batch, g),
        cases.positions(rows, g),
        request_ids,
        cases.penalties(batch, vocab, g) if penalised else None,
    )
    got = call(on, "sample", *arguments)
    expected = dk.sample(*arguments, backend="reference")
    assert_tokens_agree(got, expected, read_rows(*arguments).perturbed)


@functools.cache
def a_real_vocabulary() -> tuple:
    """Arguments of sample, and the perturbed values; one seventh of the rows is of each kind."""
    g = cases.generator("large")
    rows, vocab = 7, 151_936
    logits = cases.logits(rows, vocab, g=g, dtype=torch.bfloat16)
    arguments = logits, cases.sampling(rows, g), cases.positions(rows, g), None, cases.penalties(rows, vocab, g)
    return arguments, read_rows(*arguments).perturbed


def test_a_vocabulary_of_a_real_model(on: Target) -> None:
    arguments, perturbed = a_real_vocabulary()
    best = perturbed.sort(dim=1, descending=True, stable=True).indices[:, :3]
    best[perturbed.gather(1, best) == -torch.inf] = -1
    logits, sampling, positions, _, penalties = place(arguments, on.device)
    sampled = dk.sample(logits, sampling, positions, None, penalties, backend=on.backend)
    assert_tokens_agree(sampled.cpu(), best[:, 0].clamp(min=0), perturbed)
    drafted = dk.draft_candidates(logits[:, None], 3, sampling, positions, None, penalties, backend=on.backend)
    by_rank = perturbed.repeat_interleave(3, 0)
    assert_tokens_agree(drafted.token_ids.cpu().flatten(), best.flatten(), by_rank)


@dtypes
@penalised
def test_sample_status(on: Target, dtype, penalised) -> None:
    g = cases.generator("status", dtype, penalised)
    logits = cases.logits(26, 65, g=g, dtype=dtype)
    penalties = cases.penalties(26, 65, g) if penalised else None
    arguments = (logits, cases.sampling(26, g), cases.positions(26, g), None, penalties)
    status, expected = torch.full((26,), -7, dtype=torch.int32), torch.full((26,), -7, dtype=torch.int32)
    if on.device != "cpu":
        pytest.skip("status is compared with out= on the device in the GPU check")
    dk.sample(*arguments, status=status, backend=on.backend)
    dk.sample(*arguments, status=expected, backend="reference")
    assert_same(status, expected)
    assert 0 < (status == int(dk.Status.NO_FINITE_LOGIT)).sum() < 26


@kinds_of_rows
@penalised
def test_draft_candidates(on: Target, dtype, stride, vocab, penalised) -> None:
    g = cases.generator("candidates", dtype, stride, vocab, penalised)
    rows, length, batch, k = 9, 3, 13, 6
    logits = cases.logits(rows, length, vocab, g=g, dtype=dtype, stride=stride)
    arguments = (
        logits,
        k,
        cases.sampling(batch, g),
        cases.positions(rows, g),
        torch.randperm(batch, generator=g)[:rows].int(),
        cases.penalties(batch, vocab, g) if penalised else None,
    )
    mask_token_id = vocab // 2 if vocab > 2 else -1
    got = call(on, "draft_candidates", *arguments, mask_token_id=mask_token_id)
    expected = dk.draft_candidates(*arguments, mask_token_id=mask_token_id, backend="reference")
    _assert_candidates_agree(got, expected, _perturbed(*arguments, mask_token_id))


def _perturbed(logits, k, sampling, positions, request_ids, penalties, mask_token_id):
    _rows, length, vocab = logits.shape
    return read_rows(
        logits.reshape(-1, vocab),
        sampling,
        (positions[:, None] + torch.arange(length)).flatten(),
        request_ids.repeat_interleave(length),
        penalties,
        mask_token_id,
    ).perturbed


def _assert_candidates_agree(got: dk.Candidates, expected: dk.Candidates, perturbed: torch.Tensor) -> None:
    k = got.token_ids.shape[2]
    by_rank = perturbed.repeat_interleave(k, 0)
    assert_tokens_agree(got.token_ids.flatten(), expected.token_ids.flatten(), by_rank)
    same = got.token_ids == expected.token_ids
    for name in ("log_probs", "scores"):
        mine, theirs = getattr(got, name), getattr(expected, name)
        assert not mine.isnan().any()
        assert ((mine == -torch.inf) == (theirs == -torch.inf)).all()
        torch.testing.assert_close(mine[same], theirs[same], rtol=1e-5, atol=5e-5)


@kinds_of_rows
@penalised
def test_verify_tree(on: Target, dtype, stride, vocab, penalised) -> None:
    g = cases.generator("verify", dtype, stride, vocab, penalised)
    batch, nodes = 26, 9
    logits = cases.logits(batch, nodes, vocab, g=g, dtype=dtype, stride=stride)
    tree = cases.random_trees(batch, nodes, min(vocab, 4), g)
    arguments = (
        logits,
        tree,
        cases.sampling(batch, g),
        cases.positions(batch, g),
        cases.penalties(batch, vocab, g) if penalised else None,
    )
    got = call(on, "verify_tree", *arguments)
    _assert_verdicts_agree(got, arguments)

    packed, starts = _pack(logits, tree, stride)
    assert_same(call(on, "verify_tree", packed, *arguments[1:], row_starts=starts), got)


def _pack(logits, tree, stride):
    """Only the rows of real nodes, one request after the other, behind three rows of nobody."""
    counts = tree.num_nodes.tolist()
    rows = torch.cat([logits[b, :count] for b, count in enumerate(counts)])
    base = torch.full((len(rows) + 3, rows.shape[1] + 5), 1e4, dtype=logits.dtype)
    packed = base[:, : rows.shape[1]] if stride == "padded" else base[:, : rows.shape[1]].clone()
    packed[3:] = rows
    return packed, (torch.tensor([0, *counts]).cumsum(0)[:-1] + 3).int()


def _assert_verdicts_agree(got: dk.Verdict, arguments) -> None:
    """Equal, or a near tie where the emitted tokens first differ."""
    logits, tree, sampling, positions, penalties = arguments
    expected = dk.verify_tree(*arguments, backend="reference")
    near_ties.rows += len(positions)
    for b in range(len(positions)):
        mine, theirs = (
            (v.accepted_nodes[b].tolist(), int(v.num_accepted[b]), int(v.bonus_ids[b]), int(v.status[b]))
            for v in (got, expected)
        )
        if mine == theirs:
            continue
        near_ties.count += 1
        paths = [[*nodes[:count], None] for nodes, count, _, _ in (mine, theirs)]
        depth = next(i for i, pair in enumerate(zip(*paths, strict=False)) if pair[0] != pair[1])
        node = paths[0][depth - 1] if depth else 0
        tokens = [int(tree.token_ids[b, p[depth]]) if p[depth] is not None else bonus
                  for p, bonus in zip(paths, (mine[2], theirs[2]), strict=True)]  # fmt: skip
        assert penalties is None, f"request {b}: {mine} instead of {theirs}"
        row = read_rows(
            logits[b, node][None],
            sampling.select(slice(b, b + 1)),
            positions[b : b + 1] + depth + 1,
            None,
            None,
        ).perturbed[0]
        assert (row[tokens[0]] - row[tokens[1]]).abs() < 1e-5, f"request {b}: {mine} instead of {theirs}"


@kinds_of_rows
@penalised
@pytest.mark.parametrize("rule", ["coupled", "ratio", "block"])
def test_verify_chain(on: Target, dtype, stride, vocab, penalised, rule) -> None:
    """Drafts that the drafter sampled among foreign ones; its rows in every dtype, as logits and as probabilities."""
    g = cases.generator("chain", dtype, stride, vocab, penalised)
    batch, drafts = 26, 5
    logits = cases.logits(batch, drafts + 1, vocab, g=g, dtype=dtype, stride=stride)
    sampling, positions = cases.sampling(batch, g), cases.positions(batch, g)
    penalties = cases.penalties(batch, vocab, g) if penalised else None
    drafter_dtype = cases.DTYPES[(cases.DTYPES.index(dtype) + vocab) % len(cases.DTYPES)]
    rows = cases.logits(batch, drafts, vocab, g=g, dtype=drafter_dtype, stride=stride)
    near = torch.rand(batch, 1, 1, generator=g) < 0.8
    rows.copy_(torch.where(near, logits[:, :drafts] + torch.randn(batch, drafts, vocab, generator=g) / 2, rows))
    draft_ids = torch.randint(-1, vocab, (batch, drafts), generator=g)
    for j in range(drafts):
        own = torch.rand(batch, generator=g) < 0.9
        draft_ids[own, j] = dk.sample(rows[:, j], sampling, positions + j, backend="reference")[own]
    sources = [(None, None)] if rule == "coupled" else [(None, None), (rows, None), (None, rows.sigmoid())]
    for draft_logits, draft_probs in sources:
        arguments = (logits, draft_ids, draft_logits, sampling, positions, rule, penalties)
        got = call(on, "verify_chain", *arguments, draft_probs=draft_probs)
        assert_same(got, dk.verify_chain(*arguments, draft_probs=draft_probs, backend="reference"))
        for b in range(batch):
            count = int(got.num_accepted[b])
            assert got.accepted_nodes[b].tolist() == [*range(1, count + 1), *[-1] * (drafts + 1 - count)]


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("nodes,outcomes", [(1, 0), (1, 5), (7, 0), (33, 6), (64, 16), (100, 40)])
@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
def test_build_tree(on: Target, length, k, nodes, outcomes, strided) -> None:
    g = cases.generator("build", length, k, nodes, outcomes, strided)
    batch = 6
    shape = (batch, length + 1, k + 2) if strided else (batch, length, k)
    ids = torch.randint(0, 12, shape, generator=g)[:, :length, :k]
    scores = -torch.rand(shape, generator=g).mul(4).round(decimals=1)  # many ties
    scores = scores.sort(dim=2, descending=True).values[:, :length, :k]
    ids[1][torch.rand(ids[1].shape, generator=g) < 0.3] = -1
    scores[2][torch.rand(scores[2].shape, generator=g) < 0.3] = -torch.inf
    scores[3][torch.rand(scores[3].shape, generator=g) < 0.3] = torch.nan
    root_ids = torch.tensor([3, 0, 7, 1, -1, 2])
    candidates = dk.Candidates(ids, scores, scores)
    for max_depth in (None, 2):
        for stops in (None, torch.tensor([3, 5]), torch.randint(-1, 12, (batch, 2), generator=g)):
            arguments = (root_ids, candidates, nodes, outcomes, max_depth, stops)
            got = call(on, "build_tree", *arguments)
            assert_same(got, dk.build_tree(*arguments, backend="reference"))


def test_draft_tree_is_candidates_then_tree(on: Target) -> None:
    g = cases.generator("draft tree")
    batch, length, vocab = 13, 4, 50
    logits = cases.logits(batch, length, vocab, g=g)
    sampling, positions = cases.sampling(batch, g), cases.positions(batch, g)
    roots, stops = torch.randint(0, vocab, (batch,), generator=g), torch.tensor([7])
    got = call(on, "draft_tree", logits, roots, sampling, positions, 12, 4, 5, stop_ids=stops, mask_token_id=3)
    candidates = dk.draft_candidates(logits, 5, sampling, positions + 1, mask_token_id=3, backend="reference")
    expected = dk.build_tree(roots, candidates, 12, 4, stop_ids=stops, backend="reference")
    for name in ("token_ids", "parents", "depths", "num_nodes", "mask_bits"):
        assert_same(getattr(got[0], name), getattr(expected[0], name))
    torch.testing.assert_close(got[1].scores, expected[1].scores)


@pytest.mark.parametrize("outcomes", [0, 1, 7, 33])
def test_select_outcome(on: Target, outcomes) -> None:
    g = cases.generator("select", outcomes)
    batch, nodes = 40, 5
    num_accepted = torch.randint(0, nodes, (batch,), generator=g).int()
    accepted = torch.randint(1, nodes, (batch, nodes), generator=g).int()
    accepted[torch.arange(nodes) >= num_accepted[:, None]] = -1
    bonus = torch.randint(-1, 4, (batch,), generator=g)
    verdict = dk.Verdict(accepted, num_accepted, bonus, torch.zeros(batch, dtype=torch.int32))
    parent = torch.randint(-1, nodes, (batch, outcomes), generator=g).int()
    tokens = torch.randint(-1, 4, (batch, outcomes), generator=g)
    record = dk.Outcomes(parent, tokens, torch.zeros(batch, outcomes))
    got = call(on, "select_outcome", verdict, record).tolist()
    for b in range(batch):
        node = int(accepted[b, num_accepted[b] - 1]) if num_accepted[b] else 0
        wanted = [e for e in range(outcomes) if (parent[b, e], tokens[b, e]) == (node, bonus[b]) and bonus[b] >= 0]
        assert got[b] == (wanted[0] if wanted else -1)
