"""KV that outlives a request: a turn reads only what is new, for both models, and nobody can tell from what it says."""

from __future__ import annotations

import time
from random import Random

import pytest

from d3d_runtime import Conversation, Engine, RequestOutput, SamplingParams, UserError
from d3d_runtime.conversation import ContextFull
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.prefix import Prefix
from d3d_runtime.target import Target
from d3d_runtime.training.problems import generate

from .test_requests import failing
from .tiny_pair import CONTEXT, SAMPLING, VOCAB, assert_idle, random_prompts, results

MODES = ["autoregressive", "sync", "async"]
PROMPTS = random_prompts(8, seed=41)


def whole(increments: list[RequestOutput]) -> tuple:
    """Tokens and rounds: what a turn says, and how well its drafts did."""
    metrics = increments[-1].metrics
    said = [token for each in increments for token in each.token_ids]
    drafts = (metrics.tau, metrics.rounds, metrics.acceptance_histogram, metrics.hits, metrics.misses)
    return said, increments[-1].finish_reason, drafts


def turn(engine: Engine, tokens: list[int], params: SamplingParams, prefix: Prefix | None = None) -> tuple:
    return whole(list(engine.stream(tokens, params, prefix=prefix)))


def reused(engine: Engine, tokens: list[int], prefix: Prefix) -> int:
    return next(engine.stream(tokens, SamplingParams(), prefix=prefix)).metrics.reused


# ---- identity, and tau


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["greedy", "T=1", "penalties"])
def test_failure_26_a_warm_prefix_changes_nothing_but_the_reading(kind, mode, engines, pair):
    """A prefix hit left the drafter's context unwritten: the text stayed right and tau fell to 1."""
    engine, prefix, rng = engines(pair, mode), Prefix(), Random(3)
    tokens, before = PROMPTS[2], 1
    for number in range(5):
        params = SamplingParams(max_tokens=14, seed=number, **SAMPLING[kind])
        increments = list(engine.stream(tokens, params, prefix=prefix))
        warm, cold = whole(increments), turn(engine, tokens, params)
        assert warm == cold
        assert increments[-1].metrics.reused == before - 1
        assert max(prefix.lengths) <= len(prefix.tokens)  # a cut block leaves rows of tokens that never came
        tokens = tokens + warm[0]
        before = len(tokens)
        tokens = tokens + [rng.randrange(2, VOCAB) for _ in range(rng.randint(1, 9))]
    engine.forget(prefix)


@pytest.mark.parametrize("mode", MODES)
def test_a_history_that_was_changed_is_read_from_the_change_on(mode, engines, pair):
    engine, params = engines(pair, mode), SamplingParams(max_tokens=12, seed=5, temperature=1.0)
    first = PROMPTS[3] + turn(engine, PROMPTS[3], params)[0]
    for kept in (0, 1, 2, len(PROMPTS[3]) - 1, len(PROMPTS[3]), len(first) - 2, len(first) - 1, len(first)):
        prefix = Prefix()
        turn(engine, PROMPTS[3], params, prefix)
        changed = (first[kept] + 1) % VOCAB if kept < len(first) else 9
        tokens = first[:kept] + [changed, *PROMPTS[4]]
        increments = list(engine.stream(tokens, params, prefix=prefix))
        assert whole(increments) == turn(engine, tokens, params)
        assert increments[-1].metrics.reused == min(kept, len(first) - 1)
        engine.forget(prefix)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_prompt_again_reads_its_root_alone(mode, engines, pair):
    engine, prefix, params = engines(pair, mode), Prefix(), SamplingParams(max_tokens=9, seed=2)
    for _ in range(3):
        assert turn(engine, PROMPTS[5], params, prefix) == turn(engine, PROMPTS[5], params)
    assert reused(engine, PROMPTS[5], prefix) == len(PROMPTS[5]) - 1
    assert reused(engine, PROMPTS[5][:4], prefix) == 3
    engine.forget(prefix)


def test_the_mode_changes_between_turns(pair, plain, engines):
    """A plain turn leaves the drafter behind; the next drafting one reads what it lacks."""
    engine, prefix, tokens = Engine(pair.target, pair.drafter, mode="sync", dtype="float64"), Prefix(), PROMPTS[6]
    for number, mode in enumerate(["sync", "autoregressive", "autoregressive", "async", "sync", "async"]):
        engine.switch_mode(mode)
        assert engine.mode == mode
        params = SamplingParams(max_tokens=10, seed=number, temperature=1.0)
        warm = turn(engine, tokens, params, prefix)
        assert warm == turn(engines(pair, mode), tokens, params)
        assert warm[:2] == plain(tokens, params)
        tokens = tokens + warm[0] + [7, 8]
    engine.forget(prefix)
    assert_idle(engine)
    engine.close()


def test_a_mode_does_not_change_under_running_requests(engines, pair):
    engine = engines(pair, "sync")
    running = engine.submit(PROMPTS[1], SamplingParams(max_tokens=20))
    with pytest.raises(UserError, match="mode: it cannot change while requests run"):
        engine.switch_mode("async")
    engine.abort(running)
    with pytest.raises(UserError, match="mode: expected one of"):
        engine.switch_mode("fast")
    with pytest.raises(UserError, match="'sync' needs a drafter"):
        engines(pair, "autoregressive").switch_mode("sync")
    assert engine.mode == "sync"


# ---- ends that are none


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_was_cut_short_is_gone_on_from(mode, engines, pair):
    engine, prefix, params = engines(pair, mode), Prefix(), SamplingParams(max_tokens=40, seed=1, ignore_eos=True)
    tokens = PROMPTS[2]
    for rounds in range(1, 5):
        stream = engine.stream(tokens, params, prefix=prefix)
        said = [token for _ in range(rounds) for token in next(stream).token_ids]
        stream.close()
        tokens = tokens + said + [3]
        assert turn(engine, tokens, params, prefix) == turn(engine, tokens, params)
    engine.forget(prefix)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Target, "prefill"),
        (DiffusionDrafter, "prefill"),
        (DiffusionDrafter, "draft"),
        (DiffusionDrafter, "draft_frontier"),
        (DiffusionDrafter, "keep"),
        (Target, "verify"),
    ],
)
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_turn_that_fails_can_be_taken_again(owner, name, error, engines, pair, monkeypatch):
    engine, prefix, params = engines(pair, "async"), Prefix(), SamplingParams(max_tokens=12, seed=3)
    tokens = PROMPTS[3] + turn(engine, PROMPTS[3], params, prefix)[0] + [5, 6]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing(0, error, getattr(owner, name)))
        with pytest.raises(type(error)):
            turn(engine, tokens, params, prefix)
    assert turn(engine, tokens, params, prefix) == turn(engine, tokens, params)
    engine.forget(prefix)


def test_pages_are_not_cut_under_a_drafter_that_still_works(engines, pair, monkeypatch):
    """The last round's `keep` read the page list when the prefix had cut it already: rows came from the dummy page, and
    the next turn drafted from them."""
    engine, prefix, tokens, keep = engines(pair, "async"), Prefix(), PROMPTS[2], DiffusionDrafter.keep

    def slow(*args):
        time.sleep(0.02)
        return keep(*args)

    monkeypatch.setattr(DiffusionDrafter, "keep", slow)
    for number in range(5):
        params = SamplingParams(max_tokens=14, seed=number, temperature=1.0)
        warm = turn(engine, tokens, params, prefix)
        assert warm == turn(engine, tokens, params)
        tokens = tokens + warm[0] + [5, 6]
    engine.forget(prefix)


# ---- prefill in chunks


@pytest.mark.parametrize("mode", MODES)
def test_chunks_of_a_prompt_do_not_show(mode, engines, pair, monkeypatch):
    engine, prompt = engines(pair, mode), PROMPTS[2] * 6
    params = SamplingParams(max_tokens=12, seed=4, temperature=1.0)
    said = []
    for rows in (1, 7, len(prompt) - 1, 10**6):
        monkeypatch.setattr("d3d_runtime.scheduler.PREFILL_CHUNK", rows)
        said.append(turn(engine, prompt, params))
    assert said == said[:1] * 4


def test_a_prompt_that_is_read_tells_how_far_it_is(engines, pair, monkeypatch):
    engine, told = engines(pair, "sync"), []
    monkeypatch.setattr("d3d_runtime.scheduler.PREFILL_CHUNK", 10)
    monkeypatch.setattr(engine, "progress", lambda *heard: told.append(heard))
    engine.generate([5] * 26, SamplingParams(max_tokens=1))
    assert told == [("reading the prompt", done, 25) for done in (10, 20, 25)]


def test_a_reading_that_was_stopped_goes_on_where_it_was(engines, pair, monkeypatch):
    engine, prefix, params = engines(pair, "async"), Prefix(), SamplingParams(max_tokens=6, seed=4)
    monkeypatch.setattr("d3d_runtime.scheduler.PREFILL_CHUNK", 10)

    def stop(what: str, done: float, total: float) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(engine, "progress", stop)
        with pytest.raises(KeyboardInterrupt):
            turn(engine, [5, 6, 7] * 12, params, prefix)
    increments = list(engine.stream([5, 6, 7] * 12, params, prefix=prefix))
    assert increments[-1].metrics.reused == 20
    assert whole(increments) == turn(engine, [5, 6, 7] * 12, params)
    engine.forget(prefix)


# ---- pages


def held(prefix: Prefix) -> list[int]:
    return [len(pages) for pages in prefix.pages]


def test_a_prefix_holds_the_pages_of_its_tokens_alone(engines, pair):
    engine, prefix = engines(pair, "async"), Prefix()
    said = turn(engine, [5] * 20, SamplingParams(max_tokens=30, ignore_eos=True), prefix)[0]
    assert len(said) == 30 and prefix.tokens == [5] * 20 + said
    assert held(prefix) == [-(-(50 - 1) // 16), -(-prefix.drafter_length // 16)]
    target, drafter = engine._scheduler._pools()
    assert target.num_free == target.num_pages - 1 - held(prefix)[0]
    assert drafter.num_free == drafter.num_pages - 1 - held(prefix)[1]
    engine.forget(prefix)
    assert held(prefix) == [0, 0] and prefix.is_empty
    engine.forget(prefix)  # twice is as good as once


def test_prefixes_give_way_to_requests(pair, plain):
    """The one that was unused for longest goes first, and no more of them than must; none is ever wrong."""
    engine = Engine(pair.target, pair.drafter, mode="async", dtype="float64", num_pages=16)
    params = SamplingParams(max_tokens=8, seed=1)
    prefixes = [Prefix() for _ in range(3)]
    for prefix, prompt in zip(prefixes, PROMPTS[1:]):
        turn(engine, prompt * 2, params, prefix)
    turn(engine, PROMPTS[1] * 2, params, prefixes[0])  # used again: the second is the oldest now
    for pages in (held(prefix) for prefix in prefixes):
        assert all(pages)
    free = engine._scheduler._pools()[0].num_free
    needed = free * 16 - engine.num_nodes + 1  # one row more than there is room for
    prompt = ([9, 10, 11] * CONTEXT)[: needed - 8]
    assert turn(engine, prompt, params)[:2] == plain(prompt, params)
    assert [prefix.is_empty for prefix in prefixes] == [False, True, False]
    for prefix, prompt in zip(prefixes, PROMPTS[1:]):
        assert turn(engine, prompt * 2, params, prefix)[:2] == plain(prompt * 2, params)
    longest = ([9, 10, 11] * CONTEXT)[: 16 * 16 - 8 - engine.num_nodes - 48]
    assert turn(engine, longest, params)[:2] == plain(longest, params)
    for prefix in prefixes:
        engine.forget(prefix)
    assert_idle(engine)
    engine.close()


def test_a_prefix_stays_if_its_pages_would_not_be_enough(pair):
    """Others hold the rest: the request waits for them, and takes nothing that does not help."""
    engine = Engine(pair.target, pair.drafter, mode="sync", dtype="float64", num_pages=12)
    prefix = Prefix()
    turn(engine, PROMPTS[1], SamplingParams(max_tokens=4), prefix)
    running = engine.submit([5] * 40, SamplingParams(max_tokens=40, ignore_eos=True))
    engine.step()
    waiting = engine.submit([6] * 110, SamplingParams(max_tokens=60))
    engine.step()
    assert not prefix.is_empty and len(engine._scheduler.waiting) == 1
    ended = []
    while len(ended) < 2:
        ended += [output.request_id for output in engine.step()]
    assert ended == [running, waiting]
    engine.forget(prefix)
    assert_idle(engine)
    engine.close()


def test_a_prefix_goes_before_anyone_who_runs_is_preempted(pair, plain):
    engine = Engine(pair.target, pair.drafter, mode="sync", dtype="float64", num_pages=8)
    prefix = Prefix()
    turn(engine, [7] * 40, SamplingParams(max_tokens=4), prefix)
    params = SamplingParams(max_tokens=80, seed=3, temperature=1.0, ignore_eos=True)
    (output,) = engine.generate(PROMPTS[1], params)
    assert prefix.is_empty and output.metrics.preemptions == 0
    assert (output.token_ids, output.finish_reason) == plain(PROMPTS[1], params)
    assert_idle(engine)
    engine.close()


@pytest.mark.parametrize("mode", MODES)
def test_two_requests_of_one_conversation_at_once(mode, engines, pair):
    """The second finds nothing to go on from, the last to end leaves its KV."""
    engine, prefix, params = engines(pair, mode), Prefix(), SamplingParams(max_tokens=15, seed=6)
    turn(engine, PROMPTS[2], params, prefix)
    streams = [engine.stream(PROMPTS[2] + [more], params, prefix=prefix) for more in (3, 4)]
    firsts = [next(stream) for stream in streams]
    assert [first.metrics.reused for first in firsts] == [len(PROMPTS[2]), 0]
    for more, first, stream in zip((3, 4), firsts, streams):
        assert whole([first, *stream]) == turn(engine, PROMPTS[2] + [more], params)
    assert prefix.tokens[: len(PROMPTS[2]) + 1] == PROMPTS[2] + [4]
    engine.forget(prefix)


def test_a_prefix_belongs_to_one_engine(engines, pair):
    prefix = Prefix()
    turn(engines(pair, "sync"), PROMPTS[1], SamplingParams(max_tokens=4), prefix)
    with pytest.raises(UserError, match="prefix: its pages belong to another engine"):
        turn(engines(pair, "async"), PROMPTS[1], SamplingParams(max_tokens=4), prefix)
    engines(pair, "sync").forget(prefix)


# ---- conversations


@pytest.mark.parametrize("mode", MODES)
def test_a_conversation_is_its_messages(mode, engines, text_pair):
    engine = engines(text_pair, mode)
    chat = Conversation(engine, system="Be brief.")
    messages = [{"role": "system", "content": "Be brief."}]
    for number, text in enumerate(["Anna has 3", "Größe 日本", "and?"]):
        messages.append({"role": "user", "content": text})
        params = SamplingParams(max_tokens=12, seed=number, temperature=1.0)
        increments = list(chat.stream(text, params))
        (alone,) = engine.generate(messages, params)
        assert whole(increments)[:2] == results([alone])[0]
        assert (increments[-1].metrics.reused > 0) == (number > 0)
        messages.append({"role": "assistant", "content": alone.text})
        assert chat.messages == messages
        assert chat.length == len(engine.tokenizer.encode_chat(messages[:-1])) + len(alone.token_ids)
    chat.reset()
    assert chat.messages == messages[:1] and chat.length == 0


def test_a_conversation_that_is_full_says_so_and_stays_as_it_was(engines, text_pair):
    engine = engines(text_pair, "sync")
    chat, params = Conversation(engine), SamplingParams(max_tokens=CONTEXT, ignore_eos=True)
    (*_, last) = chat.stream("Anna has 3", params)
    assert last.finish_reason == "length" and chat.length == CONTEXT
    said = list(chat.messages)
    with pytest.raises(ContextFull, match=rf"the conversation has \d+ tokens with this message; .* takes {CONTEXT}"):
        list(chat.stream("and then?", params))
    assert chat.messages == said
    chat.reset()
    assert list(chat.stream("Anna has 3", SamplingParams(max_tokens=3)))
    chat.reset()


def test_a_turn_without_a_token_leaves_no_message(engines, text_pair, monkeypatch):
    chat = Conversation(engines(text_pair, "sync"))
    monkeypatch.setattr(Target, "verify", failing(0, KeyboardInterrupt(), Target.verify))
    with pytest.raises(KeyboardInterrupt):
        list(chat.stream("Anna has 3"))
    assert chat.messages == []
    chat.reset()


def test_a_model_without_a_template_cannot_chat(engines, pair):
    with pytest.raises(UserError, match="no chat template"):
        Conversation(engines(pair, "sync"))


def test_the_embedded_pair_reads_no_history_twice():
    """Its own text becomes the tokens it came from, so all of a turn but its last token is found again."""
    engine = Engine(mode="sync", dtype="float64", max_batch_size=1)
    chat, before = Conversation(engine), 1
    for problem in generate(3, 2, "held_out_wordings"):
        increments = list(chat.stream(problem.question))
        asked = engine.tokenizer.encode_chat(chat.messages[:-1])
        assert whole(increments) == turn(engine, asked, SamplingParams())
        assert increments[-1].metrics.reused == before - 1
        before = chat.length
    chat.reset()
    assert_idle(engine)
