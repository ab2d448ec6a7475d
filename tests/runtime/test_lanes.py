"""Lanes and plans: errors cross a lane, threads are given back, and the choice of a mode is explained."""

from __future__ import annotations

import threading

import pytest
import torch

from d3d_runtime import UserError
from d3d_runtime.lanes import CpuLane, Stopwatch, one_core
from d3d_runtime.policy import NUM_NODES, NUM_OUTCOMES, Plan, choose


@pytest.fixture
def lane():
    lane = CpuLane("test-lane")
    yield lane
    lane.close()


def test_a_lane_runs_beside_the_caller_in_order(lane):
    gate, order = threading.Event(), []
    first = lane.submit(lambda: (gate.wait(10), order.append(1)))
    second = lane.submit(lambda name: order.append(name) or threading.current_thread().name, 2)
    assert not first.future.done()  # the caller was not held up
    gate.set()
    assert second.wait().startswith("test-lane") and order == [1, 2]


def test_a_lane_computes_on_one_thread_without_gradients(lane):
    assert lane.submit(torch.get_num_threads).wait() == 1
    assert lane.submit(torch.is_inference_mode_enabled).wait()


def test_an_error_crosses_the_lane_and_the_lane_lives_on(lane):
    ticket = lane.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ticket.wait()
    assert lane.submit(lambda: 5).wait() == 5


def test_a_closed_lane_takes_no_work():
    lane = CpuLane("test-lane")
    lane.close()
    lane.close()
    with pytest.raises(RuntimeError):
        lane.submit(print)


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


def test_the_default_mode_is_the_fastest_known():
    assert choose("auto", True, None, None) == Plan("sync", NUM_NODES, 0)
    assert choose("auto", False, None, None) == Plan("autoregressive", 1, 0)
    assert choose("async", True, None, None) == Plan("async", NUM_NODES, NUM_OUTCOMES)
    assert choose("async", True, 5, 9) == Plan("async", 5, 9)
    assert choose("sync", True, 5, 9) == Plan("sync", 5, 0)
    assert choose("autoregressive", True, 5, 9) == Plan("autoregressive", 1, 0)
    assert not Plan("autoregressive", 1, 0).drafts and Plan("sync", 2, 0).drafts
    with pytest.raises(UserError, match="mode: 'sync' needs a drafter"):
        choose("sync", False, None, None)
