"""The d3d drafter: a token-only block-diffusion model, drafting from a root or ahead of a verdict.

Invariant: `request.drafter_length` tokens have their clean KV in the cache, at their positions. A pass adds clean rows
(kept) and mask rows (scratch behind them, overwritten by the next pass).

    draft            [ clean tokens the cache lacks, the root last | masks ]
    draft_frontier   [ tree nodes 1 .. N-1 (clean) | E branches, each = g (clean) + masks ]     needs the root's KV

A branch sees the committed prefix, the path to its node m, g and its own masks; no other branch. After the verdict
`keep` packs the rows of the accepted path, and of the branch's g on a hit, into their positions.

With `clean_attention: block_causal` a clean token sees to the end of its own block of block_size positions, as far as
tokens are committed. The KV of an unfinished block changes with every token that joins it, so only whole blocks are
settled and the rest is fed again with each draft; such a drafter cannot draft behind tokens that are not committed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.batch import DraftBatch
from d3d_runtime.kv_cache import KVCache, write_slots
from d3d_runtime.models.config import DiffusionConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.paged_attention import PagedAttention, first_slots_mask
from d3d_runtime.target import prefill


class DiffusionDrafter:
    """vocab_size: the target's, None if it is the drafter's own. They may differ by padding: ids that the target does
    not have are never drafted, and those that the drafter does not have it reads as masks."""

    taps = ()

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        diffusion: DiffusionConfig,
        num_candidates: int,
        vocab_size: int | None = None,
    ):
        self.model, self.cache, self.diffusion, self.num_candidates = model, cache, diffusion, num_candidates
        self.vocab_size = min(vocab_size or model.config.vocab_size, model.config.vocab_size)
        self._reads_all = vocab_size is None or vocab_size <= model.config.vocab_size

    @property
    def draft_length(self) -> int:
        return self.diffusion.draft_length

    def scratch_rows(self, num_nodes: int, num_outcomes: int) -> int:
        """Rows a request needs behind its committed tokens."""
        return max(self.diffusion.num_masks, self._frontier_rows(num_nodes, num_outcomes))

    def settled(self, length: int) -> int:
        """Of `length` tokens whose clean KV is there, how many are never fed again."""
        return length - length % self.diffusion.clean_block

    def settled_by_draft(self, length: int) -> int:
        return self.settled(length)

    def prefill(self, pages: list[int], tokens: list[int], start: int, features: Tensor | None = None) -> None:
        """Clean KV rows of `tokens`, which stand at positions `start` and on: whole blocks, both ends settled."""
        readable = self._readable(torch.tensor(tokens)).tolist()
        prefill(self.model, self.cache, pages, readable, start, self.diffusion.clean_block)

    def draft(self, batch: DraftBatch) -> dk.Candidates:
        """Candidates [B, L, K] for the positions behind each root. Afterwards the cache lacks nothing."""
        lacking, root = batch.lacking, batch.root_positions
        clean, masks = max(map(len, lacking)), self.diffusion.num_masks
        counts = torch.tensor([len(tokens) for tokens in lacking], device=batch.device)
        # Clean rows are right-aligned, so that the root is row clean-1 in every lane and the masks follow it.
        row = torch.arange(clean + masks, device=batch.device)
        positions = root[:, None] + row - (clean - 1)
        exists = row >= (clean - counts)[:, None]
        mask_id = self.diffusion.mask_token_id
        rows = [[0] * (clean - len(tokens)) + tokens + [mask_id] * masks for tokens in lacking]
        token_ids = self._readable(torch.tensor(rows, device=batch.device))

        pages = self.cache.table(batch.drafter_pages, batch.longest + masks)
        block = self.diffusion.clean_block
        block_end = torch.minimum((positions // block + 1) * block, root[:, None] + 1)
        limits = torch.where(row < clean, block_end, root[:, None] + 1 + masks).where(exists, 1)
        mask = first_slots_mask(limits, pages.num_slots, self.cache.dtype)
        slots = write_slots(pages.physical(positions.where(exists, -1)))
        hidden = self.model(token_ids, positions.clamp(min=0), PagedAttention(self.cache, slots, pages.table, mask))
        predicting = hidden[:, clean - 1 if self.diffusion.logit_shift else clean :]
        return self._candidates(predicting, batch.sampling, root + 1, batch.penalties)

    def draft_frontier(self, batch: DraftBatch, tree: dk.DraftTree, outcomes: dk.Outcomes) -> dk.Candidates:
        """Candidates [B * E, L, K] for the positions behind each outcome. Empty outcomes give rows nobody selects."""
        nodes, branches = tree.token_ids.shape[1], outcomes.token_ids.shape[1]
        block, root = self.diffusion.block_size, batch.root_positions
        # Row i stands in logical slot n + i: the tree without its root, then the branches.
        pages = self.cache.table(batch.drafter_pages, batch.longest + self._frontier_rows(nodes, branches))
        rows = dk.frontier_inputs(
            tree, outcomes, root, pages.table, self.cache.page_size, block, self.diffusion.mask_token_id
        )
        # Every row sees the root at least, so that none is without anything to see.
        mask = dk.dense_mask(rows.mask_bits, (root + 1).clamp(min=1), pages.num_slots, self.cache.dtype)
        attention = PagedAttention(self.cache, write_slots(rows.slots), pages.table, mask)
        hidden = self.model(self._readable(rows.token_ids), rows.positions, attention)[:, nodes - 1 :]

        hidden = hidden.unflatten(1, (branches, block)).flatten(0, 1)
        request = rows.request_ids.flatten().clamp(min=0).long()
        penalties = batch.penalties
        if penalties is not None:  # a branch counts its path and g, which takes the column of the root
            parent = outcomes.parent_node.clamp(min=0).long()
            seen = dk.dense_mask(tree.mask_bits, torch.zeros_like(root), nodes)
            emitted = tree.token_ids[:, None].where(seen.gather(1, parent[:, :, None].expand(-1, -1, nodes)), -1)
            emitted[:, :, 0] = outcomes.token_ids
            counted = torch.cat((penalties.output_ids[request], emitted.flatten(0, 1)), dim=1)
            penalties = replace(penalties.select(request), output_ids=counted)
        predicting = hidden if self.diffusion.logit_shift else hidden[:, 1:]
        return self._candidates(predicting, batch.sampling.select(request), rows.draft_positions.flatten(), penalties)

    def keep(
        self, batch: DraftBatch, tree: dk.DraftTree, outcomes: dk.Outcomes, verdict: dk.Verdict, index: Tensor
    ) -> None:
        """Packs the rows of the accepted path behind the root, then the hit branch's g (index [B] i32, -1 = miss)."""
        block, root, nodes = self.diffusion.block_size, batch.root_positions, tree.token_ids.shape[1]
        accepted, hit = verdict.accepted_nodes.long(), index >= 0
        branch = root + nodes + index.clamp(min=0) * block
        # One list a request: the path, then g right behind its last node.
        entry = torch.arange(accepted.shape[1] + 1, device=batch.device)
        path = torch.nn.functional.pad(root[:, None] + accepted, (0, 1), value=-1)
        source = torch.where(entry == verdict.num_accepted[:, None], branch.where(hit, -1)[:, None], path)
        used = entry < (verdict.num_accepted + hit)[:, None]
        rows = self._frontier_rows(nodes, outcomes.token_ids.shape[1])
        pages = self.cache.table(batch.drafter_pages, batch.longest + rows)
        src = pages.physical(source.where(used, -1))
        dst = pages.physical((root[:, None] + 1 + entry).where(used, -1))
        dk.move_kv(self.cache.layout, src, dst, verdict.num_accepted + hit.int())

    def _frontier_rows(self, num_nodes: int, num_outcomes: int) -> int:
        return num_nodes - 1 + num_outcomes * self.diffusion.block_size

    def _candidates(
        self, hidden: Tensor, sampling: dk.SamplingTensors, positions: Tensor, penalties: dk.Penalties | None
    ) -> dk.Candidates:
        mask_id = self.diffusion.mask_token_id
        return dk.draft_candidates(
            self.model.logits(hidden)[..., : self.vocab_size],
            self.num_candidates,
            sampling,
            positions,
            penalties=penalties,
            mask_token_id=mask_id if mask_id < self.vocab_size else -1,
        )

    def _readable(self, token_ids: Tensor) -> Tensor:
        if self._reads_all:
            return token_ids
        return token_ids.where(token_ids < self.model.config.vocab_size, self.diffusion.mask_token_id)
