"""`d3d train drafter`: turns an autoregressive model into a block-diffusion drafter of itself.

One training row holds the clean sequence and A blocks of masks:

    [ clean 0 .. T-1 | masks of anchor a_1 | ... | masks of anchor a_A ]

Clean rows attend causally; a mask sees the clean rows up to its anchor and its own block, in both directions. That is
exactly what the serving pass computes for a draft from `a`, so every anchor is one draft. With logit shift the row at
position p predicts p + 1, masks included: the anchor's slot keeps the autoregressive skill the drafter starts with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from d3d_runtime.errors import UserError
from d3d_runtime.models.attention import MaskedAttention, causal_attention
from d3d_runtime.models.config import DiffusionConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import load_model, save_model
from d3d_runtime.models.tokenizer import Tokenizer
from d3d_runtime.progress import Progress, silent
from d3d_runtime.training.data import Batch, problem_batches
from d3d_runtime.training.loop import Schedule, train, write_curve


def shallow_copy(target: Decoder, num_layers: int) -> Decoder:
    """A decoder of `num_layers` evenly spaced layers of the target, first and last included, and its embeddings."""
    depth = target.config.num_hidden_layers
    chosen = [round(i * (depth - 1) / (num_layers - 1)) for i in range(num_layers)]
    drafter = Decoder(replace(target.config, num_hidden_layers=num_layers))
    state = {name: value for name, value in target.state_dict().items() if not name.startswith("layers.")}
    for new, old in enumerate(chosen):
        state |= {f"layers.{new}.{name}": value for name, value in target.layers[old].state_dict().items()}
    drafter.load_state_dict(state)
    return drafter.requires_grad_(True)


def sample_anchors(batch: Batch, count: int, generator: torch.Generator) -> Tensor:
    """[B, count] i64: positions from the prompt's last token to the one before the last, each row without order."""
    first, last = batch.prompt_lengths - 1, batch.lengths - 2
    spread = torch.rand(len(first), count, generator=generator)
    return first[:, None] + (spread * (last - first + 1)[:, None]).long()


def block_rows(batch: Batch, anchors: Tensor, diffusion: DiffusionConfig) -> tuple[Tensor, Tensor, Tensor]:
    """token_ids, positions [B, Q] i64 and the attention mask [B, 1, Q, Q] bool of the row layout above."""
    rows, length = batch.token_ids.shape
    masks = diffusion.num_masks
    offsets = torch.arange(1, masks + 1)
    mask_positions = (anchors[:, :, None] + offsets).flatten(1)
    token_ids = torch.cat((batch.token_ids, torch.full_like(mask_positions, diffusion.mask_token_id)), dim=1)
    positions = torch.cat((torch.arange(length).expand(rows, -1), mask_positions), dim=1)

    anchor_of_row = anchors.repeat_interleave(masks, dim=1)
    block_of_row = torch.arange(anchors.shape[1]).repeat_interleave(masks)
    clean = torch.arange(length)
    block_end = (clean // diffusion.clean_block + 1) * diffusion.clean_block
    sees = torch.zeros(rows, 1, positions.shape[1], positions.shape[1], dtype=torch.bool)
    sees[:, 0, :length, :length] = clean < block_end[:, None]
    sees[:, 0, length:, :length] = clean <= anchor_of_row[:, :, None]
    sees[:, 0, length:, length:] = block_of_row[:, None] == block_of_row
    return token_ids, positions, sees


def predicting_rows(batch: Batch, anchors: Tensor, diffusion: DiffusionConfig) -> Tensor:
    """[B, A, L] i64: the row of the layout above that predicts each token behind an anchor.

    Without logit shift the anchor predicts nothing and slot j predicts token j.
    """
    count = anchors.shape[1]
    masks = batch.token_ids.shape[1] + torch.arange(count * diffusion.num_masks).view(count, -1)
    rows = torch.cat((anchors[:, :, None], masks.expand(len(anchors), -1, -1)), dim=2)
    return rows if diffusion.logit_shift else rows[:, :, 1:]


def drafter_loss(
    drafter: Decoder,
    target: Decoder,
    batch: Batch,
    anchors: Tensor,
    diffusion: DiffusionConfig,
    *,
    gamma: float,
    distill: float,
) -> Tensor:
    """Position-decayed loss of every slot of every block: (1 - distill) CE with the text + distill CE with p.

    Slot j of a block (0 = the anchor) weighs exp(-j / gamma): a late token counts only if all before it were right.
    p is the target's distribution after the true text, which is what verification compares with.
    """
    length, slots = batch.token_ids.shape[1], torch.arange(diffusion.block_size)
    token_ids, positions, sees = block_rows(batch, anchors, diffusion)
    hidden = drafter(token_ids, positions, MaskedAttention(sees))

    rows = predicting_rows(batch, anchors, diffusion)
    before = anchors[:, :, None] + slots[: diffusion.draft_length]  # the position whose true next token is predicted
    inside = (before + 1 < batch.lengths[:, None, None]).flatten()
    weight = torch.exp(-slots[: diffusion.draft_length] / gamma).expand_as(before).flatten()[inside]

    index = torch.arange(len(anchors))[:, None, None]
    before = before.clamp(max=length - 2)
    log_q = drafter.logits(hidden[index, rows].flatten(0, 2)[inside]).log_softmax(-1)
    with torch.no_grad():
        truth = target(batch.token_ids, torch.arange(length).expand_as(batch.token_ids), causal_attention)
        p = target.logits(truth[index, before].flatten(0, 2)[inside]).softmax(-1)
    text = batch.token_ids[index, before + 1].flatten()[inside]
    loss = (1 - distill) * F.nll_loss(log_q, text, reduction="none") - distill * (p * log_q).sum(-1)
    return (loss * weight).sum() / weight.sum()


def train_drafter(
    target_folder: Path,
    folder: Path,
    *,
    num_layers: int,
    block_size: int,
    num_anchors: int,
    steps: int,
    minutes: float,
    batch_size: int,
    learning_rate: float,
    gamma: float,
    distill: float,
    seed: int,
    progress: Progress = silent,
) -> None:
    """Trains, or goes on from `folder/drafter.pt`, and writes a Hugging Face folder with the loss curve.

    Raises UserError for a target that is a drafter, is shallower, or has a tokenizer without the tokens of a draft.
    """
    target, is_drafter = load_model(target_folder, torch.float32, progress=progress)
    if is_drafter is not None:
        raise UserError(f"target {str(target_folder)!r}: this is a drafter (its config has block_size)")
    if num_layers > target.config.num_hidden_layers:
        raise UserError(f"layers: expected at most the target's {target.config.num_hidden_layers}, got {num_layers}")
    tokenizer = Tokenizer(target_folder)
    for name, token in (("mask_token", tokenizer.mask_token_id), ("eos_token", tokenizer.eos_token_id)):
        if token is None:
            raise UserError(
                f"target {str(target_folder)!r}: its tokenizer has no {name}, which a drafter is trained with; "
                f"name a token of the vocabulary in tokenizer_config.json as {name!r}"
            )
    diffusion = DiffusionConfig(block_size, tokenizer.mask_token_id, logit_shift=True)
    drafter = shallow_copy(target, num_layers)

    def loss(batch: Batch, step: int) -> Tensor:
        anchors = sample_anchors(batch, num_anchors, torch.Generator().manual_seed(seed + step))
        return drafter_loss(drafter, target, batch, anchors, diffusion, gamma=gamma, distill=distill)

    history = train(
        drafter,
        lambda step: problem_batches(tokenizer, seed, step, batch_size, drills=0.0),
        loss,
        Schedule(steps, learning_rate, minutes=minutes),
        folder / "drafter.pt",
        progress=progress,
    )
    save_model(drafter, folder, diffusion)
    write_curve(history, folder, "drafter")
