"""Where weights come from: a Hugging Face folder of safetensors, or a GGUF file.

Both are memory-mapped and hand out one tensor at a time under Hugging Face's names, so that loading holds the model
once and one tensor beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from d3d_runtime.errors import UserError
from d3d_runtime.models.config import ModelConfig, parse_config, read_raw_config
from d3d_runtime.models.gguf_file import is_gguf, open_gguf
from d3d_runtime.models.rope import RopeScaling


class Checkpoint(Protocol):
    """config: the model's shape. raw: its config as Hugging Face writes it. shapes: of every tensor, by name."""

    config: ModelConfig
    raw: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    def read(self, name: str) -> Tensor:
        """A tensor in a dtype of the checkpoint's choice; it may lie in the mapped file."""


def open_checkpoint(path: Path) -> Checkpoint:
    """Raises UserError, in one line, for a path that holds no model."""
    if is_gguf(path) and path.is_file():
        return GGUFCheckpoint(path)
    if not path.is_dir():
        raise UserError(f"model {str(path)!r}: no such folder; expected a Hugging Face model folder, or a .gguf file")
    return SafetensorsFolder(path)


class SafetensorsFolder:
    def __init__(self, folder: Path):
        self.folder = folder
        self.raw = read_raw_config(folder)
        self.config = parse_config(self.raw, folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Any] = {}
        for file in self._file_names():
            for name, tensors in self._open(file):
                self.shapes[name] = tuple(tensors.get_slice(name).get_shape())
                self._files[name] = tensors

    def read(self, name: str) -> Tensor:
        return self._files[name].get_tensor(name)

    def _file_names(self) -> list[str]:
        index = self.folder / "model.safetensors.index.json"
        if not index.is_file():
            return ["model.safetensors"]
        try:
            return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"model {str(self.folder)!r}: {index.name!r} holds no valid 'weight_map'") from None

    def _open(self, file: str) -> Iterator[tuple[str, Any]]:
        from safetensors import SafetensorError, safe_open

        if not (self.folder / file).is_file():
            raise UserError(f"model {str(self.folder)!r}: the weights file {file!r} is missing")
        try:
            tensors = safe_open(self.folder / file, framework="pt")
        except SafetensorError as error:
            what = f"{file!r} {_what_it_is(self.folder / file)} ({error})"
            raise UserError(f"model {str(self.folder)!r}: {what}") from None
        for name in tensors.keys():  # noqa: SIM118  (a handle, not a dict)
            yield name, tensors


def _what_it_is(path: Path) -> str:
    """Of a file that is no safetensors: what it looks like, and the way out."""
    with path.open("rb") as file:
        begin = file.read(512)
    if begin.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the weights; git lfs pull fetches them"
    if begin and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in begin):
        return "is a text file; expected safetensors weights"
    return "is not a whole safetensors file; it was cut short or damaged, download it again"


GGUF_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
GGUF_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_DIVISORS = "rope_freqs.weight"


class GGUFCheckpoint:
    """A model as llama.cpp stores it.

    For the llama architecture it stores the query and key rows of a head in the order of interleaved RoPE, (low 0,
    high 0, low 1, high 1, ...); here all low rows come before all high ones, as on Hugging Face. Qwen's stay as they
    are. What llama3's RoPE scaling does to the frequencies is a tensor of divisors.
    """

    def __init__(self, path: Path):
        self.file = open_gguf(path)
        names = {}
        for stored in self.file.tensors:
            if stored != ROPE_DIVISORS:
                names[_hugging_face_name(stored, path)] = stored
        self._names: dict[str, str] = names
        self.shapes = {name: self.file.tensors[stored].shape for name, stored in names.items()}
        self.raw = self._raw_config()
        self.config = parse_config(self.raw, path)

    def read(self, name: str) -> Tensor:
        tensor = torch.from_numpy(self.file.array(self._names[name]))
        if self.config.model_type != "llama" or not any(part in name for part in (".q_proj.", ".k_proj.")):
            return tensor
        pairs = tensor.unflatten(0, (-1, self.config.head_dim // 2, 2))
        return pairs.transpose(1, 2).reshape(tensor.shape)

    def _raw_config(self) -> dict[str, Any]:
        """The config.json that Hugging Face would have."""
        metadata = self.file.metadata
        if metadata.get("split.count", 1) > 1:
            raise UserError(
                f"model {str(self.file.path)!r}: one part of several; join them with llama-gguf-split --merge"
            )
        architecture = metadata.get("general.architecture")

        def of_model(key: str) -> Any:
            return metadata.get(f"{architecture}.{key}")

        vocabulary = self.shapes.get("model.embed_tokens.weight", (None,))[0]
        ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
        return {
            "model_type": architecture,
            "vocab_size": vocabulary,
            "hidden_size": of_model("embedding_length"),
            "intermediate_size": of_model("feed_forward_length"),
            "num_hidden_layers": of_model("block_count"),
            "num_attention_heads": of_model("attention.head_count"),
            "num_key_value_heads": of_model("attention.head_count_kv"),
            "head_dim": of_model("attention.key_length") or of_model("rope.dimension_count"),
            "max_position_embeddings": of_model("context_length"),
            "rope_theta": of_model("rope.freq_base"),
            "rope_scaling": self._rope_scaling(of_model),
            "rms_norm_eps": of_model("attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": "lm_head.weight" not in self.shapes,
            "eos_token_id": [end for end in dict.fromkeys(ends) if end is not None] or None,
            "use_sliding_window": bool(of_model("attention.sliding_window")),
        }

    def _rope_scaling(self, of_model: Any) -> dict[str, Any] | None:
        if ROPE_DIVISORS in self.file.tensors:
            return RopeScaling("divisors", divisors=tuple(self.file.array(ROPE_DIVISORS).tolist())).to_config()
        kind = of_model("rope.scaling.type")
        if kind in (None, "none"):
            return None
        scaling = {"rope_type": kind, "factor": of_model("rope.scaling.factor")}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = of_model("rope.scaling.original_context_length")
        return scaling


def _hugging_face_name(stored: str, path: Path) -> str:
    if stored in GGUF_OUTER:
        return GGUF_OUTER[stored]
    parts = stored.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in GGUF_LAYER and parts[3] in ("weight", "bias"):
        return f"model.layers.{parts[1]}.{GGUF_LAYER[parts[2]]}.{parts[3]}"
    raise UserError(f"model {str(path)!r}: the weights have {stored!r}, which none of the supported architectures has")
