"""The training loop both models share: schedule, two optimisers, checkpoints, progress, loss curve."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from d3d_runtime.progress import Progress, silent
from d3d_runtime.training.data import Batch
from d3d_runtime.training.muon import Muon


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, flat, then linear decay to a fiftieth over the last `decay` share of the steps."""

    steps: int
    learning_rate: float
    warmup: int = 50
    decay: float = 0.4
    minutes: float = math.inf  # a time limit: the decay is then planned over the time that is left

    def rate(self, progress: float, step: int) -> float:
        """progress in [0, 1]."""
        tail = min(1.0, (1 - progress) / self.decay)
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * max(0.02, tail)


def optimisers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for hidden matrices, AdamW for embeddings, norms and biases."""
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and not name.startswith(("embed", "head"))]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or name.startswith(("embed", "head"))]
    return [Muon(hidden), torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)]


def train(
    model: nn.Module,
    batches_from: Callable[[int], Iterator[Batch]],
    loss_of: Callable[[Batch, int], Tensor],
    schedule: Schedule,
    checkpoint: Path,
    *,
    save_every: int = 100,
    evaluate: Callable[[], dict[str, float]] | None = None,
    evaluate_every: int = 0,
    progress: Progress = silent,
) -> list[dict[str, float]]:
    """Trains `model` in place, from `checkpoint` on if it exists; returns the history (a dict each logged step).

    Resumable: weights, optimiser states, step, time and history are in the checkpoint, data follow from the step.
    """
    optims = optimisers(model)
    step, elapsed, history = _load(checkpoint, model, optims)
    batches, began, running = batches_from(step), time.monotonic() - elapsed, None
    share = max(step / schedule.steps, elapsed / 60 / schedule.minutes)
    while share < 1:
        rate = schedule.rate(share, step)
        for optim in optims:
            for group in optim.param_groups:
                group["lr"] = rate
        loss = loss_of(next(batches), step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        step += 1
        elapsed = time.monotonic() - began
        share = max(step / schedule.steps, elapsed / 60 / schedule.minutes)
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        progress(f"{checkpoint.stem}, step {step}, loss {running:.4f}", min(share, 1.0), 1.0)
        if step % 10 == 0:
            history.append({"step": step, "seconds": elapsed, "loss": running})
        if evaluate is not None and evaluate_every and step % evaluate_every == 0:
            history.append({"step": step, "seconds": elapsed, **evaluate()})
        if step % save_every == 0 or share >= 1:
            _save(checkpoint, model, optims, step, elapsed, history)
    return history


def write_curve(history: list[dict[str, float]], folder: Path, name: str) -> None:
    """`<name>_loss.json`, and `<name>_loss.png` where matplotlib is installed."""
    (folder / f"{name}_loss.json").write_text(json.dumps(history) + "\n", encoding="utf-8")
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    losses = [entry for entry in history if "loss" in entry]
    axes.plot([entry["step"] for entry in losses], [entry["loss"] for entry in losses])
    axes.set(xlabel="step", ylabel="loss", yscale="log", title=name)
    figure.savefig(folder / f"{name}_loss.png", dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def _save(path: Path, model: nn.Module, optims: list, step: int, elapsed: float, history: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimisers": [o.state_dict() for o in optims]}
    temporary = path.with_suffix(".tmp")  # a run that is killed while it writes keeps its last checkpoint
    torch.save(state | {"step": step, "elapsed": elapsed, "history": history}, temporary)
    temporary.replace(path)


def _load(path: Path, model: nn.Module, optims: list) -> tuple[int, float, list]:
    if not path.is_file():
        return 0, 0.0, []
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optim, saved in zip(optims, state["optimisers"]):
        optim.load_state_dict(saved)
    return state["step"], state["elapsed"], state["history"]
