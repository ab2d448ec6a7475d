"""The target: what it computes for a round is the logits of a draft tree, the verdict, and the KV rows that stay.

Logical slots of a request: its committed tokens at their positions, 0 .. n-2; then the tree, node i at n-1+i, so the
root stands where it will stay. `rollback_kv` packs the accepted path behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.batch import Batch
from d3d_runtime.kv_cache import KVCache, write_slots
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.paged_attention import PagedAttention, first_slots_mask

PREFILL_CHUNK = 256


@dataclass(frozen=True)
class Verification:
    """The verdict on a batch of trees, with the logits it was read from ([B, N, V]).

    features [B, N, taps * H]: the outputs of the tapped layers, side by side; None without taps.
    """

    verdict: dk.Verdict
    logits: Tensor
    features: Tensor | None = None


class Target:
    """taps: layers whose outputs a drafter reads."""

    def __init__(self, model: Decoder, cache: KVCache):
        self.model, self.cache = model, cache
        self.taps: tuple[int, ...] = ()

    def prefill(self, pages: list[int], tokens: list[int], start: int) -> Tensor | None:
        """KV rows of `tokens`, which stand at positions `start` and on; their features [T, taps * H]."""
        return prefill(self.model, self.cache, pages, tokens, start, taps=self.taps)

    def verify(self, batch: Batch, tree: dk.DraftTree, outcomes: dk.Outcomes | None = None) -> Verification:
        """The verdict tells which of the outcomes came true, if there are any."""
        nodes = tree.token_ids.shape[1]
        pages = self.cache.table([r.target_pages for r in batch.requests], batch.longest - 1 + nodes)
        root = batch.root_positions
        exists = torch.arange(nodes, device=batch.device) < tree.num_nodes[:, None]
        slots = pages.physical((root[:, None] + torch.arange(nodes, device=batch.device)).where(exists, -1))

        mask = dk.dense_mask(tree.mask_bits, root, pages.num_slots, self.cache.dtype)
        mask[:, :, 0].masked_fill_(~exists, 0.0)  # a padding row sees something
        attention = PagedAttention(self.cache, write_slots(slots), pages.table, mask)
        tapped = dict.fromkeys(self.taps)
        hidden = self.model(tree.token_ids.clamp(min=0), root[:, None] + tree.depths, attention, tapped)
        logits = self.model.logits(hidden)

        verdict = dk.verify_tree(logits, tree, batch.sampling, root, penalties=batch.penalties, outcomes=outcomes)
        dk.rollback_kv(self.cache.layout, slots, verdict)
        return Verification(verdict, logits, _side_by_side(tapped))


def prefill(
    model: Decoder,
    cache: KVCache,
    request_pages: list[int],
    tokens: list[int],
    start: int,
    block: int = 1,
    taps: tuple[int, ...] = (),
) -> Tensor | None:
    """Writes the KV rows of `tokens`, which stand at positions `start` and on, in chunks.

    block: a token sees up to the end of its own block of so many positions; start and the end are borders of blocks.
    Returns the outputs of the layers `taps`, [T, taps * H], if there are any.
    """
    step = max(1, PREFILL_CHUNK // block) * block
    features = []
    for begin in range(0, len(tokens), step):
        chunk, tapped = tokens[begin : begin + step], dict.fromkeys(taps)
        positions = torch.arange(start + begin, start + begin + len(chunk), device=cache.device)[None]
        pages = cache.table([request_pages], start + begin + len(chunk))
        mask = first_slots_mask((positions // block + 1) * block, pages.num_slots, cache.dtype)
        attention = PagedAttention(cache, pages.physical(positions), pages.table, mask)
        model(torch.tensor([chunk], device=cache.device), positions, attention, tapped)
        features.append(_side_by_side(tapped))
    return torch.cat(features, dim=1)[0] if taps and features else None


def _side_by_side(tapped: dict[int, Tensor]) -> Tensor | None:
    return torch.cat(list(tapped.values()), dim=-1) if tapped else None
