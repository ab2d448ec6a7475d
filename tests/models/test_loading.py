"""Model folders: what is written comes back, and what is wrong with a folder is said in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from d3d_runtime.errors import UserError
from d3d_runtime.models.config import DiffusionConfig, ModelConfig, read_config
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import load_model, save_model
from d3d_runtime.models.tokenizer import Tokenizer
from d3d_runtime.training.target import initialise
from d3d_runtime.training.vocabulary import train_vocabulary

CONFIG = ModelConfig(40, 16, 24, 2, 4, 2, 8, 64, eos_token_id=3)
DIFFUSION = DiffusionConfig(8, 2, True)


def model_of(config: ModelConfig) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(config)
    initialise(model)
    return model


@pytest.fixture
def folder(tmp_path) -> Path:
    save_model(model_of(CONFIG), tmp_path, DIFFUSION, dtype=torch.float32)
    return tmp_path


def edit_config(folder: Path, **changes) -> None:
    """None removes a key."""
    path = folder / "config.json"
    raw = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))


def edit_weights(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        load_model(folder, torch.float32)
    message = str(refused.value)
    assert "\n" not in message and str(folder) in message
    return message


# ---- round trips


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_loads_as_it_was(tied, model_type, dtype, tmp_path):
    config = replace(
        CONFIG, model_type=model_type, tie_word_embeddings=tied, rope_theta=5e5, eos_token_id=(3, 4)
    )
    model = model_of(config).to(dtype)
    save_model(model, tmp_path, DIFFUSION, dtype=dtype)
    loaded, diffusion = load_model(tmp_path, dtype)
    assert loaded.config == config and diffusion == DIFFUSION
    stored, expected = dict(loaded.named_parameters()), dict(model.named_parameters())
    assert stored.keys() == expected.keys()
    for name, weight in stored.items():
        assert torch.equal(weight, expected[name]) and not weight.requires_grad


def test_weights_are_converted_to_the_dtype_asked_for(folder):
    model, _ = load_model(folder, torch.float64)
    narrow, _ = load_model(folder, torch.bfloat16)
    for (name, wide), weight in zip(model.named_parameters(), narrow.parameters()):
        assert wide.dtype == torch.float64 and torch.equal(wide.bfloat16(), weight), name


def test_shards_are_read_through_their_index(folder):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in shards.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, own in shards.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    load_model(folder, torch.float32)

    (folder / "b.safetensors").unlink()
    assert "the weights file 'b.safetensors' is missing" in refusal(folder)
    for broken in ("{", "[]", '{"weight_map": 3}', "{}"):
        (folder / "model.safetensors.index.json").write_text(broken)
        assert "'model.safetensors.index.json' holds no valid 'weight_map'" in refusal(folder)


def test_a_plain_model_has_no_diffusion_config(tmp_path):
    save_model(model_of(CONFIG), tmp_path)
    assert load_model(tmp_path, torch.float32)[1] is None


def test_what_transformers_writes_is_read(folder):
    """Version 5 keeps theta under rope_parameters and marks the plain kind; files of older ones say null."""
    edit_config(folder, rope_theta=None, rope_parameters={"rope_theta": 250.0, "rope_type": "default"})
    assert read_config(folder)[0].rope_theta == 250.0
    edit_config(folder, rope_parameters=None, rope_scaling={"type": "default"}, eos_token_id=[1, 2])
    config, _ = read_config(folder)
    assert config.rope_theta == 10_000.0 and config.eos_token_ids == (1, 2)
    edit_config(folder, eos_token_id=None, head_dim=None, num_key_value_heads=None, hidden_size=32)
    config, _ = read_config(folder)
    assert (config.eos_token_ids, config.head_dim, config.num_key_value_heads) == ((), 8, 4)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"])
def test_tensors_that_change_nothing_are_ignored(name, folder):
    """A tied head is often stored again, and old checkpoints hold RoPE's frequencies."""
    edit_weights(folder, lambda tensors: tensors.update({name: torch.zeros(4)}))
    load_model(folder, torch.float32)


# ---- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": None}, "config.json has no 'model_type'"),
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; expected one of qwen3, qwen2, llama"),
        ({"vocab_size": None}, "config.json has no 'vocab_size'"),
        ({"hidden_size": None}, "config.json has no 'hidden_size'"),
        ({"intermediate_size": None}, "config.json has no 'intermediate_size'"),
        ({"num_hidden_layers": None}, "config.json has no 'num_hidden_layers'"),
        ({"num_attention_heads": None}, "config.json has no 'num_attention_heads'"),
        ({"max_position_embeddings": None}, "config.json has no 'max_position_embeddings'"),
        ({"hidden_size": "16"}, "config.json has 'hidden_size' = '16'; expected a positive integer"),
        ({"num_hidden_layers": 0}, "config.json has 'num_hidden_layers' = 0; expected a positive integer"),
        ({"num_key_value_heads": 3}, "4 heads of 8 with 3 for keys and values"),
        (
            {"head_dim": 7},
            "4 heads of 7 with 2 for keys and values; expected a multiple of those, and an even size",
        ),
        ({"rope_scaling": {"rope_type": "longrope"}}, "asks for RoPE of type 'longrope', which is not supported yet"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "asks for RoPE of type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "asks for yarn RoPE without 'factor'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": 1}}, "asks for yarn RoPE with 'mscale'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8}}, "asks for llama3 RoPE without 'low_freq_factor'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "asks for sliding-window attention"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "asks for a rotary factor below 1"),
        ({"hidden_act": "gelu"}, "asks for hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "asks for sliding-window attention"),
        ({"mask_token_id": None}, "has 'block_size' but no 'mask_token_id'; add it to the file, or pass mask_token_id"),
        ({"logit_shift": None}, "config.json has 'block_size' but no 'logit_shift'"),
        ({"block_size": None}, "config.json has 'mask_token_id' but no 'block_size'"),
        ({"block_size": 1}, "block_size 1; expected 2 to 64"),
        ({"block_size": "8"}, "block_size '8'; expected 2 to 64"),
        ({"mask_token_id": 40}, "mask_token_id 40 is outside the vocabulary of 40"),
        ({"mask_token_id": "2"}, "mask_token_id '2' is outside the vocabulary of 40"),
        ({"clean_attention": "full"}, "clean_attention 'full'; expected 'causal' or 'block_causal'"),
    ],
)
def test_configs_that_are_refused(changes, message, folder):
    edit_config(folder, **changes)
    assert message in refusal(folder)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "config.json is not valid JSON"), ("[3]", "config.json holds no object")]
)
def test_configs_that_are_no_configs(text, message, folder):
    (folder / "config.json").write_text(text)
    assert message in refusal(folder)


def test_no_folder_no_config_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "the weights file 'model.safetensors' is missing" in refusal(folder)
    (folder / "config.json").unlink()
    assert "no config.json there; expected a Hugging Face model folder" in refusal(folder)
    assert "no such folder" in refusal(folder / "nowhere")


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights(keep, folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "'model.safetensors' is not a whole safetensors file" in refusal(folder)


LAYER = "model.layers.1."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "the weights have no tensor 'model.norm.weight'"),
        (
            lambda t: t.pop(LAYER + "self_attn.k_proj.weight"),
            "no tensor 'model.layers.1.self_attn.k_proj.weight'",
        ),
        (
            lambda t: t.update({LAYER + "mlp.up_proj.weight": torch.zeros(24, 15)}),
            "'model.layers.1.mlp.up_proj.weight' has the shape (24, 15); config.json asks for (24, 16)",
        ),
        (
            lambda t: t.update({LAYER + "self_attn.v_proj.weight": torch.zeros(24, 16)}),
            "'model.layers.1.self_attn.v_proj.weight' has the shape (24, 16); config.json asks for (16, 16)",
        ),
        (
            lambda t: t.update({"model.embed_tokens.weight": torch.zeros(41, 16)}),
            "'model.embed_tokens.weight' has the shape (41, 16); config.json asks for (40, 16)",
        ),
        (
            lambda t: t.update({LAYER + "self_attn.q_proj.bias": torch.zeros(32)}),
            "the weights have 'model.layers.1.self_attn.q_proj.bias', which config.json does not ask for",
        ),
        (
            lambda t: t.update({"model.layers.2.input_layernorm.weight": torch.zeros(16)}),
            "the weights have 'model.layers.2.input_layernorm.weight', which config.json does not ask for",
        ),
    ],
    ids=["outer", "part", "columns", "rows", "vocabulary", "bias", "layer"],
)
def test_weights_that_do_not_fit(change, message, folder):
    edit_weights(folder, change)
    assert message in refusal(folder)


def test_a_head_is_needed_where_it_is_not_tied(folder):
    edit_config(folder, tie_word_embeddings=False)
    assert "the weights have no tensor 'lm_head.weight'" in refusal(folder)


# ---- the tokenizer


@pytest.fixture
def vocabulary(tmp_path) -> Path:
    train_vocabulary(["Anna has 12 apples and 3 pens."] * 4, 280, tmp_path)
    return tmp_path


def test_special_tokens_and_chats(vocabulary):
    tokenizer = Tokenizer(vocabulary)
    assert (tokenizer.eos_token_id, tokenizer.mask_token_id) == (0, 1)
    messages = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "why"},
    ]
    text = "<|user|>1+1?<|assistant|>2<|endoftext|><|user|>why<|assistant|>"
    assert tokenizer.render_chat(messages) == text
    assert tokenizer.encode_chat(messages) == tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode_chat(messages)) == "1+1?2why"


def test_special_tokens_may_be_written_as_objects_or_be_absent(vocabulary):
    path = vocabulary / "tokenizer_config.json"
    path.write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    tokenizer = Tokenizer(vocabulary)
    assert (tokenizer.eos_token_id, tokenizer.mask_token_id) == (0, None)
    with pytest.raises(UserError, match="prompt: this model has no chat template; pass text or token ids"):
        tokenizer.encode_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("message", ["text", {"role": "user"}, {"content": "x"}, 3])
def test_messages_need_a_role_and_content(message, vocabulary):
    with pytest.raises(UserError, match=r"prompt: chat messages are \{role, content\}, got"):
        Tokenizer(vocabulary).encode_chat([message])


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_tokenizer_is_refused(file, vocabulary):
    (vocabulary / file).write_text("{")
    with pytest.raises(UserError, match=r"tokenizer .* cannot be read") as refused:
        Tokenizer(vocabulary)
    assert "\n" not in str(refused.value)
