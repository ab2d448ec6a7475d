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
from d3d_runtime.models.int8 import Int8Embedding
from d3d_runtime.models.rope import frequencies

BEYOND = 256  # positions behind the limit: drafts may reach there, tokens are cut before


class Attend(Protocol):
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, Q, H, D], k and v [B, Q, H_kv, D], rotated -> [B, Q, H, D]."""


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return normalise(x, self.eps) * self.weight


def normalise(x: Tensor, eps: float) -> Tensor:
    """x / rms(x), in float32 at least. Written out: F.rms_norm takes twice the calls on a CPU, and calls are what a
    small model's forward is made of."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)).to(x.dtype)


class Layer(nn.Module):
    """Pre-norm block with fused QKV and gate/up weights."""

    def __init__(self, config: ModelConfig, index: int):
        super().__init__()
        self.index = index
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
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
        q, k, v = self.project(self.input_norm(x), rotation)
        x = x + self.out(attend(self.index, q, k, v).flatten(-2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def project(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, Q, hidden] -> q [B, Q, H, D], k and v [B, Q, H_kv, D], normalised per head and rotated."""
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        qk, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=-2)
        if self.q_norm is not None:
            weights = self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)
            qk = normalise(qk, self.q_norm.eps) * torch.cat(weights)
        q, k = rotate(qk, rotation).split((self.heads, self.kv_heads), dim=-2)
        return q, k, v


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE in the half-split layout of Llama and Qwen. x [B, Q, H, D], cos and sin [B, Q, 1, D].

    (low, high) -> (low cos - high sin, high cos + low sin): x rolled by half, and a sine with its first half negated.
    """
    cos, sin = rotation
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


class Rotation:
    """cos and sin of every position, computed once: angles in float64, rounded once to the model's dtype."""

    def __init__(self, config: ModelConfig):
        self.config = config
        self._angles: tuple[Tensor, Tensor] | None = None

    def __call__(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """positions [B, Q] -> cos, sin [B, Q, 1, D] for `rotate`, in the dtype and on the device of `like`."""
        cos, sin = self._table(like)
        return cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)

    def _table(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [positions, D]; sin's first half negated."""
        if self._angles is None or self._angles[0].dtype != like.dtype or self._angles[0].device != like.device:
            config = self.config
            turns = frequencies(config.rope_theta, config.head_dim, config.rope_scaling)
            positions = torch.arange(config.max_position_embeddings + BEYOND, dtype=torch.float64)
            angles = positions[:, None] * turns
            cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((-angles, angles), -1).sin()
            if config.rope_scaling is not None:
                cos, sin = cos * config.rope_scaling.amplitude, sin * config.rope_scaling.amplitude
            self._angles = (cos.to(like.device, like.dtype), sin.to(like.device, like.dtype))
        return self._angles


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        # Not nn.Embedding(V, H): its normal_() on the meta device imports all of torch.compile, four seconds.
        self.embed = nn.Embedding.from_pretrained(torch.empty(config.vocab_size, config.hidden_size), freeze=False)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = None if config.tie_word_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.rotation = Rotation(config)

    def forward(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, tapped: dict[int, Tensor] | None = None
    ) -> Tensor:
        """token_ids, positions [B, Q] -> final hidden states [B, Q, hidden], normalised, for `logits`.

        tapped: its keys are layers; their outputs [B, Q, hidden] are put there.
        """
        x = self.embed(token_ids)
        rotation = self.rotation(positions, x)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, attend)
            if tapped is not None and index in tapped:
                tapped[index] = x
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        if self.head is not None:
            return self.head(hidden)
        if isinstance(self.embed, Int8Embedding):
            return self.embed.project(hidden)
        return F.linear(hidden, self.embed.weight)
