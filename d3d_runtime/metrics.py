"""What a request and a round measured about themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields


@dataclass
class Metrics:
    """Counts and times of one request. Only emitted tokens count; a round's times are those of its whole batch.

    reused: prompt tokens whose KV in the target's cache an earlier request left. prefill_ms: reading the others.
    rounds: target forwards that emitted tokens (prefill is not one). acceptance_histogram[a]: rounds that emitted
    a + 1 tokens. hits, misses: rounds whose outcome was, or was not, among those drafted ahead.
    draft_ms: drafting that the request waited for (T_d). verify_ms: the target's forward, verdict and rollback (T_v;
    in overlapped rounds it includes what the overlap costs). overlap_ms: the overlapped stretch, until both lanes are
    done (T_ov). tail_ms: all else in the round (T_s): trees, selection, stop conditions, bookkeeping.
    """

    rounds: int = 0
    emitted: int = 0
    acceptance_histogram: Counter[int] = field(default_factory=Counter)
    hits: int = 0
    misses: int = 0
    reused: int = 0
    prefill_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    overlap_ms: float = 0.0
    tail_ms: float = 0.0

    @property
    def tau(self) -> float:
        """Emitted tokens per target forward, bonus included."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def hit_rate(self) -> float:
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    def add_round(self, emitted: int, times: RoundTimes) -> None:
        self.rounds += 1
        self.emitted += emitted
        self.acceptance_histogram[emitted - 1] += 1
        self.draft_ms += times.draft_ms
        self.verify_ms += times.verify_ms
        self.overlap_ms += times.overlap_ms
        self.tail_ms += times.tail_ms


@dataclass
class RoundTimes:
    """Milliseconds of one round; see Metrics."""

    draft_ms: float = 0.0
    verify_ms: float = 0.0
    overlap_ms: float = 0.0
    tail_ms: float = 0.0


def total(metrics: Iterable[Metrics]) -> Metrics:
    """Counts and times of several requests, added up."""
    result = Metrics()
    for each in metrics:
        for name in (part.name for part in fields(Metrics)):
            setattr(result, name, getattr(result, name) + getattr(each, name))
    return result
