"""Output goes to stdout, what is said about it to stderr; colour and spinners to terminals only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def output() -> Console:
    return _console(stderr=False)


def notes() -> Console:
    return _console(stderr=True)


@cache  # one each, so that a spinner knows of the lines printed while it turns
def _console(stderr: bool) -> Console:
    from rich.console import Console

    # Generated text may hold [brackets] and :names:, which are text here and never markup.
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on stderr while the block runs; nothing where stderr is not a terminal."""
    console = notes()
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
