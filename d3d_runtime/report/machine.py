"""The machine a measurement belongs to. A number without it means nothing."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int  # that this process may use
    threads: int  # torch's, for one operator
    simd: str | None  # what the compiled kernels chose; None where they are not built
    gpu: str | None
    python: str
    torch: str

    def line(self) -> str:
        parts = [f"{self.cpu}, cores {self.cores}, threads {self.threads}"]
        if self.gpu is not None:
            parts.append(self.gpu)
        parts.append(f"kernels {self.simd}" if self.simd is not None else "reference kernels")
        return ", ".join([*parts, f"torch {self.torch}", f"Python {self.python}"])


def this_machine() -> Machine:
    import torch

    return Machine(
        cpu=cpu_name(),
        cores=available_cores(),
        threads=torch.get_num_threads(),
        simd=simd_level(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        python=platform.python_version(),
        torch=torch.__version__,
    )


def cpu_name() -> str:
    """The model name the kernel reports; the architecture where it reports none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or platform.machine()


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def simd_level() -> str | None:
    try:
        from d3d_kernels import _C
    except ImportError:
        return None
    return str(_C.simd_level())
