"""The gain model: how fast a mode should be, from the times of its parts.

    autoregressive round = T_v + T_s
    sync round           = T_d + T_v + T_s
    async round          = T_ov + T_s + (1 - h^B) T_d      a batch waits for its misses
    pingpong round       = 2 (T_ov + T_s)                  each half verifies once
    tokens per second    = B tau / round                   while the batch is full

T_v is one verification alone, T_d one draft alone, T_ov both at once, T_s the serial tail, h the share of
outcomes that were drafted ahead. A prediction beside a measurement tells which part to mend, and whether
one is missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from d3d_runtime.metrics import Metrics


@dataclass(frozen=True)
class RoundTimes:
    """T_d, T_v, T_ov and T_s: milliseconds of an average round."""

    draft_ms: float
    verify_ms: float
    overlap_ms: float
    tail_ms: float

    @staticmethod
    def average(metrics: Metrics) -> RoundTimes:
        """As measured: T_d is the drafting that was waited for, in `async` that of misses."""
        total = (metrics.draft_ms, metrics.verify_ms, metrics.overlap_ms, metrics.tail_ms)
        return RoundTimes(*(milliseconds / metrics.rounds for milliseconds in total))


def round_ms(mode: str, times: RoundTimes, hit_rate: float, batch: int) -> float:
    """A round of `batch` requests; `times.draft_ms` is one draft alone."""
    if mode == "async":
        return times.overlap_ms + times.tail_ms + (1 - hit_rate**batch) * times.draft_ms
    if mode == "pingpong":
        return 2 * (times.overlap_ms + times.tail_ms)
    return times.verify_ms + times.tail_ms + (times.draft_ms if mode == "sync" else 0.0)


def tokens_per_second(emitted: int, prefill_ms: float, rounds: int, round_ms: float) -> float:
    """Of a whole run: prefill, then `rounds` of the engine, which the requests of a batch share."""
    return emitted / (prefill_ms + rounds * round_ms) * 1e3
