"""What a request reports: increments, log-probabilities, copies and seeds, numbers about its rounds."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from d3d_runtime import RequestOutput, SamplingParams, UserError
from d3d_runtime.engine import sub_seed
from d3d_runtime.models.attention import causal_attention
from d3d_runtime.models.loader import load_model

from .tiny_pair import SAMPLING, random_prompts, results

MODES = ["autoregressive", "sync", "async"]
PROMPTS = random_prompts(6, seed=13)


# ---- streaming


def joined(increments: list[RequestOutput]) -> tuple[str, list[int], str | None, list | None]:
    logprobs = [entry for each in increments for entry in each.logprobs or []]
    text = "".join(each.text for each in increments)
    token_ids = [token for each in increments for token in each.token_ids]
    return text, token_ids, increments[-1].finish_reason, logprobs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "more", [{}, {"stop": ["7", "a"]}, {"stop_token_ids": list(range(4, 40))}, {"logprobs": 2}]
)
def test_increments_add_up_to_the_output(more, mode, engines, text_pair):
    engine = engines(text_pair, mode)
    for seed in range(3):
        params = SamplingParams(max_tokens=25, temperature=1.0, seed=seed, **more)
        (whole,) = engine.generate("Anna has", params)
        increments = list(engine.stream("Anna has", params))
        assert joined(increments) == (whole.text, whole.token_ids, whole.finish_reason, whole.logprobs or [])
        assert all(each.finish_reason is None for each in increments[:-1])
        assert {each.seed for each in increments} == {seed} and len({e.request_id for e in increments}) == 1
        assert len(increments) == whole.metrics.rounds


def test_two_streams_at_once(engines, text_pair):
    """Each runs rounds for both; neither loses what the other's rounds added, nor its last increment."""
    engine = engines(text_pair, "async")
    params = [SamplingParams(max_tokens=n, temperature=1.0, seed=n) for n in (30, 12)]
    whole = engine.generate(["Anna", "3 red"], params)
    streams = [engine.stream(prompt, each) for prompt, each in zip(["Anna", "3 red"], params)]
    seen: list[list[RequestOutput]] = [[], []]
    going = [0, 1]
    while going:
        for i in list(going):
            increment = next(streams[i], None)
            if increment is None:
                going.remove(i)
            else:
                seen[i].append(increment)
    for increments, output in zip(seen, whole):
        assert joined(increments)[:3] == (output.text, output.token_ids, output.finish_reason)


def test_a_closed_stream_aborts_its_request(engines, text_pair):
    engine = engines(text_pair, "async")
    stream = engine.stream("Anna", SamplingParams(max_tokens=30, ignore_eos=True))
    next(stream)
    assert len(engine._scheduler.running) == 1
    stream.close()
    assert not engine._scheduler.running


def test_an_aborted_request_ends_its_stream(engines, text_pair):
    engine = engines(text_pair, "async")
    stream = engine.stream("Anna", SamplingParams(max_tokens=30, ignore_eos=True))
    engine.abort(next(stream).request_id)
    (last,) = list(stream)
    assert (last.token_ids, last.finish_reason) == ([], "abort")


# ---- log-probabilities


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SAMPLING)
def test_logprobs_are_those_of_the_model(kind, mode, engines, pair):
    """Temperature 1, no filters, no penalties, whatever the request samples with; cut with the tokens."""
    model, _ = load_model(pair.target, torch.float64)
    counts = (0, 3, 20, None)
    params = [
        SamplingParams(max_tokens=9 + i, seed=i, logprobs=k, **SAMPLING[kind]) for i, k in enumerate(counts)
    ]
    for prompt, each, output in zip(PROMPTS, params, engines(pair, mode).generate(PROMPTS[:4], params)):
        if each.logprobs is None:
            assert output.logprobs is None
            continue
        ids = torch.tensor([prompt + output.token_ids])
        hidden = model(ids, torch.arange(ids.shape[1])[None], causal_attention)
        expected = model.logits(hidden)[0].log_softmax(-1)[len(prompt) - 1 : -1]
        assert [entry.token_id for entry in output.logprobs] == output.token_ids
        for entry, row in zip(output.logprobs, expected):
            assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-9)
            best = row.topk(each.logprobs)
            assert list(entry.top) == best.indices.tolist()
            assert list(entry.top.values()) == pytest.approx(best.values.tolist(), abs=1e-9)


# ---- copies and seeds


@pytest.mark.parametrize("mode", MODES)
def test_copies_are_requests_with_derived_seeds(mode, engines, pair, plain):
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=2**64 - 3, n=4)
    outputs = engines(pair, mode).generate(PROMPTS[:2], params)
    seeds = [sub_seed(2**64 - 3, i) for i in range(4)]
    assert [output.seed for output in outputs] == seeds * 2 and len(set(seeds)) == 4
    for i, output in enumerate(outputs):
        single = SamplingParams(max_tokens=10, temperature=1.0, seed=seeds[i % 4])
        assert results([output]) == [plain(PROMPTS[i // 4], single)]
    assert len({tuple(output.token_ids) for output in outputs[:4]}) == 4


def test_submitted_copies_end_one_by_one(engines, pair):
    engine = engines(pair, "sync")
    first = engine.submit(PROMPTS[0], SamplingParams(max_tokens=9, temperature=1.0, seed=1, n=3), "mine")
    outputs = []
    while len(outputs) < 3:
        outputs += engine.step()
    assert first == "mine"
    assert {output.request_id for output in outputs} == {"mine", "mine-1", "mine-2"}
    assert {output.seed for output in outputs} == {sub_seed(1, i) for i in range(3)}


def test_streaming_takes_no_copies(engines, text_pair):
    with pytest.raises(UserError, match="n: expected 1 when streaming, got 2"):
        next(engines(text_pair, "sync").stream("Anna", SamplingParams(n=2)))


def test_a_drawn_seed_is_reported_and_reproduces(engines, pair):
    engine = engines(pair, "async")
    params = SamplingParams(max_tokens=12, temperature=1.0, n=2)
    outputs = engine.generate([PROMPTS[2]] * 2, params)
    assert len({output.seed for output in outputs}) == 4
    for output in outputs:
        again = SamplingParams(max_tokens=12, temperature=1.0, seed=output.seed)
        assert results(engine.generate(PROMPTS[2], again)) == results([output])


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 - 1, -(2**63)])
def test_any_64_bit_seed(seed, engines, pair):
    """Reported as it was given; negative seeds name the same noise as their unsigned bit patterns."""
    engine = engines(pair, "sync")
    (one,) = engine.generate(PROMPTS[1], SamplingParams(max_tokens=8, temperature=1.0, seed=seed))
    assert one.seed == seed
    same = seed - 2**64 if seed >= 2**63 else seed
    other = SamplingParams(max_tokens=8, temperature=1.0, seed=same)
    assert results(engine.generate(PROMPTS[1], other)) == results([one])


def test_other_seeds_write_other_text(engines, pair):
    params = [SamplingParams(max_tokens=8, temperature=1.0, seed=seed) for seed in (0, 1, 2, 2**32, 2**40)]
    outputs = engines(pair, "sync").generate([PROMPTS[1]] * len(params), params)
    assert len({tuple(output.token_ids) for output in outputs}) == len(params)


# ---- metrics


@pytest.mark.parametrize("mode", MODES)
def test_metrics_count_emitted_tokens(mode, engines, pair):
    params = [SamplingParams(max_tokens=5 + 4 * i, temperature=1.0, seed=i) for i in range(6)]
    for prompt, output in zip(PROMPTS, engines(pair, mode).generate(PROMPTS, params)):
        metrics = output.metrics
        histogram = metrics.acceptance_histogram
        assert isinstance(histogram, Counter) and sum(histogram.values()) == metrics.rounds
        assert sum((accepted + 1) * rounds for accepted, rounds in histogram.items()) == len(output.token_ids)
        assert metrics.emitted == len(output.token_ids)
        assert metrics.tau == pytest.approx(len(output.token_ids) / metrics.rounds)
        assert (metrics.prefill_ms > 0) == (len(prompt) > 1)  # a single token is the root
        assert metrics.verify_ms > 0 and metrics.tail_ms > 0
        if mode == "autoregressive":
            assert histogram == {0: len(output.token_ids)}
            assert metrics.draft_ms == 0
        else:
            assert metrics.draft_ms > 0
        if mode == "async":  # the round that ends a request needs no next block
            assert metrics.hits + metrics.misses == metrics.rounds - 1
            assert metrics.overlap_ms >= metrics.verify_ms
        else:
            assert metrics.hits == metrics.misses == 0 == metrics.overlap_ms


def test_the_rate_of_nothing_is_zero(engines, pair):
    engine = engines(pair, "async")
    metrics = engine.abort(engine.submit(PROMPTS[0])).metrics
    assert (metrics.tau, metrics.hit_rate, metrics.rounds) == (0, 0, 0)


@pytest.mark.parametrize("count", [1, 6])
def test_failure_40_a_miss_drafts_for_its_own_request_only(count, engines, pair, monkeypatch):
    """One request's miss re-drafted the whole batch. Rounds that hit wait for no draft at all."""
    params = [SamplingParams(max_tokens=40, temperature=1.0, seed=i, ignore_eos=True) for i in range(count)]
    engine, drafted = engines(pair, "async", num_nodes=5, num_outcomes=9), []
    draft = engine._drafter.draft
    monkeypatch.setattr(engine._drafter, "draft", lambda batch: drafted.append(len(batch)) or draft(batch))
    outputs = engine.generate(PROMPTS[:count], params)
    assert all(output.metrics.hits > 2 for output in outputs)
    assert sum(drafted) == count + sum(output.metrics.misses for output in outputs)
