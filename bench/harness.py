"""What every row of the microbenchmarks reports, and how it is measured.

A row runs an op and what people use today (its *peer*, the torch composition) in turn, each on a cold cache, and
reports the median time, bytes that have to move, GB/s, the share of this machine's measured bandwidth, and the median
of the pairwise ratios with their spread. Ratios are from one run on one machine; times on shared machines are not
comparable between runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

VOCAB = 151_936
FLUSH_BYTES = 64 << 20  # more than the last-level caches of usual machines
PAIRS = 7


@cache
def _flush_buffer() -> Tensor:
    return torch.zeros(FLUSH_BYTES // 4)


def flush_cache() -> None:
    _flush_buffer().add_(1.0)


@cache
def read_bandwidth() -> float:
    """Bytes/s of the fastest of several full reads of 256 MB on torch's threads."""
    data = torch.ones(64 << 20)
    return data.nbytes / min(_seconds(lambda: data.view(torch.int32).max()) for _ in range(7))


@cache
def copy_bandwidth() -> float:
    """Bytes/s, read and written, of the fastest of several copies of 128 MB."""
    source, target = torch.ones(32 << 20), torch.empty(32 << 20)
    return 2 * source.nbytes / min(_seconds(lambda: target.copy_(source)) for _ in range(7))


def compare(
    benchmark,
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    peer_name: str,
    moved: int,
    ceiling: float | None = None,
) -> None:
    """Measures one row. moved: bytes that have to be read or written; ceiling: bytes/s, None for what has no floor."""
    ours()
    peer()
    ratios = []
    for _ in range(PAIRS):
        flush_cache()
        mine = _seconds(ours)
        flush_cache()
        ratios.append(_seconds(peer) / mine)
    benchmark.pedantic(ours, setup=flush_cache, rounds=PAIRS, iterations=1)
    median = benchmark.stats.stats.median
    benchmark.extra_info |= {
        "bytes": moved,
        "GB/s": moved / median / 1e9,
        "share of ceiling": moved / median / ceiling if ceiling else None,
        "peer": peer_name,
        "times faster": statistics.median(ratios),
        "times faster, range": (min(ratios), max(ratios)),
    }


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
