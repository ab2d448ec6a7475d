"""`d3d prune`: a shallower drafter that guesses nearly as much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from d3d_runtime.cli.calibration import prompt_file_option, target_text
from d3d_runtime.cli.console import Waiting, notes, output
from d3d_runtime.cli.options import DTYPES, check_folder, debug_option
from d3d_runtime.errors import UserError

EPILOG = """\b
Examples:
  d3d prune shallow                                      the embedded drafter, at 99 % of its tau
  d3d prune D3D-8B-31 --drafter D3D-8B --target Qwen3-8B --layers 31 --dtype bfloat16

Writes FOLDER/config.json and model.safetensors, the order and the curve as prune.json, and as prune.png
where matplotlib is installed. Give the same command again, and a run that was stopped goes on from its
last removal."""


@click.command("prune", epilog=EPILOG, short_help="Remove the drafter's layers that matter least.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--target", metavar="PATH", help="Whose text is guessed.  [default: the embedded pair's]")
@click.option("--drafter", metavar="PATH", help="The drafter to prune.  [default: the embedded pair's]")
@click.option(
    "--keep",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.99,
    show_default=True,
    help="Share of tau that has to stay.",
)
@click.option("--layers", type=click.IntRange(min=1), help="Layers to keep, whatever it costs.  [default: by --keep]")
@click.option("--texts", type=click.IntRange(min=4), default=64, show_default=True, help="Answers to measure with.")
@prompt_file_option
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(folder: Path, **flags: Any) -> None:
    """Remove layers of a d3d drafter one by one, and write what is left into FOLDER."""
    if (flags["target"] is None) != (flags["drafter"] is None):
        raise UserError("--target and --drafter: give both, or none for the embedded pair")
    for flag in ("target", "drafter"):
        check_folder(f"--{flag}", flags[flag])
    if folder.exists() and not folder.is_dir():
        raise UserError(f"FOLDER {str(folder)!r}: this is a file; expected a folder to write to")
    with Waiting("reading the target's answers") as progress:
        import torch

        from d3d_runtime.engine import DTYPES as dtypes
        from d3d_runtime.engine import EMBEDDED_PAIR
        from d3d_runtime.training.prune import prune

        target = Path(flags["target"] or EMBEDDED_PAIR / "target")
        drafter = Path(flags["drafter"] or EMBEDDED_PAIR / "drafter")
        options = {"device": flags["device"], "dtype": flags["dtype"]}
        text = target_text(target, flags["prompt_file"], flags["texts"], **options, progress=progress)
        with torch.inference_mode():
            done = prune(
                drafter,
                folder,
                text,
                keep=flags["keep"],
                to_layers=flags["layers"],
                dtype=dtypes[flags["dtype"]],
                device=flags["device"],
                progress=progress,
            )
    if flags["as_json"]:
        click.echo(json.dumps(done))
        return
    for count, tau in enumerate(done["tau"]):
        without = f"without layer {done['removed'][count - 1]}" if count else "whole"
        output().print(f"{done['layers'] - count:>4} layers  tau {tau:.3f}  {tau / done['tau_before']:7.2%}  {without}")
    kept, share = len(done["kept_layers"]), done["tau_after"] / done["tau_before"]
    notes().print(
        f"wrote {str(folder)!r}: {kept} of {done['layers']} layers, tau {done['tau_after']:.3f} ({share:.1%}), "
        f"a forward of one block {done['draft_ms_before']:.2f} -> {done['draft_ms_after']:.2f} ms",
        style="bold",
    )
