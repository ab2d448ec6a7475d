"""Drafters whose config does not say all, that attend in blocks, or whose vocabulary is padded (failure 37)."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import d3d_kernels as dk
from d3d_runtime import Engine, SamplingParams
from d3d_runtime.batch import Batch
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.errors import UserError
from d3d_runtime.kv_cache import KVCache
from d3d_runtime.models.attention import MaskedAttention
from d3d_runtime.models.config import DiffusionConfig
from d3d_runtime.models.loader import load_model, save_model
from d3d_runtime.request import Request
from d3d_runtime.training.vocabulary import train_vocabulary

from .tiny_pair import BLOCK, MASK, VOCAB, Pair, random_decoder, random_prompts, results

GREEDY = SamplingParams(max_tokens=30, ignore_eos=True)


def copy_of(pair: Pair, folder: Path, **changes) -> Pair:
    """The pair with another drafter config; None removes a key."""
    copy = Pair(pair.target, folder / "drafter")
    shutil.copytree(pair.drafter, copy.drafter)
    config = json.loads((copy.drafter / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not None}
    (copy.drafter / "config.json").write_text(json.dumps(kept))
    return copy


# ---- settings


def test_settings_stand_in_for_the_config(pair, plain, tmp_path):
    bare = copy_of(pair, tmp_path, block_size=None, mask_token_id=None, logit_shift=None, clean_attention=None)
    settings = {"block_size": BLOCK, "mask_token_id": MASK, "logit_shift": True}
    given = Engine(bare.target, bare.drafter, mode="sync", dtype="float64", **settings)
    stated = Engine(pair.target, pair.drafter, mode="sync", dtype="float64")
    prompts = random_prompts(3)
    ours, theirs = given.generate(prompts, GREEDY), stated.generate(prompts, GREEDY)
    assert results(ours) == results(theirs) == [plain(prompt, GREEDY) for prompt in prompts]
    assert [o.metrics.acceptance_histogram for o in ours] == [o.metrics.acceptance_histogram for o in theirs]


def test_settings_win_over_the_config(pair, tmp_path):
    wrong = copy_of(pair, tmp_path, block_size=2)
    engine = Engine(wrong.target, wrong.drafter, mode="sync", block_size=BLOCK, logit_shift=False)
    assert engine._drafter.diffusion == DiffusionConfig(BLOCK, MASK, False)
    assert engine._drafter.draft_length == BLOCK - 1


@pytest.mark.parametrize("key", ["block_size", "mask_token_id", "logit_shift"])
def test_a_missing_setting_is_named_with_its_flag(pair, tmp_path, key):
    broken = copy_of(pair, tmp_path, **{key: None})
    with pytest.raises(UserError) as refused:
        Engine(broken.target, broken.drafter, mode="sync")
    flag = "--" + key.replace("_", "-")
    assert f"no {key!r}; add it to the file, or pass {key}= ({flag}); `d3d doctor --drafter` finds it" in str(
        refused.value
    )


def test_a_plain_model_is_told_what_would_make_it_a_drafter(pair):
    with pytest.raises(
        UserError, match="not a d3d drafter, or one that does not say so: pass block_size, mask_token_id"
    ):
        Engine(pair.target, pair.target, mode="sync")
    with pytest.raises(UserError, match=r"config\.json has no 'mask_token_id'; add it"):
        Engine(pair.target, pair.target, mode="sync", block_size=8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 1}, "block_size 1; expected 2 to 64"),
        ({"mask_token_id": VOCAB}, f"mask_token_id {VOCAB} is outside the vocabulary of {VOCAB}"),
        ({"clean_attention": "full"}, "clean_attention 'full'; expected 'causal' or 'block_causal'"),
    ],
)
def test_settings_out_of_range(pair, settings, message):
    with pytest.raises(UserError, match=message):
        Engine(pair.target, pair.drafter, mode="sync", **settings)


# ---- clean tokens that attend in blocks


def block_causal_drafter(seed: int = 3, block: int = BLOCK) -> DiffusionDrafter:
    from d3d_runtime.models.config import ModelConfig

    model = random_decoder(ModelConfig(VOCAB, 32, 64, 3, 4, 2, 8, 192), seed).double().requires_grad_(False)
    cache = KVCache(model.config, 40, 4, torch.float64, torch.device("cpu"))
    return DiffusionDrafter(model, cache, DiffusionConfig(block, MASK, True, "block_causal"), 8)


@pytest.mark.parametrize("length", [1, 5, 6, 7, 17, 18])
@pytest.mark.parametrize("step", [1, 4])
@torch.inference_mode()
def test_a_draft_sees_blocks_of_what_is_committed(length, step):
    """Drafts while the text grows, against one dense forward: no row of an unfinished block may be left from before."""
    drafter, text = block_causal_drafter(), random_prompts(2, seed=5, longest=60)[1] * 3
    request = Request("r", text[:length], SamplingParams(), frozenset(), 100, None)
    request.drafter_pages = drafter.cache.allocate(80)
    settled = drafter.settled(length - 1)
    drafter.prefill(request.drafter_pages, text[:settled], 0)
    request.drafter_length = settled
    for count in range(length, length + 12, step):
        request.tokens = text[:count]
        batch = Batch([request], torch.device("cpu")).for_drafter()
        ours = drafter.draft(batch)
        request.drafter_length = drafter.settled(count)

        rows = count + BLOCK - 1
        position = torch.arange(rows)
        end = torch.minimum((position // BLOCK + 1) * BLOCK, torch.tensor(count))
        sees = torch.where(position[:, None] < count, position < end[:, None], position < rows)
        tokens = torch.tensor([text[:count] + [MASK] * (BLOCK - 1)])
        hidden = drafter.model(tokens, position[None], MaskedAttention(sees[None, None]))
        logits = drafter.model.logits(hidden[:, count - 1 :])
        sampling = dk.SamplingTensors.greedy(1, torch.device("cpu"))
        theirs = dk.draft_candidates(logits, 8, sampling, torch.tensor([count]), mask_token_id=MASK)
        assert torch.equal(ours.token_ids, theirs.token_ids)
        torch.testing.assert_close(ours.scores, theirs.scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["sync", "pingpong"])
def test_block_causal_drafters_change_no_token(pair, plain, tmp_path, mode):
    blocks = copy_of(pair, tmp_path, clean_attention="block_causal")
    engine = Engine(blocks.target, blocks.drafter, mode=mode, dtype="float64", max_batch_size=4)
    for params in (GREEDY, replace(GREEDY, temperature=1.0, seed=3)):
        prompts = random_prompts(5)
        assert results(engine.generate(prompts, params)) == [plain(prompt, params) for prompt in prompts]
    engine.close()


def test_block_causal_drafters_do_not_draft_ahead(pair):
    with pytest.raises(UserError, match="mode: 'async' needs a drafter that drafts ahead"):
        Engine(pair.target, pair.drafter, mode="async", clean_attention="block_causal")
    auto = Engine(pair.target, pair.drafter, mode="auto", clean_attention="block_causal")
    assert all(plan.mode != "async" for plan in auto.policy.plans)


# ---- vocabularies (failure 37)


def padded_pair(folder: Path, target_size: int, drafter_size: int) -> Pair:
    """A drafter with the target's own weights, both cut or padded; tokenizers of 270 tokens in both folders.

    The padding rows of the drafter are large: unless they are cut off, it drafts nothing else.
    """
    from d3d_runtime.models.config import ModelConfig

    pair, model = Pair(folder / "target", folder / "drafter"), None
    for path, size in ((pair.target, target_size), (pair.drafter, drafter_size)):
        model = random_decoder(ModelConfig(max(target_size, drafter_size), 32, 64, 2, 4, 2, 8, 192), 0)
        with torch.no_grad():
            rows = model.embed.weight[:size].clone()
            if path == pair.drafter:
                rows[target_size:] *= 30
        sized = type(model)(replace(model.config, vocab_size=size))
        sized.load_state_dict({**model.state_dict(), "embed.weight": rows})
        diffusion = DiffusionConfig(BLOCK, 1, True) if path == pair.drafter else None
        save_model(sized, path, diffusion, dtype=torch.float32)
        train_vocabulary(["Anna has 3 red apples and 14 pens. The answer is 17."] * 4, 270, path)
    return pair


@pytest.mark.parametrize("sizes", [(280, 304), (304, 280)], ids=["drafter padded", "target padded"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_failure_37_vocabularies_of_different_padding(tmp_path, sizes, mode):
    """Qwen's family pads to 151,646, 151,936 or 152,064: one tokenizer, and drafts beyond it were out of bounds."""
    pair = padded_pair(tmp_path, *sizes)
    prompts = [[5, 9, 270], [sizes[0] - 1, 7], [3]]  # an id that only the target has, when it is the padded one
    with_draft = Engine(pair.target, pair.drafter, mode=mode, dtype="float64")
    alone = Engine(pair.target, mode="autoregressive", dtype="float64")
    for params in (GREEDY, replace(GREEDY, temperature=1.5, seed=1), replace(GREEDY, presence_penalty=0.5)):
        outputs = with_draft.generate(prompts, params)
        assert results(outputs) == results(alone.generate(prompts, params))
    assert outputs[2].metrics.tau > 1.2  # its weights are the target's: the anchor's slot is right
    with_draft.close()


def test_failure_37_candidates_stay_inside_the_targets_vocabulary(tmp_path):
    pair = padded_pair(tmp_path, 280, 304)
    engine = Engine(pair.target, pair.drafter, mode="sync")
    request = Request("r", [5, 9, 11], SamplingParams(), frozenset(), 100, None)
    request.drafter_pages = engine._drafter.cache.allocate(40)
    with torch.inference_mode():
        drafted = engine._drafter.draft(Batch([request], torch.device("cpu")).for_drafter())
    assert drafted.token_ids.max() < 280 and (drafted.token_ids >= 0).all()
    model, _ = load_model(pair.drafter, torch.float32)
    assert model.config.vocab_size == 304


def test_failure_37_another_tokenizer_is_refused(tmp_path):
    pair = padded_pair(tmp_path, 280, 304)
    train_vocabulary(["Zebras jump quickly over the lazy dog's fence."] * 9, 270, pair.drafter)
    with pytest.raises(UserError, match=r"its tokenizer is not the target's: token \d+ is '.*' there and '.*' in the"):
        Engine(pair.target, pair.drafter, mode="sync")


def test_failure_37_sizes_that_nothing_explains_are_refused(tmp_path):
    pair = padded_pair(tmp_path, 280, 304)
    (pair.drafter / "tokenizer.json").unlink()
    with pytest.raises(
        UserError, match="its vocabulary has 304 tokens, the target's 280; padding would be fine, but only"
    ):
        Engine(pair.target, pair.drafter, mode="sync")
