"""A lane runs work beside the caller: on a CPU one worker thread, on a GPU (later) one stream.

What crosses from one lane to another is a Ticket: it carries the event to wait for, and times the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Ticket:
    future: Future

    def wait(self) -> Any:
        """The result, once it is there; an exception of the work is raised here.

        Ctrl-C while this waits is raised when the work is done: it may still write to pages of the caller's.
        """
        try:
            return self.future.result()
        except KeyboardInterrupt:
            wait([self.future])
            raise


class CpuLane:
    """One worker with one core for its matrix products: two lanes with a thread pool each would fight for the cores."""

    def __init__(self, name: str):
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=torch.set_num_threads, initargs=(1,))

    def submit(self, work: Callable[..., Any], *args: Any) -> Ticket:
        return Ticket(self._worker.submit(self._run, work, args))

    def close(self) -> None:
        self._worker.shutdown()

    @staticmethod
    def _run(work: Callable[..., Any], args: tuple) -> Any:
        with torch.inference_mode():
            return work(*args)


@contextmanager
def one_core() -> Iterator[None]:
    """The calling thread computes on one core, while a lane has the other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Stopwatch:
    """Milliseconds since the last lap."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        elapsed, self._last = (now - self._last) * 1e3, now
        return elapsed
