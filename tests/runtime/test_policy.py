"""The choice of a plan: fixed ones, and `auto` against machines whose times are known."""

from __future__ import annotations

from random import Random

import pytest

from d3d_runtime import UserError
from d3d_runtime.metrics import RoundReport, RoundTimes
from d3d_runtime.policy import NUM_NODES, NUM_OUTCOMES, PLAIN, Auto, Fixed, Plan, choose_policy


def test_fixed_plans():
    def plan(mode: str, nodes: int | None = None, outcomes: int | None = None) -> Plan:
        policy = choose_policy(mode, True, True, nodes, outcomes)
        assert isinstance(policy, Fixed)
        return policy.choose(1, 1)

    assert plan("async") == Plan("async", NUM_NODES, NUM_OUTCOMES)
    assert plan("async", 5, 9) == Plan("async", 5, 9)
    assert plan("sync", 5, 9) == Plan("sync", 5, 0)
    assert plan("pingpong", 5, 9) == Plan("pingpong", 5, 0)
    assert plan("autoregressive", 5, 9) == PLAIN
    assert choose_policy("auto", False, False, None, None).choose(4, 9) == PLAIN
    assert not PLAIN.drafts and Plan("sync", 2, 0).drafts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sync", False, True, None, None), "mode: 'sync' needs a drafter"),
        (("async", True, False, None, None), "mode: 'async' needs a drafter that drafts ahead"),
        (("fast", True, True, None, None), "mode: expected one of auto, autoregressive"),
        (("sync", True, True, 1, None), "num_nodes: expected 2 to 256, got 1"),
        (("async", True, True, None, 0), "num_outcomes: expected 1 to 64, got 0"),
    ],
)
def test_choices_that_cannot_be(arguments, message):
    with pytest.raises(UserError, match=message):
        choose_policy(*arguments)


class Machine:
    """Rounds of known times and acceptance, with noise."""

    def __init__(self, seed=0, draft=7.0, verify=lambda n: 10 + 0.2 * n, overlap=3.0, tau=8.0, hit=0.9):
        self.random = Random(seed)
        self.draft, self.verify, self.overlap, self.tau, self.hit = draft, verify, overlap, tau, hit
        self.clock = self.emitted = 0.0

    def path(self, nodes: int) -> list[int]:
        """Geometric acceptance; deeper nodes have larger indices, as in a best-first tree."""
        path, node = [], 0
        while self.random.random() < 1 - 1 / self.tau:
            node += self.random.randint(1, 3)
            if node >= nodes:
                break
            path.append(node)
        return path

    def run(self, plan: Plan, batch: int) -> RoundReport:
        noise = self.random.uniform(0.95, 1.05) * (3.0 if self.random.random() < 0.02 else 1.0)
        verify = self.verify(plan.num_nodes) * (1 + 0.1 * batch) * noise
        times = RoundTimes(verify_ms=verify, tail_ms=0.5)
        rows, hits = batch, []
        if plan.mode == "sync":
            times.draft_ms = self.draft
        if plan.mode == "async":
            times.overlap_ms = max(verify, self.draft + self.overlap)
            hits = [0 if self.random.random() < self.hit else -1 for _ in range(rows)]
            times.draft_ms = self.draft if -1 in hits else 0.0
        if plan.mode == "pingpong":
            times.overlap_ms, rows = max(0.6 * verify, self.draft), batch // 2
        report = RoundReport(times, [self.path(plan.num_nodes) for _ in range(rows)], hits)
        self.clock += times.total_ms
        self.emitted += sum(1 + len(path) for path in report.paths)
        return report


def speed(policy: Auto | Fixed, machine: Machine, batch: int, rounds: int = 4000) -> float:
    for _ in range(rounds):
        plan = policy.choose(batch, 100)
        policy.observe(plan, batch, 100, machine.run(plan, batch))
    return machine.emitted / machine.clock


MACHINES = {
    "drafts well": {},
    "drafts badly": {"tau": 1.05},
    "expensive verification": {"verify": lambda n: 2 + 2.0 * n, "tau": 2.0},
    "expensive draft": {"draft": 60.0, "tau": 3.0},
    "no overlap": {"overlap": 60.0},
    "few hits": {"hit": 0.1},
}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", MACHINES)
def test_auto_is_near_the_best_fixed_plan_and_never_loses_to_plain_decoding(kind, batch):
    auto = choose_policy("auto", True, True, None, None)
    plans = [plan for plan in auto.plans if batch > 1 or plan.mode != "pingpong"]
    fixed = {str(plan): speed(Fixed(plan), Machine(1, **MACHINES[kind]), batch) for plan in plans}
    mine = speed(auto, Machine(2, **MACHINES[kind]), batch)
    assert mine > 0.95 * max(fixed.values()), (mine, fixed)
    assert mine > 0.97 * fixed["autoregressive"], (mine, fixed)


def test_auto_notices_that_things_have_changed():
    """Failure 38: slower than plain decoding, silently, once the load has changed."""
    auto, machine = choose_policy("auto", True, True, None, None), Machine(3)
    speed(auto, machine, 1)
    assert auto.choose(1, 100).drafts
    machine.tau = 1.02
    speed(auto, machine, 1, rounds=1200)
    assert sum(auto.choose(1, 100) == PLAIN for _ in range(10)) >= 9
    machine.tau = 8.0
    speed(auto, machine, 1, rounds=6000)
    assert auto.choose(1, 100).drafts


def test_each_batch_size_and_context_is_measured_for_itself():
    auto = choose_policy("auto", True, True, None, None)
    speed(auto, Machine(4), 1, rounds=200)
    assert {(e.batch_size, e.context) for e in auto.explain()} == {(1, 256)}
    for _ in range(200):
        plan = auto.choose(3, 900)
        auto.observe(plan, 3, 900, Machine(5).run(plan, 4))
    rows = list(auto.explain())
    assert {(e.batch_size, e.context) for e in rows} == {(1, 256), (4, 1024)}
    assert sum(e.chosen for e in rows) == 2
    assert all(e.tau == 1 for e in rows if e.plan == PLAIN)


def test_a_path_through_a_large_tree_tells_tau_of_smaller_ones():
    auto = Auto([Plan("sync", 32, 0), Plan("sync", 8, 0), PLAIN])
    report = RoundReport(RoundTimes(verify_ms=1.0), [[1, 7, 8, 20], [31], []], [])
    auto.observe(Plan("sync", 32, 0), 3, 10, report)
    assert auto._tau(Plan("sync", 8, 0)) == pytest.approx((3 + 1 + 1) / 3)
    assert auto._tau(Plan("sync", 32, 0)) == pytest.approx((5 + 2 + 1) / 3)
    auto.observe(Plan("sync", 8, 0), 1, 10, RoundReport(RoundTimes(verify_ms=1.0), [[2, 3]], []))
    assert auto._tau(Plan("sync", 8, 0)) == pytest.approx(8 / 4)
    assert auto._tau(Plan("sync", 32, 0)) == pytest.approx((8 / 5) * (8 / 4))
