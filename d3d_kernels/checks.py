"""Argument checks: metadata only, so they never synchronise with a device, and cheap enough for every call.

Each check is one fused comparison; only a failing one pays for finding out which part failed. Errors name the
argument, what was expected and what came: TypeError for the wrong kind or dtype, ValueError for shape,
device, stride.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOGIT_DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
MAX_VOCAB = 1 << 22  # the fixed-point probability mass of a row must fit 63 bits


def is_tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
    return value


def shape_of(value: Tensor | None) -> str:
    return "None" if value is None else str(tuple(value.shape))


def dense_rows(
    name: str, t: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> None:
    """An input: any strides, but the last dimension dense."""
    try:
        if t.dtype is dtype and t.shape == shape and t.device == device:
            if shape[-1] <= 1 or t.stride(-1) == 1 or t.numel() == 0:
                return
    except AttributeError:
        pass
    _explain(name, t, dtype, shape, device, "its last dimension dense (stride 1)")


vector = dense_rows  # [n]: the same rule, under the name that reads best


def output(name: str, t: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    """A preallocated output: contiguous."""
    try:
        if t.dtype is dtype and t.shape == shape and t.device == device and t.is_contiguous():
            return
    except AttributeError:
        pass
    _explain(name, t, dtype, shape, device, "a contiguous tensor")


def optional_matrix(name: str, t: Tensor | None, dtype: torch.dtype, rows: int, device: torch.device) -> None:
    """[rows, anything], or None."""
    if t is not None:
        columns = is_tensor(name, t).shape[1] if t.ndim == 2 else -1
        dense_rows(name, t, dtype, (rows, columns), device)


def _explain(
    name: str, t: object, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device, strides: str
) -> None:
    t = is_tensor(name, t)
    if t.dtype is not dtype:
        raise TypeError(f"{name}: expected {dtype}, got {t.dtype}")
    if t.shape != shape:
        wanted = tuple("any" if n < 0 else n for n in shape)
        raise ValueError(f"{name}: expected shape {wanted}, got {tuple(t.shape)}")
    if t.device != device:
        raise ValueError(f"{name}: expected device {device}, got {t.device}")
    raise ValueError(f"{name}: expected {strides}, got strides {t.stride()} for shape {tuple(t.shape)}")


def logits(name: str, t: Tensor, ndims: tuple[int, ...]) -> None:
    """Logits: a supported dtype, the vocabulary last and dense."""
    if not isinstance(t, Tensor):
        is_tensor(name, t)
    if t.dtype not in LOGIT_DTYPES:
        raise TypeError(f"{name}: expected float32, bfloat16, float16 or float64, got {t.dtype}")
    if t.ndim not in ndims:
        wanted = " or ".join(str(n) for n in ndims)
        raise ValueError(f"{name}: expected {wanted} dimensions, got shape {tuple(t.shape)}")
    vocab = t.shape[-1]
    if not 0 < vocab < MAX_VOCAB:
        raise ValueError(f"{name}: expected a vocabulary of 1 to {MAX_VOCAB - 1}, got {vocab}")
    if vocab > 1 and t.stride(-1) != 1:
        raise ValueError(f"{name}: expected its last dimension dense (stride 1), got strides {t.stride()}")


def requests(
    logits: Tensor,
    rows: int,
    sampling,
    positions: Tensor,
    positions_name: str,
    request_ids: Tensor | None,
    penalties,
) -> None:
    """What every op over vocabulary rows shares: parameters of B requests, rows that belong to them."""
    device = logits.device
    batch = getattr(sampling, "batch", None)
    if batch is None:
        raise TypeError(f"sampling: expected SamplingTensors, got {type(sampling).__name__}")
    if sampling.device != device:
        raise ValueError(f"sampling: expected device {device}, got {sampling.device}")
    vector(positions_name, positions, torch.int64, (rows,), device)
    if request_ids is not None:
        vector("request_ids", request_ids, torch.int32, (rows,), device)
        if rows and not batch:
            raise ValueError(f"sampling: expected at least one request for {rows} rows, got 0")
    elif batch != rows:
        raise ValueError(f"sampling: expected {rows} requests, one for each row of logits, got {batch}")
    if penalties is not None:
        _penalties(penalties, batch, logits.shape[-1], device)


def _penalties(penalties, batch: int, vocab: int, device: torch.device) -> None:
    if not hasattr(penalties, "allowed_bits"):
        raise TypeError(f"penalties: expected Penalties, got {type(penalties).__name__}")
    if penalties.batch != batch:
        raise ValueError(f"penalties: expected {batch} requests as in sampling, got {penalties.batch}")
    if penalties.device != device:
        raise ValueError(f"penalties: expected device {device}, got {penalties.device}")
    bits, words = penalties.allowed_bits, (vocab + 31) // 32
    if bits is not None and bits.shape[1] != words:
        raise ValueError(
            f"allowed_bits: expected {words} words for a vocabulary of {vocab}, got {bits.shape[1]}"
        )


def at_least(name: str, value: int, low: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}")
    if value < low:
        raise ValueError(f"{name}: expected at least {low}, got {value}")


def tree_input(tree, device: torch.device) -> tuple[int, int]:
    """The parts of a DraftTree that verification reads -> (B, N)."""
    ids = is_tensor("tree.token_ids", getattr(tree, "token_ids", tree))
    if ids.ndim != 2:
        raise ValueError(f"tree.token_ids: expected shape (B, N), got {tuple(ids.shape)}")
    shape = batch, nodes = ids.shape
    if nodes < 1:
        raise ValueError(f"tree.token_ids: expected at least one node, got shape {tuple(shape)}")
    dense_rows("tree.token_ids", ids, torch.int64, shape, device)
    dense_rows("tree.parents", tree.parents, torch.int32, shape, device)
    dense_rows("tree.depths", tree.depths, torch.int32, shape, device)
    vector("tree.num_nodes", tree.num_nodes, torch.int32, (batch,), device)
    return batch, nodes


def tree_output(tree, batch: int, nodes: int, device: torch.device) -> None:
    output("out[0].token_ids", tree.token_ids, torch.int64, (batch, nodes), device)
    output("out[0].parents", tree.parents, torch.int32, (batch, nodes), device)
    output("out[0].depths", tree.depths, torch.int32, (batch, nodes), device)
    output("out[0].num_nodes", tree.num_nodes, torch.int32, (batch,), device)
    output("out[0].mask_bits", tree.mask_bits, torch.int32, (batch, nodes, (nodes + 31) // 32), device)


def verdict(name: str, v, batch: int, nodes: int, device: torch.device, rule) -> None:
    """``rule``: dense_rows for an input, output for a preallocated one."""
    rule(f"{name}.accepted_nodes", v.accepted_nodes, torch.int32, (batch, nodes), device)
    rule(f"{name}.num_accepted", v.num_accepted, torch.int32, (batch,), device)
    rule(f"{name}.bonus_ids", v.bonus_ids, torch.int64, (batch,), device)
    rule(f"{name}.status", v.status, torch.int32, (batch,), device)
