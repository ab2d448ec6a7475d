"""`d3d doctor`: can the main job run here, what is missing, and how to get it."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from d3d_runtime.cli.calibration import prompt_file_option, target_text
from d3d_runtime.cli.console import Waiting, output
from d3d_runtime.cli.options import check_folder, debug_option
from d3d_runtime.errors import UserError

EPILOG = """\b
Examples:
  d3d doctor
  d3d doctor --json | python3 -m json.tool
  d3d doctor --drafter D3D-1.7B-8B --target Qwen3-8B

Exit code 0 only if the embedded pair answered a question here."""

PROBE_TEXTS = 8
SOME = 0.3  # tokens of a block; below this a setting is noise
OK, NOTE, BROKEN = "ok", "note", "broken"
STYLES = {OK: "green", NOTE: "yellow", BROKEN: "bold red"}

DISTRIBUTION = "d3d-engine"
REQUIRED = ("torch", "numpy", "tokenizers", "safetensors", "jinja2", "click", "rich")
OPTIONAL = {
    "triton": "GPU kernels without a compiler: pip install -e '.[gpu]'",
    "flashinfer-python": "paged attention on GPUs: pip install -e '.[flashinfer]'",
    "gguf": "GGUF checkpoints: pip install gguf",
    "huggingface_hub": "models by their hub name: pip install huggingface_hub",
    "matplotlib": "pictures of loss curves: pip install -e '.[train]'",
}
GET_KERNELS = {
    "cpu": "a compiler and Python's headers (Debian, Ubuntu: apt install g++ python3-dev), then pip install -e . again",
    "cuda": "the CUDA toolkit (nvcc), then D3D_CUDA=1 pip install -e . again",
    "triton": OPTIONAL["triton"],
}


@dataclass(frozen=True)
class Finding:
    """state: ok, note (the main job runs without it) or broken. remedy: how to get what is missing."""

    what: str
    state: str
    found: str
    remedy: str | None = None


@click.command("doctor", epilog=EPILOG, short_help="Check this machine and the installation.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--drafter", metavar="PATH", help="Try what a drafter's config does not say, and recommend.")
@click.option("--target", metavar="PATH", help="Its target, whose text it should guess (with --drafter).")
@prompt_file_option
@debug_option
def command(as_json: bool, drafter: str | None, target: str | None, prompt_file: str | None) -> int | None:
    """Check versions, kernels, processor, GPU and the embedded pair, and run it once.

    With --drafter: find out how that drafter has to be run instead.
    """
    if drafter is not None:
        return _probe(drafter, target, prompt_file, as_json)
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


def _probe(drafter: str, target: str | None, prompt_file: str | None, as_json: bool) -> None:
    if target is None:
        raise UserError("--target: expected the drafter's target with --drafter; its text is what the drafter guesses")
    check_folder("--drafter", drafter)
    check_folder("--target", target)
    with Waiting("reading the target's answers") as progress:
        import torch

        from d3d_runtime.training.probe import probe

        text = target_text(Path(target), prompt_file, PROBE_TEXTS, progress=progress)
        found = probe(Path(drafter), Path(target), text, "cpu", torch.float32, progress)
    if as_json:
        rows = [asdict(each.diffusion) | {"accepted": each.accepted, "flags": each.flags()} for each in found]
        click.echo(json.dumps({"recommended": rows[0] if found[0].accepted >= SOME else None, "tried": rows}, indent=2))
        return
    for each in found:
        output().print(f"{each.accepted:7.2f} tokens of a block  {each.flags()}")
    if found[0].accepted >= SOME:
        output().print(f"Run it with {found[0].flags()}", style="green")
    else:
        output().print("None of these settings guesses anything: is this a drafter of that target?", style="bold red")


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
    output().print(line + Text(f"  {finding.what:<18} {finding.found}", "default"))
    if finding.remedy is not None:
        output().print(f"        {'':<18} to mend: {finding.remedy}")


def _check_versions() -> Iterator[Finding]:
    yield Finding("d3d", OK, installed_version(DISTRIBUTION) or "not installed: running from a source tree")
    yield Finding("python", OK, sys.version.split()[0])


def _check_packages() -> Iterator[Finding]:
    for name in REQUIRED:
        version = installed_version(name)
        if version is None:
            yield Finding(name, BROKEN, "not installed", f"pip install {name}, or pip install -e . again")
        else:
            yield Finding(name, OK, version)
    for name, purpose in OPTIONAL.items():
        version = installed_version(name)
        yield Finding(name, OK, version) if version else Finding(name, NOTE, "not installed", purpose)


def installed_version(package: str) -> str | None:
    from importlib import metadata  # thirty milliseconds that --help need not take

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
        where = [device for device in devices if device in registry.devices(name)]
        if isinstance(module, ImportError):
            yield Finding(what, NOTE, _why_not(module), GET_KERNELS.get(name) if where else None)
        elif not where:
            yield Finding(what, NOTE, "built, but there is no GPU here to use them")
        elif error := next(filter(None, (_why_it_fails(name, device) for device in where)), None):
            yield Finding(what, NOTE, f"built, but they fail: {error}", "D3D_BACKEND=reference does without them")
        else:
            simd = f", {simd_level()}" if name == "cpu" else ""
            yield Finding(what, OK, f"usable on {' and '.join(where)} tensors{simd}")


def _why_not(error: ImportError) -> str:
    """A module that is not there was not built; one that is there and fails says why itself."""
    missing = isinstance(error, ModuleNotFoundError) or "cannot import name" in str(error)
    return "not built" if missing else f"built, but cannot be loaded ({error})"


def _why_it_fails(backend: str, device: str) -> str | None:
    """Samples one token: a library that loads may still not run on this processor or GPU."""
    import torch

    import d3d_kernels as dk

    try:
        logits = torch.tensor([[0.0, 2.0, 1.0]], device=device)
        positions = torch.zeros(1, dtype=torch.int64, device=device)
        token = dk.sample(logits, dk.SamplingTensors.full(1, device=device), positions, backend=backend).item()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if token == 1 else f"token {token} for the likeliest on {device}; it is token 1"


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
        remedy = f"a torch built for CUDA (this is {torch.__version__}): https://pytorch.org/get-started/locally"
        yield Finding("gpu", NOTE, f"driver {_driver()}, but this torch cannot use it", remedy)
    else:
        yield Finding("gpu", NOTE, "none; everything runs on the processor")


def _driver() -> str | None:
    import subprocess

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
        remedy = f"git checkout -- {folder}, unless you trained it anew: then write SHA256SUMS anew"
        yield Finding("checksums", BROKEN, f"differ: {', '.join(wrong)}", remedy)
    else:
        yield Finding("checksums", OK, f"{len(entries)} files as they were shipped")


def _sha256(path: Path) -> str | None:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _check_main_job() -> Iterator[Finding]:
    from d3d_runtime import Engine, SamplingParams

    began = time.perf_counter()
    with Waiting("running the embedded pair") as progress:
        engine = Engine(progress=progress)
        question: Any = [{"role": "user", "content": "What is 47 + 38?"}]
        (done,) = engine.generate([question], SamplingParams(max_tokens=16))
        seconds, mode = time.perf_counter() - began, engine.mode
        engine.switch_mode("autoregressive")
        (plain,) = engine.generate([question], SamplingParams(max_tokens=16))
    found = f"mode {mode}, {len(done.token_ids)} tokens, {seconds:.1f} s with loading"
    if done.token_ids == plain.token_ids:
        yield Finding("main job", OK, f"{found}, the same tokens as without a drafter")
    else:
        yield Finding("main job", NOTE, f"{found}, other tokens than without a drafter: rounding, if it is seldom")


CHECKS = (
    _check_versions,
    _check_packages,
    _check_kernels,
    _check_processor,
    _check_gpu,
    _check_embedded_pair,
    _check_main_job,
)
