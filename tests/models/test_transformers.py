"""Parity with Hugging Face transformers, where it is installed: its folders load here, ours load there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from d3d_runtime.models.attention import causal_attention
from d3d_runtime.models.config import ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import load_model, save_model
from d3d_runtime.training.target import initialise

transformers = pytest.importorskip("transformers")

FAMILIES = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama"}
ROUNDING = {"rtol": 1e-3, "atol": 2e-5}  # their norms and RoPE compute in float32 in a float64 model, too


def assert_same_logits(ours: Decoder, theirs) -> None:
    tokens = torch.randint(50, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = ours(tokens, torch.arange(17).expand(2, -1), causal_attention)
        expected = theirs(tokens).logits
        torch.testing.assert_close(ours.logits(hidden), expected, **ROUNDING)
    assert expected.std() > 0.05


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_their_checkpoints_load_here(model_type, tied, tmp_path):
    family = FAMILIES[model_type]
    config = getattr(transformers, f"{family}Config")(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=4 if model_type == "qwen2" else 8,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        rope_theta=5000.0,
        rms_norm_eps=1e-5,
    )
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).double().eval()
    with torch.no_grad():  # norms of one and biases of zero would prove little
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
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
