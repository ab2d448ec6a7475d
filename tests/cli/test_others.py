"""Help, start-up, `d3d doctor` and `d3d train`."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from d3d_runtime.cli import app, doctor
from tests.cli.conftest import ENVIRONMENT, Pair, d3d, run_here

ROOT = Path(__file__).parents[2]
COMMANDS = [["generate"], ["bench"], ["doctor"], ["train"], ["train", "target"], ["train", "drafter"]]


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
