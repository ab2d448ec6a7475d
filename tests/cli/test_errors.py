"""Every error a user can make, made on purpose: one line with the cause and the way out, exit code 2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from d3d_runtime import Engine, UserError
from tests.cli.conftest import COMMAND, ENVIRONMENT, Pair, d3d, edit_config, run_here

Damage = Callable[[Pair], None]


def assert_one_line(code: int, err: str, *expected: str) -> None:
    assert code == 2
    assert err.startswith("d3d: ") and err.count("\n") == 1 and err.endswith("\n"), err
    for words in expected:
        assert words in err, err


# ---- flags and prompts; none of these gets as far as a model


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["generate", "x", "--temperature", "-1"], "temperature: expected a finite number, at least 0"),
        (["generate", "x", "--temperature", "nan"], "temperature: expected a finite number"),
        (["generate", "x", "--top-p", "0"], "top_p: expected above 0"),
        (["generate", "x", "--max-tokens", "0"], "max_tokens: expected at least 1"),
        (["generate", "x", "--stop", ""], "stop: expected strings that are not empty"),
        (["generate", "x", "--repetition-penalty", "0"], "repetition_penalty: expected above 0"),
        (["generate", "x", "--top-k", "many"], "'--top-k': 'many' is not a valid integer"),
        (
            ["generate", "x", "--mode", "fast"],
            "'fast' is not one of 'auto', 'autoregressive', 'sync', 'async'",
        ),
        (["generate", "x", "--logit-bias", "7"], "'7' is not ID:VALUE"),
        (["generate", "x", "--tempratur", "1"], "--tempratur"),
        (["generate", ""], "prompt: it is empty"),
        (["generate", " \n"], "prompt: it is empty"),
        (["generate", "one two", "--token-ids"], "prompt: expected token ids"),
        (["generate", "x", "--problem", "1"], "give one of PROMPT, --prompt-file and --problem"),
        (["generate", "--prompt-file", "/no/such/file"], "cannot be read (No such file or directory)"),
        (["generate", "x", "--threads", "0"], "'--threads': 0 is not in the range x>=1"),
        (["bench", "--batch", "0"], "'--batch': 0 is not in the range x>=1"),
        (["bench", "--temperature", "-1"], "temperature: expected"),
        (["bench", "--json", "/no/such/folder/x.json"], "there is no folder '/no/such/folder'"),
        (["train", "drafter", "out"], "Missing option '--target'"),
        (
            ["train", "drafter", "out", "--target", "t", "--layers", "1"],
            "'--layers': 1 is not in the range x>=2",
        ),
        (["train", "target", "out", "--drills", "2"], "'--drills': 2.0 is not in the range 0<=x<=1"),
        (["genrate"], "No such command 'genrate'"),
    ],
)
def test_flags_and_prompts(arguments, expected, capsysbinary):
    code, out, err = run_here(capsysbinary, *arguments)
    assert_one_line(code, err, expected)
    assert out == ""


def test_input_that_is_not_utf8(tmp_path, capsysbinary):
    code, _, err = run_here(capsysbinary, "generate", "-", stdin=b"caf\xe9")
    assert_one_line(code, err, "stdin is not UTF-8 text", "0xe9 at offset 3")
    code, _, err = run_here(capsysbinary, "generate", os.fsdecode(b"caf\xe9"))
    assert_one_line(code, err, "PROMPT is not UTF-8 text")
    file = tmp_path / "latin1.txt"
    file.write_bytes(b"caf\xe9")
    code, _, err = run_here(capsysbinary, "generate", "--prompt-file", file)
    assert_one_line(code, err, "latin1.txt is not UTF-8 text")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "holds no prompts"), ('"a"\n{broken', "line 2"), ('{"question": "a"}', "line 1"), ("[]", "line 1")],
)
def test_jsonl_files(tmp_path, capsysbinary, text, expected):
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    code, _, err = run_here(capsysbinary, "generate", "--prompt-file", file)
    assert_one_line(code, err, expected)


def test_outputs_that_cannot_be_written(tmp_path, capsysbinary):
    """Said before a minute of work; and a file without marker lines is somebody's text."""
    code, _, err = run_here(capsysbinary, "bench", "--json", tmp_path)
    assert_one_line(code, err, "cannot be written")
    text = tmp_path / "notes.md"
    text.write_text("mine\n")
    code, _, err = run_here(capsysbinary, "bench", "--markdown", text)
    assert_one_line(code, err, "has no lines '<!-- d3d bench: begin -->'")
    assert text.read_text() == "mine\n"


# ---- models


def test_a_misspelt_folder_names_the_nearest_one(pair: Pair, capsysbinary):
    wrong = pair.target.with_name("traget")
    code, _, err = run_here(capsysbinary, "generate", "x", "--target", wrong)
    assert_one_line(code, err, f"--target '{wrong}': no such folder; did you mean '{pair.target}'?")
    code, _, err = run_here(capsysbinary, "generate", "x", "--target", "/no/such/model")
    assert_one_line(code, err, "no such folder; expected a Hugging Face model folder")
    code, _, err = run_here(capsysbinary, "generate", "x", "--target", pair.target / "config.json")
    assert_one_line(code, err, "this is a file")
    code, _, err = run_here(capsysbinary, "generate", "x", "--target", pair.target.parent)
    assert_one_line(code, err, f"holds no model itself; did you mean '{pair.drafter}' or '{pair.target}'?")


def text_for_weights(text: str) -> Damage:
    return lambda pair: (pair.target / "model.safetensors").write_text(text)


def truncate(pair: Pair) -> None:
    weights = pair.target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no config": (lambda pair: (pair.target / "config.json").unlink(), "no config.json there"),
    "broken config": (
        lambda pair: (pair.target / "config.json").write_text("{"),
        "config.json is not valid JSON",
    ),
    "no weights": (
        lambda pair: (pair.target / "model.safetensors").unlink(),
        "'model.safetensors' is missing",
    ),
    "text for weights": (text_for_weights("once upon a time\n"), "'model.safetensors' is a text file; expected safet"),
    "pointer for weights": (
        text_for_weights("version https://git-lfs.github.com/spec/v1\n"),
        "is a pointer of Git LFS, not the weights; git lfs pull fetches them",
    ),
    "truncated weights": (truncate, "is not a whole safetensors file; it was cut short or damaged, download it again"),
    "no layer count": (
        lambda pair: edit_config(pair.target, num_hidden_layers=None),
        "no 'num_hidden_layers'",
    ),
    "unknown family": (lambda pair: edit_config(pair.target, model_type="mamba"), "'mamba' is not supported"),
    "no block_size": (lambda pair: edit_config(pair.drafter, block_size=None), "no 'block_size'"),
    "no mask_token_id": (lambda pair: edit_config(pair.drafter, mask_token_id=None), "no 'mask_token_id'"),
    "broken tokenizer": (lambda pair: (pair.target / "tokenizer.json").write_text("{}"), "tokenizer"),
    "a model for a drafter": (
        lambda pair: edit_config(pair.drafter, block_size=None, mask_token_id=None, logit_shift=None),
        "not a d3d drafter",
    ),
    "a drafter for a target": (
        lambda pair: edit_config(pair.target, block_size=8, mask_token_id=1, logit_shift=True),
        "this is a drafter",
    ),
}


@pytest.mark.parametrize(("damage", "expected"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_models(pair: Pair, tmp_path, capsysbinary, damage, expected):
    broken = Pair(tmp_path / "target", tmp_path / "drafter")
    shutil.copytree(pair.target, broken.target)
    shutil.copytree(pair.drafter, broken.drafter)
    damage(broken)
    code, _, err = run_here(capsysbinary, "generate", "x", *broken.flags)
    assert_one_line(code, err, expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["9 " * 5000, "--token-ids"], "5000 tokens; this model takes at most 4095"),
        (["9 320", "--token-ids"], "token id 320 is outside the vocabulary of 320"),
        (["x", "--device", "cuda:77"], "cuda"),
        (["x", "--device", "toaster"], "device: expected"),
        (["x", "--nodes", "1", "--mode", "sync"], "num_nodes: expected 2 to"),
        (["x", "--drafter", "none", "--mode", "async"], "needs a drafter"),
    ],
)
def test_what_the_engine_refuses(pair: Pair, capsysbinary, arguments, expected):
    code, _, err = run_here(capsysbinary, "generate", *pair.flags, *arguments)
    assert_one_line(code, err, expected)


@pytest.mark.parametrize("before", [True, False])
def test_debug_shows_the_traceback(before, pair: Pair):
    arguments = ["generate", "x", "--target", pair.target.with_name("traget")]
    done = d3d(*["--debug", *arguments] if before else [*arguments, "--debug"])
    assert done.returncode == 2 and "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("d3d: --target")


# ---- devices


BUSY = torch.AcceleratorError("CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel ...", 46)
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("error", "expected"),
    [(BUSY, "'cpu' is busy, another process holds it; wait, or use another device"), (FULL, "not enough free memory")],
)
@pytest.mark.parametrize("where", ["d3d_runtime.engine.load_decoder", "d3d_runtime.scheduler.Scheduler.step"])
def test_a_device_that_is_busy_or_full(error, expected, where, pair: Pair, monkeypatch, capsysbinary):
    """While the weights are put there, and in the middle of an answer. What torch raises is spelled as a GPU does."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(where, fail)
    code, _, err = run_here(capsysbinary, "generate", "x", *pair.flags)
    assert_one_line(code, err, expected)


def test_memory_that_is_not_there(pair: Pair):
    with pytest.raises(UserError, match=r"memory: target .* need .* GB in float32; cpu has .* GB free; use a narrower"):
        Engine(pair.target, num_pages=10**12)


def test_a_device_that_is_missing(pair: Pair, monkeypatch, capsysbinary):
    code, _, err = run_here(capsysbinary, "generate", "x", *pair.flags, "--device", "cuda:9999")
    assert_one_line(code, err, "cuda:9999")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    code, _, err = run_here(capsysbinary, "generate", "x", *pair.flags, "--device", "cuda:2")
    assert_one_line(code, err, "device: there is no 'cuda:2' here; the last one is 'cuda:1'")


# ---- outputs


FULL_DISK = Path("/dev/full")


@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_disk(more, pair: Pair):
    with FULL_DISK.open("wb") as full:
        arguments = ["generate", "x", *pair.flags, "--max-tokens", "4", *more]
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "d3d: stdout: cannot be written (No space left on device)"
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flag", ["--json", "--markdown"])
def test_a_disk_that_is_full_after_the_work(flag, pair: Pair, monkeypatch, capsysbinary):
    monkeypatch.setattr("d3d_runtime.report.tables.split_at_markers", lambda path: ("", ""))
    flags = ["--problems", "1", "--seconds", "0", "--max-tokens", "2", "--mode", "sync", flag, FULL_DISK]
    code, _, err = run_here(capsysbinary, "bench", *pair.flags, *flags)
    assert_one_line(code, err, f"{flag} '/dev/full': cannot be written (No space left on device)")


@pytest.mark.parametrize("half", ["target", "drafter"])
def test_a_folder_that_cannot_be_written_is_told_before_the_work(half, pair: Pair, tmp_path, monkeypatch, capsysbinary):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(f"d3d_runtime.training.{half}.train_{half}", lambda *_, **__: pytest.fail("it worked"))
    more = ["--target", pair.target] if half == "drafter" else []
    code, _, err = run_here(capsysbinary, "train", half, tmp_path / "file" / "out", *more)
    assert_one_line(code, err, "cannot be written (Not a directory)")
    code, _, err = run_here(capsysbinary, "train", half, tmp_path / "file", *more)
    assert_one_line(code, err, "this is a file; expected a folder to write to")


# ---- training


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda folder: edit_tokenizer(folder, mask_token=None), "its tokenizer has no mask_token"),
        (lambda folder: edit_tokenizer(folder, mask_token="<|none|>"), "its tokenizer has no mask_token"),
        (lambda folder: edit_tokenizer(folder, eos_token=None), "its tokenizer has no eos_token"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "cannot be read"),
        (lambda folder: edit_config(folder, block_size=8, mask_token_id=1, logit_shift=True), "this is a drafter"),
        (lambda folder: edit_config(folder, model_type="mamba"), "'mamba' is not supported"),
    ],
)
def test_targets_that_cannot_be_drafted_for(damage, expected, pair: Pair, tmp_path, capsysbinary):
    shutil.copytree(pair.target, tmp_path / "target")
    damage(tmp_path / "target")
    flags = ["--target", tmp_path / "target", "--layers", "2"]
    code, _, err = run_here(capsysbinary, "train", "drafter", tmp_path / "out", *flags, "--steps", "1")
    assert_one_line(code, err, expected)


def test_a_drafter_deeper_than_its_target(pair: Pair, tmp_path, capsysbinary):
    code, _, err = run_here(capsysbinary, "train", "drafter", tmp_path, "--target", pair.target, "--layers", "3")
    assert_one_line(code, err, "layers: expected at most the target's 2, got 3")


def edit_tokenizer(folder: Path, **changes) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_internal_error_is_one_line_too(pair: Pair, monkeypatch, capsysbinary):
    def explode(*_, **__):
        raise RuntimeError("kaboom")

    monkeypatch.setattr("d3d_runtime.cli.generate.read_prompts", explode)
    code, _, err = run_here(capsysbinary, "generate", "x")
    assert code == 1 and err == "d3d: internal error, RuntimeError: kaboom; --debug shows where\n"
