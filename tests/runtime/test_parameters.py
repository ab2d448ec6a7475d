"""SamplingParams and the engine's own arguments: what is wrong is said in one line that names the field."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from d3d_runtime import Engine, SamplingParams, UserError

from .tiny_pair import random_prompts

NAN, INF = math.nan, math.inf

REFUSED = {
    "max_tokens": (0, -1, 1.5, "8", None, True),
    "temperature": (-0.1, NAN, INF, "1", None),
    "top_k": (-2, 1.5, 2**31, None),
    "top_p": (0, 0.0, -0.1, 1.01, NAN, None),
    "min_p": (-0.1, 1.1, NAN, None),
    "seed": (1.5, "7", 2**64, -(2**63) - 1),
    "n": (0, -1, 1.5, None),
    "stop": ([""], ["a", ""], "", [3], 3, None),
    "stop_token_ids": ([-1], [1.5], ["a"], 3, None),
    "logprobs": (-1, 21, 1.5, "all"),
    "presence_penalty": (NAN, INF, "0", None),
    "frequency_penalty": (NAN, -INF, None),
    "repetition_penalty": (0, -1, NAN, INF, None),
    "logit_bias": ({-1: 1.0}, {1.5: 1.0}, {3: NAN}, {3: "x"}, {3: None}, [3], None),
}
ACCEPTED = {
    "max_tokens": (1, 10**9),
    "temperature": (0, 0.0, 1e-8, 100),
    "top_k": (-1, 0, 1, 2**31 - 1),
    "top_p": (1e-9, 1, 1.0),
    "min_p": (0, 1.0),
    "seed": (None, 0, -(2**63), 2**64 - 1),
    "n": (1, 3),
    "stop": ([], "end", ["a", "b"]),
    "stop_token_ids": ([], [0, 0], (3,)),
    "logprobs": (None, 0, 20),
    "presence_penalty": (-2.0, 2),
    "frequency_penalty": (-2.0, 2),
    "repetition_penalty": (0.1, 1, 5.0),
    "logit_bias": ({}, {0: -INF, 5: 100}),
}


def test_every_field_is_covered():
    assert (
        REFUSED.keys() | {"ignore_eos"}
        == ACCEPTED.keys() | {"ignore_eos"}
        == set(SamplingParams.__match_args__)
    )


@pytest.mark.parametrize(
    ("field", "value"), [(f, v) for f, values in REFUSED.items() for v in values], ids=repr
)
def test_what_cannot_be_is_refused_in_one_line(field, value):
    with pytest.raises(UserError) as refused:
        SamplingParams(**{field: value})
    message = str(refused.value)
    assert message.startswith(f"{field}: expected ") and "got " in message and "\n" not in message


@pytest.mark.parametrize(
    ("field", "value"), [(f, v) for f, values in ACCEPTED.items() for v in values], ids=repr
)
def test_what_can_be_runs(field, value, engines, text_pair):
    params = SamplingParams(**({"max_tokens": 2, "temperature": 0.5} | {field: value}))
    if field == "max_tokens":
        params = SamplingParams(max_tokens=value, stop_token_ids=list(range(4, 300)))
    outputs = engines(text_pair, "sync").generate("Anna", params)
    assert len(outputs) == params.n
    assert all(1 <= len(output.token_ids) <= 2 for output in outputs)


def test_one_stop_string_needs_no_list():
    assert SamplingParams(stop="end").stop == ["end"]


def test_a_stop_string_needs_a_tokenizer(engines, pair):
    with pytest.raises(UserError, match="stop: this model has no tokenizer; use stop_token_ids"):
        engines(pair, "sync").generate([5], SamplingParams(stop=["x"]))


@pytest.mark.parametrize("field", [{"stop_token_ids": [64]}, {"logit_bias": {64: 1.0}}], ids=str)
def test_token_ids_beyond_the_vocabulary_are_refused(field, engines, pair):
    with pytest.raises(UserError, match=f"{next(iter(field))}: token id 64 is outside the vocabulary of 64"):
        engines(pair, "sync").generate([5], SamplingParams(**field))


def test_every_token_banned_still_ends(engines, pair, plain):
    """No finite logit is left: token 0, in every mode."""
    params = SamplingParams(max_tokens=5, ignore_eos=True, logit_bias=dict.fromkeys(range(64), -INF))
    for mode in ("sync", "async"):
        assert (
            engines(pair, mode).generate([5, 6], params)[0].token_ids == plain([5, 6], params)[0] == [0] * 5
        )


@pytest.mark.parametrize(
    "field", ["presence_penalty", "frequency_penalty", "repetition_penalty", "temperature"]
)
def test_numbers_beyond_float32_still_end(field, engines, pair, plain):
    params = SamplingParams(**({"max_tokens": 6, "temperature": 1.0, "seed": 1} | {field: 1e300}))
    for mode in ("sync", "async"):
        (output,) = engines(pair, mode).generate([5, 6], params)
        assert (output.token_ids, output.finish_reason) == plain([5, 6], params)


# ---- the engine's arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fast"}, "mode: expected one of auto, autoregressive, sync, async, pingpong, got 'fast'"),
        ({"dtype": "int8"}, "dtype: expected one of float32, bfloat16, float64, got 'int8'"),
        ({"device": "gpu"}, "device: expected 'cpu' or 'cuda', got 'gpu'"),
        ({"device": "meta"}, "device: expected 'cpu' or 'cuda', got 'meta'"),
        ({"drafter_device": "tpu"}, "drafter_device: expected 'cpu' or 'cuda', got 'tpu'"),
        ({"max_batch_size": 0}, "max_batch_size: expected at least 1, got 0"),
        ({"num_pages": 0}, "num_pages: expected at least 1, got 0"),
        ({"num_nodes": 1}, "num_nodes: expected 2 to 256, got 1"),
        ({"num_nodes": 257}, "num_nodes: expected 2 to 256, got 257"),
        ({"num_outcomes": 0}, "num_outcomes: expected 1 to 64, got 0"),
        ({"mode": "sync", "drafter": None}, "mode: 'sync' needs a drafter"),
        ({"mode": "async", "drafter": "none"}, "mode: 'async' needs a drafter"),
        ({"target": "/nowhere"}, "model '/nowhere': no such folder"),
        ({"drafter": "/nowhere"}, "model '/nowhere': no such folder"),
    ],
)
def test_engine_arguments(options, message, pair):
    with pytest.raises(UserError) as refused:
        Engine(**({"target": pair.target, "drafter": pair.drafter} | options))
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_target_and_drafter_are_not_mixed_up(pair):
    with pytest.raises(UserError, match="this is a drafter"):
        Engine(pair.drafter, pair.drafter)
    with pytest.raises(UserError, match="this is a plain model, not a d3d drafter"):
        Engine(pair.target, pair.target)


def test_vocabularies_must_agree(pair, text_pair):
    with pytest.raises(UserError, match="drafter: its vocabulary has 300 tokens, the target's 64"):
        Engine(pair.target, text_pair.drafter)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_position_embeddings": 100}, "drafter: it was made for 100 positions, the target for 192"),
    ],
)
def test_drafters_that_cannot_follow_the_target(changes, message, pair, tmp_path):
    """Both would run, and fail or collapse in the middle of a text."""
    drafter = shutil.copytree(pair.drafter, tmp_path / "drafter")
    raw = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(raw | changes))
    for mode in ("sync", "async"):
        with pytest.raises(UserError, match=message):
            Engine(pair.target, drafter, mode=mode)


def test_params_must_fit_the_prompts(engines, pair):
    with pytest.raises(UserError, match="params: expected one for all prompts or 2, got 3"):
        engines(pair, "sync").generate(random_prompts(2), [SamplingParams()] * 3)


@pytest.mark.parametrize("drafter", [None, "none"])
def test_without_a_drafter_the_target_runs_alone(drafter, pair, plain):
    engine = Engine(pair.target, drafter, dtype="float64")
    assert (engine.mode, engine.num_nodes, engine.num_outcomes) == ("autoregressive", 1, 0)
    params = SamplingParams(max_tokens=5)
    assert engine.generate([5, 6], params)[0].token_ids == plain([5, 6], params)[0]
    engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", None])
def test_every_dtype_runs(dtype, engines, pair):
    engine = engines(pair, "async", dtype)
    (output,) = engine.generate([5, 6, 7], SamplingParams(max_tokens=20, ignore_eos=True, temperature=1.0))
    assert len(output.token_ids) == 20
    assert engine._target.cache.rows[0].dtype == engine.dtype


def test_no_prompts_no_outputs(engines, pair):
    assert engines(pair, "sync").generate([]) == []
