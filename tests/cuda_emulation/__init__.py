"""csrc/cuda compiled for the CPU by the headers of this folder, as a backend that takes CPU tensors."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType

import pybind11
import torch

import d3d_kernels
from d3d_kernels import registry
from d3d_kernels.compiled import Compiled

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = [*sorted((ROOT / "csrc/cuda").glob("*.cu")), ROOT / "csrc/cuda/bindings.cpp", ROOT / "csrc/cpu/error.cpp"]
COMPILER = shutil.which(os.environ.get("CXX", "g++"))
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra",
         "-Werror", "-Wno-unknown-pragmas")  # fmt: skip


@cache
def library() -> Path:
    """The compiled module; made once for each state of the sources."""
    headers = [*HERE.glob("*.h"), *(ROOT / "csrc").rglob("*.h"), *(ROOT / "csrc/cuda").glob("*.cuh")]
    state = hashlib.sha256(repr((COMPILER, FLAGS, sys.version)).encode())
    for path in sorted([*headers, *SOURCES]):
        state.update(path.read_bytes())
    folder = ROOT / "build" / "cuda-emulation"
    target = folder / f"{state.hexdigest()[:16]}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not target.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda source: _compile(source, folder), SOURCES))
        _run(COMPILER, "-shared", "-o", target, *objects)
    return target


def _compile(source: Path, folder: Path) -> Path:
    target = folder / f"{source.name}.o"
    includes = (HERE, ROOT / "csrc/include", ROOT / "csrc", pybind11.get_include(), sysconfig.get_path("include"))
    emulate = ("-include", HERE / "cuda_runtime.h", "-x", "c++") if source.suffix == ".cu" else ()
    _run(COMPILER, *FLAGS, *(f"-I{path}" for path in includes), *emulate, "-c", source, "-o", target)
    return target


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr}")


@cache
def backend(multiprocessors: int, clusters: bool) -> Compiled:
    """The CUDA backend over a library of its own that believes in such a device."""
    # A device is asked about once, so each kind has a copy of the library.
    name = f"{multiprocessors}_{int(clusters)}"
    copy = library().with_name(f"{name}_{library().name}")
    shutil.copy(library(), copy)
    compiled = _import("d3d_kernels._cuda", copy)
    before = sys.modules.get("d3d_kernels._cuda")
    sys.modules["d3d_kernels._cuda"] = compiled  # where there is no CUDA library
    module = _import(f"d3d_kernels.cuda_emulation_{name}", Path(d3d_kernels.__file__).with_name("cuda.py"))
    del sys.modules["d3d_kernels._cuda"]
    if before:
        sys.modules["d3d_kernels._cuda"] = before
    counters = torch.zeros(1 << 12, dtype=torch.int32)
    found = module.Cuda(compiled)
    found._on, found._stream = lambda device: nullcontext(), lambda: 0
    found._arrivals = lambda device, stream, count: counters
    with _environment(D3D_EMULATED_MULTIPROCESSORS=multiprocessors, D3D_EMULATED_CLUSTERS=int(clusters)):
        compiled.sample_workspace_bytes(1, 1, 0, True)  # asks now
    return found


@contextmanager
def registered(name: str, found: Compiled):
    """While this lasts, ``backend=name`` runs it on CPU tensors."""
    load, devices, backends = registry.load, registry.devices, registry.BACKENDS
    registry.BACKENDS = (*backends, name)
    registry.devices = lambda wanted: ("cpu",) if wanted == name else devices(wanted)
    registry.load = lambda wanted: found if wanted == name else load(wanted)
    registry._kernels.clear()
    try:
        yield
    finally:
        registry.load, registry.devices, registry.BACKENDS = load, devices, backends
        registry._kernels.clear()


def _import(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _environment(**values: object):
    before = {key: os.environ.get(key) for key in values}
    os.environ.update({key: str(value) for key, value in values.items()})
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
