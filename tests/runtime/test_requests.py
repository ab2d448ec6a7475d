"""Requests that come, wait, leave, are aborted or fail: the others never notice, every page comes back."""

from __future__ import annotations

import os
import signal
import time
from random import Random

import pytest

from d3d_runtime import Engine, SamplingParams, UserError
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.lanes import LaneLost
from d3d_runtime.request import Request
from d3d_runtime.target import Target

from .tiny_pair import CONTEXT, SAMPLING, assert_idle, random_prompts, results

MODES = ["autoregressive", "sync", "async"]
PROMPTS = random_prompts(10, seed=21)
PARAMS = [SamplingParams(max_tokens=4 + 3 * i, seed=i, temperature=float(i % 2)) for i in range(10)]


def drain(engine: Engine) -> dict:
    """Steps until nothing is left; outputs by request id."""
    outputs = {}
    while engine._scheduler.running or engine._scheduler.waiting:
        outputs |= {output.request_id: output for output in engine.step()}
    return outputs


@pytest.mark.parametrize("mode", MODES)
def test_failure_30_concurrent_requests_do_not_touch_each_other(mode, engines, pair, plain):
    """111 of 304 outputs were wrong at 8 concurrent requests, none serially. Here they arrive at any time."""
    engine, rng = engines(pair, mode), Random(1)
    arrivals = [(rng.randrange(12), i) for i in range(len(PROMPTS)) for _ in range(2)]
    ids, outputs = {}, {}
    for step in range(12):
        for _, i in (arrival for arrival in arrivals if arrival[0] == step):
            ids[engine.submit(PROMPTS[i], PARAMS[i])] = i
        outputs |= {output.request_id: output for output in engine.step()}
    outputs |= drain(engine)
    assert len(outputs) == len(arrivals)
    for request_id, output in outputs.items():
        i = ids[request_id]
        assert results([output]) == [plain(PROMPTS[i], PARAMS[i])]


def soak(engines, pair, count: int) -> int:
    """The same generations with and without overlap; how many there were."""
    rng, kinds = Random(31), list(SAMPLING.values())
    prompts = [PROMPTS[rng.randrange(len(PROMPTS))] for _ in range(count)]
    params = [
        SamplingParams(max_tokens=rng.randint(1, 30), seed=i, **rng.choice(kinds)) for i in range(count)
    ]
    on = engines(pair, "async").generate(prompts, params)
    off = engines(pair, "sync").generate(prompts, params)
    assert results(on) == results(off)
    return len(on)


def test_failure_31_overlap_on_against_off(engines, pair):
    """2 of 40 generations differed although the memory checker was clean."""
    assert soak(engines, pair, 24) == 24


@pytest.mark.slow
def test_failure_31_soak(engines, pair):
    assert soak(engines, pair, 1000) == 1000


@pytest.mark.parametrize("slow_side", [Target, DiffusionDrafter, None])
def test_either_side_may_finish_first(slow_side, engines, pair, plain, monkeypatch):
    """Delays on one side, or now on this one and now on that: timing never shows in the tokens."""
    for owner, name in ((Target, "verify"), (DiffusionDrafter, "draft_frontier")):
        rng, work = Random(name), getattr(owner, name)

        def delayed(*args, rng=rng, work=work, owner=owner):
            time.sleep(0.004 if slow_side is owner else rng.choice([0, 0.003]) if slow_side is None else 0)
            return work(*args)

        monkeypatch.setattr(owner, name, delayed)
    outputs = engines(pair, "async").generate(PROMPTS[:5], PARAMS[:5])
    assert results(outputs) == [plain(*each) for each in zip(PROMPTS[:5], PARAMS)]
    for metrics in (output.metrics for output in outputs):
        assert metrics.overlap_ms >= metrics.verify_ms > 0


# ---- failure 41


@pytest.mark.parametrize("mode", MODES)
def test_failure_41_the_last_request_of_a_batch(mode, engines, pair, plain):
    """It runs on alone, and the engine goes on with new ones afterwards."""
    engine = engines(pair, mode)
    for _ in range(2):
        outputs = engine.generate(PROMPTS[:4], [PARAMS[0], PARAMS[0], PARAMS[9], PARAMS[0]])
        assert results(outputs)[2] == plain(PROMPTS[2], PARAMS[9])
        assert engine.step() == []


@pytest.mark.parametrize("mode", MODES)
def test_failure_41_abort_while_a_branch_waits(mode, engines, pair, plain):
    """What it has is returned, the others go on, also if its next block was drafted ahead already."""
    frontier = {"num_nodes": 5, "num_outcomes": 9} if mode == "async" else {}
    engine, drafted_ahead = engines(pair, mode, **frontier), 0
    for rounds in range(1, 6):
        ids = [engine.submit(PROMPTS[i], PARAMS[9]) for i in range(3)]
        ended = {}
        for _ in range(rounds):
            ended |= {output.request_id: output for output in engine.step()}
        if ids[1] not in ended:
            victim = next(r for r in engine._scheduler.running if r.request_id == ids[1])
            drafted_ahead += victim.draft is not None
            output = engine.abort(ids[1])
            assert output.finish_reason == "abort"
            assert output.token_ids == plain(PROMPTS[1], PARAMS[9])[0][: len(output.token_ids)]
            assert len(output.token_ids) == output.metrics.emitted >= rounds
        ended |= drain(engine)
        for i in (0, 2):
            assert results([ended[ids[i]]]) == [plain(PROMPTS[i], PARAMS[9])]
        assert_idle(engine)
    assert drafted_ahead > 0 or mode != "async"


@pytest.mark.parametrize("mode", MODES)
def test_failure_41_abort_while_waiting(mode, engines, pair, plain):
    engine = engines(pair, mode, max_batch_size=1)
    first, second, third = (engine.submit(PROMPTS[i], PARAMS[5]) for i in range(3))
    engine.step()
    output = engine.abort(second)
    assert (output.token_ids, output.finish_reason, output.metrics.rounds) == ([], "abort", 0)
    outputs = drain(engine)
    assert outputs.keys() == {first, third}
    assert results([outputs[third]]) == [plain(PROMPTS[2], PARAMS[5])]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt: it is empty"),
        ([5] * CONTEXT, f"prompt: {CONTEXT} tokens; this model takes at most {CONTEXT - 1}"),
        ([3, 64], "prompt: token id 64 is outside the vocabulary of 64"),
        ([3, -1], "prompt: token id -1 is outside"),
        ("text", "prompt: this model has no tokenizer"),
        ([{"role": "user", "content": "x"}], "prompt: this model has no tokenizer"),
        (None, "prompt: expected text, a list of token ids or of chat messages, got NoneType"),
        ((3, 4), "prompt: expected text, a list of token ids or of chat messages, got tuple"),
    ],
)
def test_failure_41_prompts_that_cannot_be(prompt, message, engines, pair):
    engine = engines(pair, "async")
    with pytest.raises(UserError, match=message) as refused:
        engine.generate([PROMPTS[0], prompt])
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="prompt"):
        engine.submit(prompt)
    assert_idle(engine)


@pytest.mark.parametrize("mode", MODES)
def test_the_longest_prompt(mode, engines, pair, plain):
    prompt = (PROMPTS[1] * CONTEXT)[: CONTEXT - 1]
    params = SamplingParams(max_tokens=9, seed=1)
    assert results(engines(pair, mode).generate(prompt, params)) == [plain(prompt, params)]


# ---- ids


def test_an_id_is_used_once(engines, pair):
    engine = engines(pair, "sync")
    engine.submit(PROMPTS[0], PARAMS[1], request_id="mine")
    with pytest.raises(UserError, match="request_id: 'mine' is already in use"):
        engine.submit(PROMPTS[1], PARAMS[1], request_id="mine")
    assert drain(engine).keys() == {"mine"}
    engine.submit(PROMPTS[0], PARAMS[1], request_id="mine")  # free again
    assert engine.abort("mine").finish_reason == "abort"


@pytest.mark.parametrize("unknown", ["never", "mine"])
def test_an_unknown_id_cannot_be_aborted(unknown, engines, pair):
    engine = engines(pair, "sync")
    engine.submit(PROMPTS[0], PARAMS[1], request_id="mine")
    drain(engine)
    with pytest.raises(UserError, match=f"request_id: '{unknown}' is not waiting or running"):
        engine.abort(unknown)


def test_copies_are_refused_together(engines, pair):
    """n = 3 with one id taken: nothing of it is left in the queue."""
    engine = engines(pair, "sync")
    engine.submit(PROMPTS[0], PARAMS[1], request_id="x-2")
    with pytest.raises(UserError, match="'x-2' is already in use"):
        engine.submit(PROMPTS[0], SamplingParams(n=3), request_id="x")
    assert drain(engine).keys() == {"x-2"}


def test_ids_of_the_engine_avoid_those_of_the_user(pair):
    engine = Engine(pair.target, pair.drafter, mode="sync")
    for number in range(3):
        engine.submit(PROMPTS[0], PARAMS[1], request_id=str(number))
    assert engine.submit(PROMPTS[0], PARAMS[1]) not in {"0", "1", "2"}
    assert len(engine.generate(PROMPTS[:2], PARAMS[1])) == 2
    engine.close()


def test_generate_does_not_swallow_submitted_requests(engines, pair, plain):
    """They end in a round of `generate`; the next `step` reports them."""
    engine = engines(pair, "async")
    mine = engine.submit(PROMPTS[3], PARAMS[1])
    (output,) = engine.generate(PROMPTS[4], PARAMS[9])
    assert results([output]) == [plain(PROMPTS[4], PARAMS[9])]
    (reported,) = engine.step()
    assert reported.request_id == mine and results([reported]) == [plain(PROMPTS[3], PARAMS[1])]
    assert engine.step() == []


# ---- pages


def test_requests_wait_for_pages(pair, plain):
    """A pool for about two requests serves ten, in order, none lost."""
    engine = Engine(pair.target, pair.drafter, mode="async", dtype="float64", num_pages=12)
    ids = [engine.submit(prompt, params) for prompt, params in zip(PROMPTS, PARAMS)]
    most, outputs = 0, {}
    while len(outputs) < len(ids):
        outputs |= {output.request_id: output for output in engine.step()}
        most = max(most, len(engine._scheduler.running))
    assert most < len(ids)
    assert results([outputs[i] for i in ids]) == [plain(*each) for each in zip(PROMPTS, PARAMS)]
    assert_idle(engine)
    engine.close()


def test_a_request_that_never_fits_is_refused_at_once(pair):
    engine = Engine(pair.target, pair.drafter, mode="sync", num_pages=4)
    with pytest.raises(UserError, match="20 tokens with max_tokens 100 need 9 pages; the KV cache has 4"):
        engine.generate(
            [PROMPTS[0], [5] * 20], [SamplingParams(max_tokens=5), SamplingParams(max_tokens=100)]
        )
    assert_idle(engine)
    assert len(engine.generate([5] * 20, SamplingParams(max_tokens=10))[0].token_ids) == 10
    engine.close()


def test_a_running_request_holds_only_the_pages_of_its_next_round(engines, pair):
    """Failure 27: memory grows with the tokens that are there, not with those that may come."""
    engine = engines(pair, "async")
    engine.submit([5] * 20, SamplingParams(max_tokens=60, ignore_eos=True))
    engine.step()
    (request,) = engine._scheduler.running
    target, drafter = engine._scheduler._pools()
    scratch = engine.num_nodes - 1 + engine.num_outcomes * 6
    while not request.finished:
        tokens = len(request.tokens)
        engine.step()
        if not request.finished:
            assert len(request.target_pages) == target.pages_for(tokens - 1 + engine.num_nodes)
            assert len(request.drafter_pages) == drafter.pages_for(tokens + scratch)
            assert target.num_free == target.num_pages - 1 - len(request.target_pages)


@pytest.mark.parametrize("mode", ["autoregressive", "sync", "async", "pingpong"])
def test_the_youngest_gives_its_pages_away_and_says_the_same(mode, pair, plain):
    """A pool that admits all of them but cannot hold what they grow to: none is lost, and nothing changes."""
    engine = Engine(pair.target, pair.drafter, mode=mode, dtype="float64", num_pages=14, drafter_device="cpu")
    params = [SamplingParams(max_tokens=50 + i, seed=i, temperature=float(i % 2)) for i in range(6)]
    outputs = engine.generate(PROMPTS[:6], params)
    assert results(outputs) == [plain(*each) for each in zip(PROMPTS, params)]
    assert sum(output.metrics.preemptions for output in outputs) > 0
    assert outputs[0].metrics.preemptions == 0  # the oldest
    assert_idle(engine)
    engine.close()


def test_a_long_prompt_does_not_hold_up_the_others(engines, pair, plain, monkeypatch):
    monkeypatch.setattr("d3d_runtime.scheduler.PREFILL_CHUNK", 8)
    monkeypatch.setattr("d3d_runtime.scheduler.STEP_TOKENS", 8)
    engine = engines(pair, "sync")
    engine.submit(PROMPTS[0], SamplingParams(max_tokens=40, ignore_eos=True), request_id="short")
    engine.step()
    engine.submit([5] * 120, PARAMS[1], request_id="long")
    short, long = engine._scheduler.running[0], engine._scheduler.waiting[0]
    while not long.prefilled:
        before, tokens = long.target_length, len(short.tokens)
        engine.step()
        assert long.target_length - before <= 8 + 8
        assert short.finished or len(short.tokens) > tokens
    outputs = drain(engine)
    assert results([outputs["long"]]) == [plain([5] * 120, PARAMS[1])]


def test_a_drafter_process_that_dies_loses_nobodys_work(pair, plain):
    """Killed, for want of memory perhaps: it is started again, and every request ends as it should."""
    engine = Engine(pair.target, pair.drafter, mode="async", dtype="float64")
    ids = [engine.submit(prompt, params) for prompt, params in zip(PROMPTS[:5], PARAMS)]
    engine.step()
    os.kill(engine._lane._process.pid, signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="d3d-drafter: the worker process has ended .* started again"):
        outputs = drain(engine)
    assert results([outputs[i] for i in ids]) == [plain(*each) for each in zip(PROMPTS[:5], PARAMS)]
    assert_idle(engine)
    engine.close()


def test_a_drafter_process_that_cannot_live_is_an_error(pair, monkeypatch):
    engine = Engine(pair.target, pair.drafter, mode="async", dtype="float64")
    monkeypatch.setattr("d3d_runtime.lanes._serve", lambda *args: None)
    os.kill(engine._lane._process.pid, signal.SIGKILL)
    with pytest.raises(LaneLost), pytest.warns(RuntimeWarning):
        engine.generate(PROMPTS[0], PARAMS[9])
    engine.close()


# ---- errors inside a round: they reach the caller, and the engine is as before


def failing(times: int, error: BaseException, work):
    """`work`, which fails at its n-th call and works again afterwards."""
    calls = iter(range(times))

    def call(*args, **kwargs):
        if next(calls, None) is None and not failed:
            failed.append(True)
            raise error
        return work(*args, **kwargs)

    failed: list[bool] = []
    return call


@pytest.mark.parametrize(
    ("owner", "name", "at"),
    [
        (Target, "prefill", 2),
        (DiffusionDrafter, "prefill", 1),
        (DiffusionDrafter, "draft", 1),
        (DiffusionDrafter, "draft_frontier", 2),
        (DiffusionDrafter, "keep", 1),
        (Target, "verify", 2),
        (Request, "commit", 6),
    ],
)
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_failing_round_leaves_nothing_behind(owner, name, at, error, engines, pair, plain, monkeypatch):
    engine = engines(pair, "async")
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing(at, error, getattr(owner, name)))
        with pytest.raises(type(error)):
            engine.generate(PROMPTS[:5], PARAMS[:5])
    assert_idle(engine)
    assert results(engine.generate(PROMPTS[:5], PARAMS[:5])) == [plain(*e) for e in zip(PROMPTS[:5], PARAMS)]


def test_a_failing_round_does_not_harm_submitted_requests(engines, pair, plain, monkeypatch):
    """A server that catches the error steps on, and every request still ends as it should."""
    engine = engines(pair, "async")
    ids = [engine.submit(prompt, params) for prompt, params in zip(PROMPTS[:4], PARAMS)]
    with monkeypatch.context() as patched:
        patched.setattr(Target, "verify", failing(1, RuntimeError("broken"), Target.verify))
        with pytest.raises(RuntimeError, match="broken"):
            drain(engine)
    outputs = drain(engine)
    assert results([outputs[i] for i in ids]) == [plain(*each) for each in zip(PROMPTS[:4], PARAMS)]


def test_pages_are_not_released_under_a_running_lane(engines, pair, monkeypatch):
    """The target fails while the drafter still writes: the error waits for the drafter."""
    done, frontier = [], DiffusionDrafter.draft_frontier

    def slow(*args):
        time.sleep(0.05)
        done.append(True)
        return frontier(*args)

    monkeypatch.setattr(DiffusionDrafter, "draft_frontier", slow)
    monkeypatch.setattr(Target, "verify", failing(0, RuntimeError("broken"), Target.verify))
    with pytest.raises(RuntimeError, match="broken"):
        engines(pair, "async").generate(PROMPTS[:2], PARAMS[:2])
    assert done
