"""From what the contenders did to the rows of a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from d3d_runtime.policy import Estimate
from d3d_runtime.report.compare import BASELINE, Contender, Task, differences, repeatable, solved
from d3d_runtime.report.machine import Machine
from d3d_runtime.report.prediction import RoundTimes, round_ms, tokens_per_second


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        return Spread(median(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """One contender, over all its repeats.

    speedup is against the baseline of the same repeat. round_ms and times are measured, predicted_* is what
    the gain model makes of them. hit_rate is None where nothing is drafted ahead. first_difference: (request,
    token) of the first output that is not the baseline's.
    """

    name: str
    mode: str
    num_nodes: int
    num_outcomes: int
    tokens_per_second: Spread
    speedup: Spread
    predicted_speedup: float | None  # `auto` changes between modes: no one formula is its own
    tau: float
    acceptance_histogram: dict[int, int]
    hit_rate: float | None
    times: RoundTimes
    round_ms: float
    predicted_round_ms: float | None
    outputs: int
    identical: int
    first_difference: tuple[int, int] | None
    repeatable: bool
    solved: int


@dataclass(frozen=True)
class Report:
    machine: Machine
    date: str
    command: str
    dtype: str
    temperature: float
    batch: int
    repeats: int
    rows: list[Row]
    estimates: list[Estimate]  # what `auto` knows in the end

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def make_rows(contenders: list[Contender], tasks: list[Task], batch: int) -> list[Row]:
    """A row each, in order; the baseline must be among them."""
    baseline = next(contender for contender in contenders if contender.mode == BASELINE)
    return [
        _row(contender, baseline, _draft_alone(contender, contenders), tasks, batch)
        for contender in contenders
    ]


def _draft_alone(contender: Contender, contenders: list[Contender]) -> float:
    """T_d, a draft that nothing overlaps: from `sync`, or else from the contender's own misses."""
    sync = [other for other in contenders if other.mode == "sync"]
    same = [other for other in sync if other.engine.num_nodes == contender.engine.num_nodes]
    metrics = (same or sync or [contender])[0].metrics()
    drafts = metrics.rounds if sync else metrics.misses
    return metrics.draft_ms / drafts if drafts else 0.0


def _row(
    contender: Contender, baseline: Contender, draft_alone_ms: float, tasks: list[Task], batch: int
) -> Row:
    engine, metrics, speeds = contender.engine, contender.metrics(), contender.speeds()
    decode_ms = contender.seconds() * 1e3 - metrics.prefill_ms
    times = RoundTimes.average(metrics)
    alone = replace(times, draft_ms=draft_alone_ms)
    predicted_ms = predicted = None
    if contender.mode != "auto":
        predicted_ms = round_ms(contender.mode, alone, metrics.hit_rate, batch)
        predicted = tokens_per_second(metrics.emitted, metrics.prefill_ms, contender.rounds(), predicted_ms)
        predicted *= baseline.seconds() / baseline.metrics().emitted
    unlike = differences(contender, baseline)
    return Row(
        name=contender.name,
        mode=contender.mode,
        num_nodes=engine.num_nodes,
        num_outcomes=engine.num_outcomes,
        tokens_per_second=Spread.of(speeds),
        speedup=Spread.of([ours / plain for ours, plain in zip(speeds, baseline.speeds(), strict=True)]),
        predicted_speedup=predicted,
        tau=metrics.tau,
        acceptance_histogram=dict(sorted(metrics.acceptance_histogram.items())),
        hit_rate=metrics.hit_rate if metrics.hits + metrics.misses else None,
        times=times,
        round_ms=decode_ms / contender.rounds(),
        predicted_round_ms=predicted_ms,
        outputs=len(tasks),
        identical=len(tasks) - len(unlike),
        first_difference=unlike[0] if unlike else None,
        repeatable=repeatable(contender),
        solved=solved(contender, tasks),
    )
