"""One compact decoder for every supported family: RMSNorm, RoPE, grouped-query attention, SwiGLU.

The decoder knows nothing of caches or masks. It hands each layer's q, k, v to an `attend` callable
(see `attention.py`), so training, plain decoding, tree verification and frontier drafting run the same lines.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from d3d_runtime.models.config import ModelConfig


class Attend(Protocol):
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, Q, H, D], k and v [B, Q, H_kv, D], rotated -> [B, Q, H, D]."""


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Layer(nn.Module):
    """Pre-norm block with fused QKV and gate/up weights."""

    def __init__(self, config: ModelConfig, index: int):
        super().__init__()
        self.index = index
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.qkv = nn.Linear(config.hidden_size, qkv, bias=config.qkv_bias)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.out = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        qkv = self.qkv(self.input_norm(x)).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=-2)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, rotation), rotate(k, rotation)
        x = x + self.out(attend(self.index, q, k, v).flatten(-2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE in the half-split layout of Llama and Qwen. x [B, Q, H, D], cos and sin [B, Q, 1, D]."""
    cos, sin = rotation
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = None if config.tie_word_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._angles: tuple[Tensor, Tensor] | None = None

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """token_ids, positions [B, Q] -> final hidden states [B, Q, hidden], normalised. `logits` turns rows into [.., V]."""
        x = self.embed(token_ids)
        cos, sin = self._rotation_table(x)
        rotation = cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)
        for layer in self.layers:
            x = layer(x, rotation, attend)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed.weight if self.head is None else self.head.weight)

    def _rotation_table(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [max_position, D]: angles in float64, rounded once to the dtype of the model."""
        if self._angles is None or self._angles[0].dtype != like.dtype or self._angles[0].device != like.device:
            config = self.config
            frequencies = config.rope_theta ** -(torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
            angles = torch.arange(config.max_position_embeddings, dtype=torch.float64)[:, None] * frequencies
            angles = torch.cat((angles, angles), dim=-1)
            self._angles = (angles.cos().to(like.device, like.dtype), angles.sin().to(like.device, like.dtype))
        return self._angles
