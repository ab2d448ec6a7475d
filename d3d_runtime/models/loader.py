"""Hugging Face folders in and out: safetensors names on disk, fused QKV and gate/up in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from d3d_runtime.errors import UserError
from d3d_runtime.models.config import DiffusionConfig, ModelConfig, read_config, write_config
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.progress import Progress, silent

# Fused parameter -> its parts on disk, stacked along dim 0.
FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "out": ("self_attn.o_proj",),
    "down": ("mlp.down_proj",),
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
    "input_norm": ("input_layernorm",),
    "mlp_norm": ("post_attention_layernorm",),
}
OUTER = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


def disk_names(name: str) -> list[str]:
    """'layers.3.qkv.weight' -> ['model.layers.3.self_attn.q_proj.weight', ...]"""
    path, kind = name.rsplit(".", 1)
    if path in OUTER:
        return [f"{OUTER[path]}.{kind}"]
    _, index, module = path.split(".")
    return [f"model.layers.{index}.{part}.{kind}" for part in FUSED[module]]


def part_rows(config: ModelConfig, name: str, parameter: Tensor) -> tuple[int, ...]:
    """Rows of each part of a fused parameter, in the order of `disk_names`."""
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    fused = {"qkv": (query, key, key), "gate_up": (config.intermediate_size,) * 2}
    return fused.get(name.split(".")[-2], (len(parameter),))


def load_model(
    folder: str | Path, dtype: torch.dtype, device: torch.device | str = "cpu", progress: Progress = silent
) -> tuple[Decoder, DiffusionConfig | None]:
    """Reads a model folder; `progress` hears of each weight that is in place.

    Raises UserError in one line for what is missing, truncated or of another shape.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"model {str(folder)!r}: no such folder; expected a Hugging Face model folder")
    config, diffusion = read_config(folder)
    with torch.device("meta"):
        model = Decoder(config)
    stored = dict(_read_tensors(folder))
    state, parameters = {}, dict(model.named_parameters())
    for name, parameter in parameters.items():
        parts = []
        for part, rows in zip(disk_names(name), part_rows(config, name, parameter)):
            expected = (rows, *parameter.shape[1:])
            if part not in stored:
                raise UserError(f"model {str(folder)!r}: the weights have no tensor {part!r}")
            if stored[part].shape != expected:
                shape = tuple(stored[part].shape)
                raise UserError(
                    f"model {str(folder)!r}: {part!r} has the shape {shape}; config.json asks for {expected}"
                )
            parts.append(stored.pop(part).to(dtype))
        state[name] = torch.cat(parts).to(device)
        progress(f"loading {folder.name}", len(state), len(parameters))
    # Biases, scales, more layers: without them the model would say something else.
    unused = [
        name for name in stored if name.startswith("model.") and not name.endswith("rotary_emb.inv_freq")
    ]
    if unused:
        raise UserError(
            f"model {str(folder)!r}: the weights have {unused[0]!r}, which config.json does not ask for"
        )
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval(), diffusion


def save_model(
    model: Decoder,
    folder: Path,
    diffusion: DiffusionConfig | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Writes config.json and model.safetensors, the fused weights split again."""
    from safetensors.torch import save_file

    tensors = {}
    for name, parameter in model.named_parameters():
        parts = parameter.detach().to("cpu", dtype).split(part_rows(model.config, name, parameter))
        tensors |= {disk: part.contiguous() for disk, part in zip(disk_names(name), parts)}
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, model.config, diffusion)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"model {str(folder)!r}: {index.name!r} holds no valid 'weight_map'") from None
    else:
        files = ["model.safetensors"]
    for file in files:
        path = folder / file
        if not path.is_file():
            raise UserError(f"model {str(folder)!r}: the weights file {file!r} is missing")
        try:
            with safe_open(path, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  (a handle, not a dict)
                    yield name, tensors.get_tensor(name)
        except SafetensorError as error:
            raise UserError(f"model {str(folder)!r}: {file!r} {_what_it_is(path)} ({error})") from None


def _what_it_is(path: Path) -> str:
    """Of a file that is no safetensors: what it looks like, and the way out."""
    with path.open("rb") as file:
        begin = file.read(512)
    if begin.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the weights; git lfs pull fetches them"
    if begin and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in begin):
        return "is a text file; expected safetensors weights"
    return "is not a whole safetensors file; it was cut short or damaged, download it again"
