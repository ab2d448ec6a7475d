"""What models and their KV will take, reckoned from the configs before anything is loaded, against what is free."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from d3d_runtime.errors import UserError
from d3d_runtime.models.config import ModelConfig

SHARE = 0.95  # of the free memory that may be used: allocators round up, and others live here too


@dataclass(frozen=True)
class Footprint:
    """Bytes of one model: its weights, and a token's keys and values."""

    weights: int
    token: int

    @classmethod
    def of(cls, config: ModelConfig, dtype: torch.dtype, int8_weights: bool = False) -> Footprint:
        row = 2 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers
        return cls(config.parameters() * (1 if int8_weights else dtype.itemsize), row * dtype.itemsize)


def affordable_tokens(
    models: dict[str, Footprint], workspace: int, wanted: int, required: int, device: torch.device, dtype: torch.dtype
) -> int:
    """Tokens of KV that each model's pool may hold: `wanted`, or as many as there is memory for.

    models: by role. workspace: bytes besides weights and KV. Raises UserError if not even `required` fit.
    """
    free = free_bytes(device)
    token, fixed = sum(model.token for model in models.values()), workspace
    fixed += sum(model.weights for model in models.values())
    if free is None or fixed + wanted * token <= free * SHARE:
        return wanted
    fitting = int((free * SHARE - fixed) // token)
    if fitting >= required:
        return fitting
    parts = [f"{role} {_gigabytes(model.weights)}" for role, model in models.items()]
    parts.append(f"KV of {required} tokens {_gigabytes(required * token)}")
    need = f"{' + '.join(parts)} need {_gigabytes(fixed + required * token)} in {str(dtype).removeprefix('torch.')}"
    raise UserError(
        f"memory: {need}; {device.type} has {_gigabytes(free)} free; use a narrower dtype, weights='int8', fewer "
        f"num_pages, a smaller max_batch_size, or drafter='none'"
    )


def free_bytes(device: torch.device) -> int | None:
    """None where nothing tells."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    known = [size for size in (_available(), _left_in_group()) if size is not None]
    return min(known) if known else None


def _available() -> int | None:
    """What Linux could give without swapping; elsewhere the pages that are free."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _left_in_group(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What a container's limit leaves; files that are only cached there can go."""
    try:
        limit, used = ((root / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        cached = (root / "memory.stat").read_text(encoding="ascii").split()
        return int(limit) - int(used) + int(cached[cached.index("inactive_file") + 1])
    except (OSError, ValueError):  # no group, or no limit: "max"
        return None


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 5e7 else f"{size / 1e6:.1f} MB"
