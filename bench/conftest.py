"""Fixtures and the table at the end of the run."""

from __future__ import annotations

import pytest
import torch

from bench.harness import copy_bandwidth, read_bandwidth


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter) -> None:
    session = getattr(terminalreporter.config, "_benchmarksession", None)
    rows = [b for b in getattr(session, "benchmarks", []) if "peer" in b.extra_info]
    if not rows:
        return
    write = terminalreporter.write_line
    write("")
    write(
        f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, "
        f"read {read_bandwidth() / 1e9:.1f} GB/s, copy {copy_bandwidth() / 1e9:.1f} GB/s (measured)"
    )
    write(f"{'row':58} {'median':>10} {'GB/s':>7} {'ceiling':>8} {'x faster (range)':>22}  peer")
    for row in rows:
        info = row.extra_info
        share = f"{info['share of ceiling']:.0%}" if info["share of ceiling"] else "-"
        low, high = info["times faster, range"]
        ratio = f"{info['times faster']:.2f} ({low:.2f} - {high:.2f})"
        median = row.stats.median * 1e6
        write(f"{row.name:58} {median:8.1f}us {info['GB/s']:7.2f} {share:>8} {ratio:>22}  {info['peer']}")
