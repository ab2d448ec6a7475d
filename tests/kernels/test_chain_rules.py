"""The ratio test and block verification: exact by enumeration, and the op does what was enumerated."""

from __future__ import annotations

import functools
import itertools
import math
import random
from fractions import Fraction

import pytest
import torch

import d3d_kernels as dk

from . import cases, chain_oracle, oracle
from .harness import Target, assert_same, call
from .test_oracle import SIGNIFICANCE, chi_square, sampling_of

RULES = ("ratio", "block")
rules = pytest.mark.parametrize("rule", RULES)
FILTERS = (
    oracle.Parameters(1.0),
    oracle.Parameters(0.8, top_k=3),
    oracle.Parameters(1.2, top_p=0.85),
    oracle.Parameters(0.9, top_k=4, min_p=0.1),
)


def random_model(vocab: int, rng: random.Random, kind: str) -> chain_oracle.Model:
    """A rational distribution behind every prefix: with zeros, or a point mass."""

    @functools.cache
    def behind(prefix: chain_oracle.Prefix) -> list[Fraction]:
        own = random.Random(f"{seed}{prefix}")
        weights = [own.randrange(0 if kind == "zeros" else 1, 9) for _ in range(vocab)]
        if kind == "certain" or not any(weights):
            weights = [0] * vocab
            weights[own.randrange(vocab)] = 1
        return [Fraction(w, sum(weights)) for w in weights]

    seed = rng.random()
    return behind


@rules
@pytest.mark.parametrize("vocab,n", [(2, 1), (2, 3), (3, 2), (3, 3), (6, 1), (6, 2), (6, 3)])
@pytest.mark.parametrize("drafter", ["spread", "zeros", "certain", "the target"])
def test_the_rules_emit_the_target_distribution_exactly(rule: str, vocab: int, n: int, drafter: str) -> None:
    """Whatever was emitted, continued by p, has the probability under p of every sequence of n + 1 tokens."""
    rng = random.Random(f"{vocab} {n} {drafter}")
    p = random_model(vocab, rng, "zeros" if n < 3 else "spread")
    q = p if drafter == "the target" else random_model(vocab, rng, drafter)
    emitted, mean = chain_oracle.emissions(rule, p, q, n)
    for sequence in itertools.product(range(vocab), repeat=n + 1):
        behind = [p(sequence[:j])[token] for j, token in enumerate(sequence)]
        found = sum(emitted.get(sequence[: j + 1], 0) * math.prod(behind[j + 1 :]) for j in range(n + 1))
        assert found == math.prod(behind), sequence
    if drafter == "the target":
        assert mean == n


@pytest.mark.parametrize("vocab,n", [(2, 2), (2, 3), (3, 3), (4, 2)])
@pytest.mark.parametrize("drafter", ["spread", "zeros", "certain"])
def test_block_verification_accepts_no_fewer_tokens(vocab: int, n: int, drafter: str) -> None:
    """In expectation, for every pair of models; more for most, and as many where drafts are certain."""
    means = []
    for case in range(20):
        rng = random.Random(f"{vocab} {n} {drafter} {case}")
        p, q = random_model(vocab, rng, "spread"), random_model(vocab, rng, drafter)
        means.append(tuple(chain_oracle.emissions(rule, p, q, n)[1] for rule in RULES))
    assert all(block >= ratio for ratio, block in means)
    more = sum(block > ratio for ratio, block in means)
    assert more == 0 if drafter == "certain" else more > 10


def chains(seed: str, batch: int, n: int, vocab: int, p: oracle.Parameters):
    """Target and drafter logits, drafts from our sampler with the same seeds, and the seeds."""
    g = cases.generator(seed, batch, n, vocab, p)
    target = torch.randn(batch, n + 1, vocab, generator=g) * 1.5
    drafter = target[:, :n] + torch.randn(batch, n, vocab, generator=g)
    seeds = torch.randint(-(2**63), 2**63 - 1, (batch,), generator=g)
    first = torch.randint(0, 2**33, (batch,), generator=g)
    sampling = sampling_of([p] * batch, seeds)
    drafts = [dk.sample(drafter[:, j], sampling, first + j, backend="reference") for j in range(n)]
    return target, drafter, torch.stack(drafts, dim=1), sampling, first


@functools.cache
def judged(rule: str, p: oracle.Parameters, source: str, n: int) -> tuple[tuple, dict, list]:
    """Arguments of verify_chain, and the oracle's verdicts."""
    batch, vocab = 90, 6
    target, drafter, drafts, sampling, first = chains("verdict", batch, n, vocab, p)
    own = [[oracle.distribution(row, p) for row in rows] for rows in target.tolist()]
    theirs = [[oracle.distribution(row, p) for row in rows] for rows in drafter.tolist()]
    if source == "certain":
        theirs = torch.nn.functional.one_hot(drafts, vocab).double().tolist()
    arguments = (target, drafts, drafter if source == "logits" else None, sampling, first, rule)
    requests = zip(own, theirs, drafts.tolist(), sampling.seed.tolist(), first.tolist(), strict=True)
    probs = {"draft_probs": torch.tensor(theirs).double()} if source == "probabilities" else {}
    return arguments, probs, [chain_oracle.verdict(rule, *request) for request in requests]


@rules
@pytest.mark.parametrize("p", FILTERS, ids=str)
@pytest.mark.parametrize("source", ["logits", "probabilities", "certain"])
def test_verdicts_are_the_oracles(on: Target, rule: str, p: oracle.Parameters, source: str) -> None:
    for n in (1, 2, 4):
        arguments, probs, expected = judged(rule, p, source, n)
        got = call(on, "verify_chain", *arguments, **probs)
        assert not got.status.any()
        for b, (accepted, bonus, gap) in enumerate(expected):
            mine = int(got.num_accepted[b]), int(got.bonus_ids[b])
            assert mine == (accepted, bonus) or gap < 1e-5, f"n = {n}, request {b}"
        covered = {accepted for accepted, _, _ in expected}
        assert len(covered) == n + 1 or (source == "certain" and len(covered) > 2), "accepted lengths"


def markov(seed: str, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [V,V] of target and drafter by the last token."""
    g = cases.generator("markov", seed)
    target = torch.randn(vocab, vocab, generator=g)
    return target, target + 1.2 * torch.randn(vocab, vocab, generator=g)


def draft(table: torch.Tensor, last: torch.Tensor, n: int, sampling, positions) -> tuple[torch.Tensor, torch.Tensor]:
    """n drafts behind the tokens `last`, and the logits they were drawn from."""
    ids, rows = [], []
    for j in range(n):
        rows.append(table[last])
        last = dk.sample(rows[-1], sampling, positions + j, backend="cpu")
        ids.append(last)
    return torch.stack(ids, dim=1), torch.stack(rows, dim=1)


@rules
@pytest.mark.parametrize("p", FILTERS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_failure_01_drafts_by_our_own_sampler_with_the_same_seed(
    on: Target, rule: str, p: oracle.Parameters, n: int
) -> None:
    """Draft and residual shared their noise, and the output was biased: chi-square 1585 against a limit of 70.

    Here each request has one seed for its drafter and its verdict, and what is emitted must follow the
    enumeration.
    """
    vocab, draws = 5, 6000
    target, drafter = markov(f"failure 1 {p} {n}", vocab)
    sampling = sampling_of([p] * draws, torch.arange(draws) * 7919 + 13)
    first, last = torch.arange(draws) % 101, torch.zeros(draws, dtype=torch.int64)
    drafts, drafter_rows = draft(drafter, last, n, sampling, first)
    target_rows = target[torch.cat([last[:, None], drafts], dim=1)]
    moved = [t.to(on.device) for t in (target_rows, drafts, drafter_rows)]
    got = dk.verify_chain(*moved, sampling.to(on.device), first.to(on.device), rule, backend=on.backend).to("cpu")
    observed: dict[tuple[int, ...], int] = {}
    for ids, count, bonus in zip(drafts.tolist(), got.num_accepted.tolist(), got.bonus_ids.tolist(), strict=True):
        key = (*ids[:count], bonus)
        observed[key] = observed.get(key, 0) + 1
    tables = [[oracle.distribution(row, p) for row in table.tolist()] for table in (target, drafter)]
    models = [lambda prefix, table=table: table[prefix[-1] if prefix else 0] for table in tables]
    expected, _ = chain_oracle.emissions(rule, *models, n)
    assert chi_square(observed, {key: float(x) for key, x in expected.items()}, draws) > SIGNIFICANCE


def emit(rule: str, fresh: bool, n: int, length: int, draws: int) -> float:
    """p-value of the first `length` tokens that rounds of n drafts emit."""
    vocab = 3
    target, drafter = markov("rounds", vocab)
    sampling = dk.SamplingTensors.full(draws)
    sampling.seed.copy_(torch.arange(draws))
    text = torch.zeros(draws, length + n + 2, dtype=torch.int64)  # begins with token 0
    count, lane = torch.zeros(draws, dtype=torch.int64), torch.arange(draws)
    while (count < length).any():
        first, last = count + 1, text[lane, count]
        seeds = sampling.seed ^ first << 32 if fresh else sampling.seed
        drawn = dk.SamplingTensors(*sampling.tensors()[:4], seeds)
        drafts, rows = draft(drafter, last, n, drawn, first)
        target_rows = target[torch.cat([last[:, None], drafts], dim=1)]
        verdict = dk.verify_chain(target_rows, drafts, rows, sampling, first, rule, backend="cpu")
        going, accepted = count < length, verdict.num_accepted.long()
        for j in range(n):
            kept = going & (j < accepted)
            text[lane[kept], first[kept] + j] = drafts[kept, j]
        text[lane[going], (first + accepted)[going]] = verdict.bonus_ids[going]
        count = torch.where(going, count + accepted + 1, count)
    observed: dict[tuple[int, ...], int] = {}
    for tokens in text[:, 1 : length + 1].tolist():
        observed[tuple(tokens)] = observed.get(tuple(tokens), 0) + 1
    table = target.softmax(-1).tolist()
    expected = {
        tokens: math.prod(table[a][b] for a, b in itertools.pairwise((0, *tokens)))
        for tokens in itertools.product(range(vocab), repeat=length)
    }
    return chi_square(observed, expected, draws)


@pytest.mark.parametrize("rule,fresh", [("ratio", False), ("ratio", True), ("block", True)])
def test_several_rounds_follow_the_target(rule: str, fresh: bool) -> None:
    """The ratio rule with the drafter's noise of each position, or of each round; the block rule with the latter."""
    assert emit(rule, fresh, n=3, length=4, draws=40_000) > SIGNIFICANCE


def test_block_verification_needs_a_drafter_with_fresh_noise_in_each_round() -> None:
    """Its verdict looks at drafts that it does not keep; drawn again with the same noise, they are no sample of q."""
    assert emit("block", False, n=3, length=4, draws=40_000) < SIGNIFICANCE


def test_failure_16_one_draft_is_the_ratio_test(on: Target) -> None:
    """Block verification was implemented with the token-wise acceptance, or with an off-by-one residual.

    With one draft the two are one rule: bit for bit. With more, enumeration tells them apart (above).
    """
    batch, vocab = 260, 9
    g = cases.generator("failure 16")
    sampling, first = cases.sampling(batch, g), cases.positions(batch, g)
    target = cases.logits(batch, 2, vocab, g=g)
    drafter = cases.logits(batch, 1, vocab, g=g)
    drafts = torch.randint(-1, vocab, (batch, 1), generator=g)
    for rows in (drafter, None):
        ratio, block = (call(on, "verify_chain", target, drafts, rows, sampling, first, rule) for rule in RULES)
        assert_same(block, ratio)
        assert 0 < ratio.num_accepted.sum() < batch


# Words at both ends of the generator's range, found by search: purpose, word, seed, position, index.
ENDS = (
    (chain_oracle.ACCEPTANCE, 0, 91, 461693, 0),
    (chain_oracle.ACCEPTANCE, 2**32 - 1, 70, 11460213, 1),
    (chain_oracle.RESIDUAL, 0, 121971692, 1000, 6),
    (chain_oracle.RESIDUAL, 2**32 - 1, 41797431, 1000, 35),
)


def one_chain(probabilities: torch.Tensor, q: torch.Tensor, drafts: list[int], seed: int, position: int):
    sampling = dk.SamplingTensors.full(1, seed=seed)
    return probabilities.log()[None], torch.tensor([drafts]), q.log()[None], sampling, torch.tensor([position])


@rules
@pytest.mark.parametrize("purpose,word,seed,position,index", ENDS[:2])
def test_failure_15_acceptance_at_both_ends_of_the_uniform(on, rule, purpose, word, seed, position, index) -> None:
    """A uniform of exactly 0 gave 0 / 0, or accepted a token without mass; one of 1 rejected where p >= q.

    The last draft meets u = 2^-33 or 1 - 2^-33. Before it p = q, so that both rules get there.
    """
    assert oracle.draw(seed, position, index, purpose) == word
    n, vocab = index + 1, 4
    even = torch.full((vocab,), 1 / vocab)
    lacks_1 = torch.tensor([0.5, 0.0, 0.25, 0.25])
    nearly = torch.tensor([0.25 - 2**-20, 0.25 + 2**-20, 0.25, 0.25])
    lowest = word == 0
    for p_last, q_last, draft_last, accepts in (
        (lacks_1, even, 1, False),  # no mass in p: never, even at the lowest u
        (lacks_1, lacks_1, 1, False),  # in neither: 0 / 0
        (even, lacks_1, 1, True),  # only in p: always, even at the highest
        (even, even, 1, True),
        (nearly, even, 0, lowest),  # a ratio just below 1
        (nearly, even, 1, True),
    ):
        p = torch.cat([even.expand(n - 1, vocab), p_last[None], even[None]])
        q = torch.cat([even.expand(n - 1, vocab), q_last[None]])
        drafts = [0] * (n - 1) + [draft_last]
        got = call(on, "verify_chain", *one_chain(p, q, drafts, seed, position), rule)
        assert got.num_accepted.tolist() == [n if accepts else n - 1]
        if draft_last == 1 and not accepts:
            assert got.bonus_ids.item() != 1


@rules
@pytest.mark.parametrize("purpose,word,seed,position,token", ENDS[2:])
def test_failure_15_no_token_without_mass_is_drawn(on, rule, purpose, word, seed, position, token) -> None:
    """The largest noise must not lift a token that the residual lacks, nor the smallest drop the only one it has."""
    assert oracle.draw(seed, position, token, purpose) == word
    vocab = 40
    p, q = torch.full((vocab,), 1 / vocab), torch.full((vocab,), 1 / vocab)
    q[token], p[token] = q[token] * 2, 0.0
    first = torch.stack([p / p.sum(), p / p.sum()]), (q / q.sum())[None]
    got = call(on, "verify_chain", *one_chain(*first, [token], seed, position), rule)
    assert got.num_accepted.tolist() == [0] and got.bonus_ids.item() != token
    only = torch.zeros(vocab)
    only[token] = 1.0
    got = call(on, "verify_chain", *one_chain(torch.stack([only, p]), q[None] / q.sum(), [3], seed, position), rule)
    assert got.num_accepted.tolist() == [0] and got.bonus_ids.item() == token


@rules
@pytest.mark.parametrize("p", FILTERS, ids=str)
def test_failure_17_q_is_filtered_and_tempered_as_it_was_when_sampled(on: Target, rule: str, p) -> None:
    """The q of the test was not the q of the sampler: a filter, or a dtype, was applied to one of them only.

    Logits, and the filtered softmax of them as probabilities, give one verdict; drafts of a drafter that is the
    target are all accepted, in every dtype of the drafter's logits.
    """
    batch, n, vocab = 200, 4, 6
    target, drafter, drafts, sampling, first = chains("failure 17", batch, n, vocab, p)
    probs = torch.tensor([[oracle.distribution(row, p) for row in rows] for rows in drafter.tolist()]).double()
    by_logits = call(on, "verify_chain", target, drafts, drafter, sampling, first, rule)
    assert_same(call(on, "verify_chain", target, drafts, None, sampling, first, rule, draft_probs=probs), by_logits)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        rounded = target.to(dtype)
        drafts = torch.stack([dk.sample(rounded[:, j], sampling, first + j) for j in range(n)], dim=1)
        own = rounded.float() if dtype != torch.float64 else target
        got = call(on, "verify_chain", own, drafts, rounded[:, :n], sampling, first, rule)
        assert (got.num_accepted == n).all()


@rules
def test_probabilities_are_weights(on: Target, rule: str) -> None:
    """Divided by their sum; NaN and what is negative counts as 0, what exceeds 1 as 1."""
    batch, n, vocab = 100, 3, 7
    target, _, drafts, sampling, first = chains("weights", batch, n, vocab, FILTERS[0])
    g = cases.generator("weights")
    weights = torch.rand(batch, n, vocab, generator=g)
    odd = weights.clone()
    weights[0::4, :, 2], odd[0::4, :, 2] = 0.0, torch.nan
    weights[1::4, :, 3], odd[1::4, :, 3] = 0.0, -2.0
    weights[2::4, :, 4], odd[2::4, :, 4] = 1.0, torch.inf
    expected = call(on, "verify_chain", target, drafts, None, sampling, first, rule, draft_probs=weights)
    assert_same(call(on, "verify_chain", target, drafts, None, sampling, first, rule, draft_probs=odd), expected)
    halved = call(on, "verify_chain", target, drafts, None, sampling, first, rule, draft_probs=weights / 2)
    same = (halved.num_accepted == expected.num_accepted) & (halved.bonus_ids == expected.bonus_ids)
    assert same[torch.arange(batch) % 4 != 2].all()
