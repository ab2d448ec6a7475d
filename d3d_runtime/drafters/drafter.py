"""What the scheduler and a round ask of a drafter."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.batch import DraftBatch
from d3d_runtime.kv_cache import KVCache


class Drafter(Protocol):
    """One that drafts ahead (`DrafterSource.drafts_ahead`) has `draft_frontier` and `keep` as well, as
    DiffusionDrafter has; one with `taps` has `observe`, as DFlashDrafter."""

    cache: KVCache | None  # None: it keeps nothing of what it reads
    taps: tuple[int, ...]  # the target's layers whose outputs it reads; () if token ids are all it needs

    def scratch_rows(self, num_nodes: int, num_outcomes: int) -> int:
        """Rows a request needs in the cache behind its committed tokens."""

    def settled(self, length: int) -> int:
        """Of `length` tokens that it has read, how many it need not read again."""

    def settled_by_draft(self, length: int) -> int:
        """The same after a draft from the last of them, the root."""

    def prefill(self, pages: list[int], tokens: list[int], start: int, features: Tensor | None = None) -> None:
        """Reads `tokens`, which stand at positions `start` and on; features [T, taps * H] with taps."""

    def draft(self, batch: DraftBatch) -> dk.Candidates:
        """Candidates [B, L, K] for the positions behind each root."""
