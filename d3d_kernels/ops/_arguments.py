"""Checks of arguments that several ops share."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks
from ..records import Record
from ..types import DraftTree, Outcomes, Penalties, SamplingTensors, TreeLinks


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


def tree_growth(
    root_ids: Tensor,
    length: int,
    num_nodes: int,
    num_outcomes: int,
    max_depth: int | None,
    stop_ids: Tensor | None,
    links: TreeLinks | None,
    out: tuple[DraftTree, Outcomes] | None,
    batch: int,
    device: torch.device,
) -> tuple[int, tuple[DraftTree, Outcomes]]:
    """Ops that grow trees: their arguments, and outputs if the caller brings none. -> max_depth, outputs"""
    checks.vector("root_ids", root_ids, torch.int64, (batch,), device)
    checks.at_least("num_nodes", num_nodes, 1)
    checks.at_least("num_outcomes", num_outcomes, 0)
    if max_depth is None:
        max_depth = max(length - 1, 0) if num_outcomes else length
    else:
        checks.at_least("max_depth", max_depth, 0)
    if stop_ids is not None:
        width = checks.is_tensor("stop_ids", stop_ids).shape[-1] if stop_ids.ndim else -1
        stop_shape = (batch, width) if stop_ids.ndim == 2 else (width,)
        checks.dense_rows("stop_ids", stop_ids, torch.int64, stop_shape, device)
    if links is not None:
        sizes_of("links", links, TreeLinks)
        links.expect("links", device, batch, num_nodes, contiguous=True)
    if out is None:
        out = DraftTree.empty(batch, num_nodes, device), Outcomes.empty(batch, num_outcomes, device)
    else:
        sizes_of("out[0]", out[0], DraftTree)
        sizes_of("out[1]", out[1], Outcomes)
        out[0].expect("out[0]", device, batch, num_nodes, contiguous=True)
        out[1].expect("out[1]", device, batch, num_outcomes, contiguous=True)
    return max_depth, out
