"""Weights in int8, one scale a row, for bfloat16 models on CPUs. Activations stay as they are.

A step of a small batch is bound by reading weights, so half the bytes is what is to be gained; and where a CPU has no
bfloat16 arithmetic, torch's int8 kernel is several times faster than its bfloat16 product. Measured on AVX2 with torch
2.13, 4096 x 4096, for 1 / 8 / 16 / 32 rows: float32 4.7 / 41 / 62 / 103 ms, bfloat16 6.2 / 59 / 125 / 273,
int8 2.8 / 15 / 32 / 40. The same kernel with float32 activations is slower than float32 itself (29 / 328 / ...), so
that is not offered.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Int8Matrix(nn.Module):
    """W [N, K] as int8 rows times a bfloat16 scale each: |W - rows * scale| <= scale / 2. `bias` is a parameter."""

    def __init__(self, weight: Tensor, bias: nn.Parameter | None = None):
        super().__init__()
        largest = weight.float().abs().amax(1).clamp(min=1e-30)
        scales = (largest / 127).to(torch.bfloat16)
        rows = (weight.float() / scales.float()[:, None]).round().clamp(-127, 127)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("rows", rows.to(torch.int8), persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] bf16 -> x W^T [..., N]."""
        out = torch._weight_int8pack_mm(x.flatten(0, -2), self.rows, self.scales).unflatten(0, x.shape[:-1])
        return out if self.bias is None else out + self.bias


class Int8Embedding(Int8Matrix):
    def forward(self, token_ids: Tensor) -> Tensor:
        return self.rows[token_ids].to(self.scales.dtype) * self.scales[token_ids].unsqueeze(-1)

    def project(self, x: Tensor) -> Tensor:
        """The head of a model with tied embeddings."""
        return super().forward(x)


def install(model: nn.Module, path: str, weight: Tensor) -> None:
    """Puts a quantised matrix in the place of the nn.Linear or nn.Embedding at `path`."""
    module = model.get_submodule(path)
    kind = Int8Embedding if isinstance(module, nn.Embedding) else Int8Matrix
    model.set_submodule(path, kind(weight, getattr(module, "bias", None)))
