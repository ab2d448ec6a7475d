"""Training sees what serving computes: a training batch is one draft from each of its anchors."""

from __future__ import annotations

import math

import pytest
import torch

from d3d_runtime import SamplingParams
from d3d_runtime.batch import Batch as ServingBatch
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.kv_cache import KVCache
from d3d_runtime.models.attention import MaskedAttention, causal_attention
from d3d_runtime.models.config import DiffusionConfig, ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.request import Request
from d3d_runtime.training.data import Batch, collate
from d3d_runtime.training.drafter import block_rows, drafter_loss, sample_anchors, shallow_copy

from ..runtime.tiny_pair import random_decoder

CONFIG = ModelConfig(48, 24, 40, 5, 4, 2, 6, 64)
SHIFTS = pytest.mark.parametrize("shift", [True, False], ids=["shifted", "unshifted"])


def model(seed: int, layers: int = 2) -> Decoder:
    config = ModelConfig(**{**vars(CONFIG), "num_hidden_layers": layers})
    return random_decoder(config, seed).double()


@pytest.fixture
def batch() -> Batch:
    """Rows of 20, 9 and 14 tokens, with prompts of 5, 1 and 12."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(2, 48, (count,), generator=generator).tolist()

    return collate([(tokens(5), tokens(15)), (tokens(1), tokens(8)), (tokens(12), tokens(2))])


@SHIFTS
def test_training_rows_are_the_serving_pass(shift, batch, monkeypatch):
    """The logits of every slot of every block equal those of a draft from the block's anchor."""
    diffusion, drafter = DiffusionConfig(6, 1, shift), model(1)
    anchors = torch.tensor([[4, 18, 9], [0, 7, 3], [11, 12, 12]])
    token_ids, positions, sees = block_rows(batch, anchors, diffusion)
    hidden = drafter(token_ids, positions, MaskedAttention(sees))
    length, masks = batch.token_ids.shape[1], diffusion.num_masks

    serving = DiffusionDrafter(
        drafter, KVCache(drafter.config, 40, 4, torch.float64, torch.device("cpu")), diffusion, 4
    )
    monkeypatch.setattr(serving, "_candidates", lambda predicting, *_: drafter.logits(predicting))
    for b, row in enumerate(batch.token_ids.tolist()):
        for block, anchor in enumerate(anchors[b].tolist()):
            request = Request("r", row[: anchor + 1], SamplingParams(), frozenset(), 9, None)
            request.drafter_pages = serving.cache.allocate(anchor + 1 + diffusion.block_size)
            serving.prefill(request.drafter_pages, request.tokens[:-1], 0)
            request.drafter_length = anchor
            served = serving.draft(ServingBatch([request], torch.device("cpu")))[0]
            first = length + block * masks
            slots = [*([anchor] if shift else []), *range(first, first + masks)]
            trained = drafter.logits(hidden[b, slots])
            assert served.shape == trained.shape == (diffusion.draft_length, 48)
            torch.testing.assert_close(served, trained, rtol=0, atol=1e-10)
            serving.cache.release(request.drafter_pages)


def test_clean_rows_are_the_autoregressive_model(batch):
    """Masks are invisible to clean rows, so the drafter keeps the skill it starts with."""
    drafter, anchors = model(1), torch.tensor([[4, 9], [0, 7], [11, 12]])
    token_ids, positions, sees = block_rows(batch, anchors, DiffusionConfig(6, 1, True))
    length = batch.token_ids.shape[1]
    clean = drafter(token_ids, positions, MaskedAttention(sees))[:, :length]
    plain = drafter(batch.token_ids, torch.arange(length).expand(3, -1), causal_attention)
    torch.testing.assert_close(clean, plain, rtol=0, atol=1e-10)


@SHIFTS
@pytest.mark.parametrize("distill", [0.0, 0.5, 1.0])
def test_the_loss_written_out(distill, shift, batch):
    """Slot j weighs exp(-j / gamma), nothing behind the end of a row; cross-entropy with text and target."""
    diffusion, drafter, target = DiffusionConfig(5, 1, shift), model(1), model(2, layers=3)
    anchors, gamma = torch.tensor([[4, 18, 9], [0, 7, 3], [11, 12, 12]]), 3.0
    loss = drafter_loss(drafter, target, batch, anchors, diffusion, gamma=gamma, distill=distill)

    token_ids, positions, sees = block_rows(batch, anchors, diffusion)
    hidden = drafter(token_ids, positions, MaskedAttention(sees))
    length, total, weights = batch.token_ids.shape[1], 0.0, 0.0
    for b, row in enumerate(batch.token_ids):
        text = row[: batch.lengths[b]]
        p = target.logits(target(text[None], torch.arange(len(text))[None], causal_attention))[0].softmax(-1)
        for block, anchor in enumerate(anchors[b].tolist()):
            first = length + block * diffusion.num_masks
            slots = [*([anchor] if shift else []), *range(first, first + diffusion.num_masks)]
            for j, slot in enumerate(slots):
                predicted = anchor + 1 + j
                if predicted >= len(text):
                    continue
                log_q = drafter.logits(hidden[b, slot]).log_softmax(-1)
                hard, soft = -log_q[text[predicted]], -(p[predicted - 1] * log_q).sum()
                weight = math.exp(-j / gamma)
                total = total + weight * ((1 - distill) * hard + distill * soft)
                weights += weight
    torch.testing.assert_close(loss, total / weights, rtol=1e-6, atol=0)  # its weights are float32


def test_the_target_learns_nothing(batch):
    drafter, target = model(1), model(2)
    anchors = torch.tensor([[4], [0], [11]])
    drafter_loss(
        drafter, target, batch, anchors, DiffusionConfig(5, 1, True), gamma=7, distill=0.5
    ).backward()
    assert all(weight.grad is None for weight in target.parameters())
    assert all(weight.grad is not None for weight in drafter.parameters())


def test_anchors_cover_the_answer_and_no_more(batch):
    """From the last token of the prompt to the last one that has a successor."""
    anchors = sample_anchors(batch, 400, torch.Generator().manual_seed(0))
    for row, prompt, length in zip(anchors, batch.prompt_lengths, batch.lengths):
        assert set(row.tolist()) == set(range(prompt - 1, length - 1))


def test_a_shallow_copy_keeps_the_ends(batch):
    target = model(3, layers=5)
    copy = shallow_copy(target, 3)
    assert copy.config.num_hidden_layers == 3
    for new, old in enumerate((0, 2, 4)):
        for name, weight in copy.layers[new].state_dict().items():
            assert torch.equal(weight, target.layers[old].state_dict()[name].to(weight.dtype)), name
    assert torch.equal(copy.embed.weight, target.embed.weight.to(copy.embed.weight.dtype))
    assert all(weight.requires_grad for weight in copy.parameters())
    with torch.no_grad():
        copy.embed.weight.zero_()
    assert target.embed.weight.abs().sum() > 0
