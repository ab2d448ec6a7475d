"""Draws show-blocks.svg, the picture in the README: what a terminal shows of `d3d generate --show-blocks`.

    python docs/show_blocks.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from d3d_runtime.cli import generate, run, streaming

COMMAND = "d3d generate --problem 5 --mode async --temperature 1 --seed 3 --show-blocks"
FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)  # from a server: a picture should need none


class Screen:
    """Takes the place of both consoles. A stream's pieces become one line, so that it wraps as a terminal would."""

    def __init__(self) -> None:
        self.console = Console(record=True, force_terminal=True, width=92, highlight=False)
        self.line = Text()
        self.is_terminal = False

    def print(self, what: Any = "", style: str = "", end: str = "\n") -> None:
        self.line.append_text(what if isinstance(what, Text) else Text(what, style))
        if end:
            self.console.print(self.line)
            self.line = Text()


if __name__ == "__main__":
    screen = Screen()
    generate.output = generate.notes = streaming.output = lambda: screen
    screen.print(f"$ {COMMAND}", style="dim")
    assert run(COMMAND.split()[1:], debug=True) == 0
    drawn = screen.console.export_svg(title="d3d")
    (Path(__file__).parent / "show-blocks.svg").write_text(FONTS.sub("", drawn) + "\n", encoding="utf-8")
