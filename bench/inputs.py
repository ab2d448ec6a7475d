"""Inputs of realistic size, and what people write in torch today."""

from __future__ import annotations

import torch
from torch import Tensor

import d3d_kernels as dk
from bench.harness import VOCAB

SAMPLERS = {
    "T=0": {"temperature": 0.0},
    "T=1": {"temperature": 1.0},
    "T=1 top-p .9": {"temperature": 1.0, "top_p": 0.9},
}


def random_logits(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(*shape, VOCAB) * 2).to(dtype)


def peaked_logits(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A few tokens far above the rest, as a trained model has them."""
    logits = torch.randn(*shape, VOCAB)
    best = torch.randint(VOCAB, (*shape, 8))
    return logits.scatter_(-1, best, 10 + 4 * torch.rand(*shape, 8)).to(dtype)


LOGITS = {"random": random_logits, "peaked": peaked_logits}


def torch_sample(logits: Tensor, *, temperature: float, top_p: float = 1.0) -> Tensor:
    """Rows [R, V] -> ids [R] the usual way: argmax; or softmax and exponential noise; or sort, cut, then the same."""
    if temperature == 0:
        return logits.argmax(-1)
    probabilities = torch_softmax(logits, temperature=temperature, top_p=top_p)
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)


def torch_softmax(logits: Tensor, *, temperature: float, top_p: float = 1.0) -> Tensor:
    """The filtered, tempered distribution: sort and cut if there is a top-p, softmax."""
    logits = logits.float() / temperature
    if top_p < 1:
        values, order = logits.sort(-1)
        below = values.softmax(-1).cumsum(-1) <= 1 - top_p
        below[..., -1] = False
        logits = values.masked_fill(below, -torch.inf).scatter(-1, order, values.masked_fill(below, -torch.inf))
    return logits.softmax(-1)


def agreeing_tree(logits: Tensor, sampling: dk.SamplingTensors, root_positions: Tensor, accepted: int) -> dk.DraftTree:
    """A tree over logits [B, N, V]: a chain of `accepted` nodes that carry what the target samples, then leaves."""
    batch, nodes, _ = logits.shape
    token_ids = torch.randint(VOCAB, (batch, nodes))
    depths = torch.arange(nodes).clamp(max=accepted + 1)
    parents = (torch.arange(nodes) - 1).clamp(max=accepted)
    for node in range(accepted):
        token_ids[:, node + 1] = dk.sample(logits[:, node], sampling, root_positions + node + 1)
    bits = torch.zeros(batch, nodes, (nodes + 31) // 32, dtype=torch.int32)
    return dk.DraftTree(
        token_ids,
        parents.int().expand(batch, -1).contiguous(),
        depths.int().expand(batch, -1).contiguous(),
        torch.full((batch,), nodes, dtype=torch.int32),
        bits,
    )
