"""`d3d prune` and `d3d doctor --drafter` on a tiny pair."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.cli.conftest import Pair, run_here


def test_prune_writes_a_drafter_that_runs(pair: Pair, tmp_path, capsysbinary):
    folder = tmp_path / "shallow"
    code, out, err = run_here(capsysbinary, "prune", folder, *pair.flags, "--layers", "1", "--texts", "6")
    assert code == 0, err
    assert "2 layers  tau" in out and "100.00%  whole" in out and "1 layers  tau" in out and "without layer" in out
    assert f"wrote '{folder}': 1 of 2 layers" in err.replace("\n", "")
    flags = ["--target", pair.target, "--drafter", folder, "--mode", "sync", "--max-tokens", "12"]
    assert run_here(capsysbinary, "generate", "9 + 4?", *flags)[0] == 0
    again = run_here(capsysbinary, "prune", folder, *pair.flags, "--layers", "1", "--texts", "6", "--json")
    assert json.loads(again[1])["removed"] == json.loads((folder / "prune.json").read_text())["removed"]


def test_doctor_recommends_what_the_config_left_out(pair: Pair, tmp_path, capsysbinary):
    """Its weights are the target's, so the anchor's slot guesses one token with the shift, and none without."""
    bare = Pair(pair.target, tmp_path / "bare")
    shutil.copytree(pair.drafter, bare.drafter)
    config = json.loads((bare.drafter / "config.json").read_text())
    shift = config.pop("logit_shift")
    (bare.drafter / "config.json").write_text(json.dumps(config))
    code, out, err = run_here(capsysbinary, "doctor", *bare.flags, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["recommended"]["logit_shift"] is shift is True and report["recommended"]["accepted"] > 0.9
    code, out, _ = run_here(capsysbinary, "doctor", *bare.flags)
    assert code == 0 and "Run it with --block-size 8" in out and "--logit-shift" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["prune", "out", "--target", "t"], "--target and --drafter: give both, or none for the embedded pair"),
        (["prune", "out", "--keep", "0"], "0<x<=1"),
        (["doctor", "--drafter", "d"], "--target: expected the drafter's target with --drafter"),
    ],
)
def test_errors(arguments, expected, capsysbinary):
    code, _, err = run_here(capsysbinary, *arguments)
    assert code == 2 and expected in err and err.count("\n") == 1
