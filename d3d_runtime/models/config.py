"""What a checkpoint's config.json says, reduced to what the compact decoder needs.

Field names are Hugging Face's, so that a folder written here loads there and the other way round.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from d3d_runtime.errors import UserError
from d3d_runtime.models.rope import RopeScaling, Unsupported

ARCHITECTURES = ("qwen3", "qwen2", "llama")


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    model_type: str = "qwen3"
    eos_token_id: int | tuple[int, ...] | None = None
    rope_scaling: RopeScaling | None = None

    @property
    def qk_norm(self) -> bool:
        return self.model_type == "qwen3"

    @property
    def qkv_bias(self) -> bool:
        return self.model_type == "qwen2"

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        if self.eos_token_id is None:
            return ()
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id)

    def parameters(self) -> int:
        """Number of weights, embeddings counted once if tied."""
        heads = self.num_attention_heads + 2 * self.num_key_value_heads
        attention = self.hidden_size * self.head_dim * (heads + self.num_attention_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + embeddings


@dataclass(frozen=True)
class DiffusionConfig:
    """How a drafter predicts a block: `{block_size, mask_token_id, logit_shift, clean_attention}`.

    A block is the anchor (the root, clean) and ``block_size - 1`` masks. With *logit shift* slot j-1 predicts
    token j, so the anchor itself predicts the first drafted token and L = block_size; without it L = block_size - 1.
    """

    block_size: int
    mask_token_id: int
    logit_shift: bool
    clean_attention: str = "causal"

    @property
    def num_masks(self) -> int:
        return self.block_size - 1

    @property
    def clean_block(self) -> int:
        """Clean tokens attend up to the end of their own block of so many, counted from position 0."""
        return 1 if self.clean_attention == "causal" else self.block_size

    @property
    def draft_length(self) -> int:
        """L, the number of future positions one pass predicts."""
        return self.block_size if self.logit_shift else self.block_size - 1


@dataclass(frozen=True)
class DiffusionSettings:
    """What a user says of a drafter; None leaves it to the config."""

    block_size: int | None = None
    mask_token_id: int | None = None
    logit_shift: bool | None = None
    clean_attention: str | None = None


FROM_CONFIG = DiffusionSettings()


def read_config(folder: Path) -> tuple[ModelConfig, DiffusionConfig | None]:
    """Reads ``folder/config.json``; the second value is None for a plain autoregressive model.

    Raises UserError in one line for a missing file, broken JSON, an unknown architecture or a missing key.
    """
    raw = read_raw_config(folder)
    return parse_config(raw, folder), parse_diffusion(raw, folder)


def read_raw_config(folder: Path) -> dict:
    """config.json as it is, with every id that ends a text: instruction-tuned models list the end of a turn in
    generation_config.json only."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"model {str(folder)!r}: no config.json there; expected a Hugging Face model folder")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"model {str(folder)!r}: config.json is not valid JSON ({error})") from None
    if not isinstance(raw, dict):
        raise UserError(f"model {str(folder)!r}: config.json holds no object")
    ids: list[int] = []
    for source in (raw, _generation_config(folder)):
        eos = source.get("eos_token_id")
        ids += [eos] if isinstance(eos, int) else eos or []
    return raw | {"eos_token_id": list(dict.fromkeys(ids))}


def _generation_config(folder: Path) -> dict:
    try:
        raw = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def write_config(folder: Path, model: ModelConfig, diffusion: DiffusionConfig | None = None) -> None:
    raw = dataclasses.asdict(model)
    raw["architectures"] = [{"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama"}[model.model_type] + "ForCausalLM"]
    raw["hidden_act"] = "silu"
    raw["attention_bias"] = False
    raw["rope_scaling"] = model.rope_scaling.to_config() if model.rope_scaling is not None else None
    if diffusion is not None:
        raw |= dataclasses.asdict(diffusion)
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def _require(raw: dict, key: str, folder: Path):
    if raw.get(key) is None:
        raise UserError(f"model {str(folder)!r}: config.json has no {key!r}")
    return raw[key]


def parse_config(raw: dict, folder: Path) -> ModelConfig:
    model_type = _require(raw, "model_type", folder)
    if model_type not in ARCHITECTURES:
        raise UserError(
            f"model {str(folder)!r}: model_type {model_type!r} is not supported; "
            f"expected one of {', '.join(ARCHITECTURES)}"
        )
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    stated_positions = _size(raw, "max_position_embeddings", folder)
    scaling = _rope_scaling(raw, rope, stated_positions, folder)
    heads, hidden = _size(raw, "num_attention_heads", folder), _size(raw, "hidden_size", folder)
    kv_heads = _size(raw, "num_key_value_heads", folder, otherwise=heads)
    head_dim = _size(raw, "head_dim", folder, otherwise=hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise UserError(
            f"model {str(folder)!r}: {heads} heads of {head_dim} with {kv_heads} for keys and values; "
            "expected a multiple of those, and an even size"
        )
    eos = raw.get("eos_token_id") or []
    return ModelConfig(
        vocab_size=_size(raw, "vocab_size", folder),
        hidden_size=hidden,
        intermediate_size=_size(raw, "intermediate_size", folder),
        num_hidden_layers=_size(raw, "num_hidden_layers", folder),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=scaling.max_positions(stated_positions) if scaling is not None else stated_positions,
        rope_theta=float(raw.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        model_type=model_type,
        eos_token_id=eos[0] if len(eos) == 1 else tuple(eos) or None,
        rope_scaling=scaling,
    )


def _size(raw: dict, key: str, folder: Path, otherwise: int | None = None) -> int:
    value = raw.get(key) if otherwise is None else raw.get(key) or otherwise
    if value is None:
        raise UserError(f"model {str(folder)!r}: config.json has no {key!r}")
    if not isinstance(value, int) or value < 1:
        raise UserError(
            f"model {str(folder)!r}: config.json has {key!r} = {value!r}; expected a positive integer"
        )
    return value


def _rope_scaling(raw: dict, rope: dict, max_positions: int, folder: Path) -> RopeScaling | None:
    """Refuses what changes the numbers but not the weights; the loader refuses what shows there, as biases do."""
    variants = {
        f"hidden_act {raw.get('hidden_act')!r}": raw.get("hidden_act", "silu") not in ("silu", "swish"),
        "sliding-window attention": bool(raw.get("use_sliding_window"))
        or "sliding_attention" in (raw.get("layer_types") or ()),
        "a rotary factor below 1": rope.get("partial_rotary_factor", 1) != 1,
    }
    asked = next((variant for variant, present in variants.items() if present), None)
    try:
        scaling = RopeScaling.parse(rope, max_positions)
    except Unsupported as error:
        asked = asked or str(error)
    if asked is not None:
        raise UserError(f"model {str(folder)!r}: config.json asks for {asked}, which is not supported yet")
    return scaling


def parse_diffusion(raw: dict, folder: Path, settings: DiffusionSettings = FROM_CONFIG) -> DiffusionConfig | None:
    """What config.json says of a drafter, and what `settings` say instead; None if neither says anything."""
    given = {key: value for key, value in dataclasses.asdict(settings).items() if value is not None}
    keys = ("block_size", "mask_token_id", "logit_shift")
    present = [key for key in keys if raw.get(key) is not None]
    if not present and not given:
        return None
    missing = [key for key in keys if key not in present and key not in given]
    if missing:
        flag = "--" + missing[0].replace("_", "-")
        known = f"has {present[0]!r} but no" if present else "has no"
        raise UserError(
            f"drafter {str(folder)!r}: config.json {known} {missing[0]!r}; add it to the file, or pass "
            f"{missing[0]}= ({flag}); `d3d doctor --drafter` finds it by trying"
        )
    raw = raw | given
    clean = raw.get("clean_attention") or "causal"
    if clean not in ("causal", "block_causal"):
        raise UserError(f"drafter {str(folder)!r}: clean_attention {clean!r}; expected 'causal' or 'block_causal'")
    if not isinstance(raw["block_size"], int) or not 2 <= raw["block_size"] <= 64:
        raise UserError(f"drafter {str(folder)!r}: block_size {raw['block_size']!r}; expected 2 to 64")
    if not isinstance(raw["mask_token_id"], int) or not 0 <= raw["mask_token_id"] < raw["vocab_size"]:
        raise UserError(
            f"drafter {str(folder)!r}: mask_token_id {raw['mask_token_id']!r} is outside "
            f"the vocabulary of {raw['vocab_size']}"
        )
    return DiffusionConfig(raw["block_size"], raw["mask_token_id"], bool(raw["logit_shift"]), clean)
