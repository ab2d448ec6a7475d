"""Compiles the kernels with CMake. Everything else about the package is in pyproject.toml.

D3D_CUDA=0 leaves the CUDA library out, D3D_CUDA=1 insists on it; otherwise it is built where nvcc is found.
D3D_WERROR=1 makes warnings errors, as CI does.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Builds the modules of d3d_kernels and puts them where setuptools wants them: wheel or source tree."""

    def run(self) -> None:
        check_compiler()
        build = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        modules = [build / Path(self.get_ext_filename(e.name)).name for e in self.extensions]
        for module in modules:
            module.unlink(missing_ok=True)  # _cuda of an earlier build, if this one leaves it out
        self.spawn(["cmake", "-S", str(ROOT), "-B", str(build), *self.options()])
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        self.spawn(["cmake", "--build", str(build), "--parallel", jobs])
        for extension, module in zip(self.extensions, modules, strict=True):
            in_tree = ROOT / self.get_ext_filename(extension.name)
            target = in_tree if self.inplace else Path(self.get_ext_fullpath(extension.name))
            if not module.exists():
                target.unlink(missing_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            # A process may run the old module: replace the file, do not write into it.
            shutil.copy2(module, target.with_suffix(".new"))
            os.replace(target.with_suffix(".new"), target)

    def options(self) -> list[str]:
        import pybind11

        cuda = {"0": "OFF", "1": "ON", "": "AUTO"}.get(os.environ.get("D3D_CUDA", ""))
        if cuda is None:
            raise SystemExit(f"D3D_CUDA: expected 0 or 1, got {os.environ['D3D_CUDA']!r}")
        options = [
            "-DD3D_PYTHON=ON",
            f"-DD3D_CUDA={cuda}",
            f"-DD3D_WERROR={'ON' if os.environ.get('D3D_WERROR') == '1' else 'OFF'}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]
        # Paths of an isolated build environment end up in CMake's cache and are gone at the next build.
        ninja = shutil.which("ninja")
        return ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *options] if ninja else options

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if Path(path).exists()]


def check_compiler() -> None:
    """What a bare Debian lacks, in one line rather than in a page of CMake's."""
    if "CXX" not in os.environ and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise SystemExit("d3d: there is no C++ compiler; Debian, Ubuntu: sudo apt install g++")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise SystemExit(f"d3d: Python's headers are not in {headers}; Debian, Ubuntu: sudo apt install python3-dev")


setup(
    ext_modules=[Extension("d3d_kernels._C", []), Extension("d3d_kernels._cuda", [], optional=True)],
    cmdclass={"build_ext": CMakeBuild},
)
