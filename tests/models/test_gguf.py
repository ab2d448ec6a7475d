"""GGUF files: the same tokens as the Hugging Face folder with the same weights, the same tokenizer, clear refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from d3d_runtime import Engine, SamplingParams
from d3d_runtime.errors import UserError
from d3d_runtime.models.checkpoint import GGUF_LAYER, GGUF_OUTER
from d3d_runtime.models.config import ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import disk_names, load_model, part_rows, save_model
from d3d_runtime.models.rope import RopeScaling
from d3d_runtime.models.tokenizer import Tokenizer

gguf = pytest.importorskip("gguf")
QUANT = gguf.GGMLQuantizationType

# Rows of 256: one block of the k-quants.
CONFIG = ModelConfig(96, 256, 256, 2, 4, 2, 64, 128, rope_theta=2e4, rms_norm_eps=1e-5, eos_token_id=3)
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
STORED_NAMES = {hf: stored for stored, hf in GGUF_OUTER.items()}


def stored_name(name: str) -> str:
    """model.layers.0.mlp.up_proj.weight -> blk.0.ffn_up.weight"""
    if name in STORED_NAMES:
        return STORED_NAMES[name]
    _, _, layer, *module, kind = name.split(".")
    stored = next(stored for stored, hf in GGUF_LAYER.items() if hf == ".".join(module))
    return f"blk.{layer}.{stored}.{kind}"


def quantised(weight: np.ndarray, kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(bytes or floats to store, what they mean). The package cannot make k-quants: those get random bits."""
    quant = QUANT[kind]
    if kind in ("F32", "F16"):
        stored = weight.astype(kind.lower().replace("f", "float"))
        return stored, stored.astype(np.float32)
    if kind in ("Q4_K", "Q6_K"):
        block, block_bytes = gguf.GGML_QUANT_SIZES[quant]
        stored = rng.integers(0, 256, (*weight.shape[:-1], weight.shape[-1] // block, block_bytes), np.uint8)
        if kind == "Q4_K":  # scale * s * q - minimum * m with s, m < 64 and q < 16: about as often above as below zero
            scales = np.float16(5e-4 * np.array([1, 7.5]))
            stored[..., :4] = scales.view(np.uint8)
        else:  # scale * s * (q - 32) with |s| <= 128
            stored[..., -2:] = np.float16([7e-5]).view(np.uint8)
        stored = stored.reshape(*weight.shape[:-1], -1)
    else:
        stored = gguf.quants.quantize(weight, quant)
    return stored, gguf.quants.dequantize(stored, quant)


def interleaved(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Each head's rows from (all low, all high) to (low 0, high 0, low 1, ...), as llama.cpp stores Llama's q and k."""
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    order = [half * (head_dim // 2) + i for i in range(head_dim // 2) for half in (0, 1)]
    return heads[:, order].reshape(rows.shape)


def write_gguf(path: Path, model: Decoder, kind: str, metadata=lambda writer: None, **extra: np.ndarray) -> Decoder:
    """Writes `path`, and returns the model as it is after quantisation."""
    config, arch = model.config, model.config.model_type
    writer, rng = gguf.GGUFWriter(path, arch), np.random.default_rng(0)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_eos_token_id(config.eos_token_id)
    metadata(writer)
    state = {}
    for name, parameter in model.named_parameters():
        means = []
        for part, rows in zip(disk_names(name), parameter.split(part_rows(config, name, parameter))):
            weight = rows.detach().numpy()
            stored, meaning = (weight, weight) if weight.ndim == 1 else quantised(weight, kind, rng)
            if arch == "llama" and (".q_proj." in part or ".k_proj." in part):
                stored = interleaved(stored, config.head_dim)
            raw_dtype = QUANT[kind] if stored.dtype == np.uint8 else None
            writer.add_tensor(stored_name(part), np.ascontiguousarray(stored), raw_dtype=raw_dtype)
            means.append(torch.from_numpy(np.array(meaning)))
        state[name] = torch.cat(means)
    for name, tensor in extra.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    meant = Decoder(config)
    meant.load_state_dict(state)
    return meant


def model_of(config: ModelConfig) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * (0.12 if weight.ndim == 2 else 0.2) + ("norm" in name))
    return model.requires_grad_(False)


def decoded(path: Path) -> list[list[int]]:
    engine = Engine(path, mode="autoregressive", dtype="float64")
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    return [output.token_ids for output in engine.generate([[5, 17, 80], [9]], params)]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
def test_tokens_are_those_of_the_folder_with_the_same_weights(model_type, kind, tmp_path):
    model = model_of(replace(CONFIG, model_type=model_type, tie_word_embeddings=kind in ("Q4_1", "F16")))
    meant = write_gguf(tmp_path / "model.gguf", model, kind)
    save_model(meant, tmp_path / "folder", dtype=torch.float32)
    loaded, _ = load_model(tmp_path / "model.gguf", torch.float32)
    assert loaded.config == replace(model.config, rope_theta=2e4, rms_norm_eps=float(np.float32(1e-5)))
    for (name, weight), expected in zip(loaded.named_parameters(), meant.parameters()):
        assert torch.equal(weight, expected), name
    tokens = decoded(tmp_path / "model.gguf")
    assert tokens == decoded(tmp_path / "folder")
    assert len(set(tokens[0])) > 3


# ---- RoPE scaling


def test_rope_scaling_by_name(tmp_path):
    def yarn(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    write_gguf(tmp_path / "yarn.gguf", model_of(CONFIG), "F32", yarn)
    config = load_model(tmp_path / "yarn.gguf", torch.float32)[0].config
    assert config.rope_scaling == RopeScaling("yarn", 4.0, 64) and config.max_position_embeddings == 256


def test_llama3_scaling_comes_as_divisors(tmp_path):
    """Its folder and its GGUF turn alike, and what is saved from the GGUF comes back."""
    from d3d_runtime.models.rope import frequencies

    scaling = RopeScaling("llama3", 8.0, 32, 1.0, 4.0)
    config = replace(CONFIG, model_type="llama", rope_scaling=scaling)
    plain = frequencies(config.rope_theta, config.head_dim, None)
    divisors = (plain / frequencies(config.rope_theta, config.head_dim, scaling)).numpy()
    write_gguf(tmp_path / "m.gguf", model_of(config), "F32", **{"rope_freqs.weight": divisors.astype(np.float32)})
    loaded, _ = load_model(tmp_path / "m.gguf", torch.float32)
    ours = frequencies(config.rope_theta, config.head_dim, loaded.config.rope_scaling)
    torch.testing.assert_close(ours, frequencies(config.rope_theta, config.head_dim, scaling), rtol=1e-6, atol=0)
    save_model(loaded, tmp_path / "folder")
    assert load_model(tmp_path / "folder", torch.float32)[0].config == loaded.config


# ---- the tokenizer

TEXTS = [
    "Hello, world! It's 2024-12-31; 1234567 apples cost $3.50.",
    "  leading\n\n\tspaces   and trailing  \r\n",
    "Größe naïve café e\u0301 日本語のテスト 🙂👍🏽 \u200b",
    "def f(x):\n    return x**2  # I'LL they'Re WE'd",
    "<|im_start|>user\nhi<|im_end|>\n<think>",
    "",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def reference_tokenizer(splitting: str):
    """Independent of ours: the family's class in transformers, or for SmolLM the steps its tokenizer.json lists."""
    transformers = pytest.importorskip("transformers")
    import tokenizers as tk

    if splitting == "qwen2":
        empty = transformers.Qwen2Tokenizer().backend_tokenizer
        steps = empty.normalizer, empty.pre_tokenizer
    else:
        byte_level = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = tk.pre_tokenizers.Digits(individual_digits=True)
        steps = None, tk.pre_tokenizers.Sequence([digits, byte_level]) if splitting == "smollm" else byte_level
    trained = tk.Tokenizer(tk.models.BPE())
    trained.pre_tokenizer = steps[1]
    if steps[0] is not None:
        trained.normalizer = steps[0]
    trained.decoder = tk.decoders.ByteLevel()
    alphabet = tk.pre_tokenizers.ByteLevel.alphabet()
    trainer = tk.trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    trained.train_from_iterator([*TEXTS, Path(__file__).read_text(encoding="utf-8")], trainer)
    trained.add_tokens([tk.AddedToken("<think>", normalized=False)])
    return trained


def tokenizer_metadata(reference, splitting: str, **changes):
    import json

    model = json.loads(reference.to_str())["model"]
    size = reference.get_vocab_size()
    tokens = [reference.id_to_token(i) for i in range(size)] + ["[PAD]"]
    kinds = [3 if t in SPECIAL else 4 if t == "<think>" else 5 if t == "[PAD]" else 1 for t in tokens]

    def write(writer) -> None:
        writer.add_tokenizer_model(changes.get("model", "gpt2"))
        writer.add_tokenizer_pre(changes.get("pre", splitting))
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
        writer.add_bos_token_id(0)
        writer.add_add_bos_token(changes.get("add_bos", False))
        writer.add_chat_template("{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")

    return write


@pytest.mark.parametrize("splitting", ["gpt-2", "smollm", "qwen2"])
def test_the_tokenizer_of_the_file(splitting, tmp_path):
    reference = reference_tokenizer(splitting)
    write_gguf(tmp_path / "m.gguf", model_of(CONFIG), "F32", tokenizer_metadata(reference, splitting))
    ours = Tokenizer(tmp_path / "m.gguf")
    for text in TEXTS:
        assert ours.encode(text) == reference.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == reference.decode(reference.encode(text).ids)
    assert ours.backend.token_to_id("[PAD]") is None  # padding of the vocabulary is no text
    assert ours.eos_token_id == CONFIG.eos_token_id
    assert ours.render_chat([{"role": "user", "content": "<b> & 'x'"}]) == "<|endoftext|>user:<b> & 'x';"


def test_llama3_keeps_three_digits_and_begins_with_bos(tmp_path):
    metadata = tokenizer_metadata(reference_tokenizer("gpt-2"), "llama-bpe", add_bos=True)
    write_gguf(tmp_path / "m.gguf", model_of(CONFIG), "F32", metadata)
    ours = Tokenizer(tmp_path / "m.gguf")
    words = [word for word, _ in ours.backend.pre_tokenizer.pre_tokenize_str("a 1234567!")]
    assert words == ["a", "Ġ", "123", "456", "7", "!"]
    assert ours.encode("x", add_special_tokens=True) == [0, *ours.encode("x")]


# ---- refusals


def refusal(act, *words: str) -> None:
    with pytest.raises(UserError) as refused:
        act()
    message = str(refused.value)
    assert "\n" not in message and all(word in message for word in words), message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "llama"}, ("kind 'llama'", "byte-level BPE")),
        ({"pre": "deepseek-llm"}, ("text splitting 'deepseek-llm'", "qwen2")),
    ],
)
def test_tokenizers_that_are_refused(changes, words, tmp_path):
    metadata = tokenizer_metadata(reference_tokenizer("gpt-2"), "gpt-2", **changes)
    write_gguf(tmp_path / "m.gguf", model_of(CONFIG), "F32", metadata)
    refusal(lambda: Tokenizer(tmp_path / "m.gguf"), *words, "Hugging Face folder")


def test_files_that_are_refused(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, model_of(CONFIG), "Q8_0")
    whole = path.read_bytes()

    def load():
        return load_model(path, torch.float32)

    for size in (9, 40, 500, 2000):
        path.write_bytes(whole[:size])
        refusal(load, str(path), "not a whole GGUF file")
    path.write_bytes(whole[:-1000])
    refusal(load, "not a whole GGUF file", "reaches beyond its end")
    path.write_bytes(b"PK" + whole[2:])
    refusal(load, "this is not a GGUF file")
    path.write_bytes(b"")
    refusal(load, "cannot be read")
    path.write_bytes(whole[:4] + (7).to_bytes(4, "little") + whole[8:])
    refusal(load, "GGUF version 7; expected 2 or 3")


def test_models_that_are_refused(tmp_path):
    path, model = tmp_path / "m.gguf", model_of(replace(CONFIG, model_type="llama"))
    experts = {"blk.0.ffn_gate_exps.weight": np.zeros((2, 4), np.float32)}
    write_gguf(path, model, "F32", **experts)
    refusal(lambda: load_model(path, torch.float32), "'blk.0.ffn_gate_exps.weight'", "architectures")
    write_gguf(path, model, "F32", lambda writer: writer.add_uint16("split.count", 3))
    refusal(lambda: load_model(path, torch.float32), "one part of several", "llama-gguf-split --merge")
    model.config = replace(CONFIG, model_type="granite")
    write_gguf(path, model, "F32")
    refusal(lambda: load_model(path, torch.float32), "model_type 'granite' is not supported")
