"""Counters in device memory that every launch finds zero and leaves zero.

Teams of one launch count themselves off on them, so launches that may overlap must not share any: each stream has
its own, and each launch that is captured into a graph too, because graphs of one stream may be replayed on several.
Counters are cut from slabs that are zeroed once and kept for good, since graphs hold their addresses.
"""

from __future__ import annotations

import torch
from torch import Tensor

SLAB = 1 << 18  # counters, one MiB
AT_LEAST = 256  # requests a stream's counters are made for

_slabs: dict[torch.device, list[Tensor]] = {}
_used: dict[torch.device, int] = {}  # of the newest slab
_of_stream: dict[tuple[torch.device, int], Tensor] = {}


def arrivals(device: torch.device, stream: int, count: int) -> Tensor:
    """At least ``count`` counters for a launch on the current stream of ``device``."""
    if torch.cuda.is_current_stream_capturing():
        return _cut(device, count, capturing=True)
    found = _of_stream.get((device, stream))
    if found is None or found.shape[0] < count:
        found = _of_stream[device, stream] = _cut(device, max(count, AT_LEAST), capturing=False)
    return found


def _cut(device: torch.device, count: int, *, capturing: bool) -> Tensor:
    slabs = _slabs.setdefault(device, [])
    used = _used.get(device, 0)
    if not slabs or used + count > slabs[-1].shape[0]:
        if capturing:  # the graph's own memory, zeroed by a node of the graph in front of each launch
            return torch.zeros(count, dtype=torch.int32, device=device)
        slabs.append(torch.zeros(max(SLAB, count), dtype=torch.int32, device=device))
        torch.cuda.current_stream(device).synchronize()  # other streams use it too; once a quarter of a million
        used = 0
    _used[device] = used + count
    return slabs[-1][used : used + count]
