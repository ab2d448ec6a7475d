"""Prompt lookup: what it drafts, and that the text is the same with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from d3d_runtime import Engine, SamplingParams
from d3d_runtime.batch import Batch
from d3d_runtime.drafters.ngram import NgramDrafter
from d3d_runtime.errors import UserError
from d3d_runtime.request import Request

from .tiny_pair import SAMPLING, VOCAB, assert_idle, random_prompts, results


def drafted(tokens: list[int], length: int = 4, candidates: int = 3):
    """(token ids, scores) of the draft behind a text, [L, K] lists."""
    request = Request("r", tokens, SamplingParams(), frozenset(), 100, None)
    draft = NgramDrafter(length, candidates, VOCAB).draft(Batch([request], torch.device("cpu")).for_drafter())
    return draft.token_ids[0].tolist(), draft.scores[0]


def test_what_followed_the_same_tokens_is_guessed():
    ids, scores = drafted([7, 8, 9, 10, 11, 12, 3, 7, 8, 9])
    assert [row[0] for row in ids] == [10, 11, 12, 3] and [row[1:] for row in ids] == [[-1, -1]] * 4
    assert (scores[:, 0] < 0).all() and scores[:, 1:].isneginf().all()


def test_longer_matches_come_before_later_ones():
    """... 5 6 -> 20 stands further back than 6 -> 30, and matches one token more."""
    ids, scores = drafted([5, 6, 20, 21, 9, 6, 30, 31, 2, 5, 6])
    assert ids[0] == [20, 30, -1] and ids[1] == [21, 31, -1]
    assert scores[0, 0] > scores[0, 1]


def test_of_two_like_matches_the_later_one_wins_and_equal_guesses_add_up():
    ids, _ = drafted([6, 20, 1, 6, 30, 2, 6])
    assert ids[0] == [20, 30, -1]  # one vote each: the lowest id, as everywhere
    ids, scores = drafted([6, 40, 1, 6, 40, 3, 6, 30, 2, 6])
    assert ids[0] == [40, 30, -1] and scores[0, 0] - scores[0, 1] == pytest.approx(torch.tensor(2.0).log().item())


def test_texts_without_a_match():
    for tokens in ([5], [5, 6], [1, 2, 3, 4, 5, 6, 7]):
        ids, scores = drafted(tokens)
        assert ids == [[-1] * 3] * 4 and scores.isneginf().all()


def test_a_guess_ends_with_the_text():
    ids, _ = drafted([4, 4])
    assert ids == [[4, -1, -1]] + [[-1] * 3] * 3


@pytest.fixture(scope="module")
def engine(pair):
    return Engine(pair.target, "ngram", mode="sync", dtype="float64", max_batch_size=4)


PROMPTS = [*random_prompts(4), [5, 6, 7, 8, 9] * 6, [3] * 20]


@pytest.mark.parametrize("name", SAMPLING)
def test_the_text_is_that_of_plain_decoding(engine, plain, name):
    params = SamplingParams(max_tokens=40, seed=5, ignore_eos=True, **SAMPLING[name])
    assert results(engine.generate(PROMPTS, params)) == [plain(prompt, params) for prompt in PROMPTS]
    assert_idle(engine)


def test_what_repeats_is_accepted(engine, plain):
    """A model held to a loop by its bias: from the second time on the draft is the text."""
    params = SamplingParams(max_tokens=64, ignore_eos=True, logit_bias={9: 1e4})
    (output,) = engine.generate([5, 6, 9, 9, 9], params)
    assert output.token_ids == [9] * 64 == plain([5, 6, 9, 9, 9], params)[0]
    assert output.metrics.tau > 5


@pytest.mark.parametrize("mode", ["pingpong", "auto"])
def test_other_modes(pair, plain, mode):
    engine = Engine(pair.target, "ngram", mode=mode, dtype="float64", max_batch_size=4)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    for each in (params, replace(params, temperature=0.8, seed=2)):
        assert results(engine.generate(PROMPTS, each)) == [plain(prompt, each) for prompt in PROMPTS]
    assert_idle(engine)
    engine.close()


def test_conversations_keep_their_prefix(engine, plain):
    from d3d_runtime.prefix import Prefix

    prefix, params = Prefix(), SamplingParams(max_tokens=12, ignore_eos=True)
    prompt = [5, 6, 7]
    for _ in range(3):
        tokens = [token for part in engine.stream(prompt, params, prefix=prefix) for token in part.token_ids]
        assert tokens == plain(prompt, params)[0]
        prompt = prompt + tokens + [8, 9]
    engine.forget(prefix)
    assert_idle(engine)


def test_refusals(pair):
    with pytest.raises(UserError, match="mode: 'async' needs a drafter that drafts ahead"):
        Engine(pair.target, "ngram", mode="async")
    with pytest.raises(UserError, match="block_size: expected 2 to 64, got 1"):
        Engine(pair.target, "ngram", mode="sync", block_size=1)
    assert Engine(pair.target, "ngram", mode="sync", block_size=5)._drafter.draft_length == 4
