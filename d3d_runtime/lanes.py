"""A lane runs work beside the caller: a worker thread, or a worker process with an interpreter of its own.

What crosses to a lane and back is a Ticket: it carries the event to wait for. A lane does its work in the order of
submission; an error of work that nobody waits for is raised at the next wait. Inline runs everything at once, for modes
that overlap nothing.

Two threads share one interpreter, which a small model's many operators keep busy: they overlap little. A process
overlaps all of it. It is forked, so it has the models for nothing; what it changes there (its KV cache), it keeps.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
import signal
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

MAX_IN_FLIGHT = 4  # calls to a process: replies that nobody reads must not fill the pipe and stop it


class Ticket(Protocol):
    def wait(self) -> Any:
        """The result, once it is there; an exception of the work is raised here."""


class Lane(Protocol):
    overlaps: bool

    def submit(self, work: Callable[..., Any], *args: Any) -> Ticket:
        """Queues `work(*args)`."""

    def close(self) -> None:
        """Ends the worker; what was queued is done first."""


@dataclass(frozen=True)
class Done:
    result: Any

    def wait(self) -> Any:
        return self.result


class Inline:
    overlaps = False

    def submit(self, work: Callable[..., Any], *args: Any) -> Done:
        return Done(_in_inference_mode(work, args))

    def close(self) -> None:
        pass


class ThreadTicket:
    def __init__(self, lane: ThreadLane, future: Future):
        self._lane, self._future = lane, future

    def wait(self) -> Any:
        return self._lane.result(self._future)


class ThreadLane:
    """One worker with one core for its matrix products: two lanes with a thread pool each would fight for the cores."""

    overlaps = True

    def __init__(self, name: str):
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=torch.set_num_threads, initargs=(1,))
        self._unheard: deque[Future] = deque()

    def submit(self, work: Callable[..., Any], *args: Any) -> ThreadTicket:
        future = self._worker.submit(_in_inference_mode, work, args)
        self._unheard.append(future)
        return ThreadTicket(self, future)

    def result(self, future: Future) -> Any:
        try:
            while future in self._unheard:
                first = self._unheard.popleft()
                if first is not future:
                    first.result()  # done before; raises what nobody has waited for
            return future.result()
        except KeyboardInterrupt:  # raised when the work is done: it may still write to pages of the caller's
            wait([future])
            raise

    def close(self) -> None:
        self._worker.shutdown()


class LaneLost(RuntimeError):
    """The worker process is gone: it was killed, or ran out of memory."""


class ProcessTicket:
    def __init__(self, lane: ProcessLane, number: int):
        self._lane, self._number = lane, number

    def wait(self) -> Any:
        return self._lane.reply(self._number)


class ProcessLane:
    """A forked worker. `resident` is the object whose methods it runs, on its own copy; arguments and results cross a
    pipe, so they are small: token ids and candidates, not logits."""

    overlaps = True

    def __init__(self, name: str, resident: object):
        fork = multiprocessing.get_context("fork")
        self._resident = resident
        self._pipe, theirs = fork.Pipe()
        self._process = fork.Process(target=_serve, args=(self._pipe, theirs, resident), name=name, daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns that other threads may hold locks. The child runs torch on one thread and no more.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        self._submitted = self._received = 0
        self._replies: dict[int, tuple[bool, Any]] = {}

    def submit(self, work: Callable[..., Any], *args: Any) -> ProcessTicket:
        while self._submitted - self._received >= MAX_IN_FLIGHT:
            self._receive()
        message = _dump((work, args), self._resident)
        try:
            with no_interrupt():
                self._pipe.send_bytes(message)
        except (OSError, ValueError) as error:
            raise self._lost() from error
        self._submitted += 1
        return ProcessTicket(self, self._submitted)

    def reply(self, number: int) -> Any:
        while self._received < number:
            self._receive()
        succeeded, result = self._replies.pop(number)
        # What nobody waited for may have failed too; it came before and is the cause.
        for earlier in [n for n in self._replies if n < number]:
            went_well, cause = self._replies.pop(earlier)
            if not went_well and succeeded:
                succeeded, result = False, cause
        if not succeeded:
            raise result
        return result

    def _receive(self) -> None:
        try:
            while not self._pipe.poll(None):  # Ctrl-C may come here,
                pass
            with no_interrupt():  # but half a message would be the end of the lane
                message = self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        self._received += 1
        self._replies[self._received] = _load(message, self._resident)

    def close(self) -> None:
        if self._pipe.closed:
            return
        with suppress(OSError):  # it is gone already
            self._pipe.send_bytes(b"")
        self._process.join(timeout=10)
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _lost(self) -> LaneLost:
        self._process.join(timeout=1)
        return LaneLost(f"{self._process.name}: the worker process has ended (exit code {self._process.exitcode})")


def _serve(parents: Any, pipe: Any, resident: object) -> None:
    """The worker's life: calls in, results out, until an empty message or the end of the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes this lane
    parents.close()
    torch.set_num_threads(1)
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            return
        if not message:
            return
        try:
            work, args = _load(message, resident)
            reply = (True, _in_inference_mode(work, args))
        except BaseException as error:
            error.__cause__ = None
            reply = (False, _portable(error))
        pipe.send_bytes(_dump(reply, resident))


def _portable(error: BaseException) -> BaseException:
    """The error, if it can be sent; its text otherwise."""
    text = "".join(traceback.format_exception(error))
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"in the worker process:\n{text}")
    return error


class _Pickler(pickle.Pickler):
    """The resident object by name, tensors by value: torch would open a file of shared memory for each of them."""

    def __init__(self, file: io.BytesIO, resident: object):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._resident = resident

    def persistent_id(self, value: object) -> str | None:
        return "resident" if value is self._resident else None

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16:  # which numpy does not know
            return _bfloat16, (value.detach().view(torch.int16).numpy(),)
        if isinstance(value, torch.Tensor):
            return torch.from_numpy, (value.detach().numpy(),)
        return NotImplemented


def _bfloat16(bits: Any) -> torch.Tensor:
    return torch.from_numpy(bits).view(torch.bfloat16)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, resident: object):
        super().__init__(file)
        self._resident = resident

    def persistent_load(self, name: str) -> object:
        return self._resident


def _dump(value: object, resident: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file, resident).dump(value)
    return file.getvalue()


def _load(message: bytes, resident: object) -> Any:
    return _Unpickler(io.BytesIO(message), resident).load()


def _in_inference_mode(work: Callable[..., Any], args: tuple) -> Any:
    with torch.inference_mode():
        return work(*args)


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Ctrl-C waits for the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
