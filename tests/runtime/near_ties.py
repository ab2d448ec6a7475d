"""Is a first difference between two outputs a matter of rounding? (design section 2)

In fp32 a forward of 16 tokens and one of a single token differ in the last bits, and a near-tie can flip. A
difference passes only if its *regret* is small: how much worse the chosen tokens are than the best of all, in
perturbed logits of the float64 model. Such cases are counted and printed, never retried.
"""

from __future__ import annotations

import math

import torch

import d3d_kernels as dk
from d3d_kernels.reference.vocab import read_rows
from d3d_runtime import SamplingParams
from d3d_runtime.models.attention import causal_attention
from d3d_runtime.models.decoder import Decoder

NEAR_TIE = 1e-4


def perturbed(model: Decoder, tokens: list[int], prompt_length: int, params: SamplingParams) -> torch.Tensor:
    """[V] the values whose argmax is the next token, from a dense forward in the dtype of the model."""
    ids = torch.tensor([tokens])
    hidden = model(ids, torch.arange(len(tokens))[None], causal_attention)
    penalties = dk.Penalties(
        prompt_ids=ids[:, :prompt_length].contiguous(),
        output_ids=ids[:, prompt_length:].contiguous(),
        presence=torch.tensor([params.presence_penalty]),
        frequency=torch.tensor([params.frequency_penalty]),
        repetition=torch.tensor([params.repetition_penalty]),
        bias_ids=torch.tensor([list(params.logit_bias) or [-1]]),
        bias_values=torch.tensor([list(params.logit_bias.values()) or [0.0]]),
    )
    sampling = dk.SamplingTensors.full(
        1,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
    )
    logits = model.logits(hidden[:, -1])
    return read_rows(logits, sampling, torch.tensor([len(tokens)]), None, penalties).perturbed[0]


def regret(
    model: Decoder, prompt: list[int], params: SamplingParams, one: list[int], other: list[int]
) -> float:
    """At the first difference: the best value less the worse of the two. 0: equal, infinite: one goes on."""
    same = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), None)
    if same is None:
        return 0.0 if len(one) == len(other) else math.inf
    values = perturbed(model, prompt + one[:same], len(prompt), params)
    return (values.max() - values[[one[same], other[same]]].min()).item()
