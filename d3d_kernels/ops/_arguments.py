"""Checks of arguments that several ops share."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks
from ..records import Record
from ..types import Penalties, SamplingTensors


def sizes_of(name: str, value: object, kind: type[Record]) -> tuple[int, ...]:
    """The sizes of an argument that must be a record of this kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}: expected {kind.__name__}, got {type(value).__name__}")
    return value.checked(name).sizes


def requests(
    logits: Tensor,
    rows: int,
    sampling: SamplingTensors,
    positions_name: str,
    positions: Tensor,
    request_ids: Tensor | None,
    penalties: Penalties | None,
) -> None:
    """Ops over vocabulary rows: parameters of B requests, and rows that belong to them."""
    device = logits.device
    (batch,) = sizes_of("sampling", sampling, SamplingTensors)
    if request_ids is None:
        batch = rows
    elif rows and not batch:
        raise ValueError(f"sampling: expected at least one request for {rows} rows, got none")
    sampling.expect("sampling", device, batch)
    checks.vector(positions_name, positions, torch.int64, (rows,), device)
    if request_ids is not None:
        checks.vector("request_ids", request_ids, torch.int32, (rows,), device)
    if penalties is not None:
        *_, words = sizes_of("penalties", penalties, Penalties)
        penalties.expect("penalties", device, batch)
        wanted = (logits.shape[-1] + 31) // 32
        if words not in (-1, wanted):
            raise ValueError(f"penalties.allowed_bits: expected {wanted} words of 32 tokens, got {words}")
