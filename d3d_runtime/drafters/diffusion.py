"""The d3d drafter: a token-only block-diffusion model, drafting from a root or ahead of a verdict.

Invariant: `request.drafter_length` tokens have their clean KV in the cache, at their positions. A pass adds clean rows
(kept) and mask rows (scratch behind them, overwritten by the next pass).

    draft            [ clean tokens the cache lacks, the root last | masks ]
    draft_frontier   [ tree nodes 1 .. N-1 (clean) | E branches, each = g (clean) + masks ]     needs the root's KV

A branch sees the committed prefix, the path to its node m, g and its own masks; no other branch. After the verdict
`keep` packs the rows of the accepted path, and of the branch's g on a hit, into their positions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.batch import Batch
from d3d_runtime.kv_cache import KVCache, write_slots
from d3d_runtime.models.config import DiffusionConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.paged_attention import PagedAttention, first_slots_visible, show_tree, unpack_mask_bits
from d3d_runtime.progress import Progress, silent
from d3d_runtime.request import Request
from d3d_runtime.target import prefill


class DiffusionDrafter:
    def __init__(self, model: Decoder, cache: KVCache, diffusion: DiffusionConfig, num_candidates: int):
        self.model, self.cache, self.diffusion, self.num_candidates = model, cache, diffusion, num_candidates

    @property
    def draft_length(self) -> int:
        return self.diffusion.draft_length

    def scratch_rows(self, num_nodes: int, num_outcomes: int) -> int:
        """Rows a request needs behind its committed tokens."""
        return max(self.diffusion.num_masks, num_nodes - 1 + num_outcomes * self.diffusion.block_size)

    def prefill(self, request: Request, progress: Progress = silent) -> None:
        """Computes the clean KV that the cache lacks of the tokens before the root."""
        start, before_root = request.drafter_length, request.tokens[:-1]

        def reached(length: int) -> None:
            request.drafter_length = length
            progress("reading the prompt, drafter", length, len(before_root))

        prefill(self.model, self.cache, request.drafter_pages, before_root[start:], start, reached)

    def draft(self, batch: Batch) -> dk.Candidates:
        """Candidates [B, L, K] for the positions behind each root. Afterwards the cache holds the root as well."""
        lacking = [r.tokens[r.drafter_length :] for r in batch.requests]
        clean, masks = max(map(len, lacking)), self.diffusion.num_masks
        counts, root = batch.column([len(tokens) for tokens in lacking]), batch.root_positions
        # Clean rows are right-aligned, so that the root is row clean-1 in every lane and the masks follow it.
        row = torch.arange(clean + masks, device=batch.device)
        positions = root[:, None] + row - (clean - 1)
        exists = row >= (clean - counts)[:, None]
        mask_id = self.diffusion.mask_token_id
        token_ids = batch.column([[0] * (clean - len(tokens)) + tokens + [mask_id] * masks for tokens in lacking])

        pages = self.cache.table([r.drafter_pages for r in batch.requests], batch.longest + masks)
        limits = torch.where(row < clean, positions + 1, root[:, None] + 1 + masks).where(exists, 1)
        visible = first_slots_visible(limits, pages.num_slots)
        slots = write_slots(pages.physical(positions.where(exists, -1)))
        hidden = self.model(token_ids, positions.clamp(min=0), PagedAttention(self.cache, slots, pages.table, visible))
        for request in batch.requests:
            request.drafter_length = len(request.tokens)
        predicting = hidden[:, clean - 1 if self.diffusion.logit_shift else clean :]
        return self._candidates(predicting, batch.sampling, root + 1, batch.penalties)

    def draft_frontier(self, batch: Batch, tree: dk.DraftTree, outcomes: dk.Outcomes) -> dk.Candidates:
        """Candidates [B * E, L, K] for the positions behind each outcome. Empty outcomes give rows nobody selects."""
        (size, nodes), branches = tree.token_ids.shape, outcomes.token_ids.shape[1]
        block, first = self.diffusion.block_size, nodes - 1
        rows = first + branches * block
        root, device = batch.root_positions, batch.device
        parent = outcomes.parent_node.clamp(min=0).long()
        anchor_depth = tree.depths.gather(1, parent) + 1

        masks = torch.full((size, branches, block - 1), self.diffusion.mask_token_id, device=device)
        branch_ids = torch.cat((outcomes.token_ids.clamp(min=0)[:, :, None], masks), dim=2)
        branch_depths = anchor_depth[:, :, None] + torch.arange(block, device=device)
        token_ids = torch.cat((tree.token_ids[:, 1:].clamp(min=0), branch_ids.flatten(1)), dim=1)
        positions = root[:, None] + torch.cat((tree.depths[:, 1:], branch_depths.flatten(1)), dim=1)

        # Row i stands in logical slot n + i: the tree without its root, then the branches.
        pages = self.cache.table([r.drafter_pages for r in batch.requests], batch.longest + rows)
        node_exists = torch.arange(1, nodes, device=device) < tree.num_nodes[:, None]
        branch_exists = (outcomes.parent_node >= 0).repeat_interleave(block, dim=1)
        exists = torch.cat((node_exists, branch_exists), dim=1)
        slots = pages.physical((root[:, None] + 1 + torch.arange(rows, device=device)).where(exists, -1))

        visible = first_slots_visible((root[:, None] + 1).expand(-1, rows), pages.num_slots)
        path = unpack_mask_bits(tree.mask_bits, nodes)
        branch_path = path.gather(1, parent[:, :, None].expand(-1, -1, nodes))
        show_tree(visible, 0, root, torch.cat((path[:, 1:], branch_path.repeat_interleave(block, dim=1)), dim=1))
        show_tree(visible, first, root + nodes, self._own_branch(branches, device).expand(size, -1, -1))
        attention = PagedAttention(self.cache, write_slots(slots), pages.table, visible)
        hidden = self.model(token_ids, positions, attention)[:, first:].unflatten(1, (branches, block)).flatten(0, 1)

        request = torch.arange(size, device=device).repeat_interleave(branches)
        penalties = batch.penalties
        if penalties is not None:  # a branch counts its path and g, which takes the column of the root
            emitted = tree.token_ids[:, None].where(branch_path, -1)
            emitted[:, :, 0] = outcomes.token_ids
            counted = torch.cat((penalties.output_ids[request], emitted.flatten(0, 1)), dim=1)
            penalties = replace(penalties.select(request), output_ids=counted)
        predicting = hidden if self.diffusion.logit_shift else hidden[:, 1:]
        positions = (root[:, None] + anchor_depth).flatten() + 1
        return self._candidates(predicting, batch.sampling.select(request), positions, penalties)

    def keep(self, batch: Batch, tree: dk.DraftTree, outcomes: dk.Outcomes, verdict: dk.Verdict, index: Tensor) -> None:
        """Packs the rows of the accepted path behind the root, then the hit branch's g (index [B] i32, -1 = miss)."""
        block, root, nodes = self.diffusion.block_size, batch.root_positions, tree.token_ids.shape[1]
        accepted, hit = verdict.accepted_nodes.long(), index >= 0
        branch = root + nodes + index.clamp(min=0) * block
        # One list a request: the path, then g right behind its last node.
        entry = torch.arange(accepted.shape[1] + 1, device=batch.device)
        path = torch.nn.functional.pad(root[:, None] + accepted, (0, 1), value=-1)
        source = torch.where(entry == verdict.num_accepted[:, None], branch.where(hit, -1)[:, None], path)
        used = entry < (verdict.num_accepted + hit)[:, None]
        rows = nodes - 1 + outcomes.token_ids.shape[1] * block
        pages = self.cache.table([r.drafter_pages for r in batch.requests], batch.longest + rows)
        src = pages.physical(source.where(used, -1))
        dst = pages.physical((root[:, None] + 1 + entry).where(used, -1))
        dk.move_kv(self.cache.layout, src, dst, verdict.num_accepted + hit.int())

    def _own_branch(self, branches: int, device: torch.device) -> Tensor:
        """[1, E * block, E * block] bool: g sees itself, a mask all of its own branch."""
        branch = torch.arange(branches, device=device).repeat_interleave(self.diffusion.block_size)
        offset = torch.arange(self.diffusion.block_size, device=device).repeat(branches)
        same = branch[:, None] == branch
        return (same & ((offset[:, None] > 0) | (offset == 0)))[None]

    def _candidates(
        self, hidden: Tensor, sampling: dk.SamplingTensors, positions: Tensor, penalties: dk.Penalties | None
    ) -> dk.Candidates:
        return dk.draft_candidates(
            self.model.logits(hidden),
            self.num_candidates,
            sampling,
            positions,
            penalties=penalties,
            mask_token_id=self.diffusion.mask_token_id,
        )
