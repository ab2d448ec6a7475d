"""A tiny pair with random weights, so that every command runs in seconds, and the command itself."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from d3d_runtime.cli import run
from d3d_runtime.models.config import DiffusionConfig, ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import save_model
from d3d_runtime.models.tokenizer import Tokenizer
from d3d_runtime.training.problems import generate
from d3d_runtime.training.target import initialise
from d3d_runtime.training.vocabulary import train_vocabulary

COMMAND = [sys.executable, "-m", "d3d_runtime.cli"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": ""}


@dataclass(frozen=True)
class Pair:
    target: Path
    drafter: Path

    @property
    def flags(self) -> list[str]:
        return ["--target", str(self.target), "--drafter", str(self.drafter)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring on models of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The drafter has the target's own weights: its anchor slot drafts what the target says, so some pass."""
    folder = tmp_path_factory.mktemp("pair")
    made = Pair(folder / "target", folder / "drafter")
    train_vocabulary((p.question + " " + p.solution for p in generate(0, 300, "train")), 320, made.target)
    tokenizer = Tokenizer(made.target)
    config = ModelConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    model = Decoder(config)
    initialise(model)
    save_model(model, made.target, dtype=torch.float32)
    save_model(
        model,
        made.drafter,
        DiffusionConfig(8, tokenizer.mask_token_id, logit_shift=True),
        dtype=torch.float32,
    )
    return made


def d3d(*arguments: str | Path, stdin: str | bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command as a pipe sees it."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=data,
        capture_output=True,
        env=ENVIRONMENT,
        cwd=cwd,
        timeout=300,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def d3d_in_terminal(*arguments: str | Path) -> tuple[int, str]:
    """Runs the command in a pseudo-terminal; exit code, and what the terminal showed (stdout and stderr)."""
    leader, follower = pty.openpty()
    environment = {key: value for key, value in ENVIRONMENT.items() if key != "NO_COLOR"} | {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    shown = bytearray()
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # Linux says EIO when the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    return process.wait(timeout=300), shown.decode().replace("\r\n", "\n")


def run_here(capture, *arguments: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
    """Runs a command line in this process, where torch is loaded already; exit code, stdout, stderr."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run([str(argument) for argument in arguments], debug=False)
    out, err = capture.readouterr()
    return code, out.decode(), err.decode()
