"""Chains under every rule: what they share with trees, and how they have failed elsewhere."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk

from . import cases, chain_oracle, oracle
from .harness import Target, assert_same, call, within
from .test_failures_rows import FILTERS, LONG, hard_rows
from .test_oracle import sampling_of
from .test_penalties import VOCAB, _after, penalties_of

RULES = ("coupled", "ratio", "block")
rules = pytest.mark.parametrize("rule", RULES)
drafters = pytest.mark.parametrize("drafter", ["logits", "certain"])


@pytest.mark.parametrize("penalised", [False, True], ids=["plain", "penalised"])
def test_the_coupled_rule_is_verify_tree_on_a_chain(on: Target, penalised: bool) -> None:
    g = cases.generator("chain of a tree", penalised)
    batch, drafts, vocab = 52, 5, 4
    logits = cases.logits(batch, drafts + 1, vocab, g=g)
    sampling, positions = cases.sampling(batch, g), cases.positions(batch, g)
    penalties = cases.penalties(batch, vocab, g) if penalised else None
    ids = torch.randint(0, vocab, (batch, drafts), generator=g)
    for j in range(drafts):  # many that are accepted without penalties
        own = torch.rand(batch, generator=g) < 0.8
        ids[own, j] = dk.sample(logits[:, j], sampling, positions + j)[own]
    tree = cases.tree_of([list(range(-1, drafts))] * batch, [[0, *row] for row in ids.tolist()])
    expected = call(on, "verify_tree", logits, tree, sampling, positions - 1, penalties)
    assert_same(call(on, "verify_chain", logits, ids, None, sampling, positions, "coupled", penalties), expected)
    assert expected.num_accepted.max() >= 3


@pytest.mark.parametrize("rule", ["ratio", "block"])
@drafters
@pytest.mark.parametrize("temperature", [0.0, 1e-8, -1.0, torch.nan])
def test_greedy_requests_follow_the_argmax_under_every_rule(on: Target, rule, drafter, temperature) -> None:
    """Whatever q is: random, NaN, or a point mass somewhere else."""
    g = cases.generator("greedy", rule, drafter)
    batch, drafts, vocab = 42, 4, 3
    logits = cases.logits(batch, drafts + 1, vocab, g=g)
    rows = cases.logits(batch, drafts, vocab, g=g) if drafter == "logits" else None
    ids = torch.randint(0, vocab, (batch, drafts), generator=g)
    own = torch.rand(batch, drafts, generator=g) < 0.6
    ids = torch.where(own, logits[:, :drafts].nan_to_num(nan=-torch.inf).argmax(2), ids)
    sampling, positions = dk.SamplingTensors.full(batch, temperature=temperature, top_k=2), torch.arange(batch)
    expected = call(on, "verify_chain", logits, ids, None, sampling, positions)
    assert_same(call(on, "verify_chain", logits, ids, rows, sampling, positions, rule), expected)
    assert set(expected.num_accepted.tolist()) == set(range(drafts + 1))


@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("p", [oracle.Parameters(1.0), oracle.Parameters(0.9, top_k=4)], ids=str)
def test_p_sees_penalties_and_the_drafts_before_it(on: Target, rule: str, p: oracle.Parameters) -> None:
    batch, drafts = 60, 4
    g = cases.generator("penalised chain", rule, p)
    history = oracle.History((1, 2), (3, 3), 1.4, 0.9, 0.5, ((4, 0.5), (4, 0.25)), frozenset(range(6)))
    target, drafter = torch.randn(batch, drafts + 1, VOCAB, generator=g), torch.randn(batch, drafts, VOCAB, generator=g)
    sampling = sampling_of([p] * batch, torch.arange(batch))
    first = torch.full((batch,), 100)
    ids = torch.stack([dk.sample(drafter[:, j], sampling, first + j) for j in range(drafts)], dim=1)
    got = call(on, "verify_chain", target, ids, drafter, sampling, first, rule, penalties_of([history] * batch))
    for b in range(batch):
        seen = [_after(history, tuple(ids[b, :j].tolist())) for j in range(drafts + 1)]
        rows = [oracle.penalised(row, h) for row, h in zip(target[b].tolist(), seen, strict=True)]
        own, theirs = ([oracle.distribution(row, p) for row in r] for r in (rows, drafter[b].tolist()))
        accepted, bonus, gap = chain_oracle.verdict(rule, own, theirs, ids[b].tolist(), b, 100)
        assert (int(got.num_accepted[b]), int(got.bonus_ids[b])) == (accepted, bonus) or gap < 1e-5
    assert got.num_accepted.max() >= 2


@rules
@drafters
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_failure_09_ids_outside_the_vocabulary_end_a_chain(on: Target, rule, drafter, temperature) -> None:
    """Ids of -1 and >= V in ragged tails were counted as emitted, or reached the embedding."""
    vocab = 8
    bad = (-1, -(2**40), vocab, vocab + 2, 2**31, 2**32 + 2, 2**40)
    places = [(id, at) for id in bad for at in (0, 2, 4)]
    logits, ids = torch.zeros(len(places), 6, vocab), torch.full((len(places), 5), 2)
    logits[..., 2] = 60.0  # the target says 2 everywhere
    for b, (id, at) in enumerate(places):
        ids[b, at] = id
    rows = logits[:, :5] if drafter == "logits" else None
    sampling, positions = dk.SamplingTensors.full(len(places), temperature=temperature), torch.arange(len(places))
    got = call(on, "verify_chain", logits, ids, rows, sampling, positions, rule)
    assert got.num_accepted.tolist() == [at for _, at in places] and (got.bonus_ids == 2).all()
    assert not got.status.any(), "padding of a chain is no error"


@rules
@drafters
def test_a_ragged_chain_is_the_chain_without_its_padding(on: Target, rule: str, drafter: str) -> None:
    g = cases.generator("ragged", rule, drafter)
    batch, drafts, vocab = 26, 6, 5
    logits = cases.logits(batch, drafts + 1, vocab, g=g)
    rows = cases.logits(batch, drafts, vocab, g=g) if drafter == "logits" else None
    sampling, positions = cases.sampling(batch, g), cases.positions(batch, g)
    ids = torch.randint(0, vocab, (batch, drafts), generator=g)
    for length in (0, 1, 3):
        padded = ids.clone()
        padded[:, length] = -1
        got = call(on, "verify_chain", logits, padded, rows, sampling, positions, rule)
        short = rows if rows is None else rows[:, :length]
        alone = call(on, "verify_chain", logits[:, : length + 1], ids[:, :length], short, sampling, positions, rule)
        for name in ("num_accepted", "bonus_ids", "status"):
            assert_same(getattr(got, name), getattr(alone, name))


@rules
def test_failure_13_no_requests_and_no_drafts(on: Target, rule: str) -> None:
    none, nowhere = torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    got = call(on, "verify_chain", torch.zeros(0, 4, 9), none, None, dk.SamplingTensors.full(0), nowhere, rule)
    assert got.accepted_nodes.shape == (0, 4)
    logits = torch.randn(3, 1, 9, generator=cases.generator("failure 13"))
    no_drafts, some = torch.zeros(3, 0, dtype=torch.int64), dk.SamplingTensors.full(3, top_k=1)
    for rows in (None, torch.zeros(3, 0, 9)):
        got = call(on, "verify_chain", logits, no_drafts, rows, some, torch.arange(3), rule)
        assert not got.num_accepted.any()
        assert_same(got.bonus_ids, logits[:, 0].argmax(1))


@rules
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_failure_03_rows_that_offer_nothing(on: Target, rule: str, temperature: float) -> None:
    """A NaN row gave an id of V. Here it is certain of token 0, and says so if it was read."""
    nothing = int(dk.Status.NO_FINITE_LOGIT)
    logits = torch.zeros(4, 3, 6)
    logits[..., 3] = 60.0
    logits[1, 0], logits[2, 1], logits[3, 2] = torch.nan, -torch.inf, torch.nan
    sampling, positions = dk.SamplingTensors.full(4, temperature=temperature), torch.arange(4)
    ids = torch.tensor([[3, 3], [3, 3], [3, 3], [3, 4]])
    got = call(on, "verify_chain", logits, ids, logits[:1, :2].expand(4, 2, 6), sampling, positions, rule)
    assert got.num_accepted.tolist() == [2, 0, 1, 1] and got.bonus_ids.tolist() == [3, 0, 0, 3]
    assert got.status.tolist() == [0, nothing, nothing, 0]
    ids[1], ids[2] = torch.tensor([0, 3]), torch.tensor([3, 0])
    got = call(on, "verify_chain", logits, ids, logits[:, :2], sampling, positions, rule)
    assert got.num_accepted.tolist() == [2, 2, 2, 1] and got.bonus_ids.tolist() == [3, 3, 3, 3]
    assert got.status.tolist() == [0, nothing, nothing, 0]


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_drafter_that_offers_nothing_is_certain_of_token_0(on: Target, rule: str) -> None:
    logits = torch.zeros(2, 2, 6)
    logits[..., 3] = 60.0
    sampling, ids = dk.SamplingTensors.full(2), torch.tensor([[3], [0]])
    empty = torch.zeros(2, 1, 6)
    for rows in ((empty * torch.nan, None), (None, empty)):
        got = call(on, "verify_chain", logits, ids, rows[0], sampling, torch.arange(2), rule, draft_probs=rows[1])
        assert got.num_accepted.tolist() == [1, 0] and got.bonus_ids.tolist() == [3, 3]
        assert got.status.tolist() == [int(dk.Status.NO_FINITE_LOGIT)] * 2


@rules
def test_failure_04_offsets_past_two_to_the_31(on: Target, rule: str) -> None:
    """An int32 offset read another row. The rows lie in address space of which little is touched."""
    vocab = 151_936
    far = 2**31 // vocab + 2
    storage = torch.empty((far + 2) * vocab, dtype=torch.bfloat16, device=on.device)
    pair = storage.as_strided((2, vocab), (far * vocab, 1), vocab)
    pair.zero_()
    pair[0, 77], pair[1, 150_001] = 60, 60
    for logits, ids in ((pair[None], [[77]]), (pair[:, None], [[], []])):
        sampling = dk.SamplingTensors.full(len(logits), on.device)
        positions = torch.arange(len(logits), device=on.device)
        ids = torch.tensor(ids, dtype=torch.int64, device=on.device)
        rows = logits[:, :-1] if ids.shape[1] else None
        got = dk.verify_chain(logits, ids, rows, sampling, positions, rule, backend=on.backend)
        assert got.bonus_ids.tolist() == ([150_001] if ids.shape[1] else [77, 150_001])
        assert got.num_accepted.tolist() == [ids.shape[1]] * len(logits)


@rules
def test_failure_05_strides_of_rows_drafts_and_requests(on: Target, rule: str) -> None:
    """Rows were read V apart. Here the padding of each tensor would win, and a copy must give the same."""
    g = cases.generator("failure 5", rule)
    batch, drafts, vocab = 13, 3, 50
    target = cases.logits(batch, drafts + 1, vocab, g=g, stride="padded")
    rows = cases.logits(batch, drafts, vocab, g=g, stride="strided")
    ids = torch.full((batch, drafts + 4), vocab)[:, 2 : 2 + drafts]
    ids.copy_(torch.randint(0, vocab, (batch, drafts), generator=g))
    one_for_all = rows[:1].expand_as(rows)
    sampling, positions = cases.sampling(batch, g), cases.positions(batch, g)
    for drafter in (rows, one_for_all):
        views = (target, ids, drafter)
        got = call(on, "verify_chain", *views, sampling, positions, rule)
        assert_same(call(on, "verify_chain", *(t.contiguous() for t in views), sampling, positions, rule), got)


@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("temperature", [1e-5, 1.0, 1e30])
def test_failure_07_rows_on_which_a_search_never_ended(on: Target, rule: str, temperature: float) -> None:
    rows = hard_rows()
    target = torch.stack([rows, rows.roll(1, 0), rows], dim=1)
    drafter, ids = target[:, [1, 0]], torch.tensor([[3, LONG - 1]]).expand(len(rows), 2)

    def run() -> None:
        for top_k, top_p, min_p in FILTERS[2::4]:
            sampling = dk.SamplingTensors.full(
                len(rows), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=3
            )
            arguments = (target, ids, drafter, sampling, torch.arange(len(rows)), rule)
            got = call(on, "verify_chain", *arguments)
            assert_same(got, dk.verify_chain(*arguments, backend="reference"))

    within(60, run)


@rules
def test_failure_19_results_repeat_and_do_not_depend_on_the_batch(on: Target, rule: str) -> None:
    """The same requests alone, in another order, with another number of threads, and again."""
    g = cases.generator("failure 19", rule)
    batch, drafts, vocab = 26, 4, 300
    target = cases.logits(batch, drafts + 1, vocab, g=g)
    rows = target[:, :drafts] + torch.randn(batch, drafts, vocab, generator=g) / 2
    sampling, positions = cases.sampling(batch, g), cases.positions(batch, g)
    penalties = cases.penalties(batch, vocab, g)
    ids = torch.stack([dk.sample(rows[:, j], sampling, positions + j) for j in range(drafts)], dim=1)

    def verdict(index: torch.Tensor) -> dk.Verdict:
        chosen = target[index], ids[index], rows[index], sampling.select(index), positions[index]
        return call(on, "verify_chain", *chosen, rule, penalties.select(index))

    whole, order = verdict(torch.arange(batch)), torch.randperm(batch, generator=g)
    for _ in range(5):
        assert_same(verdict(order), whole.select(order))
    for b in (0, 7, 13):
        assert_same(verdict(torch.tensor([b])), whole.select(torch.tensor([b])))


@rules
@pytest.mark.parametrize("penalised", [False, True], ids=["plain", "penalised"])
def test_threads_that_requests_do_not_fill(rule: str, penalised: bool) -> None:
    """Rows are read ahead by other threads under the block rule: the same bits for any number of them."""
    g = cases.generator("threads", rule, penalised)
    batch, drafts, vocab = 2, 5, 40_000
    target = torch.randn(batch, drafts + 1, vocab, generator=g) * 3
    rows = target[:, :drafts] + torch.randn(batch, drafts, vocab, generator=g)
    sampling = dk.SamplingTensors.full(batch, top_p=0.95)
    positions, penalties = torch.tensor([3, 9]), cases.penalties(batch, vocab, g) if penalised else None
    ids = torch.stack([dk.sample(rows[:, j], sampling, positions + j) for j in range(drafts)], dim=1)
    found = []
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        for _ in range(3):
            found.append(dk.verify_chain(target, ids, rows, sampling, positions, rule, penalties, backend="cpu"))
    for other in found[1:]:
        assert_same(other, found[0])
