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
from unittest import mock

import torch
from torch import Tensor

from d3d_kernels import cpu

VOCAB = 151_936
FLUSH_BYTES = 64 << 20  # more than the last-level caches of usual machines
PAIRS = 7
CALLS = 100  # of a structural op in a row, which no cold cache could tell from the interpreter's own misses


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
    calls: int = 1,
) -> None:
    """Measures one row. moved: bytes that have to be read or written; ceiling: bytes/s, None for what has no floor.

    calls: how many are timed in a row, with a warm cache if several.
    """
    prepare = flush_cache if calls == 1 else lambda: None
    ours()
    peer()
    ratios = []
    for _ in range(PAIRS):
        prepare()
        mine = _seconds(ours, calls)
        prepare()
        ratios.append(_seconds(peer, calls) / mine)
    benchmark.pedantic(ours, setup=prepare if calls == 1 else None, rounds=PAIRS, iterations=calls)
    median = benchmark.stats.stats.median
    benchmark.extra_info |= {
        "bytes": moved,
        "GB/s": moved / median / 1e9,
        "share of ceiling": moved / median / ceiling if ceiling else None,
        "peer": peer_name,
        "times faster": statistics.median(ratios),
        "times faster, range": (min(ratios), max(ratios)),
    }


def c_abi(run: Callable[[], object]) -> Callable[[], object]:
    """The one C call that ``run`` ends in, with the same addresses; outputs must be the caller's."""
    found = []

    class Recorder:
        def __getattr__(self, name: str) -> Callable:
            return lambda *arguments: found.append((name, arguments))

    with mock.patch.object(cpu.BACKEND, "library", Recorder()):
        run()
    ((name, arguments),) = found
    function = getattr(cpu.BACKEND.library, name)
    return lambda: function(*arguments)


def _seconds(work: Callable[[], object], calls: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - began
