"""Weights in int8: the rounding they promise, and the same tokens in every mode."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from d3d_runtime import Engine, SamplingParams
from d3d_runtime.errors import UserError
from d3d_runtime.models.int8 import Int8Embedding, Int8Matrix
from d3d_runtime.models.loader import load_decoder, load_model
from tests.runtime.tiny_pair import random_prompts, save_pair


def test_a_matrix_is_its_rows_times_their_scales():
    torch.manual_seed(0)
    weight, bias = torch.randn(24, 64), torch.nn.Parameter(torch.randn(24).bfloat16())
    weight[3] = 0
    matrix = Int8Matrix(weight, bias)
    meant = matrix.rows.float() * matrix.scales.float()[:, None]
    assert ((meant - weight).abs() <= matrix.scales.float()[:, None] * 0.75).all()  # half a step, and bfloat16's own
    x = torch.randn(2, 5, 64).bfloat16()
    torch.testing.assert_close(matrix(x).float(), F.linear(x.float(), meant, bias.float()), rtol=0.02, atol=0.05)


def test_an_embedding_looks_up_and_projects():
    torch.manual_seed(0)
    embedding = Int8Embedding(torch.randn(30, 32))
    meant = embedding.rows.float() * embedding.scales.float()[:, None]
    ids = torch.tensor([[3, 29, 0]])
    torch.testing.assert_close(embedding(ids).float(), meant[ids], rtol=0.01, atol=0.01)
    x = torch.randn(1, 4, 32).bfloat16()
    torch.testing.assert_close(embedding.project(x).float(), x.float() @ meant.T, rtol=0.02, atol=0.05)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("int8"))


def test_every_matrix_is_quantised_and_no_norm(pair):
    model = load_decoder(pair.target, torch.bfloat16, int8_weights=True)
    assert all(weight.ndim == 1 for weight in model.parameters())
    assert sum(isinstance(module, Int8Matrix) for module in model.modules()) == 4 * len(model.layers) + 1
    exact, _ = load_model(pair.target, torch.bfloat16)
    from d3d_runtime.models.attention import causal_attention

    tokens, positions = torch.randint(64, (1, 20)), torch.arange(20)[None]
    ours = model.logits(model(tokens, positions, causal_attention)).float()
    theirs = exact.logits(exact(tokens, positions, causal_attention)).float()
    assert (ours - theirs).std() < 0.1 * theirs.std()
    assert not torch.equal(ours, theirs)


def test_speculation_says_what_plain_decoding_says(pair):
    """Up to the near-ties of bfloat16, which these prompts do not meet."""
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    options = {"dtype": "bfloat16", "weights": "int8"}
    plain = Engine(pair.target, mode="autoregressive", **options).generate(random_prompts(4), params)
    drafted = Engine(pair.target, pair.drafter, mode="sync", **options).generate(random_prompts(4), params)
    same = [a.token_ids == b.token_ids for a, b in zip(plain, drafted)]
    assert sum(same) >= 3, same


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int4"}, "weights: expected 'int8' or None, got 'int4'"),
        ({"weights": "int8"}, "weights: 'int8' goes with dtype='bfloat16' on a CPU, got float32 on cpu"),
    ],
)
def test_refusals(pair, options, message):
    with pytest.raises(UserError, match=message):
        Engine(pair.target, **options)
