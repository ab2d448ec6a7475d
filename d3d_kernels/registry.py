"""Which backend runs an op: one table, one switch.

reference   plain torch, any device: the specification
cpu         the compiled C++ library, CPU tensors
cuda        the compiled CUDA library, CUDA tensors
triton      Triton kernels, CUDA tensors; under TRITON_INTERPRET=1 CPU tensors instead, for tests

The default is the compiled library of the tensors' device; for CUDA tensors, where it is not built or lacks the
op, Triton; else the reference, with one warning. ``D3D_BACKEND=name`` in the environment (read at import),
``set_backend(name)`` or ``backend=name`` in a call force one; a forced backend that cannot run is an error. An op
that a forced backend does not have runs on the reference, with one warning. Nothing is imported before it is
asked for.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType

import torch

OPS = (
    "sample",
    "draft_candidates",
    "build_tree",
    "draft_tree",
    "verify_tree",
    "verify_chain",
    "select_outcome",
    "frontier_inputs",
    "dense_mask",
    "packed_mask",
    "move_kv",
    "rollback_kv",
)
BACKENDS = ("reference", "cpu", "cuda", "triton")
PREFERRED = {"cpu": ("cpu",), "cuda": ("cuda", "triton")}  # before the reference

_kernels: dict[tuple[str, torch.device, str | None], Callable] = {}  # what kernel() has resolved so far
_forced: str | None = None


def set_backend(name: str | None) -> None:
    """Force one backend for every call without ``backend=``; None returns to the default choice."""
    global _forced
    _forced = None if name is None else _known(name)
    _kernels.clear()


def kernel(op: str, device: torch.device, backend: str | None) -> Callable:
    """The function that runs ``op`` on tensors of ``device``."""
    try:
        return _kernels[op, device, backend]
    except KeyError:
        found = _resolve(op, device.type, backend or _forced)
        _kernels[op, device, backend] = found
        return found


def available(device_type: str) -> list[str]:
    """Backends that can run on tensors of this device here."""
    return [name for name in BACKENDS if device_type in devices(name) and not isinstance(load(name), ImportError)]


def devices(name: str) -> tuple[str, ...]:
    """The types of devices whose tensors a backend takes."""
    if name == "reference":
        return "cpu", "cuda"
    if name == "triton":
        return ("cpu",) if os.environ.get("TRITON_INTERPRET") == "1" else ("cuda",)
    return (name,)


@cache
def load(name: str) -> ModuleType | object | ImportError:
    """What has the backend's functions: its module, or the BACKEND in there. Or why it cannot be imported."""
    try:
        module = importlib.import_module(f"d3d_kernels.{name}")
    except ImportError as error:
        return error
    return getattr(module, "BACKEND", module)


def _resolve(op: str, device_type: str, forced: str | None) -> Callable:
    if forced is not None:
        if device_type not in devices(_known(forced)):
            raise ValueError(f"backend: {forced!r} cannot run on {device_type} tensors")
        module = load(forced)
        if isinstance(module, ImportError):
            raise RuntimeError(f"backend {forced!r} is not available: {module}") from module
        return _function(op, forced, module)
    missing = []
    for name in PREFERRED.get(device_type, ()):
        module = load(name) if device_type in devices(name) else None
        if isinstance(module, ImportError):
            missing.append(str(module))
        elif hasattr(module, op):
            return getattr(module, op)
    if not missing:
        missing.append(f"no other has {op}")
    _warn_once(f"d3d_kernels runs {device_type} tensors on the slow reference backend: {'; '.join(missing)}")
    return _function(op, "reference", load("reference"))


def _function(op: str, name: str, module: ModuleType | object) -> Callable:
    function = getattr(module, op, None)
    if function is None:
        if name == "reference":
            raise KeyError(f"no backend has an op named {op!r}")
        return fall_back(op, name, op)
    return function


def fall_back(op: str, name: str, what: str) -> Callable:
    """The reference's ``op``, for ``what`` the backend ``name`` lacks of it; with one warning."""
    _warn_once(f"d3d_kernels: backend {name!r} has no {what}; the reference runs it")
    return _function(op, "reference", load("reference"))


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=5)


def _known(name: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {name!r}")
    return name


set_backend(os.environ.get("D3D_BACKEND") or None)
