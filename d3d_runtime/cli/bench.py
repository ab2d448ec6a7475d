"""`d3d bench`: is it faster here, and does it say the same?"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from d3d_runtime.cli.console import Waiting, output
from d3d_runtime.cli.options import debug_option, engine_options, open_engine
from d3d_runtime.errors import UserError
from d3d_runtime.sampling_params import SamplingParams

if TYPE_CHECKING:
    from d3d_runtime import Engine
    from d3d_runtime.report.compare import Contender

DRAFTING = ("sync", "async")

EPILOG = """\b
Examples:
  d3d bench                                     about a minute
  d3d bench --dtype bfloat16 --nodes 16 --nodes 32
  d3d bench --temperature 1 --problems 32 --seconds 300 --json result.json
  d3d bench --batch 8 --markdown bench/results/cpu.md

\b
T_d      waiting for a draft              T_v  the target's pass and verdict
T_ov     both at once (async)             T_s  all else in a round
hits     outcomes drafted ahead           tau  tokens emitted a target pass, bonus included
predicted: from T_d, T_v, T_ov, T_s, hits and tau; tokens/s beside it are without prefill."""


@click.command("bench", epilog=EPILOG, short_help="Compare the modes on this machine, in a minute.")
@click.option(
    "--mode",
    "modes",
    type=click.Choice(DRAFTING),
    multiple=True,
    help="What to compare (repeatable).  [default: sync, async]",
)
@engine_options
@click.option(
    "--nodes",
    type=int,
    multiple=True,
    metavar="N",
    help="Nodes of a draft tree (repeatable).  [default: the engine's choice]",
)
@click.option(
    "--problems",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Held-out word problems a repeat.",
)
@click.option(
    "--seconds",
    type=float,
    default=60.0,
    show_default=True,
    help="Repeats begin while they will end by then; one always runs.",
)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Requests at a time.")
@click.option("--temperature", type=float, default=0.0, show_default=True)
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--max-tokens", type=int, default=256, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of problems and noise.")
@click.option("--json", "json_path", metavar="FILE", help="Write everything measured ('-': stdout, instead of tables).")
@click.option(
    "--markdown",
    "markdown_path",
    metavar="FILE",
    help="Write the tables, to a new file or between its marker lines.",
)
@debug_option
def command(**flags: Any) -> None:
    """Compare plain, synchronous and asynchronous decoding on this machine.

    Runs held-out word problems in every mode by turns, so that noise hits all alike, and reports speeds,
    acceptance, times, and whether the outputs were identical.
    """
    deadline = time.monotonic() + flags["seconds"]
    params = SamplingParams(max_tokens=flags["max_tokens"], temperature=flags["temperature"], top_p=flags["top_p"])
    json_path, markdown_path = flags["json_path"], flags["markdown_path"]
    _check_writable("--json", None if json_path == "-" else json_path)
    _check_writable("--markdown", markdown_path)

    from d3d_runtime.report.compare import compare, make_tasks
    from d3d_runtime.report.machine import this_machine
    from d3d_runtime.report.summary import Report, make_rows
    from d3d_runtime.report.tables import markdown, print_report, split_at_markers, write_markdown
    from d3d_runtime.training.problems import generate

    if markdown_path is not None and Path(markdown_path).exists():
        split_at_markers(Path(markdown_path))
    contenders = _contenders(flags)
    problems = list(generate(flags["seed"], flags["problems"], "held_out_wordings"))
    tasks = make_tasks(problems, params, contenders[0].engine.tokenizer, flags["seed"])
    with Waiting("comparing") as progress:
        began, planned = time.monotonic(), flags["seconds"]

        def tick() -> None:
            progress("comparing", min(planned, time.monotonic() - began), planned)

        compare(contenders, tasks, flags["batch"], deadline, tick)

    report = Report(
        machine=this_machine(),
        date=date.today().isoformat(),
        command=shlex.join(["d3d", *sys.argv[1:]]),
        dtype=str(contenders[0].engine.dtype).removeprefix("torch."),
        temperature=params.temperature,
        batch=flags["batch"],
        repeats=len(contenders[0].repeats),
        rows=make_rows(contenders, tasks, flags["batch"]),
    )
    if json_path == "-":
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        print_report(report, output())
        if json_path is not None:
            _write("--json", json_path, lambda path: path.write_text(json.dumps(report.as_json(), indent=2) + "\n"))
    if markdown_path is not None:
        _write("--markdown", markdown_path, lambda path: write_markdown(path, markdown(report)))


def _contenders(flags: dict[str, Any]) -> list[Contender]:
    """Plain decoding, then every drafting mode with every number of nodes."""
    from d3d_runtime.report.compare import BASELINE, Contender

    def engine(mode: str, **overrides: Any) -> Engine:
        return open_engine(flags, mode=mode, max_batch_size=flags["batch"], **overrides)

    contenders = [Contender(BASELINE, engine(BASELINE, drafter="none", num_outcomes=None))]
    for mode in flags["modes"] or DRAFTING:
        for nodes in flags["nodes"] or (None,):
            opened = engine(mode, num_nodes=nodes)
            ahead = f" E={opened.num_outcomes}" if opened.num_outcomes else ""
            contenders.append(Contender(f"{mode} N={opened.num_nodes}{ahead}", opened))
    return contenders


def _write(flag: str, path: str, write: Callable[[Path], object]) -> None:
    try:
        write(Path(path))
    except OSError as error:
        raise UserError(f"{flag} {path!r}: cannot be written ({error.strerror})") from None


def _check_writable(flag: str, path: str | None) -> None:
    """Before a minute of work rather than after it."""
    if path is None:
        return
    folder = Path(path).parent
    target = Path(path) if Path(path).exists() else folder
    if not folder.is_dir():
        raise UserError(f"{flag} {path!r}: there is no folder {str(folder)!r}")
    if Path(path).is_dir() or not os.access(target, os.W_OK):
        raise UserError(f"{flag} {path!r}: cannot be written")
