"""Lanes: work runs beside the caller and in order, errors cross a lane, threads are given back."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

import d3d_kernels as dk
from d3d_runtime.lanes import MAX_IN_FLIGHT, Inline, LaneLost, ProcessLane, Stopwatch, ThreadLane, one_core


class Worker:
    """What a lane runs; a process has a copy of its own."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def note(self, value: object) -> list[object]:
        self.calls.append(value)
        return list(self.calls)

    def shifted(self, candidates: dk.Candidates, shift: int) -> dk.Candidates:
        return dk.Candidates(candidates.token_ids + shift, candidates.log_probs, candidates.scores)

    def where(self) -> tuple[int, str]:
        return os.getpid(), threading.current_thread().name

    def settings(self) -> tuple[int, bool]:
        return torch.get_num_threads(), torch.is_inference_mode_enabled()

    def fail(self, error: BaseException) -> None:
        raise error

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def worker():
    return Worker()


@pytest.fixture(params=[Inline, ThreadLane, ProcessLane], ids=["inline", "thread", "process"])
def lane(request, worker):
    lane = {
        Inline: Inline,
        ThreadLane: lambda: ThreadLane("test-lane"),
        ProcessLane: lambda: ProcessLane("test-lane", worker),
    }[request.param]()
    yield lane
    lane.close()
    lane.close()


def test_work_is_done_in_order(lane, worker):
    tickets = [lane.submit(worker.note, number) for number in range(3 * MAX_IN_FLIGHT)]
    assert tickets[-1].wait() == list(range(3 * MAX_IN_FLIGHT))


def test_records_of_tensors_cross_a_lane(lane, worker):
    candidates = dk.Candidates(torch.arange(6).view(1, 2, 3), torch.zeros(1, 2, 3), -torch.ones(1, 2, 3))
    result = lane.submit(worker.shifted, candidates, 5).wait()
    assert result.token_ids.tolist() == [[[5, 6, 7], [8, 9, 10]]] and torch.equal(result.scores, candidates.scores)
    result.scores.fill_(0)  # the receiver's own, writable
    assert candidates.token_ids.tolist() == [[[0, 1, 2], [3, 4, 5]]]


def test_a_lane_is_where_it_says(lane, worker):
    process, thread = lane.submit(worker.where).wait()
    assert (process != os.getpid()) == isinstance(lane, ProcessLane)
    assert thread.startswith("test-lane") == isinstance(lane, ThreadLane)
    threads, inference = lane.submit(worker.settings).wait()
    assert inference and (threads == 1 or not lane.overlaps)
    assert worker.calls == []  # nothing ran here that should not have


@pytest.mark.parametrize("kind", [ThreadLane, ProcessLane])
def test_the_caller_is_not_held_up(kind, worker):
    lane = kind("test-lane", worker) if kind is ProcessLane else kind("test-lane")
    began = time.perf_counter()
    ticket = lane.submit(time.sleep, 0.3)
    assert time.perf_counter() - began < 0.25
    ticket.wait()
    assert time.perf_counter() - began >= 0.29
    lane.close()


def test_an_error_crosses_the_lane_and_the_lane_lives_on(lane, worker):
    with pytest.raises(KeyError, match="lost"):
        lane.submit(worker.fail, KeyError("lost")).wait()
    assert lane.submit(worker.note, 5).wait() == [5]


@pytest.mark.parametrize("kind", [ThreadLane, ProcessLane])
def test_an_error_nobody_waited_for_is_raised_at_the_next_wait(kind, worker):
    lane = kind("test-lane", worker) if kind is ProcessLane else kind("test-lane")
    lane.submit(worker.fail, ValueError("unheard"))
    with pytest.raises(ValueError, match="unheard"):
        lane.submit(worker.note, 1).wait()
    assert lane.submit(worker.note, 2).wait() == [1, 2]
    lane.close()


def test_a_worker_process_that_dies_is_an_error_not_a_hang(worker):
    lane = ProcessLane("test-lane", worker)
    with pytest.raises(LaneLost, match=r"test-lane: the worker process has ended \(exit code -9\)"):
        lane.submit(worker.end).wait()
    with pytest.raises(LaneLost):
        lane.submit(worker.note, 1).wait()
    lane.close()


def test_a_worker_process_survives_ctrl_c(worker):
    """The signal goes to the whole group; only the parent may act on it."""
    lane = ProcessLane("test-lane", worker)
    process, _ = lane.submit(worker.where).wait()
    os.kill(process, signal.SIGINT)
    assert lane.submit(worker.note, 1).wait() == [1]
    lane.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize("error", [None, KeyError])
def test_one_core_gives_the_threads_back(error):
    torch.set_num_threads(2)
    try:
        with pytest.raises(error) if error else one_core(), one_core():
            assert torch.get_num_threads() == 1
            if error:
                raise error
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_a_stopwatch_measures_laps():
    watch = Stopwatch()
    first, second = watch.lap(), watch.lap()
    assert 0 <= second < 1000 and 0 <= first < 1000
