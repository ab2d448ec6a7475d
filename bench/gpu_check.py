"""Everything that needs a GPU, in one call: ``python -m bench.gpu_check``.

Runs the tests marked `gpu` (parity on every backend, graphs, repeats, streams, compute-sanitizer), then the
microbenchmarks, and writes bench/results/gpu_<device>.json and .md. Exit codes: 0 all well, 1 a test failed, 2 no GPU.
Takes at most six minutes: the tests get four, and rows are measured until the time is up.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from d3d_kernels import registry

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
SECONDS = 345
TEST_SECONDS = 240


def main() -> int:
    if not torch.cuda.is_available():
        print("gpu_check: no CUDA device here, nothing was checked")
        return 2
    began = time.monotonic()
    name = torch.cuda.get_device_name()
    backends = [b for b in registry.available("cuda") if b != "reference"]
    print(f"{name}, torch {torch.__version__}, backends: {', '.join(backends) or 'none'}", flush=True)
    passed, summary = run_tests()
    copy, rows, skipped = run_benchmarks(began + SECONDS)
    write(name, summary, copy, rows, skipped)
    return 0 if passed else 1


def run_tests() -> tuple[bool, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu", "tests/kernels"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TEST_SECONDS)
    except subprocess.TimeoutExpired as error:
        print((error.stdout or b"").decode()[-3000:])
        return False, f"tests: not done after {TEST_SECONDS} s"
    print(done.stdout[-6000:], flush=True)
    lines = done.stdout.strip().splitlines()
    return done.returncode == 0, f"tests: {lines[-1].strip('= ') if lines else done.stderr[-500:]}"


def run_benchmarks(until: float):
    from bench import gpu_rows

    copy = gpu_rows.copy_bandwidth()
    print(f"copy bandwidth {copy / 1e9:.0f} GB/s", flush=True)
    measured, skipped = [], 0
    for row, make in gpu_rows.rows():
        if time.monotonic() > until:
            skipped += 1
            continue
        measured.append(gpu_rows.measure(row, make))
        torch.cuda.empty_cache()
    return copy, measured, skipped


def write(name: str, summary: str, copy: float, rows: list, skipped: int) -> None:
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"gpu_{re.sub('[^a-z0-9]+', '_', name.lower()).strip('_')}"
    record = {
        "device": name,
        "torch": torch.__version__,
        "tests": summary,
        "copy bytes/s": copy,
        "rows": [asdict(row) for row in rows],
        "rows left out": skipped,
    }
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    table = [
        f"# {name}",
        "",
        f"torch {torch.__version__}; copy {copy / 1e9:.0f} GB/s (measured). {summary}.",
        f"{skipped} rows were left out for time.",
        "A call in a CUDA graph, median of 7 replays; `warm`: its data fits the L2 cache.",
        "",
        "| op | backend | B | case | us | GB/s | of copy |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rate = row.bandwidth()
        numbers = f"{rate / 1e9:.0f} | {rate / copy:.0%}" if row.moved else "- | -"
        case = row.case if row.cold or not row.moved else f"{row.case} (warm)"
        table.append(f"| {row.op} | {row.backend} | {row.batch} | {case} | {row.microseconds:.2f} | {numbers} |")
    stem.with_suffix(".md").write_text("\n".join(table) + "\n")
    print("\n".join(table))


if __name__ == "__main__":
    sys.exit(main())
