"""A request's life: its tokens, what has been computed for them, and when it ends."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from d3d_runtime.detokenizer import Detokenizer
from d3d_runtime.metrics import Metrics
from d3d_runtime.sampling_params import SamplingParams

if TYPE_CHECKING:
    from d3d_runtime.prefix import Prefix


@dataclass(frozen=True)
class TokenLogprob:
    """log p of the emitted token (temperature 1, no filters), and of the best tokens at its place."""

    token_id: int
    logprob: float
    top: dict[int, float]


@dataclass(frozen=True)
class RequestOutput:
    """What a request returns. While it streams, `finish_reason` is None and `text`, `token_ids` are the increment."""

    request_id: str
    text: str | None
    token_ids: list[int]
    finish_reason: str | None
    seed: int
    logprobs: list[TokenLogprob] | None
    metrics: Metrics


@dataclass(eq=False)
class Request:
    """tokens = prompt + output; the last one is the root, whose KV is not yet in the target's cache."""

    request_id: str
    tokens: list[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    max_tokens: int
    detokenizer: Detokenizer | None
    prompt_length: int = field(init=False)
    seed: int = field(init=False)
    metrics: Metrics = field(default_factory=Metrics)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    target_pages: list[int] = field(default_factory=list)
    drafter_pages: list[int] = field(default_factory=list)
    prefix: Prefix | None = None  # where the pages come from, and where they go at the end
    target_length: int = 0  # tokens whose KV is in the target's cache: all but the root, once the prompt is read
    drafter_length: int = 0  # tokens whose clean KV is in the drafter's cache
    draft: tuple[Tensor, Tensor] | None = None  # candidate ids and scores [L, K], when drafted ahead
    streamed: int = 0  # tokens already handed to a stream

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.seed = self.params.seed if self.params.seed is not None else secrets.randbits(63)
        self.params = self.params.with_seed(self.seed)

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def pages(self) -> tuple[list[int], list[int]]:
        return self.target_pages, self.drafter_pages

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def commit(self, token_ids: list[int]) -> int:
        """Appends tokens up to the first stop condition and returns how many were kept; sets `finish_reason` there."""
        for count, token in enumerate(token_ids, start=1):
            self.target_length = len(self.tokens)  # the root, and what was accepted behind it
            self.tokens.append(token)
            if self.detokenizer is not None:
                self.detokenizer.append(token)
            if token in self.stop_ids or (self.detokenizer is not None and self.detokenizer.stopped):
                self.finish_reason = "stop"
            elif len(self.tokens) - self.prompt_length >= self.max_tokens:
                self.finish_reason = "length"
            if self.finished:
                return count
        return len(token_ids)

    def output(self) -> RequestOutput:
        """The whole result. Text holds no special tokens and ends before a stop string."""
        text = self.detokenizer.finish() if self.detokenizer is not None else None
        logprobs = self.logprobs if self.params.logprobs is not None else None
        return RequestOutput(
            self.request_id, text, self.output_ids, self.finish_reason, self.seed, logprobs, self.metrics
        )

    def increment(self) -> RequestOutput:
        """What is new since the last increment; text that may still become a stop string is held back."""
        begin, self.streamed = self.prompt_length + self.streamed, len(self.tokens) - self.prompt_length
        text = self.detokenizer.take(flush=self.finished) if self.detokenizer is not None else None
        logprobs = self.logprobs[begin - self.prompt_length :] if self.params.logprobs is not None else None
        return RequestOutput(
            self.request_id, text, self.tokens[begin:], self.finish_reason, self.seed, logprobs, self.metrics
        )
