"""Compiles programs and kernels for tests: g++ alone, and every object kept by its content in build/proof.

No CMake, so that a test can build from a changed copy of ``csrc`` in seconds: what the change does not reach
has the same content and is there already.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "proof"
PROGRAMS = Path(__file__).parent
_locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)  # one thread makes a file, others wait
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

# As in CMakeLists.txt, but for one instruction set and without warnings, which are the real build's business.
FLAGS = ("-std=c++20", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
ROWS = ("-DD3D_TARGET=baseline", "-DD3D_ROWS=kRowsBaseline")

PLAIN = ("-O0",)  # correct is enough, and it compiles twice as fast
THREAD = ("-O1", "-g1", "-fsanitize=thread")
# With optimisation, null checks and inlined tests the row kernels take minutes to compile.
ADDRESS = (
    "-O0",
    "-g1",
    "-fsanitize=address,undefined",
    "-fno-sanitize=null,object-size",
    "-fno-sanitize-recover=all",
    "--param=asan-instrumentation-with-call-threshold=0",
)


@functools.cache
def compiler() -> str | None:
    """g++ and its version, or nothing."""
    if shutil.which("g++") is None:
        return None
    return subprocess.run(["g++", "--version"], capture_output=True, text=True).stdout.splitlines()[0]


class CompileError(RuntimeError):
    """What the compiler said."""


@dataclass(frozen=True)
class Toolchain:
    """Builds from one tree of sources."""

    csrc: Path = ROOT / "csrc"

    def program(self, name: str, flags: tuple[str, ...], library: list[Path]) -> Path:
        """``tests/native/<name>.cpp``, linked with the objects."""
        objects = [self.object(PROGRAMS / f"{name}.cpp", flags), *library]
        return self._link(name, objects, flags)

    def library(self, flags: tuple[str, ...] = PLAIN, rows: tuple[str, ...] | None = None) -> list[Path]:
        """The CPU library with baseline row kernels; those can have flags of their own."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(
                pool.map(
                    lambda source: self.object(source, (rows or flags) + ROWS if source.stem == "rows" else flags),
                    sorted((self.csrc / "cpu").glob("*.cpp"), key=lambda source: source.stem != "rows"),
                )
            )

    def extension(self) -> Path:
        """``d3d_kernels/_C``."""
        import pybind11

        python = (
            "-fvisibility=hidden",
            *(f"-I{path}" for path in {sysconfig.get_path("include"), pybind11.get_include()}),
        )
        objects = [self.object(self.csrc / "bindings.cpp", PLAIN + python), *self.library()]
        return self._link("_C" + sysconfig.get_config_var("EXT_SUFFIX"), objects, (*PLAIN, "-shared"))

    def object(self, source: Path, flags: tuple[str, ...]) -> Path:
        """One translation unit; found in the cache if nothing that it includes has changed."""
        content = hashlib.sha256(repr((compiler(), flags)).encode())
        for path in self._included(source):
            content.update(path.read_bytes())
        target = CACHE / f"{source.stem}-{content.hexdigest()[:24]}.o"
        return self._make(target, [*FLAGS, *flags, *(f"-I{path}" for path in self._roots), "-c", str(source)])

    @property
    def _roots(self) -> tuple[Path, Path]:
        return self.csrc / "include", self.csrc

    def _included(self, source: Path) -> list[Path]:
        """The source and the files of this project that it includes, directly or not."""
        found = {source: None}
        self._follow(source, found)
        return list(found)

    def _follow(self, path: Path, found: dict[Path, None]) -> None:
        for name in _includes(path, path.stat().st_mtime_ns):
            included = next((root / name for root in (path.parent, *self._roots) if (root / name).is_file()), None)
            if included and included not in found:
                found[included] = None
                self._follow(included, found)

    def _link(self, name: str, objects: list[Path], flags: tuple[str, ...]) -> Path:
        content = hashlib.sha256(repr((name, flags, [path.name for path in objects])).encode()).hexdigest()[:24]
        target = CACHE / content / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return self._make(target, [*FLAGS, *flags, *map(str, objects)])

    @staticmethod
    def _make(target: Path, arguments: list[str]) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locks[target]:
            if target.exists():
                return target
            # Another process may make the same file: each writes its own and moves it into place.
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                made = Path(folder) / target.name
                run = subprocess.run(["g++", *arguments, "-o", str(made)], capture_output=True, text=True)
                if run.returncode != 0:
                    raise CompileError(f"g++ {' '.join(arguments)}\n{run.stderr[-4000:]}")
                os.replace(made, target)
        return target


@functools.cache
def _includes(path: Path, _changed: int) -> list[str]:
    return INCLUDE.findall(path.read_text())
