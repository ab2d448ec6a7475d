"""What a model needs is known before it is loaded, and loading needs no more than that."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from d3d_runtime import Engine
from d3d_runtime.errors import UserError
from d3d_runtime.models import memory
from d3d_runtime.models.config import ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import load_model, save_model
from d3d_runtime.models.memory import Footprint, affordable_tokens, free_bytes
from tests.runtime.tiny_pair import save_pair

QWEN3_8B = ModelConfig(151936, 4096, 12288, 36, 32, 8, 128, 40960, tie_word_embeddings=False)
CPU = torch.device("cpu")


@pytest.fixture
def free(monkeypatch):
    """free(bytes): so much is free."""
    return lambda size: monkeypatch.setattr(memory, "free_bytes", lambda device: size)


@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_estimate_is_what_a_model_holds(model_type, tied):
    config = ModelConfig(500, 96, 160, 3, 6, 2, 16, 64, model_type=model_type, tie_word_embeddings=tied)
    held = sum(weight.numel() * weight.itemsize for weight in Decoder(config).parameters())
    assert Footprint.of(config, torch.float32).weights == pytest.approx(held, rel=0.02)
    assert Footprint.of(config, torch.bfloat16).weights * 2 == Footprint.of(config, torch.float32).weights


def test_qwen3_8b_is_known_to_take_16_gigabytes():
    footprint = Footprint.of(QWEN3_8B, torch.bfloat16)
    assert footprint.weights == pytest.approx(16.4e9, rel=0.01)
    assert footprint.token == 36 * 2 * 8 * 128 * 2


def test_pools_take_what_is_left(free):
    models = {"target": Footprint(1000, 10), "drafter": Footprint(500, 5)}
    arguments = {"workspace": 100, "wanted": 80, "required": 20, "device": CPU, "dtype": torch.float32}
    free(10_000)
    assert affordable_tokens(models, **arguments) == 80
    free(int((1600 + 15 * 33) / memory.SHARE) + 1)
    assert affordable_tokens(models, **arguments) == 33
    free(None)  # nothing tells: go ahead
    assert affordable_tokens(models, **arguments) == 80
    free(1800)
    with pytest.raises(UserError, match=r"need 0\.0 MB in float32; cpu has 0\.0 MB free") as refused:
        affordable_tokens(models, **arguments)
    assert "\n" not in str(refused.value)


def test_a_model_that_cannot_fit_is_refused_in_one_line(free):
    free(12_000_000_000)
    models = {"target": Footprint.of(QWEN3_8B, torch.bfloat16)}
    with pytest.raises(UserError) as refused:
        affordable_tokens(models, 0, wanted=9000, required=528, device=CPU, dtype=torch.bfloat16)
    said = "memory: target 16.4 GB + KV of 528 tokens 0.1 GB need 16.5 GB in bfloat16; cpu has 12.0 GB free; "
    assert str(refused.value).startswith(said) and "weights='int8'" in str(refused.value)
    int8 = {"target": Footprint.of(QWEN3_8B, torch.bfloat16, int8_weights=True)}
    assert affordable_tokens(int8, 0, 9000, 528, CPU, torch.bfloat16) == 9000


def test_the_engine_refuses_before_it_loads(tmp_path, free, monkeypatch):
    pair = save_pair(tmp_path)
    free(300_000)
    monkeypatch.setattr("d3d_runtime.engine.load_decoder", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(UserError, match=r"memory: target .* MB \+ drafter .* MB \+ KV of"):
        Engine(pair.target, pair.drafter, mode="sync", max_batch_size=1)


def test_the_engine_makes_do_with_smaller_pools(tmp_path, free):
    pair = save_pair(tmp_path)
    engine = Engine(pair.target, mode="autoregressive")
    footprint, full = Footprint.of(engine.config, torch.float32), engine._target.cache.num_pages
    free(int((footprint.weights + 1000 * footprint.token) / memory.SHARE))
    engine = Engine(pair.target, mode="autoregressive")
    assert 12 < engine._target.cache.num_pages < 64 < full
    assert len(engine.generate([[1, 2, 3]])[0].token_ids) > 0


def test_free_memory_here():
    free = free_bytes(CPU)
    assert free is not None and 1e6 < free < 1e15


def test_a_containers_limit_counts(tmp_path: Path):
    """cgroup v2: what is used minus what is only cached; without a limit it says "max"."""
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 200000\nslab 3\n")
    assert memory._left_in_group(tmp_path) == 500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._left_in_group(tmp_path) is None


LOAD = """
import sys, threading, time, torch
from d3d_runtime.models.loader import load_model

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

peak, done = [anonymous()], threading.Event()
def watch():
    while not done.is_set():
        peak.append(anonymous())
        time.sleep(0.001)
load_model(sys.argv[2], torch.float32)  # a small one: imports and caches
before = anonymous()
thread = threading.Thread(target=watch); thread.start()
model, _ = load_model(sys.argv[1], getattr(torch, sys.argv[3]))
done.set(); thread.join()
print(max(peak) - before, sum(w.numel() * w.itemsize for w in model.parameters()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_holds_the_weights_once(tmp_path, dtype):
    """They were read all at once and then stacked: twice the model, for a moment."""
    config = ModelConfig(4000, 512, 1536, 12, 8, 4, 64, 64)
    torch.manual_seed(0)
    save_model(Decoder(config), tmp_path / "large", dtype=torch.float32)
    save_model(Decoder(replace(config, num_hidden_layers=1)), tmp_path / "small", dtype=torch.float32)
    arguments = [sys.executable, "-c", LOAD, str(tmp_path / "large"), str(tmp_path / "small"), dtype]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120)
    peak, size = map(int, done.stdout.split())
    assert size > 80e6 * (1 if dtype == "float32" else 0.5)
    assert peak < 1.25 * size


def test_loading_reads_one_tensor_at_a_time(tmp_path):
    """GGUF and safetensors alike: what is read is copied into its place at once."""
    save_model(Decoder(ModelConfig(40, 16, 24, 2, 4, 2, 8, 64)), tmp_path, dtype=torch.float32)
    model, _ = load_model(tmp_path, torch.float32)
    storages = [weight.untyped_storage() for weight in model.parameters()]
    assert all(storage.nbytes() == weight.nbytes for storage, weight in zip(storages, model.parameters()))
