"""Accepted lengths measured in one forward are those that serving would have; probing and pruning rank by them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from d3d_runtime.batch import Batch as ServingBatch
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.errors import UserError
from d3d_runtime.kv_cache import KVCache
from d3d_runtime.models.config import DiffusionConfig, ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import load_model, save_model
from d3d_runtime.request import Request
from d3d_runtime.sampling_params import SamplingParams
from d3d_runtime.training.acceptance import accepted_lengths, anchors_of
from d3d_runtime.training.data import Batch, collate
from d3d_runtime.training.probe import probe
from d3d_runtime.training.prune import Pruning, prune, prune_layers
from tests.runtime.tiny_pair import random_decoder

VOCAB, MASK, BLOCK = 24, 1, 6
CONFIG = ModelConfig(VOCAB, 32, 64, 4, 4, 2, 8, 192)


def drafter_of(seed: int = 0) -> Decoder:
    return random_decoder(CONFIG, seed).double().requires_grad_(False)


def text_of(drafter: Decoder, diffusion: DiffusionConfig, texts: int = 6) -> Batch:
    """Texts that the drafter guesses in part: each goes on with a few tokens of its draft, then with another token."""
    generator = torch.Generator().manual_seed(7)
    pairs = []
    for _ in range(texts):
        tokens = torch.randint(2, VOCAB, (5,), generator=generator).tolist()
        while len(tokens) < 60:
            draft = serve(drafter, diffusion, tokens)
            tokens += draft[: int(torch.randint(len(draft) + 1, (), generator=generator))]
            tokens.append(int(torch.randint(2, VOCAB, (), generator=generator)))
        pairs.append((tokens[:5], tokens[5:]))
    return collate(pairs)


@torch.inference_mode()
def serve(drafter: Decoder, diffusion: DiffusionConfig, tokens: list[int]) -> list[int]:
    """The most likely chain behind the last token, as the engine's drafter drafts it."""
    cache = KVCache(drafter.config, 20, 8, torch.float64, torch.device("cpu"))
    serving = DiffusionDrafter(drafter, cache, diffusion, 4)
    request = Request("r", list(tokens), SamplingParams(), frozenset(), 100, None)
    request.drafter_pages = cache.allocate(len(tokens) + diffusion.block_size)
    drafted = serving.draft(ServingBatch([request], torch.device("cpu")).for_drafter())
    return drafted.token_ids[0, :, 0].tolist()


@pytest.mark.parametrize("clean", ["causal", "block_causal"])
@pytest.mark.parametrize("shift", [True, False])
def test_one_forward_measures_what_serving_accepts(shift, clean):
    drafter, diffusion = drafter_of(), DiffusionConfig(BLOCK, MASK, shift, clean)
    text = text_of(drafter, diffusion)
    anchors = anchors_of(text, 5, BLOCK)
    assert ((anchors + 1) % BLOCK == 0).all() and (anchors >= text.prompt_lengths[:, None] - 1).all()
    lengths = accepted_lengths(drafter, text, anchors, diffusion)
    assert 0 < lengths.double().mean() < diffusion.draft_length
    for row, tokens in enumerate(text.token_ids.tolist()):
        for anchor, length in zip(anchors[row].tolist(), lengths[row].tolist()):
            draft, accepted = serve(drafter, diffusion, tokens[: anchor + 1]), 0
            while accepted < len(draft) and draft[accepted] == tokens[anchor + 1 + accepted]:
                accepted += 1
            assert accepted == length


def test_texts_shorter_than_a_block_have_anchors_too():
    text = collate([([3, 4], [5, 6, 7]), ([3], [4, 5])])
    anchors = anchors_of(text, 4, 16)
    assert (anchors >= 0).all() and (anchors < text.lengths[:, None] - 1).all()
    assert accepted_lengths(drafter_of(), text, anchors, DiffusionConfig(16, MASK, True)).max() <= 3


# ---- d3d doctor --drafter


@pytest.mark.parametrize("true", [DiffusionConfig(16, MASK, False), DiffusionConfig(16, 5, True, "block_causal")])
def test_probing_finds_the_settings_a_text_was_guessed_with(true, tmp_path, monkeypatch):
    monkeypatch.setattr("d3d_runtime.training.probe.QWEN3_MASKS", (MASK, 5, 23, 4000))
    drafter, shift = drafter_of(), true.logit_shift
    save_model(drafter, tmp_path, dtype=torch.float64)
    found = probe(tmp_path, tmp_path, text_of(drafter, true), "cpu", torch.float64)
    assert found[0].diffusion == true and len(found) == 2 * 3 * 2 * 2
    wrong = [p for p in found if (p.diffusion.mask_token_id, p.diffusion.logit_shift) != (true.mask_token_id, shift)]
    assert found[0].accepted > 1.5 * max(p.accepted for p in wrong)
    assert "--block-size 16" in found[0].flags()
    assert ("--no-logit-shift" in found[0].flags()) != true.logit_shift


def test_what_the_config_says_is_not_tried(tmp_path):
    save_model(drafter_of(), tmp_path, dtype=torch.float64)
    config = json.loads((tmp_path / "config.json").read_text()) | {"block_size": 8, "mask_token_id": MASK}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = collate([([3, 4], list(range(2, 22)))])
    found = probe(tmp_path, tmp_path, text, "cpu", torch.float64)
    assert {(p.diffusion.block_size, p.diffusion.mask_token_id) for p in found} == {(8, MASK)} and len(found) == 4


def test_a_drafter_without_any_mask_token(tmp_path):
    save_model(drafter_of(), tmp_path)
    with pytest.raises(UserError, match="nothing tells its mask token"):
        probe(tmp_path, tmp_path, collate([([3], [4])]), "cpu", torch.float32)


# ---- d3d prune

SPARE = (1, 2)  # layers that add nothing


@pytest.fixture(scope="module")
def spared(tmp_path_factory) -> tuple[Path, Batch]:
    """A drafter in which two of four layers do nothing, and a text that it guesses in part."""
    drafter, diffusion = drafter_of(), DiffusionConfig(BLOCK, MASK, True)
    for layer in SPARE:
        drafter.layers[layer].out.weight.zero_()
        drafter.layers[layer].down.weight.zero_()
    folder = tmp_path_factory.mktemp("spared")
    save_model(drafter, folder, diffusion, dtype=torch.float32)
    return folder, text_of(load_model(folder, torch.float64)[0], diffusion)


def test_layers_that_do_nothing_go_first_and_cost_nothing(spared, tmp_path):
    folder, text = spared
    done = prune(folder, tmp_path, text, keep=0.99, dtype=torch.float64)
    assert sorted(done["removed"][:2]) == list(SPARE) and done["kept_layers"] == [0, 3]
    assert done["tau"][0] == done["tau"][1] == done["tau"][2] == done["tau_after"]
    assert len(done["tau"]) == 4 and done["tau"][3] < 0.99 * done["tau"][0]  # one too many, to know the border
    assert done["draft_ms_after"] < done["draft_ms_before"]

    smaller, diffusion = load_model(tmp_path, torch.float64)
    whole, _ = load_model(folder, torch.float64)
    assert smaller.config.num_hidden_layers == 2 and diffusion == DiffusionConfig(BLOCK, MASK, True)
    anchors = anchors_of(text, 8, BLOCK)
    lengths = [accepted_lengths(model, text, anchors, diffusion) for model in (smaller, whole)]
    assert torch.equal(*lengths) and lengths[0].double().mean() + 1 == pytest.approx(done["tau_after"])
    written = json.loads((tmp_path / "prune.json").read_text())
    assert written["removed"] == done["removed"] and written["tau"] == done["tau"]


def test_the_curve_is_drawn(spared, tmp_path):
    pytest.importorskip("matplotlib")
    folder, text = spared
    prune(folder, tmp_path, text, to_layers=3)
    assert (tmp_path / "prune.png").read_bytes().startswith(b"\x89PNG")


def test_a_number_of_layers_wins_over_what_may_be_lost(spared, tmp_path):
    folder, text = spared
    done = prune(folder, tmp_path, text, keep=1.0, to_layers=1, dtype=torch.float64)
    assert len(done["kept_layers"]) == 1 and done["tau_after"] < done["tau_before"]
    with pytest.raises(UserError, match="layers: expected 1 to 3, got 4"):
        prune(folder, tmp_path / "other", text, to_layers=4)


def test_a_stopped_run_goes_on(spared, tmp_path):
    folder, text = spared
    model, diffusion = load_model(folder, torch.float64)
    whole = prune_layers(model, diffusion, text, Pruning(4), keep=0.99, to_layers=1)

    def stop_after_the_second(state: Pruning) -> None:
        if len(state.removed) == 2:
            raise KeyboardInterrupt

    state = Pruning(4)
    with pytest.raises(KeyboardInterrupt):
        prune_layers(model, diffusion, text, state, keep=0.99, to_layers=1, save=stop_after_the_second)
    assert len(model.layers) == 4  # none is lost to the caller
    measured = []
    resumed = prune_layers(model, diffusion, text, state, keep=0.99, to_layers=1, save=lambda s: measured.append(1))
    assert resumed == whole and len(measured) == 1


def test_another_drafter_or_text_does_not_go_on(spared, tmp_path):
    folder, text = spared
    prune(folder, tmp_path, text, to_layers=3)
    other = Batch(text.token_ids[:4], text.prompt_lengths[:4], text.lengths[:4])
    with pytest.raises(UserError, match="belongs to another drafter or text; remove it to begin anew"):
        prune(folder, tmp_path, other, to_layers=3)
    (tmp_path / "prune.json").write_text("{")
    with pytest.raises(UserError, match="not the record of a pruning"):
        prune(folder, tmp_path, text, to_layers=3)


def test_the_depth_that_is_recommended():
    state = Pruning(10, [4, 5, 1, 2], [5.0, 4.99, 4.96, 4.94, 4.96])
    assert state.recommended(0.99) == 4  # a later one may be better again
    assert state.recommended(0.995) == 1 and state.recommended(1.0) == 0
    assert state.left(2) == [0, 1, 2, 3, 6, 7, 8, 9]
