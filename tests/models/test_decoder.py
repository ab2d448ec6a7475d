"""The decoder against arithmetic written out below, and its three ways to attend against each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from d3d_runtime.models.attention import MaskedAttention, causal_attention
from d3d_runtime.models.config import ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.target import prefill
from tests.models.paged import paged, paths_of, random_decoder, step, tree_step

CONFIG = ModelConfig(50, 24, 40, 2, 6, 2, 8, 64, rope_theta=1000.0, rms_norm_eps=1e-5)
EXACT = {"rtol": 0, "atol": 1e-11}


def written_out(model: Decoder, tokens: list[int], positions: list[int], sees: list[list[bool]]) -> Tensor:
    """Logits [T, V], one head and one row at a time. sees[i][j]: row i attends to row j."""
    config, weights = model.config, dict(model.named_parameters())
    dim, heads, kv_heads = config.head_dim, config.num_attention_heads, config.num_key_value_heads

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / ((x**2).mean() + config.rms_norm_eps).sqrt() * weight

    def turn(x: Tensor, position: int) -> Tensor:
        out = torch.empty_like(x)
        for i in range(dim // 2):
            angle = torch.tensor(position * config.rope_theta ** (-2 * i / dim), dtype=torch.float64)
            low, high = x[i], x[i + dim // 2]
            out[i] = low * angle.cos() - high * angle.sin()
            out[i + dim // 2] = high * angle.cos() + low * angle.sin()
        return out

    x = [weights["embed.weight"][token] for token in tokens]
    for n in range(config.num_hidden_layers):
        layer = {
            name.removeprefix(f"layers.{n}."): w for name, w in weights.items() if f"layers.{n}." in name
        }
        queries, keys, values = [], [], []
        for row, position in zip(x, positions):
            qkv = layer["qkv.weight"] @ norm(row, layer["input_norm.weight"]) + layer.get("qkv.bias", 0)
            parts = qkv.view(-1, dim)
            q, k, v = parts[:heads], parts[heads : heads + kv_heads], parts[heads + kv_heads :]
            if config.model_type == "qwen3":
                q = torch.stack([norm(head, layer["q_norm.weight"]) for head in q])
                k = torch.stack([norm(head, layer["k_norm.weight"]) for head in k])
            queries.append([turn(head, position) for head in q])
            keys.append([turn(head, position) for head in k])
            values.append(v)
        for i in range(len(x)):
            seen, attended = [j for j in range(len(x)) if sees[i][j]], []
            for head in range(heads):
                group = head // (heads // kv_heads)
                scores = torch.stack([queries[i][head] @ keys[j][group] for j in seen]) / dim**0.5
                attended.append(scores.softmax(0) @ torch.stack([values[j][group] for j in seen]))
            x[i] = x[i] + layer["out.weight"] @ torch.cat(attended)
            inner = norm(x[i], layer["mlp_norm.weight"])
            gate, up = (layer["gate_up.weight"] @ inner).chunk(2)
            x[i] = x[i] + layer["down.weight"] @ (gate * gate.sigmoid() * up)
    head = weights.get("head.weight", weights["embed.weight"])
    return torch.stack([head @ norm(row, weights["norm.weight"]) for row in x])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
def test_the_decoder_is_its_arithmetic(model_type, kv_heads, tied):
    config = replace(CONFIG, model_type=model_type, num_key_value_heads=kv_heads, tie_word_embeddings=tied)
    model = random_decoder(config)
    tokens = torch.randint(50, (7,), generator=torch.Generator().manual_seed(1))
    causal = torch.ones(7, 7).tril().bool().tolist()
    hidden = model(tokens[None], torch.arange(7)[None], causal_attention)
    expected = written_out(model, tokens.tolist(), list(range(7)), causal)
    torch.testing.assert_close(model.logits(hidden)[0], expected, **EXACT)


def test_any_mask_and_any_positions():
    model = random_decoder(CONFIG)
    generator = torch.Generator().manual_seed(2)
    sees = torch.rand(9, 9, generator=generator) < 0.4
    sees |= torch.eye(9).bool()
    tokens, positions = (
        torch.randint(50, (9,), generator=generator),
        torch.randint(60, (9,), generator=generator),
    )
    hidden = model(tokens[None], positions[None], MaskedAttention(sees[None, None]))
    expected = written_out(model, tokens.tolist(), positions.tolist(), sees.tolist())
    torch.testing.assert_close(model.logits(hidden)[0], expected, **EXACT)


def test_positions_are_relative():
    """Shifting every position leaves the hidden states as they are: RoPE turns q and k alike."""
    model = random_decoder(CONFIG)
    tokens = torch.arange(10)[None]
    near = model(tokens, torch.arange(10)[None], causal_attention)
    far = model(tokens, torch.arange(10)[None] + 40, causal_attention)
    torch.testing.assert_close(near, far, **EXACT)
    assert not torch.allclose(near, model(tokens, torch.arange(10)[None] * 2, causal_attention))


# ---- the paged cache


PAGE_SIZES = [1, 3, 16]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_chunked_prefill_and_decoding_equal_a_dense_forward(chunk, page_size, monkeypatch):
    """Two requests of different length: prefill in chunks, then two tokens one by one, batched."""
    monkeypatch.setattr("d3d_runtime.target.PREFILL_CHUNK", chunk)
    model = random_decoder(CONFIG)
    texts = [torch.randint(50, (n,), generator=torch.Generator().manual_seed(n)) for n in (13, 6)]
    cache, pages = paged(model, page_size, requests=2, rows=13)
    for text, own in zip(texts, pages):
        prefill(model, cache, own, text[:-2].tolist(), 0)
    lengths = torch.tensor([len(text) for text in texts])
    for back in (2, 1):
        tokens = torch.stack([text[-back] for text in texts])[:, None]
        logits = step(model, cache, pages, tokens, lengths - back)
        for b, text in enumerate(texts):
            dense = model(text[None], torch.arange(len(text))[None], causal_attention)
            torch.testing.assert_close(logits[b, 0], model.logits(dense)[0, -back], **EXACT)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_tree_rows_equal_a_dense_forward_of_each_path(page_size):
    parents = [-1, 0, 0, 1, 1, 3, 2]
    tokens = torch.randint(50, (7,), generator=torch.Generator().manual_seed(5))
    prefix = torch.randint(50, (9,), generator=torch.Generator().manual_seed(6))
    model = random_decoder(CONFIG)
    hidden = tree_step(model, page_size, prefix, tokens, parents)
    for node, path in enumerate(paths_of(parents)):
        line = torch.cat((prefix, tokens[path]))
        dense = model(line[None], torch.arange(len(line))[None], causal_attention)
        torch.testing.assert_close(hidden[node], dense[0, -1], **EXACT)


def test_pages_map_logical_slots():
    cache, pages = paged(random_decoder(CONFIG), page_size=4, requests=2, rows=10)
    table = cache.table(pages, 10)
    assert table.num_slots == 12 and table.table.tolist() == pages
    logical = torch.tensor([[0, 5, -1], [9, 3, -7]])
    (a, b, _), (c, _, d) = pages
    assert table.physical(logical).tolist() == [[4 * a, 4 * b + 1, -1], [4 * d + 1, 4 * c + 3, -1]]


def test_a_pool_gives_each_page_once_and_never_the_dummy_page():
    cache, _ = paged(random_decoder(CONFIG), page_size=4, requests=4, rows=16)
    free = cache.num_free
    held = [cache.allocate(rows) for rows in (1, 4, 5, 16)]
    assert [len(pages) for pages in held] == [1, 1, 2, 4]
    used = [page for pages in held for page in pages]
    assert len(set(used)) == len(used) and 0 not in used and cache.num_free == free - 8
    for pages in held:
        cache.release(pages)
        assert pages == []
    assert cache.num_free == free == cache.num_pages - 1
