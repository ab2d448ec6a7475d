"""Output goes to stdout, what is said about it to stderr; colour and bars to terminals only."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar


def output() -> Console:
    return _console(stderr=False)


def notes() -> Console:
    return _console(stderr=True)


@cache  # one each, so that a bar knows of the lines printed while it moves
def _console(stderr: bool) -> Console:
    from rich.console import Console

    # Generated text may hold [brackets] and :names:, which are text here and never markup.
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


class Waiting:
    """`with Waiting("loading") as progress:` a bar on stderr while the block runs; nothing where that is no terminal.

    patience: seconds that may pass before it shows. Work that cannot tell how far it is needs 0, and has a bar that
    only moves; work that can calls this again and again, and most of it ends before anyone would look.
    """

    def __init__(self, what: str, patience: float = 0.0):
        self._what, self._patience = what, patience
        self._bar: Bar | None = None
        self._done = not notes().is_terminal

    def __enter__(self) -> Waiting:
        self._began = time.monotonic()
        if self._patience == 0 and not self._done:
            self._show()
        return self

    def __call__(self, what: str, done: float, total: float) -> None:
        if self._done:
            return
        if self._bar is None and time.monotonic() - self._began >= self._patience:
            self._show()
        if self._bar is not None:
            self._bar.update(self._task, description=what, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._done = True
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=notes(), transient=True)
        self._task = self._bar.add_task(self._what, total=None)
        self._bar.start()
