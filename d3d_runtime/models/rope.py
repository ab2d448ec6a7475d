"""Rotary position embeddings: the frequencies of every scaling that Qwen and Llama checkpoints ask for.

With base frequencies f_i = theta^(-2i/D) and a context stretched by `factor`:

    linear     f_i / factor
    llama3     f_i for wavelengths below original / high_freq_factor, f_i / factor above original / low_freq_factor,
               in between a blend that is linear in original / wavelength           (Llama 3.1 and later)
    yarn       f_i for the pairs that turn more than beta_fast times over the original context, f_i / factor for those
               that turn less than beta_slow times, a linear ramp over i in between; cos and sin times attention_factor
               (Peng et al., arXiv 2309.00071; Qwen2.5 and Qwen3 beyond 32k tokens)
    divisors   f_i / d_i, as GGUF files store llama3's result

Computed in float64 and rounded once, to the model's dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

KEYS = {  # what each type reads; the first are required
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate"),
    "divisors": ("divisors",),
}
OPTIONAL = {"original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate"}
NEUTRAL = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "max_position_embeddings"}


class Unsupported(ValueError):
    """What of a config's RoPE is not known here, as the end of a sentence."""


@dataclass(frozen=True)
class RopeScaling:
    """`rope_scaling` of a config.json; the fields are Hugging Face's."""

    rope_type: str
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    divisors: tuple[float, ...] = ()

    @classmethod
    def parse(cls, raw: dict, max_positions: int) -> RopeScaling | None:
        """None for the default kind. Raises Unsupported for another type or key: both would change the numbers."""
        kind = raw.get("rope_type") or raw.get("type") or "default"
        if kind == "default":
            return None
        if kind not in KEYS:
            raise Unsupported(f"RoPE of type {kind!r}")
        given = {key: value for key, value in raw.items() if key not in NEUTRAL and value is not None}
        unknown = next((key for key in given if key not in KEYS[kind]), None)
        if unknown is not None:
            raise Unsupported(f"{kind} RoPE with {unknown!r}")
        missing = next((key for key in KEYS[kind] if key not in given and key not in OPTIONAL), None)
        if missing is not None:
            raise Unsupported(f"{kind} RoPE without {missing!r}")
        if kind in ("llama3", "yarn"):
            given.setdefault("original_max_position_embeddings", max_positions)
        if "divisors" in given:
            given["divisors"] = tuple(given["divisors"])
        return cls(kind, **given)

    def to_config(self) -> dict:
        """The inverse of `parse`."""
        values = {key: getattr(self, key) for key in KEYS[self.rope_type]}
        return {"rope_type": self.rope_type} | {key: value for key, value in values.items() if value is not None}

    def max_positions(self, stated: int) -> int:
        """A Qwen config keeps its trained length when yarn is switched on; Llama's states the stretched one."""
        if self.rope_type != "yarn":
            return stated
        return max(stated, round(self.factor * self.original_max_position_embeddings))

    @property
    def amplitude(self) -> float:
        """cos and sin are multiplied by this."""
        if self.rope_type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


def frequencies(theta: float, head_dim: int, scaling: RopeScaling | None) -> Tensor:
    """Radians a position turns each pair, [head_dim / 2] f64."""
    plain = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if scaling is None:
        return plain
    if scaling.rope_type == "divisors":
        return plain / torch.tensor(scaling.divisors, dtype=torch.float64)
    if scaling.rope_type == "linear":
        return plain / scaling.factor
    if scaling.rope_type == "llama3":
        turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
    else:
        kept = 1 - _ramp(theta, head_dim, scaling)
    return kept * plain + (1 - kept) * plain / scaling.factor


def _ramp(theta: float, head_dim: int, scaling: RopeScaling) -> Tensor:
    """yarn: 0 for the pairs that turn beta_fast times or more, 1 for those below beta_slow, linear in i between."""

    def index_of(turns: float) -> float:
        """The i whose pair turns so many times over the original context."""
        wavelengths = scaling.original_max_position_embeddings / (2 * math.pi * turns)
        return head_dim * math.log(wavelengths) / (2 * math.log(theta))

    low, high = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    pairs = torch.arange(head_dim // 2, dtype=torch.float64)
    return ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
