"""Penalties as tables of a request [B, V], which all rows of the request read beside their logits.

    marks   bit 0: the token is in the prompt; from bit 1: how often it is in the output
    bias    the sum of the token's biases, in list order

Tables cost 4 bytes a token, request and kind, however many rows (tree nodes) a request has; penalised copies
of the rows would cost as much for every row. Marks are integers, so that atomics in any order give the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..types import Penalties
from .launch import launch

BLOCK = 256


class Tables(NamedTuple):
    """None where a penalty is absent."""

    marks: Any
    repetition: Any  # [B] each
    frequency: Any
    presence: Any
    bias: Any
    allowed: Any  # the words of Penalties.allowed_bits
    allowed_stride: Any
    tree_tokens: Any  # [B,N]: a node's row has seen the tokens of its path as well
    tree_parents: Any


def tables(
    penalties: Penalties | None, logits: Tensor, batch: int, tree_tokens: Tensor | None, tree_parents: Tensor | None
) -> Tables | None:
    if penalties is None:
        return None
    vocab, device = logits.shape[-1], logits.device
    weights = (penalties.repetition, penalties.frequency, penalties.presence)
    marks = bias = None
    if any(weight is not None for weight in weights):
        marks = torch.zeros(batch, vocab, dtype=torch.int32, device=device)
        for ids, in_output in ((penalties.prompt_ids, False), (penalties.output_ids, True)):
            if ids is not None and ids.numel():
                grid = (batch, triton.cdiv(ids.shape[1], BLOCK))
                launch(mark_kernel, grid, marks, ids, ids.stride(0), ids.shape[1], vocab, in_output, BLOCK)
    ids, values = penalties.bias_ids, penalties.bias_values
    if ids is not None and ids.numel():
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        bias = torch.zeros(batch, vocab, dtype=dtype, device=device)
        grid = (batch, triton.cdiv(ids.shape[1], BLOCK))
        strides = (ids.stride(0), values.stride(0))
        launch(bias_kernel, grid, bias, ids, values, *strides, ids.shape[1], vocab, BLOCK)
    allowed = penalties.allowed_bits
    allowed_stride = None if allowed is None else allowed.stride(0)
    if marks is None:
        tree_tokens = tree_parents = None
    return Tables(marks, *weights, bias, allowed, allowed_stride, tree_tokens, tree_parents)


@triton.jit(do_not_specialize=["stride", "length"])
def mark_kernel(marks, ids, stride, length, vocab, IN_OUTPUT: tl.constexpr, BLOCK: tl.constexpr):
    request = tl.program_id(0).to(tl.int64)
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + request * stride + entry, mask=entry < length, other=-1)
    valid = (token >= 0) & (token < vocab)
    at = marks + request * vocab + tl.where(valid, token, 0)
    if IN_OUTPUT:
        tl.atomic_add(at, 2, mask=valid)
    else:
        tl.atomic_or(at, 1, mask=valid)


@triton.jit(do_not_specialize=["ids_stride", "values_stride", "length"])
def bias_kernel(bias, ids, values, ids_stride, values_stride, length, vocab, BLOCK: tl.constexpr):
    """Each entry adds up its token's whole list in order: entries of one token write one and the same sum."""
    request = tl.program_id(0).to(tl.int64)
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + request * ids_stride + entry, mask=entry < length, other=-1)
    total = tl.zeros([BLOCK], bias.dtype.element_ty)
    for i in range(length):
        value = tl.load(values + request * values_stride + i).to(bias.dtype.element_ty)
        total += tl.where(tl.load(ids + request * ids_stride + i) == token, value, 0.0)
    valid = (token >= 0) & (token < vocab)
    tl.store(bias + request * vocab + tl.where(valid, token, 0), total, mask=valid)
