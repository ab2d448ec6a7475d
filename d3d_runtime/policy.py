"""Which mode, how many nodes N and outcomes E: a fixed plan, or `Auto`, which measures.

The gain model. With T_d, T_v alone, T_ov both at once, T_s the serial tail, h the share of outcomes drafted ahead, and
tau(N) tokens a target pass:

    autoregressive round   T_v(1) + T_s                                 1 token a request
    sync round             T_d + T_v(N) + T_s                           tau(N)
    async round            T_ov + T_s + (1 - h^B) T_d                   tau(N)     a batch waits for its misses
    pingpong round         T_ov + T_s                                   tau(N), of half of the batch

Times depend on the plan, the size of the batch and the length of the context, so they are kept for each such *bucket*.
tau does not, and needs many rounds to settle; it is counted for every N at once: the tree of N' < N nodes is the first
N' nodes of the tree of N (best-first), so a path that leaves them would have ended there. For the same reason outcome
e < E' shows what E' outcomes would have hit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from d3d_runtime.errors import UserError
from d3d_runtime.metrics import RoundReport

MODES = ("auto", "autoregressive", "sync", "async", "pingpong")
NUM_NODES = 16
NUM_OUTCOMES = 4
MAX_NODES = 256


@dataclass(frozen=True)
class Plan:
    """N nodes to verify, of which the root is one, and E outcomes to draft ahead; (1, 0) is plain decoding."""

    mode: str
    num_nodes: int
    num_outcomes: int

    @property
    def drafts(self) -> bool:
        return self.num_nodes > 1

    @property
    def overlaps(self) -> bool:
        return self.mode in ("async", "pingpong")

    def __str__(self) -> str:
        if not self.drafts:
            return self.mode
        return f"{self.mode} N={self.num_nodes}" + (f" E={self.num_outcomes}" if self.num_outcomes else "")


PLAIN = Plan("autoregressive", 1, 0)


class Policy(Protocol):
    plans: list[Plan]  # all that it may choose

    def choose(self, batch_size: int, context: int) -> Plan:
        """The plan of the next round; context: tokens of the longest request."""

    def observe(self, plan: Plan, batch_size: int, context: int, report: RoundReport) -> None:
        """What became of a round."""


class Fixed:
    def __init__(self, plan: Plan):
        self.plans = [plan]

    def choose(self, batch_size: int, context: int) -> Plan:
        return self.plans[0]

    def observe(self, plan: Plan, batch_size: int, context: int, report: RoundReport) -> None:
        pass


WINDOW = 24  # rounds whose median is a plan's time
TRIALS = 3  # rounds of a plan that is new in a bucket; one will do if it promises less than
HOPELESS = 0.4  # of the best so far
RETRY = 128  # rounds until a plan that looked nearly as good is tried again, and
RETRY_HOPELESS = 2048  # one that did not
NEARLY = 0.75
MARGIN = 1.03  # hysteresis: what a change of plan must promise
REMEMBERED = 512  # requests' rounds that tau and h are counted over


class Tally:
    """Pairs of the last REMEMBERED rounds of requests, and their sums."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[int, int]] = deque()
        self.first = self.second = 0

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, first: int, second: int) -> None:
        self._pairs.append((first, second))
        self.first, self.second = self.first + first, self.second + second
        if len(self._pairs) > REMEMBERED:
            first, second = self._pairs.popleft()
            self.first, self.second = self.first - first, self.second - second

    @property
    def ratio(self) -> float:
        return self.first / self.second if self.second else 0.0


@dataclass
class Times:
    """The last rounds of a plan in a bucket."""

    rounds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # ms, without waiting for a draft
    drafts: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # T_d of rounds that waited
    tried_at: int = 0


@dataclass
class Bucket:
    times: dict[Plan, Times] = field(default_factory=dict)
    rounds: int = 0
    current: Plan | None = None


@dataclass(frozen=True)
class Estimate:
    """A row of `explain`: what a plan promises in a bucket."""

    batch_size: int
    context: int
    plan: Plan
    rounds: int  # that the estimate rests on
    round_ms: float
    tau: float
    hit_rate: float
    tokens_per_second: float
    chosen: bool


class Auto:
    """Tries every plan for a few rounds in each bucket, then keeps to the one that promises most. It is not slower than
    plain decoding for longer than it takes to notice: that is one of the plans."""

    def __init__(self, plans: list[Plan]):
        self.plans = plans
        self._buckets: dict[tuple[int, int], Bucket] = {}
        self._fewest = min(plan.num_nodes for plan in plans if plan.drafts)
        # (emitted with N nodes, emitted with the fewest) of the rounds that can tell; (hits, rounds) with E outcomes.
        self._emitted = {plan.num_nodes: Tally() for plan in plans if plan.drafts}
        self._hits = {plan.num_outcomes: Tally() for plan in plans}

    def choose(self, batch_size: int, context: int) -> Plan:
        bucket = self._buckets.setdefault(_bucket(batch_size, context), Bucket())
        possible = [plan for plan in self.plans if plan.mode != "pingpong" or batch_size > 1]
        hopes: dict[Plan, float] = {}
        for plan in possible:
            tried = len(bucket.times.setdefault(plan, Times()).rounds)
            if not tried:
                return plan
            promise = self._tokens_per_ms(bucket, plan, batch_size)
            if tried < TRIALS and promise > HOPELESS * max(hopes.values(), default=0.0):
                return plan
            hopes[plan] = promise * self._doubt(plan)
        best = max(possible, key=hopes.__getitem__)
        if bucket.current not in hopes or hopes[best] > MARGIN * hopes[bucket.current]:
            bucket.current = best
        for plan in possible:
            patience = RETRY if hopes[plan] > NEARLY * hopes[best] else RETRY_HOPELESS
            if plan != bucket.current and bucket.rounds - bucket.times[plan].tried_at > patience:
                return plan
        return bucket.current

    def observe(self, plan: Plan, batch_size: int, context: int, report: RoundReport) -> None:
        bucket = self._buckets.setdefault(_bucket(batch_size, context), Bucket())
        times = bucket.times.setdefault(plan, Times())
        bucket.rounds += 1
        times.tried_at = bucket.rounds
        times.rounds.append(report.times.total_ms - report.times.draft_ms)
        if report.times.draft_ms:
            times.drafts.append(report.times.draft_ms)
        for nodes, emitted in self._emitted.items():
            if nodes <= plan.num_nodes:
                for path in report.paths:
                    emitted.add(_emitted(path, nodes), _emitted(path, self._fewest))
        for outcomes, hits in self._hits.items():
            if 0 < outcomes <= plan.num_outcomes:
                for index in report.outcome_indices:
                    hits.add(0 <= index < outcomes, 1)

    def explain(self) -> Iterator[Estimate]:
        """What every decision rests on, as it stands."""
        for (batch_size, context), bucket in sorted(self._buckets.items()):
            for plan, times in bucket.times.items():
                if times.rounds:
                    yield Estimate(
                        batch_size,
                        context,
                        plan,
                        len(times.rounds),
                        self._round_ms(bucket, plan, batch_size),
                        self._tau(plan),
                        self._hits[plan.num_outcomes].ratio,
                        1e3 * self._tokens_per_ms(bucket, plan, batch_size),
                        plan == bucket.current,
                    )

    def _tokens_per_ms(self, bucket: Bucket, plan: Plan, batch_size: int) -> float:
        rows = batch_size / 2 if plan.mode == "pingpong" else batch_size
        return rows * self._tau(plan) / self._round_ms(bucket, plan, batch_size)

    def _round_ms(self, bucket: Bucket, plan: Plan, batch_size: int) -> float:
        times = bucket.times[plan]
        draft = median(times.drafts) if times.drafts else 0.0
        waits = {"sync": 1.0, "async": 1 - self._hits[plan.num_outcomes].ratio ** batch_size}
        return median(times.rounds) + waits.get(plan.mode, 0.0) * draft

    def _tau(self, plan: Plan) -> float:
        """tau(N) = tau(fewest) over all rounds * the ratio of the two over the rounds that tell both: the ratio is
        steady, so a large N needs few rounds of its own."""
        if not plan.drafts:
            return 1.0
        everyone = self._emitted[self._fewest]
        return self._emitted[plan.num_nodes].ratio * everyone.first / len(everyone) if everyone else 1.0

    def _doubt(self, plan: Plan) -> float:
        """How much better than its estimate a plan's tau may well be: about one standard error of a ratio, so that a
        plan is given up for what it showed, not for bad luck (an upper confidence bound)."""
        rounds = len(self._emitted[plan.num_nodes]) if plan.drafts else 0
        return 1 + 0.8 * rounds**-0.5 if rounds else 1.0


def _bucket(batch_size: int, context: int) -> tuple[int, int]:
    """Powers of two: of the batch, and of the context from 256 tokens."""
    return 1 << (batch_size - 1).bit_length(), max(256, 1 << (context - 1).bit_length())


def _emitted(path: list[int], nodes: int) -> int:
    """Tokens that a round with this path would have emitted with so many nodes."""
    return 1 + sum(node < nodes for node in path)


def choose_policy(
    mode: str, has_drafter: bool, drafts_ahead: bool, num_nodes: int | None, num_outcomes: int | None
) -> Fixed | Auto:
    """drafts_ahead: the drafter can draft behind outcomes that have not come true yet."""
    if mode not in MODES:
        raise UserError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if num_nodes is not None and not 2 <= num_nodes <= MAX_NODES:
        raise UserError(f"num_nodes: expected 2 to {MAX_NODES}, got {num_nodes}")
    if num_outcomes is not None and not 1 <= num_outcomes <= 64:
        raise UserError(f"num_outcomes: expected 1 to 64, got {num_outcomes}")
    if mode == "autoregressive" or (mode == "auto" and not has_drafter):
        return Fixed(PLAIN)
    if not has_drafter:
        raise UserError(f"mode: {mode!r} needs a drafter; pass drafter=, or mode='autoregressive'")
    if mode == "async" and not drafts_ahead:
        raise UserError("mode: 'async' needs a drafter that drafts ahead, as d3d drafters do; use 'sync' or 'pingpong'")
    outcomes = num_outcomes or NUM_OUTCOMES
    if mode != "auto":
        return Fixed(Plan(mode, num_nodes or NUM_NODES, outcomes if mode == "async" else 0))
    sizes = [num_nodes] if num_nodes else [8, NUM_NODES, 32]
    middle = sizes[len(sizes) // 2]
    plans = [PLAIN, *(Plan("sync", nodes, 0) for nodes in sizes)]
    if drafts_ahead:
        plans.append(Plan("async", middle, outcomes))
    return Auto([*plans, Plan("pingpong", middle, 0)])
