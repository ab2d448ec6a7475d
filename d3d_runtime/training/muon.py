"""Muon for a CPU: momentum, orthogonalised by Newton-Schulz in float32, all matrices of one shape in one batch.

Method: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). torch.optim.Muon runs the
iteration in bfloat16 one matrix at a time, which on a CPU without bf16 units takes longer than the forward and
backward pass it follows (2.9 s against 0.3 s a step for the 12-layer target on Zen 2); otherwise the two agree.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """For 2-D hidden weights only; embeddings and norms belong to AdamW. The update has the RMS of an AdamW step."""

    def __init__(self, params, lr: float = 2e-3, momentum: float = 0.95, weight_decay: float = 0.1):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            same_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    same_shape[weight.shape].append(weight)
            for weights in same_shape.values():
                update = orthogonalise(torch.stack([self._momentum(weight, group["momentum"]) for weight in weights]))
                scale = 0.2 * max(update.shape[-2:]) ** 0.5
                for weight, direction in zip(weights, update):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"] * scale)

    def _momentum(self, weight: Tensor, beta: float) -> Tensor:
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(weight.grad, 1 - beta)
        return weight.grad.lerp(state["momentum"], beta)  # Nesterov


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """[n, rows, columns] -> nearly the nearest orthogonal matrices: singular values in about [0.7, 1.2]."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
