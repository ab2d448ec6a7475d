"""`d3d train`: a small target from nothing, and a block-diffusion drafter of a target."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from d3d_runtime.cli.console import Waiting, notes
from d3d_runtime.cli.options import check_folder, debug_option
from d3d_runtime.errors import UserError

EPILOG = """\b
Examples:
  d3d train target my-target --minutes 60
  d3d train drafter my-drafter --target my-target --minutes 30
  d3d generate --target my-target --drafter my-drafter --show-blocks

Give the same command again, and a run that was stopped goes on from its last checkpoint (one every
100 steps)."""


@click.group("train", epilog=EPILOG, short_help="Train a target or a drafter.")
def command() -> None:
    """Train a target, or a drafter for one, on generated word problems."""


def _schedule_options(minutes: float, batch_size: int, learning_rate: float) -> Any:
    def decorate(command: Any) -> Any:
        options = (
            click.option(
                "--minutes",
                type=click.FloatRange(min=0, min_open=True),
                default=minutes,
                show_default=True,
                help="Time limit.",
            ),
            click.option("--steps", type=click.IntRange(min=1), help="Step limit.  [default: none]"),
            click.option(
                "--batch-size",
                type=click.IntRange(min=1),
                default=batch_size,
                show_default=True,
                help="Problems a step.",
            ),
            click.option(
                "--learning-rate",
                type=click.FloatRange(min=0, min_open=True),
                default=learning_rate,
                show_default=True,
            ),
            click.option("--seed", type=int, default=0, show_default=True),
            debug_option,
        )
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@command.command(epilog=EPILOG)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--drills",
    type=click.FloatRange(0, 1),
    default=0.3,
    show_default=True,
    help="Share of bare arithmetic at the start.",
)
@_schedule_options(minutes=75.0, batch_size=24, learning_rate=4e-3)
def target(folder: Path, steps: int | None, **settings: Any) -> int | None:
    """Train the embedded pair's autoregressive half into FOLDER."""
    from d3d_runtime.training.target import train_target

    return _run(partial(train_target, folder, steps=steps or _no_limit(), **settings), folder)


@command.command(epilog=EPILOG)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--target",
    "target_folder",
    required=True,
    metavar="FOLDER",
    help="The model to draft for; the drafter starts from it.",
)
@click.option(
    "--layers",
    "num_layers",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    help="Layers of the drafter.",
)
@click.option(
    "--block-size",
    type=click.IntRange(2, 64),
    default=16,
    show_default=True,
    help="Anchor and masks of a block.",
)
@click.option(
    "--anchors",
    "num_anchors",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    help="Blocks a sequence.",
)
@click.option(
    "--gamma",
    type=click.FloatRange(min=0, min_open=True),
    default=7.0,
    show_default=True,
    help="Slot j weighs exp(-j / gamma).",
)
@click.option(
    "--distill",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Share of the target's distribution in the loss.",
)
@_schedule_options(minutes=25.0, batch_size=16, learning_rate=3e-3)
def drafter(folder: Path, target_folder: str, steps: int | None, **settings: Any) -> int | None:
    """Train a block-diffusion drafter of --target into FOLDER."""
    check_folder("--target", target_folder)
    from d3d_runtime.training.drafter import train_drafter

    return _run(partial(train_drafter, Path(target_folder), folder, steps=steps or _no_limit(), **settings), folder)


def _no_limit() -> int:
    return 10**9


def _run(train_it: Any, folder: Path) -> int | None:
    from tempfile import TemporaryFile

    if folder.exists() and not folder.is_dir():
        raise UserError(f"FOLDER {str(folder)!r}: this is a file; expected a folder to write to")
    try:
        folder.mkdir(parents=True, exist_ok=True)  # before an hour of work rather than after it
        with TemporaryFile(dir=folder):
            pass
        with Waiting(f"training {folder.name}") as progress:
            train_it(progress=progress)
    except KeyboardInterrupt:
        notes().print(f"stopped; the same command goes on from the last checkpoint in {str(folder)!r}")
        return 130
    except OSError as error:
        raise UserError(f"FOLDER {str(folder)!r}: cannot be written ({error.strerror})") from None
    notes().print(f"wrote {str(folder)!r}")
    return None
