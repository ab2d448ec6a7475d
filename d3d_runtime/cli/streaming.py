"""One answer as it comes: shown round by round, timed, and ended by Ctrl-C with what it has."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

from d3d_runtime.cli.console import Waiting, output

if TYPE_CHECKING:
    from d3d_runtime import Engine, RequestOutput

INTERRUPTED = "interrupted"
PATIENCE = 0.5  # seconds of reading a prompt before a bar shows

Show = Callable[["RequestOutput"], None]


@dataclass(frozen=True)
class Answer:
    """What a request returned, as far as it came, and the seconds the engine took for it."""

    output: RequestOutput
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return len(self.output.token_ids) / self.seconds

    @property
    def interrupted(self) -> bool:
        return self.output.finish_reason == INTERRUPTED


class CtrlC:
    """Ctrl-C between two rounds: the first one is noted, so that the round which runs is not lost.

    Before `may_wait` is set, and from the second one on, it interrupts at once, as ever.
    """

    def __init__(self) -> None:
        self.pressed = self.may_wait = False

    def __enter__(self) -> CtrlC:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pressed or not self.may_wait:
            raise KeyboardInterrupt
        self.pressed = True


def stream_answer(engine: Engine, stream: Iterator[RequestOutput], show: Show | None) -> Answer:
    """Takes a stream of `engine` to its end, or to Ctrl-C; KeyboardInterrupt if that came before its first token.

    Only time inside the engine counts. What is shown has a bar before it, if the prompt is long; who shows nothing
    has a bar of its own around all of it.
    """
    increments, seconds = [], 0.0
    reading = Waiting("reading the prompt", PATIENCE) if show is not None else nullcontext(engine.progress)
    try:
        with CtrlC() as ctrl_c:
            while not ctrl_c.pressed:
                began = time.perf_counter()
                if increments:
                    increment = next(stream, None)
                else:
                    with reading as engine.progress:
                        increment = next(stream, None)
                seconds += time.perf_counter() - began
                if increment is None:
                    break
                increments.append(increment)
                ctrl_c.may_wait = True
                if show is not None:
                    show(increment)
    finally:
        stream.close()
    last = increments[-1]
    whole = replace(
        last,
        text=None if last.text is None else "".join(each.text for each in increments),
        token_ids=[token for each in increments for token in each.token_ids],
        logprobs=None if last.logprobs is None else [each for one in increments for each in one.logprobs],
        finish_reason=last.finish_reason or INTERRUPTED,
    )
    return Answer(whole, seconds)


def printer(engine: Engine, stop: list[str], show_blocks: bool) -> Show:
    """Prints increments to stdout; a model without a tokenizer says token ids."""
    from d3d_runtime.cli.blocks import BlockPainter

    console = output()
    if show_blocks or engine.tokenizer is None:
        painter = BlockPainter(engine.tokenizer, stop, engine.mode if show_blocks else "plain")
        return lambda increment: console.print(painter.paint(increment), end="")
    return lambda increment: console.print(increment.text, end="")
