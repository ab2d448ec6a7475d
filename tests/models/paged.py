"""A float64 decoder with every weight random, and a paged cache full of garbage to run it with."""

from __future__ import annotations

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.kv_cache import KVCache
from d3d_runtime.models.config import ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.paged_attention import PagedAttention, first_slots_mask
from d3d_runtime.target import prefill


def random_decoder(config: ModelConfig, seed: int = 0) -> Decoder:
    """Float64, every weight random: norms that are all ones, or biases of zero, would hide what they do."""
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(config).double().requires_grad_(False)
    for name, weight in model.named_parameters():
        weight.copy_(
            torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 0.5 + ("norm" in name)
        )
    return model


def paged(model: Decoder, page_size: int, requests: int, rows: int) -> tuple[KVCache, list[list[int]]]:
    """A cache full of garbage, and scattered pages for each request."""
    pages_each = -(-rows // page_size)
    cache = KVCache(model.config, requests * pages_each + 3, page_size, torch.float64, torch.device("cpu"))
    for layer in cache.rows:
        layer.copy_(
            torch.randn(layer.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 50
        )
    order = (torch.randperm(cache.num_pages - 1, generator=torch.Generator().manual_seed(4)) + 1).tolist()
    return cache, [order[i * pages_each : (i + 1) * pages_each] for i in range(requests)]


def step(model: Decoder, cache: KVCache, pages: list[list[int]], tokens: Tensor, first: Tensor) -> Tensor:
    """Logits [B, Q, V] of `tokens` [B, Q] at positions first[b] and on, seeing what is before them."""
    positions = first[:, None] + torch.arange(tokens.shape[1])
    table = cache.table(pages, int(positions.max()) + 1)
    mask = first_slots_mask(positions + 1, table.num_slots, cache.dtype)
    return model.logits(model(tokens, positions, PagedAttention(cache, table.physical(positions), table.table, mask)))


def paths_of(parents: list[int]) -> list[list[int]]:
    """The nodes from the root to each node."""
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append((paths[parent] if parent >= 0 else []) + [node])
    return paths


def tree_step(model: Decoder, page_size: int, prefix: Tensor, tokens: Tensor, parents: list[int]) -> Tensor:
    """Hidden states [N, H] of a tree of tokens [N] behind a prefilled prefix, in one pass."""
    paths, nodes, length = paths_of(parents), len(parents), len(prefix)
    bits = torch.tensor([[[sum(1 << ancestor for ancestor in path)] for path in paths]], dtype=torch.int32)
    cache, pages = paged(model, page_size, requests=1, rows=length + nodes)
    prefill(model, cache, pages[0], prefix.tolist(), 0)
    table = cache.table(pages, length + nodes)
    mask = dk.dense_mask(bits, torch.tensor([length]), table.num_slots, cache.dtype)
    positions = torch.tensor([[length - 1 + len(path) for path in paths]])
    slots = table.physical(length + torch.arange(nodes)[None])
    return model(tokens[None], positions, PagedAttention(cache, slots, table.table, mask))[0]
