"""A checkpoint of Qwen3-8B's structure, written by transformers, through `d3d generate`: its own greedy tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from d3d_runtime.models.config import DiffusionConfig
from d3d_runtime.models.loader import load_model, save_model
from d3d_runtime.training.drafter import shallow_copy
from tests.cli.conftest import run_here

transformers = pytest.importorskip("transformers")

PROMPT, LENGTH = [11, 500, 7, 42, 1023, 3], 48
NARROW = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 8, "head_dim": 32}
WIDE = {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "head_dim": 128}


def checkpoints(folder: Path, layers: int, vocab: int, **shape: int) -> tuple[Path, Path, list[int]]:
    """Folders of a target and of a drafter made of its layers, and what transformers decodes with the target."""
    config = transformers.Qwen3Config(
        vocab_size=vocab,
        num_hidden_layers=layers,
        num_key_value_heads=shape["num_attention_heads"] // 4,
        max_position_embeddings=40960,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        eos_token_id=None,
        initializer_range=3 / shape["hidden_size"] ** 0.5,  # wide: text that repeats itself would prove little
        **shape,
    )
    torch.manual_seed(0)
    theirs = transformers.Qwen3ForCausalLM(config).eval()
    theirs.save_pretrained(folder / "target", max_shard_size="2MB" if shape == NARROW else "1GB")
    prompt = torch.tensor([PROMPT])
    decoded = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=LENGTH)
    del theirs
    target, _ = load_model(folder / "target", torch.float32)
    drafter = shallow_copy(target, 2)
    save_model(drafter, folder / "drafter", DiffusionConfig(16, vocab - 1, logit_shift=True), dtype=torch.float32)
    return folder / "target", folder / "drafter", decoded[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return checkpoints(tmp_path_factory.mktemp("qwen3"), layers=4, vocab=1024, **NARROW)


def assert_generates(made: tuple[Path, Path, list[int]], mode: str, capture) -> None:
    target, drafter, expected = made
    assert len(set(expected)) >= 20
    prompt = " ".join(map(str, PROMPT))
    flags = ["--target", target, "--drafter", drafter, "--mode", mode, "--max-tokens", str(LENGTH)]
    code, out, err = run_here(capture, "generate", prompt, "--token-ids", *flags, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["token_ids"] == expected
    if mode not in ("auto", "autoregressive"):
        assert report["metrics"]["tau"] > 1


@pytest.mark.parametrize("mode", ["autoregressive", "sync", "async", "auto"])
def test_greedy_tokens_are_those_of_transformers(narrow, mode, capsysbinary):
    assert_generates(narrow, mode, capsysbinary)


@pytest.mark.slow
def test_at_the_real_width(tmp_path, capsysbinary):
    """Two layers of Qwen3-8B as they are: 0.4 G parameters, 1.6 GB in float32."""
    made = checkpoints(tmp_path, layers=2, vocab=2048, **WIDE)
    for mode in ("autoregressive", "sync", "async"):
        assert_generates(made, mode, capsysbinary)
