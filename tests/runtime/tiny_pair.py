"""A random pair of models small enough for thousands of rounds, and the checks every engine test shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from d3d_runtime import Engine, RequestOutput, SamplingParams
from d3d_runtime.kv_cache import DUMMY_PAGE
from d3d_runtime.models.config import DiffusionConfig, ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import save_model
from d3d_runtime.training.drafter import shallow_copy
from d3d_runtime.training.target import initialise

VOCAB, EOS, MASK, BLOCK, CONTEXT = 64, 0, 1, 6, 192

SAMPLING: dict[str, dict] = {
    "greedy": {},
    "T=1": {"temperature": 1.0},
    "top_p": {"temperature": 0.7, "top_p": 0.9},
    "top_k": {"temperature": 1.0, "top_k": 20},
    "min_p": {"temperature": 1.3, "min_p": 0.08},
    "penalties": {
        "temperature": 0.8,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.3,
        "logit_bias": {5: 2.0, 9: -1.5, 11: -float("inf")},
    },
    "greedy penalties": {"presence_penalty": -0.5, "repetition_penalty": 1.2, "logit_bias": {7: 1.0}},
}


@dataclass(frozen=True)
class Pair:
    target: Path
    drafter: Path


def random_decoder(config: ModelConfig, seed: int) -> Decoder:
    """Weights larger than a trained model starts with: near-uniform logits would make every output alike."""
    torch.manual_seed(seed)
    model = Decoder(config)
    initialise(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim == 2 else 1)
    return model


def save_pair(
    folder: Path,
    *,
    vocab_size: int = VOCAB,
    eos: int | tuple[int, ...] = EOS,
    logit_shift: bool = True,
    seed: int = 0,
) -> Pair:
    config = ModelConfig(vocab_size, 32, 64, 3, 4, 2, 8, CONTEXT, eos_token_id=eos)
    target = random_decoder(config, seed)
    pair = Pair(folder / "target", folder / "drafter")
    save_model(target, pair.target, dtype=torch.float32)
    diffusion = DiffusionConfig(BLOCK, MASK, logit_shift)
    save_model(shallow_copy(target, 2), pair.drafter, diffusion, dtype=torch.float32)
    return pair


def random_prompts(count: int, seed: int = 0, longest: int = 24) -> list[list[int]]:
    """Ragged prompts, the first of a single token."""
    rng = Random(seed)
    lengths = [1] + [rng.randint(2, longest) for _ in range(count - 1)]
    return [[rng.randrange(2, VOCAB) for _ in range(length)] for length in lengths]


def results(outputs: list[RequestOutput]) -> list[tuple[list[int], str | None]]:
    """What must not depend on mode, batch or timing."""
    return [(output.token_ids, output.finish_reason) for output in outputs]


def assert_idle(engine: Engine) -> None:
    """Nothing runs or waits, and every page is free exactly once."""
    scheduler = engine._scheduler
    assert not scheduler.running and not scheduler.waiting
    for cache in scheduler._pools():
        assert sorted(cache._free) == list(range(DUMMY_PAGE + 1, cache.num_pages))


class Engines:
    """Engines by their arguments, made once: what one test leaves behind, the next one runs into."""

    def __init__(self) -> None:
        self._made: dict[str, Engine] = {}

    def __call__(self, pair: Pair, mode: str, dtype: str = "float64", **options) -> Engine:
        key = repr((pair, mode, dtype, sorted(options.items())))
        if key not in self._made:
            options = {"max_batch_size": 8, "drafter_device": "cpu"} | options
            self._made[key] = Engine(pair.target, pair.drafter, mode=mode, dtype=dtype, **options)
        return self._made[key]

    def assert_idle(self) -> None:
        for engine in self._made.values():
            assert_idle(engine)

    def close(self) -> None:
        for engine in self._made.values():
            engine.close()


def plain_decoder(engine: Engine) -> Callable[[list[int], SamplingParams], tuple[list[int], str | None]]:
    """The autoregressive engine on one request at a time, its answers remembered."""
    known: dict[str, tuple[list[int], str | None]] = {}

    def decode(prompt: list[int], params: SamplingParams) -> tuple[list[int], str | None]:
        key = repr((prompt, params))
        if key not in known:
            known[key] = results(engine.generate(prompt, params))[0]
        return known[key]

    return decode
