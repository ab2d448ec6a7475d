"""The pair that is shipped: token-identical in every mode on held-out problems, and worth drafting with.

The full matrix is marked slow. One part of it: pytest -m slow -k "float64 and T1 and async" -s
D3D_PAIR_PROMPTS sets the number of problems (200).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from random import Random

import pytest
import torch

from d3d_runtime import Engine, RequestOutput, SamplingParams
from d3d_runtime.engine import EMBEDDED_PAIR
from d3d_runtime.models.loader import load_model
from d3d_runtime.training.problems import Problem, check, generate

from .near_ties import NEAR_TIE, regret
from .tiny_pair import results

pytestmark = pytest.mark.skipif(
    not (EMBEDDED_PAIR / "drafter" / "model.safetensors").is_file(),
    reason="the embedded pair is not there: `d3d train` makes it, see its model card",
)

SAMPLING = {
    "greedy": {},
    "T1": {"temperature": 1.0},
    "top_p": {"temperature": 0.7, "top_p": 0.9},
    "top_k": {"temperature": 1.0, "top_k": 20},
    "penalties": {
        "temperature": 0.8,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "repetition_penalty": 1.1,
        "logit_bias": {20: 0.5, 30: -2.0},
    },
}
HOT = {
    "hot": {"temperature": 2.0, "max_tokens": 64}
}  # the pair is sure of itself: only this writes other texts
LAYOUTS = {"alone": 1, "batch": 8, "shuffled": 8}
FULL = int(os.environ.get("D3D_PAIR_PROMPTS", "200"))


@dataclass(frozen=True)
class Case:
    """`count` held-out problems, sampled in one way."""

    kind: str
    dtype: str
    count: int

    @property
    def problems(self) -> list[Problem]:
        return list(generate(0, self.count, "held_out_wordings"))

    @property
    def prompts(self) -> list[list[dict[str, str]]]:
        return [[{"role": "user", "content": problem.question}] for problem in self.problems]

    @property
    def params(self) -> list[SamplingParams]:
        options = {"max_tokens": 256} | (SAMPLING | HOT)[self.kind]
        return [SamplingParams(seed=i, **options) for i in range(self.count)]

    def run(self, mode: str, layout: str) -> list[RequestOutput]:
        """Outputs in the order of the problems."""
        order = list(range(self.count))
        if layout == "shuffled":
            Random(5).shuffle(order)
        prompts, params = self.prompts, self.params
        engine = Engine(mode=mode, dtype=self.dtype, max_batch_size=LAYOUTS[layout])
        outputs = engine.generate([prompts[i] for i in order], [params[i] for i in order])
        engine.close()
        return [output for _, output in sorted(zip(order, outputs), key=lambda pair: pair[0])]


@cache
def plain(case: Case) -> list[RequestOutput]:
    """Plain decoding, each problem alone."""
    return case.run("autoregressive", "alone")


def summary(case: Case, mode: str, layout: str, outputs: list[RequestOutput]) -> str:
    tokens = sum(output.metrics.emitted for output in outputs)
    tau = tokens / sum(output.metrics.rounds for output in outputs)
    return f"{case.dtype} {case.kind} {mode} {layout}: {case.count} problems, {tokens} tokens, tau {tau:.2f}"


def assert_identical(case: Case, mode: str, layout: str) -> None:
    outputs = case.run(mode, layout)
    print(summary(case, mode, layout, outputs))
    assert results(outputs) == results(plain(case))


@cache
def float64_target():
    return load_model(EMBEDDED_PAIR / "target", torch.float64)[0]


def assert_near_ties(case: Case, mode: str, layout: str) -> None:
    outputs, tokenizer = case.run(mode, layout), Engine(mode="autoregressive").tokenizer
    regrets = [
        regret(float64_target(), tokenizer.encode_chat(prompt), params, one.token_ids, output.token_ids)
        for prompt, params, one, output in zip(case.prompts, case.params, plain(case), outputs)
    ]
    differing = [value for value in regrets if value > 0]
    worst = f", largest regret {max(differing):.1e}" if differing else ""
    print(f"{summary(case, mode, layout, outputs)}, {len(differing)} differ by a near-tie{worst}")
    assert max(regrets) < NEAR_TIE


MATRIX = [(kind, mode, layout) for kind in SAMPLING for mode in ("sync", "async") for layout in LAYOUTS]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode", "layout"), MATRIX)
def test_float64_is_token_identical(kind, mode, layout):
    assert_identical(Case(kind, "float64", FULL), mode, layout)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode", "layout"), MATRIX)
def test_float32_differs_by_near_ties(kind, mode, layout):
    assert_near_ties(Case(kind, "float32", FULL), mode, layout)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", SAMPLING | HOT)
def test_a_few_problems_in_float64(kind, mode):
    assert_identical(Case(kind, "float64", 2), mode, "batch")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_few_problems_in_float32(mode):
    assert_near_ties(Case("hot", "float32", 6), mode, "shuffled")


def test_failure_36_the_drafter_is_worth_its_time():
    """A wrong mask, shift or head stays lossless and shows in nothing but tau, so tau has a floor."""
    case = Case("greedy", "float32", 8)
    outputs = case.run("async", "batch")
    emitted = sum(output.metrics.emitted for output in outputs)
    hits, misses = (sum(getattr(output.metrics, name) for output in outputs) for name in ("hits", "misses"))
    right = sum(check(problem.answer, output.text) for problem, output in zip(case.problems, outputs))
    print(f"{summary(case, 'async', 'batch', outputs)}, hits {hits} of {hits + misses}, {right} right")
    assert emitted / sum(output.metrics.rounds for output in outputs) > 8
    assert hits / (hits + misses) > 0.6
    assert right >= 6 and all(output.finish_reason == "stop" for output in outputs)
