"""How work that takes its time tells how far it is: by a callable, so that nothing here knows of terminals."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float, float], None]  # what is being done; how much of it is done, of how much


def silent(what: str, done: float, total: float) -> None:
    """Tells nobody."""
