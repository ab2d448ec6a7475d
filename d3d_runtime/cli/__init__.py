"""The `d3d` command, one module a command; none of them imports torch before it runs.

A command returns its exit code, None for 0. What a user can mend is a UserError: one line on stderr,
exit code 2. Output goes to stdout, everything said about it to stderr: a pipe carries the output alone.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings

import click

from d3d_runtime.cli import bench, chat, doctor, generate, prune, train
from d3d_runtime.cli.console import notes
from d3d_runtime.cli.options import debug_option
from d3d_runtime.errors import UserError

OK, FAILED, USER_ERROR, INTERRUPTED = 0, 1, 2, 130


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"d3d {doctor.installed_version(doctor.DISTRIBUTION) or '(not installed)'}")
        context.exit()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has --help with examples.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
@debug_option
def app() -> None:
    """Asynchronous speculative decoding with block-diffusion drafters.

    \b
    d3d generate                 answers a word problem with the embedded pair, offline
    d3d generate --show-blocks   shows which tokens came from a draft
    d3d chat                     goes on from there, turn by turn
    d3d bench                    compares the modes on this machine, in a minute
    """


for module in (generate, chat, bench, train, prune, doctor):
    app.add_command(module.command)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits; the console script `d3d`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a terminal without the characters shows the others
    sys.exit(run(arguments, debug="--debug" in arguments))


def run(arguments: list[str], debug: bool) -> int:
    """The exit code of one command line."""
    try:
        code = app.main(args=arguments, prog_name="d3d", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        click.echo(help_wanted.format_message())
        return USER_ERROR
    except BrokenPipeError:  # `d3d ... | head`: the reader has what it wanted; say nothing, as rich does
        _close_stdout()
        return FAILED
    except (KeyboardInterrupt, click.Abort):
        click.echo("d3d: interrupted", err=True)
        return INTERRUPTED
    except (UserError, click.ClickException) as error:
        return _fail(
            error.format_message() if isinstance(error, click.ClickException) else str(error),
            debug,
            USER_ERROR,
        )
    except OSError as error:  # a full disk, a file that may not be read
        if error.filename is None:
            _close_stdout()
        where = "stdout: cannot be written" if error.filename is None else f"{str(error.filename)!r}: cannot be used"
        return _fail(f"{where} ({error.strerror})", debug, USER_ERROR)
    except Exception as error:
        said = f"internal error, {type(error).__name__}: {error}; --debug shows where"
        return _fail(said, debug, FAILED)


def _fail(message: str, debug: bool, code: int) -> int:
    if debug:
        traceback.print_exc()
    click.echo("d3d: " + " ".join(message.split()), err=True)
    return code


def _close_stdout() -> None:
    """What is still buffered for it must not fail once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    notes().print(f"d3d: warning: {message}")
