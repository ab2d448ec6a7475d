"""Parity with Hugging Face transformers: its folders load here and ours load there, with the same logits.

In float64. Theirs computes norms and RoPE in float32 even then, which is what the tolerance is for.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from d3d_runtime.models.attention import causal_attention
from d3d_runtime.models.config import ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import load_model, save_model
from d3d_runtime.models.rope import RopeScaling, frequencies
from d3d_runtime.target import prefill
from d3d_runtime.training.target import initialise
from tests.models.paged import paged, paths_of, step, tree_step

transformers = pytest.importorskip("transformers")

FAMILIES = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama"}
ROUNDING = {"rtol": 1e-3, "atol": 2e-5}

# The structure of real checkpoints at a fraction of their width.
REAL = {
    "Qwen3-8B": ("qwen3", {"num_attention_heads": 8, "head_dim": 8, "rope_theta": 1e6, "tie": False}),
    "Qwen3-1.7B": ("qwen3", {"num_attention_heads": 4, "head_dim": 8, "rope_theta": 1e6, "tie": True}),
    "Qwen2.5-7B": ("qwen2", {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 42, "tie": False}),
    "Qwen2.5-0.5B": ("qwen2", {"rope_theta": 1e6, "tie": True}),
    "Llama-3.1-8B": ("llama", {"rope_theta": 5e5, "rms_norm_eps": 1e-5, "tie": False}),
    "SmolLM2-135M": ("llama", {"num_attention_heads": 3, "num_key_value_heads": 1, "rope_theta": 1e5, "tie": True}),
}
# Original lengths so short that every branch of a scaling is taken within a few dozen positions.
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "yarn, every key": {
        "rope_type": "yarn",
        "factor": 3.0,
        "original_max_position_embeddings": 100,
        "beta_fast": 9.0,
        "beta_slow": 2.0,
        "attention_factor": 1.4,
        "truncate": False,
    },
}


def their_model(model_type: str, tie: bool = False, scaling: dict | None = None, **shape):
    """A transformers model in float64. Norms of one and biases of zero would prove little, so all is random."""
    theta = shape.pop("rope_theta", 5000.0)
    sizes = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2} | shape
    config = getattr(transformers, f"{FAMILIES[model_type]}Config")(
        vocab_size=50,
        intermediate_size=40,
        num_hidden_layers=3,
        max_position_embeddings=64,
        tie_word_embeddings=tie,
        rope_parameters={"rope_theta": theta} | (scaling or {"rope_type": "default"}),
        **sizes,
    )
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{FAMILIES[model_type]}ForCausalLM")(config).double().eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return theirs


def their_logits(theirs, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return theirs(tokens[None]).logits[0]


def assert_same_logits(ours: Decoder, theirs) -> None:
    tokens = torch.randint(50, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = ours(tokens, torch.arange(17).expand(2, -1), causal_attention)
        expected = theirs(tokens).logits
        torch.testing.assert_close(ours.logits(hidden), expected, **ROUNDING)
    assert expected.std() > 0.05


@pytest.mark.parametrize("name", REAL)
def test_their_checkpoints_load_here(name, tmp_path):
    """Sharded, as large checkpoints come."""
    model_type, shape = REAL[name]
    theirs = their_model(model_type, **shape)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_logits(load_model(tmp_path, torch.float64)[0], theirs)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_our_checkpoints_load_there(model_type, tied, tmp_path):
    config = ModelConfig(50, 24, 40, 3, 6, 2, 4, 64, rope_theta=5000.0, model_type=model_type)
    torch.manual_seed(0)
    ours = Decoder(replace(config, tie_word_embeddings=tied)).double()
    initialise(ours)
    with torch.no_grad():
        for weight in ours.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    save_model(ours, tmp_path, dtype=torch.float64)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert type(theirs).__name__ == f"{FAMILIES[model_type]}ForCausalLM"
    assert_same_logits(ours, theirs)


@pytest.fixture(params=REAL)
def both(request, tmp_path) -> tuple[Decoder, object]:
    """(ours, theirs): the same weights."""
    model_type, shape = REAL[request.param]
    theirs = their_model(model_type, **shape)
    theirs.save_pretrained(tmp_path)
    return load_model(tmp_path, torch.float64)[0], theirs


@torch.no_grad()
def test_prefill_and_decoding_from_pages(both):
    """Two requests of different length, prefilled one by one, then decoded three tokens as a batch."""
    ours, theirs = both
    texts = [torch.randint(50, (n,), generator=torch.Generator().manual_seed(n)) for n in (21, 8)]
    cache, pages = paged(ours, page_size=4, requests=2, rows=21)
    for text, own in zip(texts, pages):
        prefill(ours, cache, own, text[:-3].tolist(), 0)
    lengths = torch.tensor([len(text) for text in texts])
    for back in (3, 2, 1):
        tokens = torch.stack([text[-back] for text in texts])[:, None]
        logits = step(ours, cache, pages, tokens, lengths - back)
        for row, text in zip(logits, texts):
            torch.testing.assert_close(row[0], their_logits(theirs, text)[-back], **ROUNDING)


@torch.no_grad()
def test_tree_masked_blocks_equal_each_path_alone(both):
    ours, theirs = both
    parents = [-1, 0, 0, 1, 1, 3, 2, 6]
    tokens = torch.randint(50, (8,), generator=torch.Generator().manual_seed(5))
    prefix = torch.randint(50, (11,), generator=torch.Generator().manual_seed(6))
    logits = ours.logits(tree_step(ours, 4, prefix, tokens, parents))
    for node, path in enumerate(paths_of(parents)):
        expected = their_logits(theirs, torch.cat((prefix, tokens[path])))[-1]
        torch.testing.assert_close(logits[node], expected, **ROUNDING)


# ---- RoPE scaling


@pytest.mark.parametrize("kind", SCALINGS)
def test_rope_frequencies(kind):
    theirs = their_model("llama", scaling=SCALINGS[kind], head_dim=64).model.rotary_emb
    scaling = RopeScaling.parse(SCALINGS[kind], 64)
    ours = frequencies(5000.0, 64, scaling)
    torch.testing.assert_close(ours.float(), theirs.inv_freq.float(), rtol=1e-5, atol=0)
    assert scaling.amplitude == pytest.approx(theirs.attention_scaling)
    plain = frequencies(5000.0, 64, None)
    assert not torch.allclose(ours, plain)
    if "factor" in SCALINGS[kind] and kind != "linear":  # high frequencies stay, low ones are stretched
        assert ours[0] == plain[0] and math.isclose(ours[-1] * SCALINGS[kind]["factor"], plain[-1])


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_rope(kind, model_type, tmp_path):
    """Their folder here, the same written by us again, and that folder there."""
    theirs = their_model(model_type, scaling=SCALINGS[kind])
    theirs.save_pretrained(tmp_path / "theirs")
    ours, _ = load_model(tmp_path / "theirs", torch.float64)
    assert_same_logits(ours, theirs)
    save_model(ours, tmp_path / "ours", dtype=torch.float64)
    again, _ = load_model(tmp_path / "ours", torch.float64)
    assert again.config == ours.config
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float64).eval()
    assert_same_logits(again, back)


def test_yarn_lengthens_what_the_config_states(tmp_path):
    """Qwen's instruction: add rope_scaling to config.json and leave max_position_embeddings."""
    their_model("qwen3", scaling=SCALINGS["yarn"]).save_pretrained(tmp_path)
    assert load_model(tmp_path, torch.float64)[0].config.max_position_embeddings == 4 * 128


# ---- what ends a text


def test_end_tokens_of_the_generation_config(tmp_path: Path):
    theirs = their_model("llama")
    theirs.config.eos_token_id = 7
    theirs.generation_config.eos_token_id = [9, 7, 11]
    theirs.save_pretrained(tmp_path)
    assert load_model(tmp_path, torch.float64)[0].config.eos_token_ids == (7, 9, 11)
