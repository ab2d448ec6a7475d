"""Checkpoints in, Hugging Face folders out: their names on disk, fused QKV and gate/up weights in memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from d3d_runtime.errors import UserError
from d3d_runtime.models.checkpoint import Checkpoint, open_checkpoint
from d3d_runtime.models.config import DiffusionConfig, ModelConfig, parse_diffusion, write_config
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.int8 import install
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
    path: str | Path, dtype: torch.dtype, device: torch.device | str = "cpu", progress: Progress = silent
) -> tuple[Decoder, DiffusionConfig | None]:
    """A model, and what its config says of drafting; see `load_decoder`."""
    path = Path(path)
    return load_decoder(path, dtype, device, progress), parse_diffusion(open_checkpoint(path).raw, path)


def load_decoder(
    path: Path,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
    *,
    int8_weights: bool = False,
) -> Decoder:
    """Reads a model folder or GGUF file, tensor by tensor into its place: no second copy of the weights exists.

    `progress` hears of each weight that is in place. int8_weights: matrices are quantised as they come in. Raises
    UserError in one line for what is missing, truncated or of another shape.
    """
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    with torch.device("meta"):
        model = Decoder(config)
    check_shapes(checkpoint, model, path)
    state, parameters = {}, dict(model.named_parameters())
    for count, (name, parameter) in enumerate(parameters.items(), start=1):
        whole = torch.empty(parameter.shape, dtype=dtype, device=device)
        for part, place in zip(disk_names(name), whole.split(part_rows(config, name, parameter))):
            place.copy_(checkpoint.read(part))
        if int8_weights and whole.ndim == 2:
            install(model, name.removesuffix(".weight"), whole)
        else:
            state[name] = whole
        progress(f"loading {path.name}", count, len(parameters))
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()


def check_shapes(checkpoint: Checkpoint, model: Decoder, path: Path) -> None:
    """That the checkpoint has what the decoder needs, and nothing that would make it say something else."""
    unused = dict(checkpoint.shapes)
    for name, parameter in model.named_parameters():
        for part, rows in zip(disk_names(name), part_rows(checkpoint.config, name, parameter)):
            expected, shape = (rows, *parameter.shape[1:]), unused.pop(part, None)
            if shape is None:
                raise UserError(f"model {str(path)!r}: the weights have no tensor {part!r}")
            if shape != expected:
                raise UserError(f"model {str(path)!r}: {part!r} has the shape {shape}; config.json asks for {expected}")
    # Biases, scales, more layers.
    strange = [name for name in unused if name.startswith("model.") and not name.endswith("rotary_emb.inv_freq")]
    if strange:
        raise UserError(f"model {str(path)!r}: the weights have {strange[0]!r}, which config.json does not ask for")


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
