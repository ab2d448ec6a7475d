"""What a user asks of one request."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from d3d_runtime.errors import UserError


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one request; a batch mixes any.

    Order of effects: penalties, `logit_bias`, temperature, top_k, top_p (over what top_k left, renormalised), min_p.
    temperature 0 is greedy. `seed` None draws one, which the output reports. Repetition penalty counts prompt and
    output, presence and frequency the output. A stop token stays in `token_ids`; a stop string is cut from `text`.
    `logprobs` = k reports the emitted token's log-probability under the model (temperature 1, no filters) and the k
    best beside it. `n` > 1 makes n outputs with seeds derived from `seed`.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", [self.stop])
        self._expect("max_tokens", _whole(self.max_tokens, 1), "at least 1")
        self._expect("temperature", _finite(self.temperature, 0), "a finite number, at least 0")
        self._expect("top_k", _whole(self.top_k, -1, 2**31 - 1), "an integer; 0 or -1 turns it off")
        self._expect("top_p", _finite(self.top_p, 0, 1) and self.top_p > 0, "above 0, at most 1; 1 turns it off")
        self._expect("min_p", _finite(self.min_p, 0, 1), "0 to 1; 0 turns it off")
        seed_fits = self.seed is None or _whole(self.seed, -(2**63), 2**64 - 1)
        self._expect("seed", seed_fits, "None or a 64-bit integer")
        self._expect("n", _whole(self.n, 1), "at least 1")
        stop_fits = _listed(self.stop) and all(isinstance(text, str) and text for text in self.stop)
        self._expect("stop", stop_fits, "strings that are not empty")
        ids_fit = _listed(self.stop_token_ids) and all(_whole(token, 0) for token in self.stop_token_ids)
        self._expect("stop_token_ids", ids_fit, "token ids")
        self._expect("logprobs", self.logprobs is None or _whole(self.logprobs, 0, 20), "None or 0 to 20")
        for name in ("presence_penalty", "frequency_penalty"):
            self._expect(name, _finite(getattr(self, name)), "a finite number; 0 turns it off")
        repetition_fits = _finite(self.repetition_penalty, 0) and self.repetition_penalty > 0
        self._expect("repetition_penalty", repetition_fits, "above 0; 1 turns it off")
        bias_fits = isinstance(self.logit_bias, dict) and all(
            _whole(token, 0) and isinstance(bias, int | float) and not math.isnan(bias)
            for token, bias in self.logit_bias.items()
        )
        self._expect("logit_bias", bias_fits, "a dict of token id to a number (-inf bans)")

    def _expect(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise UserError(f"{name}: expected {expected}, got {getattr(self, name)!r}")

    @property
    def has_penalties(self) -> bool:
        counted = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        return bool(counted or self.logit_bias)

    def with_seed(self, seed: int) -> SamplingParams:
        """The same parameters with a seed; 64-bit seeds of either sign name the same noise."""
        return replace(self, seed=seed - 2**64 if seed >= 2**63 else seed)


def _whole(value: object, low: int, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _finite(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and low <= value <= high


def _listed(value: object) -> bool:
    return isinstance(value, list | tuple)
