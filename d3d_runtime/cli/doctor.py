"""`d3d doctor`: can the main job run here, what is missing, and how to get it."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from d3d_runtime.cli.console import output, waiting
from d3d_runtime.cli.options import debug_option

EPILOG = """\b
Examples:
  d3d doctor
  d3d doctor --json | python3 -m json.tool

Exit code 0 only if the embedded pair answered a question here."""

OK, NOTE, BROKEN = "ok", "note", "broken"
STYLES = {OK: "green", NOTE: "yellow", BROKEN: "bold red"}

DISTRIBUTION = "d3d-engine"
REQUIRED = ("torch", "tokenizers", "safetensors", "jinja2", "click", "rich")
OPTIONAL = {
    "triton": "GPU kernels without a compiler: pip install triton",
    "matplotlib": "pictures of loss curves: pip install matplotlib",
}
GET_KERNELS = "install g++ (Debian, Ubuntu: apt install g++), then pip install -e . again"


@dataclass(frozen=True)
class Finding:
    """state: ok, note (the main job runs without it) or broken. remedy: how to get what is missing."""

    what: str
    state: str
    found: str
    remedy: str | None = None


@click.command("doctor", epilog=EPILOG, short_help="Check this machine and the installation.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(as_json: bool) -> int:
    """Check versions, kernels, processor, GPU and the embedded pair, and run it once."""
    findings = []
    for check in CHECKS:
        for finding in _guarded(check):
            findings.append(finding)
            if not as_json:
                _show(finding)
    healthy = all(finding.state != BROKEN for finding in findings)
    if as_json:
        click.echo(json.dumps({"healthy": healthy, "findings": [asdict(finding) for finding in findings]}, indent=2))
    elif healthy:
        output().print("The main job runs here.", style="green")
    else:
        output().print("The main job cannot run here; see what is broken above.", style="bold red")
    return 0 if healthy else 1


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A doctor reports what breaks, whatever it is."""
    try:
        yield from check()
    except Exception as error:
        what = check.__name__.removeprefix("_check_").replace("_", " ")
        yield Finding(what, BROKEN, f"{type(error).__name__}: {error}")


def _show(finding: Finding) -> None:
    from rich.text import Text

    line = Text(f"{finding.state:>6}", STYLES[finding.state])
    output().print(line + Text(f"  {finding.what:<16} {finding.found}", "default"))
    if finding.remedy is not None:
        output().print(f"        {'':<16} to mend: {finding.remedy}")


def _check_versions() -> Iterator[Finding]:
    yield Finding("d3d", OK, installed_version(DISTRIBUTION) or "not installed: running from a source tree")
    yield Finding("python", OK, platform.python_version())


def _check_packages() -> Iterator[Finding]:
    for name in REQUIRED:
        version = installed_version(name)
        if version is None:
            yield Finding(name, BROKEN, "not installed", f"pip install {name}")
        else:
            yield Finding(name, OK, version)
    for name, purpose in OPTIONAL.items():
        version = installed_version(name)
        yield Finding(name, OK, version) if version else Finding(name, NOTE, "not installed", purpose)


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_kernels() -> Iterator[Finding]:
    import torch

    from d3d_kernels import registry
    from d3d_runtime.report.machine import simd_level

    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for name in registry.BACKENDS:
        what, module = f"kernels {name}", registry.load(name)
        where = [device for device in devices if device in registry.DEVICES[name]]
        if isinstance(module, ImportError):
            yield Finding(what, NOTE, f"not built ({module})", GET_KERNELS if name == "cpu" else None)
        elif not where:
            yield Finding(what, NOTE, "built, but there is no GPU here")
        else:
            simd = f", {simd_level()}" if name == "cpu" else ""
            yield Finding(what, OK, f"usable on {' and '.join(where)} tensors{simd}")


def _check_processor() -> Iterator[Finding]:
    import torch

    from d3d_runtime.report.machine import available_cores, cpu_name

    cores = available_cores()
    yield Finding("processor", OK, f"{cpu_name()}, cores {cores}, threads {torch.get_num_threads()}")
    if cores < 2:
        yield Finding("cores", NOTE, "1: target and drafter cannot overlap", "use mode sync or autoregressive")


def _check_gpu() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield Finding("gpu", OK, f"{', '.join(names)}, CUDA {torch.version.cuda}, driver {_driver() or 'unknown'}")
    elif _driver() is not None:
        yield Finding("gpu", NOTE, f"driver {_driver()}, but this torch cannot use it", "install a CUDA build of torch")
    else:
        yield Finding("gpu", NOTE, "none; everything runs on the processor")


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, timeout=20)
    lines = asked.stdout.split()
    return lines[0] if asked.returncode == 0 and lines else None


def _check_embedded_pair() -> Iterator[Finding]:
    from d3d_runtime.engine import EMBEDDED_PAIR

    for half in ("target", "drafter"):
        weights = EMBEDDED_PAIR / half / "model.safetensors"
        if weights.is_file():
            yield Finding(f"pair {half}", OK, f"{weights.stat().st_size / 1e6:.1f} MB")
        else:
            remedy = "clone the repository again; or make it: d3d train target, d3d train drafter"
            yield Finding(f"pair {half}", BROKEN, f"{weights} is missing", remedy)
    yield from _checksums(EMBEDDED_PAIR)


def _checksums(folder: Path) -> Iterator[Finding]:
    """Against SHA256SUMS beside the pair, as `sha256sum */*.json */*.safetensors > SHA256SUMS` writes it."""
    listed = folder / "SHA256SUMS"
    if not listed.is_file():
        yield Finding("checksums", NOTE, f"{listed} is missing: the weights cannot be verified")
        return
    entries = [line.split(maxsplit=1) for line in listed.read_text(encoding="utf-8").splitlines()]
    wrong = [name for digest, name in entries if _sha256(folder / name.lstrip("*")) != digest]
    if wrong:
        yield Finding("checksums", BROKEN, f"differ: {', '.join(wrong)}", "git checkout the files again")
    else:
        yield Finding("checksums", OK, f"{len(entries)} files as they were shipped")


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _check_main_job() -> Iterator[Finding]:
    from d3d_runtime import Engine, SamplingParams

    began = time.perf_counter()
    with waiting("running the embedded pair"):
        engine = Engine()
        question: Any = [{"role": "user", "content": "What is 47 + 38?"}]
        (done,) = engine.generate([question], SamplingParams(max_tokens=16))
    yield Finding(
        "main job",
        OK,
        f"mode {engine.mode}, {len(done.token_ids)} tokens, {time.perf_counter() - began:.1f} s with loading",
    )


CHECKS = (
    _check_versions,
    _check_packages,
    _check_kernels,
    _check_processor,
    _check_gpu,
    _check_embedded_pair,
    _check_main_job,
)
