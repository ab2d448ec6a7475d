"""Choosing a backend: the default, the switch, the fallbacks and their one warning."""

from __future__ import annotations

import os
import subprocess
import sys
import types
import warnings

import pytest
import torch

import d3d_kernels as dk
from d3d_kernels import registry

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh_registry():
    registry.set_backend(None)
    registry._warn_once.cache_clear()
    yield
    registry.set_backend(None)
    registry.load.cache_clear()
    registry._warn_once.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, **modules: object) -> None:
    """Replace what ``load`` finds for some backends."""
    real = registry.load
    monkeypatch.setattr(registry, "load", lambda name: modules.get(name) or real(name))


def test_the_compiled_library_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> None: ...

    pretend(monkeypatch, cpu=types.SimpleNamespace(sample=compiled))
    assert registry.kernel("sample", CPU, None) is compiled


def test_a_missing_library_falls_back_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cpu=ImportError("not built"))
    with pytest.warns(RuntimeWarning, match="slow reference backend: not built"):
        sample = registry.kernel("sample", CPU, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.kernel("verify_tree", CPU, None)
    assert sample is registry.load("reference").sample


def test_a_forced_backend_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cpu=ImportError("not built"))
    with pytest.raises(RuntimeError, match="'cpu' is not available: not built"):
        registry.kernel("sample", CPU, "cpu")


def test_an_op_that_a_backend_lacks_runs_on_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    pretend(monkeypatch, triton=types.SimpleNamespace())
    with pytest.warns(RuntimeWarning, match="'triton' has no build_tree"):
        found = registry.kernel("build_tree", torch.device("cuda"), "triton")
    assert found is registry.load("reference").build_tree


def test_cuda_tensors_run_on_cuda_then_triton_then_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> None: ...

    def tiled() -> None: ...

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    gpu = torch.device("cuda")
    kernels = types.SimpleNamespace(sample=tiled, verify_tree=tiled)
    pretend(monkeypatch, cuda=types.SimpleNamespace(sample=compiled), triton=kernels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.kernel("sample", gpu, None) is compiled
        assert registry.kernel("verify_tree", gpu, None) is tiled
    pretend(monkeypatch, cuda=ImportError("not built"), triton=kernels)
    registry.set_backend(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.kernel("sample", gpu, None) is tiled
    with pytest.warns(RuntimeWarning, match="cuda tensors on the slow reference backend: not built"):
        assert registry.kernel("build_tree", gpu, None) is registry.load("reference").build_tree
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.kernel("select_outcome", gpu, None)


def test_triton_takes_cpu_tensors_only_under_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiled() -> None: ...

    pretend(monkeypatch, triton=types.SimpleNamespace(sample=tiled))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert registry.devices("triton") == ("cuda",)
    with pytest.raises(ValueError, match="'triton' cannot run on cpu tensors"):
        registry.kernel("sample", CPU, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert registry.devices("triton") == ("cpu",)
    assert registry.kernel("sample", CPU, "triton") is tiled
    assert registry.kernel("sample", CPU, None) is not tiled


def test_set_backend_forces_every_call_but_those_that_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> None: ...

    pretend(monkeypatch, cpu=types.SimpleNamespace(sample=compiled))
    dk.set_backend("reference")
    assert registry.kernel("sample", CPU, None) is registry.load("reference").sample
    assert registry.kernel("sample", CPU, "cpu") is compiled
    with pytest.raises(ValueError, match="backend: expected one of"):
        dk.set_backend("metal")


def test_the_environment_forces_a_backend() -> None:
    program = "import d3d_kernels.registry as r; assert r._forced == 'reference'"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "D3D_BACKEND": "reference"}, check=True)


def test_every_backend_has_every_op() -> None:
    """The reference always; the compiled CPU library because it is a product of its own."""
    for name in ("reference", "cpu"):
        module = registry.load(name)
        assert not isinstance(module, ImportError), module
        assert [op for op in registry.OPS if not hasattr(module, op)] == []
