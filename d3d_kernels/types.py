"""The records that ops take and return: plain dataclasses of tensors.

Sizes: B requests, R rows, N tree nodes, L draft positions, K candidates, E outcomes, V vocabulary. -1 pads.
A record that is *input* validates its dtypes and shapes once, when it is made, so that a call with it only
compares its batch size and device. Records that are *output* can be preallocated with ``.empty`` and passed
as ``out=``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntFlag

import torch
from torch import Tensor

from . import checks


class Status(IntFlag):
    """Bits of a ``status`` tensor. Several can be set for one row."""

    OK = 0
    NO_FINITE_LOGIT = 1  # a row that was read holds no finite logit: its token is 0
    BAD_TREE = 2  # a parent is not smaller than its child, is missing, or a row lies outside the logits
    BAD_TOKEN = 4  # a draft token lies outside [0, V): it can never be accepted


@dataclass(slots=True, eq=False)
class SamplingTensors:
    """Sampling parameters of B requests, one value each.

    temperature[B] f32: below 1e-5 is greedy. top_k[B] i32: <= 0 or >= V is off. top_p[B] f32: >= 1 is off.
    min_p[B] f32: <= 0 is off. seed[B] i64: 64 bits of the request's noise key, any sign.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor

    def __post_init__(self) -> None:
        first = checks.is_tensor("temperature", self.temperature)
        shape, device = (first.shape[0] if first.ndim else -1,), first.device
        checks.vector("temperature", self.temperature, torch.float32, shape, device)
        checks.vector("top_k", self.top_k, torch.int32, shape, device)
        checks.vector("top_p", self.top_p, torch.float32, shape, device)
        checks.vector("min_p", self.min_p, torch.float32, shape, device)
        checks.vector("seed", self.seed, torch.int64, shape, device)

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
        return cls(
            torch.full((batch,), temperature, dtype=torch.float32, device=device),
            torch.full((batch,), top_k, dtype=torch.int32, device=device),
            torch.full((batch,), top_p, dtype=torch.float32, device=device),
            torch.full((batch,), min_p, dtype=torch.float32, device=device),
            torch.full((batch,), seed, dtype=torch.int64, device=device),
        )

    @classmethod
    def greedy(cls, batch: int, device: torch.device | str = "cpu") -> SamplingTensors:
        """Argmax decoding for ``batch`` requests."""
        return cls.full(batch, device, temperature=0.0)

    @property
    def batch(self) -> int:
        return self.temperature.shape[0]

    @property
    def device(self) -> torch.device:
        return self.temperature.device

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.temperature, self.top_k, self.top_p, self.min_p, self.seed

    def select(self, index: Tensor | slice) -> SamplingTensors:
        """The sub-batch ``index`` (a slice, or an integer tensor with repetitions allowed)."""
        return SamplingTensors(*(t[index] for t in self.tensors()))


@dataclass(slots=True, eq=False)
class Penalties:
    """What changes a request's logits before temperature; every field is optional.

    Applied in this order: repetition over prompt and output (l > 0 ? l / r : l * r), frequency (l -= f *
    count in the output), presence (l -= p if in the output), bias (l += value, duplicates add up, -inf bans),
    allowed bits (a cleared bit bans).

    prompt_ids[B,P] i64 and output_ids[B,O] i64: ids outside [0, V) are ignored, so -1 pads. presence,
    frequency, repetition[B] f32. bias_ids[B,M] i64 (-1 pads) with bias_values[B,M] f32.
    allowed_bits[B,ceil(V/32)] i32: bit v % 32 of word v // 32.
    """

    prompt_ids: Tensor | None = None
    output_ids: Tensor | None = None
    presence: Tensor | None = None
    frequency: Tensor | None = None
    repetition: Tensor | None = None
    bias_ids: Tensor | None = None
    bias_values: Tensor | None = None
    allowed_bits: Tensor | None = None

    def __post_init__(self) -> None:
        given = [t for t in self.tensors() if t is not None]
        if not given:
            raise ValueError("penalties: expected at least one tensor, got none; pass penalties=None instead")
        first = checks.is_tensor("penalties", given[0])
        batch, device = first.shape[0] if first.ndim else -1, first.device
        for name in ("prompt_ids", "output_ids", "bias_ids"):
            checks.optional_matrix(name, getattr(self, name), torch.int64, batch, device)
        for name in ("presence", "frequency", "repetition"):
            if getattr(self, name) is not None:
                checks.vector(name, getattr(self, name), torch.float32, (batch,), device)
        checks.optional_matrix("bias_values", self.bias_values, torch.float32, batch, device)
        checks.optional_matrix("allowed_bits", self.allowed_bits, torch.int32, batch, device)
        ids, values = self.bias_ids, self.bias_values
        if (ids is None) != (values is None) or (ids is not None and ids.shape != values.shape):
            raise ValueError(
                "bias_values: expected the shape of bias_ids, got "
                f"{checks.shape_of(values)} against {checks.shape_of(ids)}"
            )

    @property
    def batch(self) -> int:
        return next(t for t in self.tensors() if t is not None).shape[0]

    @property
    def device(self) -> torch.device:
        return next(t for t in self.tensors() if t is not None).device

    def tensors(self) -> tuple[Tensor | None, ...]:
        return (
            self.prompt_ids,
            self.output_ids,
            self.presence,
            self.frequency,
            self.repetition,
            self.bias_ids,
            self.bias_values,
            self.allowed_bits,
        )

    def select(self, index: Tensor | slice) -> Penalties:
        """The sub-batch ``index`` (a slice, or an integer tensor with repetitions allowed)."""
        return Penalties(*(None if t is None else t[index] for t in self.tensors()))


def _empty(dtype: torch.dtype, device: torch.device | str, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


@dataclass(slots=True, eq=False)
class Candidates:
    """The K best tokens of each draft position, best first; (-1, -inf, -inf) where a row has fewer."""

    token_ids: Tensor  # [R,L,K] i64
    log_probs: Tensor  # [R,L,K] f32, log of the filtered, tempered q
    scores: Tensor  # [R,L,K] f32, never positive: what build_tree adds up along a path

    @classmethod
    def empty(cls, rows: int, length: int, k: int, device: torch.device | str = "cpu") -> Candidates:
        i64, f32, shape = torch.int64, torch.float32, (rows, length, k)
        return cls(_empty(i64, device, *shape), _empty(f32, device, *shape), _empty(f32, device, *shape))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.token_ids, self.log_probs, self.scores


@dataclass(slots=True, eq=False)
class DraftTree:
    """B draft trees. Node 0 is the root, parents come before their children."""

    token_ids: Tensor  # [B,N] i64
    parents: Tensor  # [B,N] i32, parents[:, 0] = -1
    depths: Tensor  # [B,N] i32, the root has depth 0
    num_nodes: Tensor  # [B] i32, 0 marks an empty lane
    mask_bits: Tensor  # [B,N,ceil(N/32)] i32, bit j % 32 of word j // 32: j is the node or an ancestor

    @classmethod
    def empty(cls, batch: int, nodes: int, device: torch.device | str = "cpu") -> DraftTree:
        i32 = torch.int32
        return cls(
            _empty(torch.int64, device, batch, nodes),
            _empty(i32, device, batch, nodes),
            _empty(i32, device, batch, nodes),
            _empty(i32, device, batch),
            _empty(i32, device, batch, nodes, (nodes + 31) // 32),
        )

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.token_ids, self.parents, self.depths, self.num_nodes, self.mask_bits


@dataclass(slots=True, eq=False)
class Outcomes:
    """The E likeliest results of verifying a tree: last accepted node and bonus token, likeliest first."""

    parent_node: Tensor  # [B,E] i32
    token_ids: Tensor  # [B,E] i64
    scores: Tensor  # [B,E] f32

    @classmethod
    def empty(cls, batch: int, outcomes: int, device: torch.device | str = "cpu") -> Outcomes:
        return cls(
            _empty(torch.int32, device, batch, outcomes),
            _empty(torch.int64, device, batch, outcomes),
            _empty(torch.float32, device, batch, outcomes),
        )

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.parent_node, self.token_ids, self.scores


@dataclass(slots=True, eq=False)
class Verdict:
    """What verification decided: the accepted path, root excluded, and the bonus token behind it."""

    accepted_nodes: Tensor  # [B,N] i32, -1 padded
    num_accepted: Tensor  # [B] i32
    bonus_ids: Tensor  # [B] i64, -1 in an empty lane
    status: Tensor  # [B] i32, bits of Status

    @classmethod
    def empty(cls, batch: int, nodes: int, device: torch.device | str = "cpu") -> Verdict:
        i32 = torch.int32
        return cls(
            _empty(i32, device, batch, nodes),
            _empty(i32, device, batch),
            _empty(torch.int64, device, batch),
            _empty(i32, device, batch),
        )

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.accepted_nodes, self.num_accepted, self.bonus_ids, self.status


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
                "values: expected one tensor a layer as in keys, got "
                f"{len(self.values)} against {len(self.keys)}"
            )
        first = checks.is_tensor("keys[0]", self.keys[0])
        if first.ndim != 4:
            raise ValueError(f"keys[0]: expected 4 dimensions ({self.order} and page), got {first.ndim}")
        for name in ("keys", "values"):
            for i, tensor in enumerate(getattr(self, name)):
                checks.dense_rows(f"{name}[{i}]", tensor, first.dtype, tuple(first.shape), first.device)
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
                    f"{name}[{i}]: expected {scales[0].dtype} on {first.device}, "
                    f"got {scale.dtype} on {scale.device}"
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
