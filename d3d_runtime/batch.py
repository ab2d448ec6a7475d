"""The requests of one round as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.request import Request


@dataclass(frozen=True, eq=False)
class DraftBatch:
    """What a drafter needs to know of a batch: little enough to be sent to another process.

    lacking: each request's clean tokens that the drafter's cache lacks, the root last.
    """

    lacking: list[list[int]]
    drafter_pages: list[list[int]]
    root_positions: Tensor  # [B] i64
    longest: int
    sampling: dk.SamplingTensors
    penalties: dk.Penalties | None

    def __len__(self) -> int:
        return len(self.lacking)

    @property
    def device(self) -> torch.device:
        return self.root_positions.device


@dataclass(frozen=True, eq=False)
class Batch:
    """B running requests, in the order they joined. All here follows from them; nothing is kept across rounds."""

    requests: list[Request]
    device: torch.device

    def __len__(self) -> int:
        return len(self.requests)

    def subset(self, indices: list[int]) -> Batch:
        return self if len(indices) == len(self) else Batch([self.requests[i] for i in indices], self.device)

    def for_drafter(self) -> DraftBatch:
        """As it is now: what a request's drafter cache lacks changes within a round, and its pages may be taken from it
        while the drafter still works on them."""
        pages = [list(pages) for pages in self.drafter_pages]
        return DraftBatch(self.lacking, pages, self.root_positions, self.longest, self.sampling, self.penalties)

    @property
    def lacking(self) -> list[list[int]]:
        return [request.tokens[request.drafter_length :] for request in self.requests]

    @property
    def drafter_pages(self) -> list[list[int]]:
        return [request.drafter_pages for request in self.requests]

    def column(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    @cached_property
    def root_ids(self) -> Tensor:
        return self.column([request.tokens[-1] for request in self.requests])

    @cached_property
    def root_positions(self) -> Tensor:
        return self.column([len(request.tokens) - 1 for request in self.requests])

    @cached_property
    def longest(self) -> int:
        """Committed tokens of the longest request: the host's bound for page tables."""
        return max(len(request.tokens) for request in self.requests)

    @cached_property
    def sampling(self) -> dk.SamplingTensors:
        params = [request.params for request in self.requests]

        def column(name: str, dtype: torch.dtype) -> Tensor:
            return torch.tensor([getattr(p, name) for p in params], dtype=dtype, device=self.device)

        f32, i32 = torch.float32, torch.int32
        return dk.SamplingTensors(
            column("temperature", f32),
            column("top_k", i32),
            column("top_p", f32),
            column("min_p", f32),
            column("seed", torch.int64),
        )

    @cached_property
    def penalties(self) -> dk.Penalties | None:
        """None if no request has any. Counts what is committed; verify_tree adds each node's ancestors itself."""
        params = [request.params for request in self.requests]
        if not any(p.has_penalties for p in params):
            return None

        def column(name: str) -> Tensor:
            return torch.tensor([getattr(p, name) for p in params], dtype=torch.float32, device=self.device)

        bias = [list(p.logit_bias.items()) for p in params]
        has_bias = any(bias)
        return dk.Penalties(
            prompt_ids=self._padded([r.tokens[: r.prompt_length] for r in self.requests], -1, torch.int64),
            output_ids=self._padded([r.output_ids for r in self.requests], -1, torch.int64),
            presence=column("presence_penalty"),
            frequency=column("frequency_penalty"),
            repetition=column("repetition_penalty"),
            bias_ids=self._padded([[i for i, _ in row] for row in bias], -1, torch.int64) if has_bias else None,
            bias_values=self._padded([[b for _, b in row] for row in bias], 0.0, torch.float32) if has_bias else None,
        )

    @cached_property
    def stop_ids(self) -> Tensor:
        """[B, S] i64, -1 padded."""
        return self._padded([sorted(request.stop_ids) for request in self.requests], -1, torch.int64)

    def _padded(self, rows: list[list], fill: float, dtype: torch.dtype) -> Tensor:
        width = max(1, max(len(row) for row in rows))
        return torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=dtype, device=self.device)
