"""A tiny pair with random weights, so that every command runs in seconds, and the command itself."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
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

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
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


def edit_config(folder: Path, **changes) -> None:
    """Changes keys of a folder's config.json; None takes one away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


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


class Terminal:
    """The command in a pseudo-terminal that is its own, so that keys reach it as a user's do."""

    def __init__(self, *arguments: str | Path):
        self._leader, follower = pty.openpty()
        environment = {key: value for key, value in ENVIRONMENT.items() if key != "NO_COLOR"}
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=environment | {"TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(follower)
        self._seen = bytearray()

    @property
    def shown(self) -> str:
        return self._seen.decode(errors="replace").replace("\r\n", "\n")

    @property
    def text(self) -> str:
        """What a user reads: without colours and what else moves the cursor."""
        return ESCAPE.sub("", self.shown)

    def wait_for(self, words: str, after: int = 0) -> int:
        """Reads until `words` are there behind that place in the text; the place behind them."""
        self.wait_until(lambda text: words in text[after:])
        return self.text.index(words, after) + len(words)

    def wait_until(self, condition: Callable[[str], bool]) -> None:
        while not condition(self.text):
            assert self._read(), f"it ended too early: {self.text}"

    def press(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    def wait(self) -> int:
        """Reads to the end; the exit code."""
        while self._read():
            pass
        os.close(self._leader)
        return self.process.wait(timeout=300)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._leader], [], [], 120)
        assert ready, f"nothing for minutes: {self.text}"
        try:
            chunk = os.read(self._leader, 4096)
        except OSError:  # Linux says EIO when the other end is closed
            return False
        self._seen += chunk
        return bool(chunk)


def d3d_in_terminal(*arguments: str | Path) -> tuple[int, str]:
    """Runs the command in a terminal; exit code, and what it showed (stdout and stderr)."""
    terminal = Terminal(*arguments)
    return terminal.wait(), terminal.shown


def run_here(capture, *arguments: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
    """Runs a command line in this process, where torch is loaded already; exit code, stdout, stderr."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run([str(argument) for argument in arguments], debug=False)
    out, err = capture.readouterr()
    return code, out.decode(), err.decode()
