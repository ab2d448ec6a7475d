"""What ops take and return.

Sizes: B requests, R rows, N tree nodes, L draft positions, K candidates, E outcomes, V vocabulary, W words of
32 bits, Q rows of a pass. -1 pads. Records that ops return can be preallocated with ``.empty`` and passed as ``out=``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntFlag

import torch
from torch import Tensor

from . import checks
from .records import Checked, Record, record, tensor


class Status(IntFlag):
    """Bits of a ``status`` tensor. Several can be set for one row."""

    OK = 0
    NO_FINITE_LOGIT = 1  # a row that was read holds no finite logit: its token is 0
    BAD_TREE = 2  # a parent is not smaller than its child, is missing, or a row lies outside the logits
    BAD_TOKEN = 4  # a draft token lies outside [0, V): it can never be accepted


@record
class SamplingTensors(Record):
    """Sampling parameters of B requests."""

    temperature: Tensor = tensor(torch.float32, "B")  # below 1e-5: greedy
    top_k: Tensor = tensor(torch.int32, "B")  # <= 0 or >= V: off
    top_p: Tensor = tensor(torch.float32, "B")  # >= 1: off
    min_p: Tensor = tensor(torch.float32, "B")  # <= 0: off
    seed: Tensor = tensor(torch.int64, "B")  # 64 bits of the request's noise key, any sign

    @classmethod
    def full(
        cls,
        batch: int,
        device: torch.device | str = "cpu",
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
    ) -> SamplingTensors:
        """The same parameters for ``batch`` requests; filters are off unless given."""
        values = (temperature, top_k, top_p, min_p, seed)
        sampling = cls.allocate(device, batch)
        for t, value in zip(sampling.tensors(), values, strict=True):
            t.fill_(value)
        return sampling

    @classmethod
    def greedy(cls, batch: int, device: torch.device | str = "cpu") -> SamplingTensors:
        """Argmax decoding for ``batch`` requests."""
        return cls.full(batch, device, temperature=0.0)


@record
class Penalties(Record):
    """What changes a request's logits before temperature; every field is optional.

    Applied in this order: repetition over prompt and output (l > 0 ? l / r : l * r), frequency (l -= f * the
    count in the output), presence (l -= p if in the output), bias (l += value, duplicates add up, -inf bans),
    allowed bits (a cleared bit bans).
    """

    prompt_ids: Tensor | None = tensor(torch.int64, "BP", optional=True)  # ids outside [0, V) are ignored
    output_ids: Tensor | None = tensor(torch.int64, "BO", optional=True)
    presence: Tensor | None = tensor(torch.float32, "B", optional=True)
    frequency: Tensor | None = tensor(torch.float32, "B", optional=True)
    repetition: Tensor | None = tensor(torch.float32, "B", optional=True)
    bias_ids: Tensor | None = tensor(torch.int64, "BM", optional=True)
    bias_values: Tensor | None = tensor(torch.float32, "BM", optional=True)
    allowed_bits: Tensor | None = tensor(torch.int32, "BW", optional=True)  # bit v % 32 of word v // 32

    def _check(self, name: str) -> Checked:
        if (self.bias_ids is None) != (self.bias_values is None):
            raise ValueError(f"{name}.bias_values: expected to come with bias_ids, got one of them only")
        return Record._check(self, name)


@record
class Candidates(Record):
    """The K best tokens of each draft position, best first; (-1, -inf, -inf) where a row has fewer."""

    token_ids: Tensor = tensor(torch.int64, "RLK")
    log_probs: Tensor = tensor(torch.float32, "RLK")  # log of the filtered, tempered q
    scores: Tensor = tensor(torch.float32, "RLK")  # never positive: what build_tree adds up along a path

    @classmethod
    def empty(cls, rows: int, length: int, k: int, device: torch.device | str = "cpu") -> Candidates:
        return cls.allocate(device, rows, length, k)


@record
class DraftTree(Record):
    """B draft trees. Node 0 is the root, parents come before their children."""

    token_ids: Tensor = tensor(torch.int64, "BN")
    parents: Tensor = tensor(torch.int32, "BN")  # parents[:, 0] = -1
    depths: Tensor = tensor(torch.int32, "BN")  # the root has depth 0
    num_nodes: Tensor = tensor(torch.int32, "B")  # 0 marks an empty lane
    mask_bits: Tensor = tensor(torch.int32, "BNW")  # bit j % 32 of word j // 32: j is it or its ancestor

    @classmethod
    def empty(cls, batch: int, nodes: int, device: torch.device | str = "cpu") -> DraftTree:
        return cls.allocate(device, batch, nodes, mask_words(nodes))

    def _check(self, name: str) -> Checked:
        found = Record._check(self, name)
        _, nodes, words = found.sizes
        if nodes < 1 or words != mask_words(nodes):
            raise ValueError(f"{name}.mask_bits: expected {mask_words(nodes)} words for N = {nodes} >= 1, got {words}")
        return found


@record
class TreeLinks(Record):
    """The shape of B draft trees, spelled out for attention and walks; -1 where there is nothing."""

    positions: Tensor = tensor(torch.int64, "BN")  # position of the root + depth
    first_child: Tensor = tensor(torch.int32, "BN")  # the lowest
    next_sibling: Tensor = tensor(torch.int32, "BN")  # the next higher

    @classmethod
    def empty(cls, batch: int, nodes: int, device: torch.device | str = "cpu") -> TreeLinks:
        return cls.allocate(device, batch, nodes)


@record
class Outcomes(Record):
    """The E likeliest results of verifying a tree, likeliest first."""

    parent_node: Tensor = tensor(torch.int32, "BE")  # the last accepted node
    token_ids: Tensor = tensor(torch.int64, "BE")  # the bonus token
    scores: Tensor = tensor(torch.float32, "BE")

    @classmethod
    def empty(cls, batch: int, outcomes: int, device: torch.device | str = "cpu") -> Outcomes:
        return cls.allocate(device, batch, outcomes)


@record
class Verdict(Record):
    """What verification decided: the accepted path, root excluded, and the bonus token behind it."""

    accepted_nodes: Tensor = tensor(torch.int32, "BN")  # -1 padded
    num_accepted: Tensor = tensor(torch.int32, "B")
    bonus_ids: Tensor = tensor(torch.int64, "B")  # -1 in an empty lane
    status: Tensor = tensor(torch.int32, "B")  # bits of Status
    outcome_index: Tensor | None = tensor(torch.int32, "B", optional=True)  # the outcome that came true, or -1

    @classmethod
    def empty(cls, batch: int, nodes: int, device: torch.device | str = "cpu") -> Verdict:
        return cls.allocate(device, batch, nodes)


@record
class FrontierInputs(Record):
    """The rows of the drafter's pass ahead of a verdict: the tree without its root, then E branches."""

    token_ids: Tensor = tensor(torch.int64, "BQ")  # 0 where no row exists
    positions: Tensor = tensor(torch.int64, "BQ")  # 0 where no row exists
    slots: Tensor = tensor(torch.int64, "BQ")  # of the KV cache; -1 where no row exists
    mask_bits: Tensor = tensor(torch.int32, "BQW")  # bit j % 32 of word j // 32: the row sees row j
    draft_positions: Tensor = tensor(torch.int64, "BE")  # of a branch's first drafted token; -1: no branch
    request_ids: Tensor = tensor(torch.int32, "BE")  # b; -1: no branch

    @classmethod
    def empty(
        cls, batch: int, nodes: int, outcomes: int, block_size: int, device: torch.device | str = "cpu"
    ) -> FrontierInputs:
        rows = frontier_rows(nodes, outcomes, block_size)
        return cls.allocate(device, batch, rows, mask_words(rows), outcomes)


@record
class Rollback(Record):
    """What a rollback leaves of the rows of a tree."""

    kept_rows: Tensor = tensor(torch.int32, "B")  # slots[b, :kept_rows[b]] hold the root, the path, the bonus token
    freed_pages: Tensor = tensor(torch.int64, "BP")  # pages of slots[b] without any row that stays, -1 padded

    @classmethod
    def empty(cls, batch: int, pages: int, device: torch.device | str = "cpu") -> Rollback:
        return cls.allocate(device, batch, pages)


@record
class PackedMask(Record):
    """B masks, one after the other, each in whole bytes."""

    bits: Tensor = tensor(torch.uint8, "C")  # the lowest bit of a byte first; 0 behind the last request
    byte_starts: Tensor = tensor(torch.int32, "I")  # I = B + 1: where each request begins, and the end

    @classmethod
    def empty(cls, batch: int, rows: int, max_context: int, device: torch.device | str = "cpu") -> PackedMask:
        return cls.allocate(device, packed_bytes(batch, rows, max_context), batch + 1)


def frontier_rows(nodes: int, outcomes: int, block_size: int) -> int:
    """Q of a frontier pass."""
    return nodes - 1 + outcomes * block_size


def packed_bytes(batch: int, rows: int, max_context: int) -> int:
    """Bytes that B packed masks take at most."""
    return batch * ((rows * (max_context + rows) + 7) // 8)


def mask_words(nodes: int) -> int:
    """Words of 32 bits in a mask over that many nodes or rows."""
    return (nodes + 31) // 32


@dataclass(eq=False)
class KVLayout:
    """Where the rows of a KV cache lie: one key and one value tensor a layer, all of one shape and dtype.

    order "NHD": [num_pages, page_size, H, D]; "HND": [num_pages, H, page_size, D]. Any strides, but D is
    dense. A dense cache is one page a request. Slot s is row s % page_size of page s // page_size. Quantised
    caches move as bytes; their scales, one a token and head (the cache's shape without D), move with them. A
    scale shared by a whole page or block would need requantising when a token moves, so it is refused.
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    order: str = "NHD"
    key_scales: Sequence[Tensor] | None = None
    value_scales: Sequence[Tensor] | None = None
    # Backends keep what they derive from the tensors (tables of pointers) here, so that a call allocates
    # nothing.
    tables: dict = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.keys, self.values = list(self.keys), list(self.values)
        if self.order not in ("NHD", "HND"):
            raise ValueError(f'order: expected "NHD" or "HND", got {self.order!r}')
        if not self.keys or len(self.keys) != len(self.values):
            raise ValueError(
                f"values: expected one tensor a layer as in keys, got {len(self.values)} against {len(self.keys)}"
            )
        first = checks.is_tensor("keys[0]", self.keys[0])
        if first.ndim != 4:
            raise ValueError(f"keys[0]: expected 4 dimensions ({self.order} and page), got {first.ndim}")
        for name in ("keys", "values"):
            for i, cache in enumerate(getattr(self, name)):
                checks.dense_rows(f"{name}[{i}]", cache, first.dtype, tuple(first.shape), first.device)
        for name in ("key_scales", "value_scales"):
            scales = getattr(self, name)
            setattr(self, name, list(scales) if scales else None)
            if scales:
                self._check_scales(name, getattr(self, name), first)

    def _check_scales(self, name: str, scales: list[Tensor], first: Tensor) -> None:
        if len(scales) != len(self.keys):
            raise ValueError(f"{name}: expected {len(self.keys)} tensors, got {len(scales)}")
        for i, scale in enumerate(scales):
            checks.is_tensor(f"{name}[{i}]", scale)
            if scale.shape != first.shape[:3]:
                raise ValueError(
                    f"{name}[{i}]: expected one scale a token and head, shape {tuple(first.shape[:3])}, got "
                    f"{tuple(scale.shape)}: a token with a scale per block cannot move without requantising"
                )
            if scale.device != first.device or scale.dtype != scales[0].dtype:
                raise ValueError(
                    f"{name}[{i}]: expected {scales[0].dtype} on {first.device}, got {scale.dtype} on {scale.device}"
                )

    def tensors(self) -> tuple:
        return self.keys, self.values, self.order, self.key_scales or [], self.value_scales or []

    @property
    def num_pages(self) -> int:
        return self.keys[0].shape[0]

    @property
    def page_size(self) -> int:
        return self.keys[0].shape[1 if self.order == "NHD" else 2]

    @property
    def num_slots(self) -> int:
        return self.num_pages * self.page_size

    @property
    def device(self) -> torch.device:
        return self.keys[0].device


@dataclass(frozen=True, eq=False)
class CacheRows:
    """Where the rows of B requests stand in one cache: the tree's, then those of the branches behind its outcomes.

    slots: [B,S] i64, slots[b, i] of tree node i, slots[b, N + e * block_size] of outcome e's bonus token; -1: none.
    block_size: rows of a branch; 0: this cache has no branches.
    """

    layout: KVLayout
    slots: Tensor
    block_size: int = 0
