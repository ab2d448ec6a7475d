"""Help, start-up, `d3d doctor` and `d3d train`."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from d3d_runtime import Engine
from d3d_runtime.cli import app, doctor
from tests.cli.conftest import ENVIRONMENT, Pair, d3d, run_here

ROOT = Path(__file__).parents[2]
COMMANDS = [["generate"], ["chat"], ["bench"], ["doctor"], ["train"], ["train", "target"], ["train", "drafter"]]
COMMANDS += [["prune"]]


# ---- help


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(command, capsysbinary):
    code, out, _ = run_here(capsysbinary, *command, "--help")
    assert code == 0 and "Examples:" in out and f"d3d {command[0]}" in out


def test_every_command_is_tested_here():
    assert set(app.commands) == {command[0] for command in COMMANDS}


def test_help_loads_nothing_heavy():
    """What keeps `d3d --help` under 0.3 s."""
    program = "import sys; from d3d_runtime.cli import run; run(['--help'], False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT)
    loaded = done.stdout.splitlines()[-1].split()
    assert "d3d_runtime.cli" in loaded and "Usage: d3d" in done.stdout
    assert not {"torch", "numpy", "rich", "tokenizers", "d3d_kernels"} & set(loaded)


def test_answering_does_not_load_the_compiler(pair: Pair):
    """torch._dynamo takes seconds to import; a module initialised on the meta device once pulled it in."""
    program = (
        "import sys; from d3d_runtime.cli import run; code = run(sys.argv[1:], False); "
        "print(code, 'torch._dynamo' in sys.modules, file=sys.stderr)"
    )
    arguments = ["generate", "x", *pair.flags, "--max-tokens", "4", "--mode", "async"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=300,
    )
    assert done.stderr.splitlines()[-1] == "0 False"


def test_version(capsysbinary):
    code, out, _ = run_here(capsysbinary, "--version")
    assert code == 0 and out.startswith("d3d ") and out.count("\n") == 1


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_files_named_in_the_pages_exist(page):
    """Names in backticks, from the root of the repository or of the package they are in."""
    named = re.findall(r"`([\w/.]+\.(?:py|h))`", (ROOT / page).read_text())
    places = [ROOT / place for place in ("", "d3d_runtime", "d3d_kernels", "csrc/include", "csrc/include/d3d")]
    assert named
    assert [name for name in named if not any((place / name).is_file() for place in places)] == []


# ---- doctor


def use_pair(pair: Pair, monkeypatch) -> None:
    monkeypatch.setattr("d3d_runtime.engine.EMBEDDED_PAIR", pair.target.parent)


def test_doctor_runs_the_pair(pair: Pair, monkeypatch, capsysbinary):
    use_pair(pair, monkeypatch)
    code, out, _ = run_here(capsysbinary, "doctor")
    assert code == 0 and "The main job runs here." in out
    assert "kernels reference" in out and "main job" in out and "processor" in out


def test_doctor_without_a_pair_says_how_to_get_it(tmp_path, monkeypatch, capsysbinary):
    monkeypatch.setattr("d3d_runtime.engine.EMBEDDED_PAIR", tmp_path / "none")
    code, out, _ = run_here(capsysbinary, "doctor", "--json")
    report = json.loads(out)
    broken = {finding["what"]: finding for finding in report["findings"] if finding["state"] == doctor.BROKEN}
    assert code == 1 and report["healthy"] is False
    assert set(broken) == {"pair target", "pair drafter", "main job"}
    assert "d3d train target" in broken["pair target"]["remedy"]


def findings(capture, pair: Pair, monkeypatch) -> tuple[int, dict[str, dict]]:
    use_pair(pair, monkeypatch)
    code, out, _ = run_here(capture, "doctor", "--json")
    report = json.loads(out)
    assert report["healthy"] == (code == 0)
    return code, {finding["what"]: finding for finding in report["findings"]}


def test_doctor_tells_what_is_not_installed(pair: Pair, monkeypatch, capsysbinary):
    """What the main job needs breaks it, an extra does not; both say how to get them."""
    version = doctor.installed_version
    monkeypatch.setattr(doctor, "installed_version", lambda name: None if name == "triton" else version(name))
    code, found = findings(capsysbinary, pair, monkeypatch)
    assert code == 0 and found["triton"]["state"] == doctor.NOTE
    assert "pip install -e '.[gpu]'" in found["triton"]["remedy"]
    monkeypatch.setattr(doctor, "installed_version", lambda name: None if name == "jinja2" else version(name))
    code, found = findings(capsysbinary, pair, monkeypatch)
    assert code == 1 and found["jinja2"]["state"] == doctor.BROKEN and "pip install jinja2" in found["jinja2"]["remedy"]


def test_doctor_tells_backends_that_are_not_built(pair: Pair, monkeypatch, capsysbinary):
    """The reference runs the main job; a GPU that is there has a remedy for the kernels it lacks."""
    from d3d_kernels import registry

    load = registry.load
    missing = ImportError("cannot import name '_C' from 'd3d_kernels'")
    monkeypatch.setattr(registry, "load", lambda name: load(name) if name == "reference" else missing)
    code, found = findings(capsysbinary, pair, monkeypatch)
    assert code == 0 and found["kernels cpu"]["found"] == found["kernels cuda"]["found"] == "not built"
    assert "apt install g++ python3-dev" in found["kernels cpu"]["remedy"] and found["kernels cuda"]["remedy"] is None
    pretend_a_gpu(monkeypatch)
    _, found = findings(capsysbinary, pair, monkeypatch)
    assert "nvcc" in found["kernels cuda"]["remedy"]
    broken = ImportError("libgomp.so.1: cannot open shared object file")
    monkeypatch.setattr(registry, "load", lambda name: load(name) if name == "reference" else broken)
    _, found = findings(capsysbinary, pair, monkeypatch)
    assert found["kernels cpu"]["found"] == f"built, but cannot be loaded ({broken})"


def pretend_a_gpu(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "a card")


def test_doctor_calls_nothing_usable_that_has_not_run(pair: Pair, monkeypatch, capsysbinary):
    """Built kernels without a GPU; and with one on which they fail, as here, where it is only pretended."""
    from d3d_kernels import registry

    load = registry.load
    monkeypatch.setattr(registry, "load", lambda name: load("reference" if name == "cuda" else name))
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, found = findings(capsysbinary, pair, monkeypatch)
    assert code == 0 and found["kernels cuda"]["state"] == doctor.NOTE
    assert found["kernels cuda"]["found"] == "built, but there is no GPU here to use them"
    assert "usable on cpu tensors" in found["kernels reference"]["found"]
    pretend_a_gpu(monkeypatch)
    _, found = findings(capsysbinary, pair, monkeypatch)
    assert found["gpu"]["found"].startswith("a card, CUDA")
    assert found["kernels cuda"]["state"] == doctor.NOTE and "they fail: " in found["kernels cuda"]["found"]


def test_doctor_tells_a_driver_that_torch_cannot_use(pair: Pair, monkeypatch, capsysbinary):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(doctor, "_driver", lambda: "580.1")
    code, found = findings(capsysbinary, pair, monkeypatch)
    assert code == 0 and found["gpu"]["found"] == "driver 580.1, but this torch cannot use it"
    assert "a torch built for CUDA" in found["gpu"]["remedy"]


def test_doctor_compares_with_plain_decoding(pair: Pair, monkeypatch, capsysbinary):
    _, found = findings(capsysbinary, pair, monkeypatch)
    assert found["main job"]["found"].endswith("the same tokens as without a drafter")
    generate = Engine.generate

    def other_when_plain(engine: Engine, *arguments):
        (done,) = generate(engine, *arguments)
        return [replace(done, token_ids=[*done.token_ids, 1]) if engine.mode == "autoregressive" else done]

    monkeypatch.setattr(Engine, "generate", other_when_plain)
    code, found = findings(capsysbinary, pair, monkeypatch)
    assert code == 0 and found["main job"]["state"] == doctor.NOTE and "other tokens" in found["main job"]["found"]


def test_doctor_verifies_checksums(pair: Pair, tmp_path, monkeypatch, capsysbinary):
    weights = (pair.target / "model.safetensors").read_bytes()
    (tmp_path / "target").mkdir()
    copy = tmp_path / "target" / "model.safetensors"
    copy.write_bytes(weights)
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(weights).hexdigest()}  target/model.safetensors\n")
    assert [finding.state for finding in doctor._checksums(tmp_path)] == [doctor.OK]
    copy.write_bytes(weights[:-1] + b"!")
    (finding,) = doctor._checksums(tmp_path)
    assert finding.state == doctor.BROKEN and "target/model.safetensors" in finding.found


def test_the_embedded_pair_is_what_its_checksums_say():
    """After training it anew: cd d3d_runtime/pair && sha256sum */*.json */*.safetensors > SHA256SUMS"""
    from d3d_runtime.engine import EMBEDDED_PAIR

    (finding,) = doctor._checksums(EMBEDDED_PAIR)
    assert finding.state == doctor.OK, finding.found


# ---- train


@pytest.mark.parametrize("half", ["target", "drafter"])
def test_train_passes_its_flags_on(half, pair: Pair, tmp_path, monkeypatch, capsysbinary):
    seen = {}
    name = f"d3d_runtime.training.{half}.train_{half}"
    monkeypatch.setattr(name, lambda *folders, **settings: seen.update(settings, folders=folders))
    more = ["--target", pair.target, "--layers", "3"] if half == "drafter" else ["--drills", "0.5"]
    code, _, err = run_here(capsysbinary, "train", half, tmp_path / "out", "--steps", "7", "--seed", "5", *more)
    assert code == 0, err
    assert seen["steps"] == 7 and seen["seed"] == 5 and seen["folders"][-1] == tmp_path / "out"
    assert (seen["num_layers"], seen["folders"][0]) == (3, pair.target) if half == "drafter" else seen["drills"] == 0.5


def test_a_stopped_training_tells_how_to_go_on(tmp_path, monkeypatch, capsysbinary):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("d3d_runtime.training.target.train_target", stopped)
    code, _, err = run_here(capsysbinary, "train", "target", tmp_path / "out")
    assert code == 130 and "goes on from the last checkpoint" in err


@pytest.mark.slow
def test_training_a_drafter_goes_on_where_it_stopped(pair: Pair, tmp_path):
    flags = [
        "--target",
        pair.target,
        "--layers",
        "2",
        "--block-size",
        "4",
        "--anchors",
        "2",
        "--batch-size",
        "2",
    ]
    folder = tmp_path / "drafter"
    for steps in ("10", "20"):
        done = d3d("train", "drafter", folder, *flags, "--steps", steps)
        assert done.returncode == 0, done.stderr
        logged = [entry["step"] for entry in json.loads((folder / "drafter_loss.json").read_text())]
        assert logged[-1] == int(steps)
    assert logged == [10, 20]
    answered = d3d("generate", "x", "--target", pair.target, "--drafter", folder, "--max-tokens", "4", "--mode", "sync")
    assert answered.returncode == 0, answered.stderr
