"""The network of a DFlash drafter: a few layers that read the target's hidden states instead of the tokens behind them.

A committed token is a *context row*, c = hidden_norm(fc(outputs of the target's tapped layers at its position)); its
keys and values in every layer come from c itself, which is not normalised again. The block is embedded and read out by
the target's own matrices, unless the checkpoint brings a head.

    config.json: a Qwen3 config with block_size, num_target_layers, dflash_config {mask_token_id, target_layer_ids}
    tensors:     fc, hidden_norm, layers.<i>.* as in Qwen3, norm
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from d3d_runtime.errors import UserError
from d3d_runtime.models.checkpoint import SafetensorsFolder
from d3d_runtime.models.config import ModelConfig
from d3d_runtime.models.decoder import Attend, Decoder, Layer, RMSNorm, Rotation
from d3d_runtime.models.loader import disk_names, part_rows


@dataclass(frozen=True)
class DFlashConfig:
    """taps: the target's layers, counted from 0, whose *outputs* make a context row."""

    model: ModelConfig
    block_size: int
    mask_token_id: int
    taps: tuple[int, ...]
    target_layers: int | None


class DFlashModel(nn.Module):
    def __init__(self, config: DFlashConfig, target_hidden: int, own_head: bool = False):
        super().__init__()
        model = config.model
        self.fc = nn.Linear(len(config.taps) * target_hidden, model.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(model.hidden_size, model.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(model, i) for i in range(model.num_hidden_layers))
        self.norm = RMSNorm(model.hidden_size, model.rms_norm_eps)
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False) if own_head else None
        self.rotation = Rotation(model)

    def context(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """features [B, M, taps * H], positions [B, M] -> k and v [B, M, H_kv, D] of each layer."""
        rows = self.hidden_norm(self.fc(features))
        rotation = self.rotation(positions, rows)
        return [layer.project(rows, rotation)[1:] for layer in self.layers]

    def forward(self, embedded: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """embedded [B, Q, H] rows of a block -> [B, Q, H], normalised, for the head."""
        rotation = self.rotation(positions, embedded)
        for layer in self.layers:
            embedded = layer(embedded, rotation, attend)
        return self.norm(embedded)


def is_dflash(raw: dict) -> bool:
    names = " ".join(raw.get("architectures") or ()).lower()
    return "dflash_config" in raw or "dflash" in names or "dspark" in names


def parse_dflash(checkpoint: SafetensorsFolder) -> DFlashConfig:
    """Refuses, with the reason, what drafts differently: it would be lossless, and slow without a word."""
    raw, folder = checkpoint.raw, checkpoint.folder
    own, names = raw.get("dflash_config") or {}, " ".join(raw.get("architectures") or ())
    tensors = checkpoint.shapes
    variants = {
        "a reduced vocabulary with a table of its own (d2t, t2d)": "d2t" in tensors or "t2d" in tensors,
        "DSpark, where slot 0 predicts": "DSpark" in names or "dspark_config" in raw,
        "DFlash2, with convolutions and a selector": any("conv" in name or "selector" in name for name in tensors),
        "an embedding of its own": "embed_tokens.weight" in tensors,
        "causal attention within the block": bool(own.get("causal") or own.get("is_causal")),
    }
    for variant, present in variants.items():
        if present:
            raise UserError(f"drafter {str(folder)!r}: this DFlash drafter has {variant}, which is not supported")
    for name, value in {
        "block_size": raw.get("block_size"),
        "dflash_config.mask_token_id": own.get("mask_token_id"),
        "dflash_config.target_layer_ids": own.get("target_layer_ids"),
    }.items():
        if value is None:
            raise UserError(f"drafter {str(folder)!r}: config.json has no {name!r}; a DFlash drafter needs it")
    if not isinstance(raw["block_size"], int) or not 2 <= raw["block_size"] <= 64:
        raise UserError(f"drafter {str(folder)!r}: block_size {raw['block_size']!r}; expected 2 to 64")
    return DFlashConfig(
        checkpoint.config,
        raw["block_size"],
        own["mask_token_id"],
        tuple(own["target_layer_ids"]),
        raw.get("num_target_layers"),
    )


def load_dflash(checkpoint: SafetensorsFolder, config: DFlashConfig, target: Decoder) -> DFlashModel:
    """In the dtype of the target, on its device. Raises UserError in one line for what does not fit."""
    folder, like = checkpoint.folder, target.norm.weight
    with torch.device("meta"):
        model = DFlashModel(config, target.config.hidden_size, "lm_head.weight" in checkpoint.shapes)
    unused, state = dict(checkpoint.shapes), {}
    for name, parameter in model.named_parameters():
        whole = torch.empty(parameter.shape, dtype=like.dtype, device=like.device)
        for part, place in zip(_disk_names(name), whole.split(part_rows(config.model, name, parameter))):
            shape = unused.pop(part, None)
            if shape is None:
                raise UserError(f"drafter {str(folder)!r}: the weights have no tensor {part!r}")
            if shape != tuple(place.shape):
                expected = tuple(place.shape)
                raise UserError(f"drafter {str(folder)!r}: {part!r} has the shape {shape}; expected {expected}")
            place.copy_(checkpoint.read(part))
        state[name] = whole
    if unused:
        raise UserError(f"drafter {str(folder)!r}: the weights have {min(unused)!r}, which no DFlash drafter known has")
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()


def _disk_names(name: str) -> list[str]:
    """Those of the decoder, without its "model."."""
    if name.startswith("layers."):
        return [part.removeprefix("model.") for part in disk_names(name)]
    return [name if not name.startswith("head.") else "lm_head.weight"]


def save_dflash(model: DFlashModel, config: DFlashConfig, folder: Path, dtype: torch.dtype) -> None:
    """Writes config.json and model.safetensors."""
    import json

    from safetensors.torch import save_file

    from d3d_runtime.models.config import write_config

    tensors = {}
    for name, parameter in model.named_parameters():
        parts = parameter.detach().to("cpu", dtype).split(part_rows(config.model, name, parameter))
        tensors |= {disk: part.contiguous() for disk, part in zip(_disk_names(name), parts)}
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config.model)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    raw |= {
        "architectures": ["DFlashDraftModel"],
        "block_size": config.block_size,
        "num_target_layers": config.target_layers,
        "dflash_config": {"mask_token_id": config.mask_token_id, "target_layer_ids": list(config.taps)},
    }
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
