"""Whatever takes its time has a bar in a terminal and is silent elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from d3d_runtime.cli.console import Waiting
from tests.cli.conftest import Pair, d3d, d3d_in_terminal, run_here


@pytest.fixture
def screen(monkeypatch) -> io.StringIO:
    """What a terminal in the place of stderr shows."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100)
    monkeypatch.setattr("d3d_runtime.cli.console.notes", lambda: console)
    return shown


def test_work_that_tells_nothing_has_a_bar_at_once(screen):
    with Waiting("loading"):
        pass
    assert "loading" in screen.getvalue()


def test_work_that_is_quick_has_none(screen):
    with Waiting("reading", patience=60) as progress:
        progress("reading", 1, 2)
    assert screen.getvalue() == ""


def test_a_bar_that_is_over_stays_so(screen):
    """Whoever still holds it as its `Progress` tells nobody."""
    with Waiting("loading") as progress:
        progress("target", 1, 2)
    seen = screen.getvalue()
    progress("drafter", 1, 2)
    assert screen.getvalue() == seen and "target" in seen


def test_a_file_sees_nothing(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr("d3d_runtime.cli.console.notes", lambda: Console(file=shown))
    with Waiting("loading") as progress:
        progress("target", 1, 2)
    assert shown.getvalue() == ""


def test_a_long_prompt_has_a_bar_before_the_answer(pair: Pair, screen, monkeypatch, capsysbinary):
    monkeypatch.setattr("d3d_runtime.cli.streaming.PATIENCE", 1e-9)
    monkeypatch.setattr("d3d_runtime.target.PREFILL_CHUNK", 50)
    arguments = ["generate", "9 " * 300, "--token-ids", *pair.flags, "--max-tokens", "4"]
    code, out, err = run_here(capsysbinary, *arguments)
    assert code == 0, err
    shown = screen.getvalue()  # a bar is drawn ten times a second: sure is what it showed at its end
    assert 0 <= shown.index("loading drafter") < shown.index("reading the prompt, drafter")
    assert out.strip()


def train(pair: Pair, folder: Path) -> list[str | Path]:
    sizes = ["--layers", "2", "--block-size", "4", "--anchors", "2", "--batch-size", "2", "--steps", "3"]
    return ["train", "drafter", folder, "--target", pair.target, *sizes]


def test_training_has_a_bar_in_a_terminal_alone(pair: Pair, tmp_path):
    code, shown = d3d_in_terminal(*train(pair, tmp_path / "one"))
    assert code == 0 and "drafter, step 3, loss" in shown, shown
    done = d3d(*train(pair, tmp_path / "two"))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"wrote '{tmp_path / 'two'}'\n"
