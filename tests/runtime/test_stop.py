"""Where a request ends: exactly where plain decoding would end it, also inside an accepted block."""

from __future__ import annotations

import pytest

from d3d_runtime import SamplingParams

from .tiny_pair import BLOCK, CONTEXT, plain_decoder, random_prompts, results, save_pair

MODES = ["autoregressive", "sync", "async"]
DEEP = {"temperature": 1.0}  # with the noise shared, whole blocks are accepted


def first_occurrences(tokens: list[int]) -> list[int]:
    """Indices at which a token shows up for the first time: where a stop on it must end the text."""
    return [i for i, token in enumerate(tokens) if token not in tokens[:i]]


def free_text(plain, prompt: list[int], seed: int, count: int = 3 * BLOCK) -> list[int]:
    return plain(prompt, SamplingParams(max_tokens=count, seed=seed, ignore_eos=True, **DEEP))[0]


@pytest.mark.parametrize("mode", MODES)
def test_failure_28_a_stop_token_at_every_index_of_a_block(mode, engines, pair, plain):
    """Text went on after an end token that was accepted in the middle of a block."""
    prompts, params, expected = [], [], []
    for seed, prompt in enumerate(random_prompts(4, seed=9)):
        tokens = free_text(plain, prompt, seed)
        for index in first_occurrences(tokens)[: 2 * BLOCK]:
            prompts.append(prompt)
            params.append(SamplingParams(max_tokens=64, seed=seed, stop_token_ids=[tokens[index]], **DEEP))
            expected.append((tokens[: index + 1], "stop"))
    outputs = engines(pair, mode).generate(prompts, params)
    assert results(outputs) == expected
    assert {len(output.token_ids) - 1 for output in outputs} >= set(range(BLOCK + 1))
    if mode != "autoregressive":
        assert any(output.metrics.rounds == 1 and len(output.token_ids) > 2 for output in outputs)


@pytest.mark.parametrize("mode", MODES)
def test_failure_28_two_end_tokens(mode, pair, plain, tmp_path, engines):
    """A config with a list of end tokens: the first of either ends the text; ignore_eos ignores both."""
    prompt, seed = random_prompts(3, seed=4)[2], 12
    tokens = free_text(plain, prompt, seed)
    early, late = first_occurrences(tokens)[2], first_occurrences(tokens)[7]
    two_ends = save_pair(tmp_path, eos=(tokens[late], tokens[early]))
    engine = engines(two_ends, mode)
    params = SamplingParams(max_tokens=len(tokens), seed=seed, **DEEP)
    assert results(engine.generate(prompt, params)) == [(tokens[: early + 1], "stop")]
    ignoring = SamplingParams(max_tokens=len(tokens), seed=seed, ignore_eos=True, **DEEP)
    assert results(engine.generate(prompt, ignoring)) == [(tokens, "length")]
    both = SamplingParams(
        max_tokens=len(tokens), seed=seed, ignore_eos=True, stop_token_ids=[tokens[late]], **DEEP
    )
    assert results(engine.generate(prompt, both)) == [(tokens[: late + 1], "stop")]


@pytest.mark.parametrize("mode", MODES)
def test_failure_29_every_max_tokens(mode, engines, pair, plain):
    """An accepted block overran max_tokens, or rounds were counted as tokens."""
    for seed, prompt in enumerate(random_prompts(3, seed=2)):
        tokens = free_text(plain, prompt, seed)
        limits = range(1, 2 * BLOCK + 3)
        params = [SamplingParams(max_tokens=n, seed=seed, ignore_eos=True, **DEEP) for n in limits]
        outputs = engines(pair, mode).generate([prompt] * len(limits), params)
        assert results(outputs) == [(tokens[:n], "length") for n in limits]
        assert [output.metrics.emitted for output in outputs] == list(limits)


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_on_the_last_allowed_token_is_a_stop(mode, engines, pair, plain):
    prompt = random_prompts(2, seed=6)[1]
    tokens = free_text(plain, prompt, 3)
    index = first_occurrences(tokens)[4]
    params = SamplingParams(max_tokens=index + 1, seed=3, stop_token_ids=[tokens[index]], **DEEP)
    assert results(engines(pair, mode).generate(prompt, params)) == [(tokens[: index + 1], "stop")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("room", [1, 2, BLOCK, 2 * BLOCK + 1])
def test_the_context_limit_ends_a_request(room, mode, engines, pair, plain):
    prompt = (random_prompts(2, seed=8)[1] * CONTEXT)[: CONTEXT - room]
    params = SamplingParams(max_tokens=500, seed=1, ignore_eos=True, **DEEP)
    (output,) = engines(pair, mode).generate(prompt, params)
    assert len(output.token_ids) == room and output.finish_reason == "length"
    assert results([output]) == [plain(prompt, params)]


# ---- text: bytes of one character spread over tokens, stop strings across tokens and blocks

PIECES = ("a", "b", "Ġ", "Ã", "¶")  # byte-level names: a space, and the two bytes of ö


@pytest.fixture(scope="module")
def writing(engines_for_text):
    """params(seed, **more) that make the random model write letters, ö, and halves of ö."""
    backend = engines_for_text("autoregressive").tokenizer.backend
    bias = {backend.token_to_id(piece): 12.0 for piece in PIECES}

    def params(seed: int, **more) -> SamplingParams:
        return SamplingParams(**({"max_tokens": 30, "seed": seed, "logit_bias": bias} | DEEP | more))

    return params


@pytest.fixture(scope="module")
def engines_for_text(_engines, text_pair):
    return lambda mode: _engines(text_pair, mode)


def stop_point(tokenizer, tokens: list[int], stop: list[str]) -> tuple[list[int], str, bool]:
    """(kept tokens, text, stopped), from the text of every prefix, less the character that is under way."""
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:count]).rstrip("\ufffd")
        found = [text.find(string) for string in stop if string in text]
        if found:
            return tokens[:count], text[: min(found)], True
    return tokens, tokenizer.decode(tokens), False


def stop_strings(text: str) -> list[str]:
    """Pieces of a text, from one character to a length that no block holds, whole characters only."""
    pieces = [text[at : at + size] for size in (1, 2, 3, 5, 9, 14) for at in range(0, len(text) - size, 3)]
    return [piece for piece in dict.fromkeys(pieces) if "\ufffd" not in piece]


@pytest.mark.parametrize("mode", MODES)
def test_stop_strings_across_tokens_characters_and_blocks(mode, engines_for_text, writing):
    engine, prompt = engines_for_text(mode), "Anna has 3"
    (free,) = engines_for_text("autoregressive").generate(prompt, writing(1, ignore_eos=True))
    strings = stop_strings(free.text)[:16]
    assert any("ö" in string for string in strings)
    params = [writing(1, stop=[string], ignore_eos=True) for string in strings]
    for string, output in zip(strings, engine.generate([prompt] * len(params), params)):
        tokens, text, stopped = stop_point(engine.tokenizer, free.token_ids, [string])
        assert (output.token_ids, output.text) == (tokens, text), string
        assert stopped and output.finish_reason == "stop"


@pytest.mark.parametrize("mode", MODES)
def test_the_first_of_several_stop_strings_cuts(mode, engines_for_text, writing):
    engine, prompt = engines_for_text(mode), "pens"
    (free,) = engines_for_text("autoregressive").generate(prompt, writing(7))
    stop = [free.text[20:24], free.text[9:12], "never written"]
    tokens, text, _ = stop_point(engine.tokenizer, free.token_ids, stop)
    (output,) = engine.generate(prompt, writing(7, stop=stop))
    assert (output.token_ids, output.text, output.finish_reason) == (tokens, text, "stop")


@pytest.mark.parametrize("mode", MODES)
def test_a_character_cut_by_max_tokens_shows_as_replacement(mode, engines_for_text, writing):
    engine = engines_for_text(mode)
    outputs = engine.generate(["Größe"] * 16, [writing(3, max_tokens=limit) for limit in range(1, 17)])
    for output in outputs:
        assert output.text == engine.tokenizer.decode(output.token_ids)
    assert any(output.text.endswith("\ufffd") for output in outputs)


def test_the_end_token_is_reported_but_not_written(engines_for_text, writing, plain):
    engine = engines_for_text("sync")
    (free,) = engine.generate("Anna", writing(1, ignore_eos=True))
    index = first_occurrences(free.token_ids)[3]
    (output,) = engine.generate("Anna", writing(1, stop_token_ids=[free.token_ids[index], 0]))
    assert output.token_ids == free.token_ids[: index + 1] and output.finish_reason == "stop"
    (ended,) = engine.generate("Anna", SamplingParams(logit_bias={engine.tokenizer.eos_token_id: 1e4}))
    assert (ended.token_ids, ended.text, ended.finish_reason) == ([engine.tokenizer.eos_token_id], "", "stop")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_stops_of_mixed_requests_in_one_batch(mode, engines, text_pair, writing):
    alone = plain_decoder(engines(text_pair, "autoregressive"))
    params = [
        writing(0, stop=["ab"]),
        writing(1, max_tokens=7),
        writing(2, stop_token_ids=[0, 70]),
        writing(3, stop=["a", "b"]),
        writing(4, temperature=0.0),
        writing(5, stop=["ö", "🙂"]),
    ]
    outputs = engines(text_pair, mode).generate(["Anna has"] * len(params), params)
    assert results(outputs) == [alone("Anna has", each) for each in params]
    assert {output.finish_reason for output in outputs} == {"stop", "length"}
