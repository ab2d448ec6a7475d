"""Which device a name means, and what a device says when it cannot: one line, with the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from d3d_runtime.errors import UserError

# What torch calls memory that is not there: on a CPU a plain RuntimeError, known by its text alone.
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "invalid storage size")


def parse_device(name: str, value: str) -> torch.device:
    """The device of argument `name`. Raises UserError if it is not one, or not here."""
    try:
        device = torch.device(value)
    except RuntimeError:
        raise UserError(f"{name}: expected 'cpu' or 'cuda', got {value!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"{name}: expected 'cpu' or 'cuda', got {value!r}")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(f"{name}: {value!r} asked for, but no CUDA device is usable here (d3d doctor); use 'cpu'")
        if (device.index or 0) >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise UserError(f"{name}: there is no {value!r} here; the last one is 'cuda:{last}'")
    return device


@contextmanager
def device_errors(device: torch.device) -> Iterator[None]:
    """Turns a device that is busy or full into a UserError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _full(device) from error
    except RuntimeError as error:  # torch.AcceleratorError is one
        said = str(error).splitlines()[0] if str(error) else ""
        if any(words in said for words in OUT_OF_MEMORY):
            raise _full(device) from error
        if "busy or unavailable" in said:
            raise UserError(
                f"device: {str(device)!r} is busy, another process holds it; wait, or use another device"
            ) from error
        raise


def _full(device: torch.device) -> UserError:
    return UserError(
        f"device: {str(device)!r} has not enough free memory; close what else runs there, "
        "or lower max_batch_size or num_pages, or use dtype='bfloat16'"
    )
