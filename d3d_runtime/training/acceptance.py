"""How much of a text a drafter would have guessed: the measure of `d3d prune` and `d3d doctor --drafter`.

One forward drafts from many anchors of a known text at once, in the row layout of training (`drafter.py`), which
computes what serving computes. No target runs: its text is there.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from d3d_runtime.errors import UserError
from d3d_runtime.models.attention import MaskedAttention
from d3d_runtime.models.config import DiffusionConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.training.data import Batch, collate
from d3d_runtime.training.drafter import block_rows, predicting_rows

TEXT_TOKENS = 96
ROWS_A_FORWARD = 4  # texts: logits of all their slots exist at once


def anchors_of(batch: Batch, count: int, block_size: int, seed: int = 0) -> Tensor:
    """[B, count] i64 anchors in the answers with a whole block of text behind them, where the text is that long.

    They end blocks of block_size positions: only there does a drafter that attends in blocks see what it would see
    while serving, without what comes later.
    """
    first = (batch.prompt_lengths - 1 + block_size) // block_size
    last = torch.maximum((batch.lengths - block_size) // block_size, first)
    spread = torch.rand(len(first), count, generator=torch.Generator().manual_seed(seed))
    block = first[:, None] + (spread * (last - first + 1)[:, None]).long()
    return torch.minimum(block * block_size - 1, batch.lengths[:, None] - 2).clamp(min=0)


@torch.inference_mode()
def accepted_lengths(drafter: Decoder, batch: Batch, anchors: Tensor, diffusion: DiffusionConfig) -> Tensor:
    """[B, A] i64: tokens of the most likely chain from each anchor that the text goes on with."""
    lengths = []
    for begin in range(0, len(anchors), ROWS_A_FORWARD):
        rows = slice(begin, begin + ROWS_A_FORWARD)
        part = Batch(batch.token_ids[rows], batch.prompt_lengths[rows], batch.lengths[rows])
        lengths.append(_accepted_lengths(drafter, part, anchors[rows], diffusion))
    return torch.cat(lengths)


def _accepted_lengths(drafter: Decoder, batch: Batch, anchors: Tensor, diffusion: DiffusionConfig) -> Tensor:
    token_ids, positions, sees = block_rows(batch, anchors, diffusion)
    device = drafter.norm.weight.device
    hidden = drafter(token_ids.to(device), positions.to(device), MaskedAttention(sees.to(device)))
    index = torch.arange(len(anchors))[:, None, None]
    logits = drafter.logits(hidden[index, predicting_rows(batch, anchors, diffusion)])
    logits[..., diffusion.mask_token_id] = -torch.inf
    drafted = logits.argmax(-1).cpu()
    at_text = anchors[:, :, None] + 1 + torch.arange(diffusion.draft_length)
    inside = at_text < batch.lengths[:, None, None]
    text = batch.token_ids[index, at_text.clamp(max=batch.token_ids.shape[1] - 1)]
    return ((drafted == text) & inside).long().cumprod(-1).sum(-1)


def answers(target: Path, prompts: list, **engine_options) -> Batch:
    """What the target says to the prompts, greedily: the text that its drafter has to guess."""
    from d3d_runtime import Engine, SamplingParams

    engine = Engine(target, mode="autoregressive", **engine_options)
    encoded = [engine._encode(prompt) for prompt in prompts]
    outputs = engine.generate(encoded, SamplingParams(max_tokens=TEXT_TOKENS))
    engine.close()
    pairs = [(prompt, output.token_ids) for prompt, output in zip(encoded, outputs) if len(output.token_ids) > 1]
    if not pairs:
        raise UserError("prompts: the target answered none of them with more than a token")
    return collate(pairs)
