"""`d3d prune`: drops drafter layers one by one, each time the one whose loss costs the least accepted length.

Every layer that is left is tried with a part of the text, and the best of them again with all of it. Layers interact,
so the order is found greedily: which layer goes next is measured without those that went before. The state is written
after each removal, and the same command goes on from there.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from d3d_runtime.errors import UserError
from d3d_runtime.models.attention import causal_attention
from d3d_runtime.models.checkpoint import open_checkpoint
from d3d_runtime.models.config import DiffusionConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import load_model, save_model
from d3d_runtime.progress import Progress, silent
from d3d_runtime.training.acceptance import accepted_lengths, anchors_of
from d3d_runtime.training.data import Batch

ANCHORS = 8
COARSE = 4  # the first look takes every fourth text,
FINALISTS = 3  # and so many layers are looked at again


@dataclass
class Pruning:
    """tau[n]: 1 + mean accepted length of a chain with `removed[:n]` gone. The numbers of layers are the original's."""

    layers: int
    removed: list[int] = field(default_factory=list)
    tau: list[float] = field(default_factory=list)
    settings: dict = field(default_factory=dict)

    def recommended(self, keep: float) -> int:
        """How many of `removed` may go: as many as leave `keep` of tau."""
        good = [count for count, tau in enumerate(self.tau) if tau >= keep * self.tau[0]]
        return max(good)

    def left(self, count: int) -> list[int]:
        return [layer for layer in range(self.layers) if layer not in self.removed[:count]]


@contextmanager
def only_layers(model: Decoder, layers: list[int]) -> Iterator[Decoder]:
    """The model with these layers alone, for as long as the block lasts."""
    whole = model.layers
    model.layers = nn.ModuleList(whole[layer] for layer in layers)
    try:
        yield model
    finally:
        model.layers = whole


def prune_layers(
    model: Decoder,
    diffusion: DiffusionConfig,
    text: Batch,
    state: Pruning,
    *,
    keep: float,
    to_layers: int | None,
    save=lambda state: None,
    progress: Progress = silent,
) -> Pruning:
    """Goes on from `state` until one layer more would leave less than `keep` of tau, or `to_layers` are left."""
    anchors = anchors_of(text, ANCHORS, diffusion.block_size)

    def tau(layers: list[int], every: int = 1) -> float:
        part = Batch(text.token_ids[::every], text.prompt_lengths[::every], text.lengths[::every])
        with only_layers(model, layers):
            return 1 + accepted_lengths(model, part, anchors[::every], diffusion).double().mean().item()

    if not state.tau:
        state.tau = [tau(state.left(0))]
        save(state)
    last = to_layers if to_layers is not None else 1
    while state.layers - len(state.removed) > last:
        if to_layers is None and state.tau[-1] < keep * state.tau[0]:
            break
        left, first_look = state.left(len(state.removed)), {}
        for layer in left:
            first_look[layer] = tau([other for other in left if other != layer], COARSE)
            progress(f"removing layer {len(state.removed) + 1}", len(first_look), len(left))
        finalists = sorted(left, key=lambda layer: (-first_look[layer], layer))[:FINALISTS]
        measured = {layer: tau([other for other in left if other != layer]) for layer in finalists}
        best = max(finalists, key=lambda layer: (measured[layer], -layer))
        state.removed.append(best)
        state.tau.append(measured[best])
        save(state)
    return state


def prune(
    drafter: Path,
    folder: Path,
    text: Batch,
    *,
    keep: float = 0.99,
    to_layers: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    progress: Progress = silent,
) -> dict:
    """Prunes into `folder`, or goes on from its prune.json; returns what is written there."""
    model, diffusion = load_model(drafter, dtype, device, progress)
    if diffusion is None:
        raise UserError(f"drafter {str(drafter)!r}: this is a plain model, not a d3d drafter")
    layers = model.config.num_hidden_layers
    if to_layers is not None and not 1 <= to_layers < layers:
        raise UserError(f"layers: expected 1 to {layers - 1}, got {to_layers}")
    settings = {"drafter": str(drafter), "texts": len(text.lengths), "tokens": int(text.lengths.sum())}
    record = folder / "prune.json"
    folder.mkdir(parents=True, exist_ok=True)

    def save(state: Pruning) -> None:
        temporary = record.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
        temporary.replace(record)

    state = _resume(record, Pruning(layers, settings=settings))
    prune_layers(model, diffusion, text, state, keep=keep, to_layers=to_layers, save=save, progress=progress)
    count = layers - to_layers if to_layers is not None else state.recommended(keep)
    left = state.left(count)
    with only_layers(model, list(range(layers))):
        before = draft_milliseconds(model, diffusion)
    with only_layers(model, left):
        after = draft_milliseconds(model, diffusion)
    _write_model(model, left, diffusion, drafter, folder)
    _draw(state, keep, count, folder / "prune.png")
    return asdict(state) | {
        "kept_layers": left,
        "tau_before": state.tau[0],
        "tau_after": state.tau[count],
        "draft_ms_before": before,
        "draft_ms_after": after,
    }


def _resume(record: Path, fresh: Pruning) -> Pruning:
    if not record.is_file():
        return fresh
    try:
        state = Pruning(**json.loads(record.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise UserError(f"{str(record)!r}: not the record of a pruning; remove it to begin anew") from None
    if (state.layers, state.settings) != (fresh.layers, fresh.settings):
        raise UserError(f"{str(record)!r}: it belongs to another drafter or text; remove it to begin anew")
    return state


@torch.inference_mode()
def draft_milliseconds(model: Decoder, diffusion: DiffusionConfig, repeats: int = 9) -> float:
    """Median of a forward over one block, without context: what depth costs."""
    device = model.norm.weight.device
    tokens = torch.zeros(1, diffusion.block_size, dtype=torch.int64, device=device)
    positions = torch.arange(diffusion.block_size, device=device)[None]
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        model.logits(model(tokens, positions, causal_attention)).sum().item()  # a GPU is waited for
        times.append((time.perf_counter() - began) * 1e3)
    return sorted(times)[repeats // 2]


def _write_model(model: Decoder, left: list[int], diffusion: DiffusionConfig, drafter: Path, folder: Path) -> None:
    smaller = Decoder(replace(model.config, num_hidden_layers=len(left)))
    state = {name: value for name, value in model.state_dict().items() if not name.startswith("layers.")}
    for new, old in enumerate(left):
        state |= {f"layers.{new}.{name}": value for name, value in model.layers[old].state_dict().items()}
    smaller.load_state_dict(state)
    checkpoint = open_checkpoint(drafter)
    save_model(smaller, folder, diffusion, dtype=checkpoint.read("model.norm.weight").dtype)
    if drafter.is_dir():
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            if (drafter / name).is_file():
                shutil.copyfile(drafter / name, folder / name)


def _draw(state: Pruning, keep: float, count: int, path: Path) -> None:
    """The curve, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    depth = [state.layers - removed for removed in range(len(state.tau))]
    axes.plot(depth, state.tau, marker="o")
    axes.axhline(keep * state.tau[0], linestyle="--", color="grey", label=f"{keep:.0%} of the whole drafter's")
    axes.axvline(state.layers - count, linestyle=":", color="green", label="written")
    axes.invert_xaxis()
    axes.set(xlabel="layers left", ylabel="tau of a chain", title=Path(state.settings.get("drafter", "")).name)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
