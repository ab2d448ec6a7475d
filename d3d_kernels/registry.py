"""Which backend runs an op: one table, one switch.

reference   plain torch, any device: the specification
cpu         the compiled C++ library, CPU tensors
cuda        the compiled CUDA library, CUDA tensors
triton      Triton kernels, CUDA tensors

The default is the compiled library of the tensors' device, or the reference, with one warning, where it is
missing. ``D3D_BACKEND=name`` in the environment (read at import), ``set_backend(name)`` or ``backend=name``
in a call force one; a forced backend that cannot run is an error. An op that a backend does not have runs on
the reference, with one warning.
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
)
DEVICES = {"reference": ("cpu", "cuda"), "cpu": ("cpu",), "cuda": ("cuda",), "triton": ("cuda",)}
BACKENDS = tuple(DEVICES)

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
    return [name for name in BACKENDS if device_type in DEVICES[name] and not isinstance(load(name), Exception)]


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
        if device_type not in DEVICES[_known(forced)]:
            raise ValueError(f"backend: {forced!r} cannot run on {device_type} tensors")
        module = load(forced)
        if isinstance(module, ImportError):
            raise RuntimeError(f"backend {forced!r} is not available: {module}") from module
        return _function(op, forced, module)
    native = "cuda" if device_type == "cuda" else "cpu"
    module = load(native) if device_type in DEVICES[native] else ImportError("no compiled library for this device")
    if isinstance(module, ImportError):
        _warn_once(f"d3d_kernels runs {device_type} tensors on the slow reference backend: {module}")
        return _function(op, "reference", load("reference"))
    return _function(op, native, module)


def _function(op: str, name: str, module: ModuleType | object) -> Callable:
    function = getattr(module, op, None)
    if function is None:
        if name == "reference":
            raise KeyError(f"no backend has an op named {op!r}")
        _warn_once(f"d3d_kernels: backend {name!r} has no {op}; the reference runs it")
        return _function(op, "reference", load("reference"))
    return function


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=5)


def _known(name: str) -> str:
    if name not in DEVICES:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {name!r}")
    return name


set_backend(os.environ.get("D3D_BACKEND") or None)
