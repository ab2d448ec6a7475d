"""Tensors as the compiled libraries take them: addresses, sizes and codes of d3d.h."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor

from .types import KVLayout, Penalties, SamplingTensors, TreeLinks

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}  # d3d_dtype
CHAIN_RULES = {"coupled": 0, "ratio": 1, "block": 2}  # d3d_chain_rule
DRAFT_KINDS = {"certain": 0, "logits": 1, "probabilities": 2}  # d3d_draft_kind
NO_IDS = (0, 0, 0)  # address, stride, length


def sampling_addresses(sampling: SamplingTensors) -> tuple[int, int, int, int, int, int]:
    temperature = sampling.temperature
    return (
        temperature.shape[0],
        temperature.data_ptr(),
        sampling.top_k.data_ptr(),
        sampling.top_p.data_ptr(),
        sampling.min_p.data_ptr(),
        sampling.seed.data_ptr(),
    )


def penalty_record(library: ModuleType, penalties: Penalties):
    """The library's own record of the addresses; the tensors must outlive it."""
    values, bits = penalties.bias_values, penalties.allowed_bits
    return library.Penalties(
        *id_lists(penalties.prompt_ids),
        *id_lists(penalties.output_ids),
        address(penalties.repetition),
        address(penalties.frequency),
        address(penalties.presence),
        *id_lists(penalties.bias_ids),
        address(values),
        0 if values is None else values.stride(0),
        address(bits),
        0 if bits is None else bits.stride(0),
    )


def id_lists(ids: Tensor | None) -> tuple[int, int, int]:
    """One list a request [B,n], or one for all [n]."""
    if ids is None:
        return NO_IDS
    return ids.data_ptr(), ids.stride(0) if ids.ndim == 2 else 0, ids.shape[-1]


def link_addresses(links: TreeLinks | None) -> tuple[int, int, int]:
    """positions, first_child, next_sibling."""
    if links is None:
        return 0, 0, 0
    return links.positions.data_ptr(), links.first_child.data_ptr(), links.next_sibling.data_ptr()


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def kv_buffers(layout: KVLayout) -> Iterator[tuple[int, int, int, int, int, int]]:
    """The tensors of a cache as d3d_kv_buffer: address, strides of page, offset and head in bytes, heads, bytes a head.

    A row whose heads follow each other is one piece.
    """
    for tensors in (layout.keys, layout.values, layout.key_scales, layout.value_scales):
        for tensor in tensors or ():
            strides = [stride * tensor.element_size() for stride in tensor.stride()]
            page, offset, head = strides[:3] if layout.order == "NHD" else (strides[0], strides[2], strides[1])
            heads = tensor.shape[2 if layout.order == "NHD" else 1]
            piece = (tensor.shape[3] if tensor.ndim == 4 else 1) * tensor.element_size()
            if head == piece:
                heads, piece = 1, heads * piece
            yield tensor.data_ptr(), page, offset, head, heads, piece
