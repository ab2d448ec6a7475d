"""The DFlash drafter: a block drafted from the target's hidden states of what is committed.

Invariant: `request.drafter_length` tokens have their context rows in the cache, at their positions: all but the root,
which the target has not read yet. A draft is one pass over

    [ root | MASK x (block_size - 1) ]      at the root's position and on, slot j predicts token j

where every row sees the whole context and the whole block, in both directions. The block's own rows are scratch: the
context rows of what gets accepted are written over them. Since it lags the target by design it drafts in `sync` and
`pingpong` only.
"""

from __future__ import annotations

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.batch import DraftBatch
from d3d_runtime.kv_cache import KVCache, write_slots
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.dflash import DFlashConfig, DFlashModel
from d3d_runtime.paged_attention import PagedAttention, first_slots_mask


class DFlashDrafter:
    """target: lends its embedding, and its head where the drafter has none of its own."""

    def __init__(self, model: DFlashModel, config: DFlashConfig, target: Decoder, cache: KVCache, num_candidates: int):
        self.model, self.config, self.cache, self.num_candidates = model, config, cache, num_candidates
        self.taps = config.taps
        self.vocab_size, self.embed = target.config.vocab_size, target.embed
        self.logits = target.logits if model.head is None else model.head

    @property
    def draft_length(self) -> int:
        return self.config.block_size - 1

    def scratch_rows(self, num_nodes: int, num_outcomes: int) -> int:
        return self.config.block_size

    def settled(self, length: int) -> int:
        return length

    def settled_by_draft(self, length: int) -> int:
        """The root's own row comes from the target, which reads it next."""
        return length - 1

    def prefill(self, pages: list[int], tokens: list[int], start: int, features: Tensor | None = None) -> None:
        """Context rows of `tokens` at positions `start` and on; features [T, taps * H], the target's at these."""
        positions = start + torch.arange(len(tokens), device=self.cache.device)[None]
        table = self.cache.table([pages], start + len(tokens))
        self._write(features[None], positions, table.physical(positions))

    def observe(self, batch: DraftBatch, features: Tensor, counts: Tensor) -> None:
        """Context rows of the root and the accepted path: the first counts[b] of features [B, M, taps * H]."""
        row = torch.arange(features.shape[1], device=features.device)
        positions = batch.root_positions[:, None] + row
        table = self.cache.table(batch.drafter_pages, batch.longest + self.config.block_size)
        slots = table.physical(positions.where(row < counts[:, None], -1))
        self._write(features, positions, write_slots(slots))

    def draft(self, batch: DraftBatch) -> dk.Candidates:
        """Candidates [B, L, K] for the positions behind each root."""
        block, root, device = self.config.block_size, batch.root_positions, batch.device
        roots = torch.tensor([[tokens[-1]] for tokens in batch.lacking], device=device)
        masks = torch.full((len(batch), block - 1), self.config.mask_token_id, device=device)
        positions = root[:, None] + torch.arange(block, device=device)
        table = self.cache.table(batch.drafter_pages, batch.longest - 1 + block)
        mask = first_slots_mask((root + block)[:, None].expand(-1, block), table.num_slots, self.cache.dtype)
        attention = PagedAttention(self.cache, table.physical(positions), table.table, mask)
        hidden = self.model(self.embed(torch.cat((roots, masks), dim=1)), positions, attention)
        mask_id = self.config.mask_token_id
        return dk.draft_candidates(
            self.logits(hidden[:, 1:])[..., : self.vocab_size],
            self.num_candidates,
            batch.sampling,
            root + 1,
            penalties=batch.penalties,
            mask_token_id=mask_id if mask_id < self.vocab_size else -1,
        )

    def _write(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        for rows, (k, v) in zip(self.cache.rows, self.model.context(features, positions)):
            rows.index_copy_(0, slots.flatten(), torch.cat((k, v), dim=-2).flatten(0, 1))
