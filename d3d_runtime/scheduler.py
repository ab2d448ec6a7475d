"""Requests in and out: who waits, who runs, who has pages.

Requests join and leave between rounds. One is admitted when both pools have the pages for its prompt and its next
round; after that its pages grow with its tokens. When a pool is exhausted, the youngest gives its pages up and waits at
the head of the queue; its tokens are kept and its KV is computed again, which changes nothing about its output. The
oldest is never preempted, so everyone's turn comes.

Prompts are prefilled in chunks, so many tokens a step, so that a long one does not hold up those that run.
"""

from __future__ import annotations

from collections import deque

import torch

from d3d_runtime.batch import Batch
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.errors import UserError
from d3d_runtime.lanes import Stopwatch
from d3d_runtime.policy import Policy
from d3d_runtime.request import Request
from d3d_runtime.round import Round
from d3d_runtime.target import PREFILL_CHUNK, Target

STEP_TOKENS = 2 * PREFILL_CHUNK  # prompt tokens that a step may prefill before its round


class Scheduler:
    def __init__(
        self, target: Target, drafter: DiffusionDrafter | None, round_: Round, policy: Policy, max_batch_size: int
    ):
        self.target, self.drafter, self.round, self.policy = target, drafter, round_, policy
        self.max_batch_size = max_batch_size
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order of admission

    def knows(self, request_id: str) -> bool:
        return any(request.request_id == request_id for request in [*self.running, *self.waiting])

    def add(self, requests: list[Request]) -> None:
        """Queues all of them, or none if one is refused."""
        for request in requests:
            self._check(request)
        self.waiting.extend(requests)

    def _check(self, request: Request) -> None:
        if self.knows(request.request_id):
            raise UserError(f"request_id: {request.request_id!r} is already in use")
        needs = self._rows(request.prompt_length + request.max_tokens)
        for cache, rows in zip(self._pools(), needs):
            if cache.pages_for(rows) > cache.num_pages - 1:
                raise UserError(
                    f"prompt: {request.prompt_length} tokens with max_tokens {request.max_tokens} need "
                    f"{cache.pages_for(rows)} pages; "
                    f"the KV cache has {cache.num_pages - 1}; lower max_tokens or raise num_pages"
                )

    def step(self) -> list[Request]:
        """Admits who fits, prefills a chunk, runs one round of those that are ready, and returns the requests that ran;
        the finished ones have left."""
        self._admit()
        self._prefill()
        ran = self._with_pages()
        try:
            if ran:
                batch, context = Batch(ran, self.target.cache.device), max(len(request.tokens) for request in ran)
                plan = self.policy.choose(len(ran), context)
                self.policy.observe(plan, len(ran), context, self.round.run(batch, plan))
        except BaseException:  # who knows how far the drafter came: it reads everything again
            for request in self.running:
                request.drafter_length, request.draft = 0, None
            raise
        finally:  # an error in the middle of a commit leaves some finished: they must not run again
            for request in ran:
                if request.finished:
                    self._leave(request)
        return ran

    def abort(self, request_id: str) -> Request:
        """Ends a request where it stands: nothing of it runs between two steps."""
        for request in [*self.running, *self.waiting]:
            if request.request_id == request_id:
                request.finish_reason = "abort"
                self._leave(request)
                return request
        raise UserError(f"request_id: {request_id!r} is not waiting or running")

    def _admit(self) -> None:
        """A page for each that runs is left, or the next round would preempt the newcomer."""
        while self.waiting and len(self.running) < self.max_batch_size:
            request = self.waiting[0]
            pages = [cache.pages_for(rows) for cache, rows in zip(self._pools(), self._rows(len(request.tokens)))]
            if any(count + len(self.running) > cache.num_free for cache, count in zip(self._pools(), pages)):
                return
            self._grow(request)
            self.running.append(self.waiting.popleft())

    @torch.inference_mode()
    def _prefill(self) -> None:
        """What requests lack, the oldest first, up to STEP_TOKENS; both models at once where the lane overlaps."""
        budget = STEP_TOKENS
        for request in self.running:
            while budget > 0 and not request.prefilled:
                watch, start = Stopwatch(), request.target_length
                chunk = request.tokens[start : min(start + PREFILL_CHUNK, len(request.tokens) - 1)]
                if self.drafter is not None:
                    self.round.lane.submit(self.drafter.prefill, request.drafter_pages, chunk, start)
                self.target.prefill(request.target_pages, chunk, start)
                request.target_length += len(chunk)
                if self.drafter is not None:
                    request.drafter_length = request.target_length
                request.metrics.prefill_ms += watch.lap()
                budget -= len(chunk)

    def _with_pages(self) -> list[Request]:
        """The prefilled requests, oldest first, each with pages for its next round."""
        ready = []
        for request in list(self.running):
            while request in self.running and request.prefilled and not self._fits(request):
                self._preempt(self.running[-1])
            if request in self.running and request.prefilled:
                self._grow(request)
                ready.append(request)
        return ready

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        request.metrics.preemptions += 1
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        self.target.cache.release(request.target_pages)
        if self.drafter is not None:
            self.drafter.cache.release(request.drafter_pages)
        request.target_length = request.drafter_length = 0
        request.draft = None

    def _pools(self) -> list:
        return [self.target.cache] + ([self.drafter.cache] if self.drafter is not None else [])

    def _rows(self, tokens: int) -> list[int]:
        """Rows in each pool of a request of so many tokens, through its next round."""
        nodes = max(plan.num_nodes for plan in self.policy.plans)
        rows = [tokens - 1 + nodes]
        if self.drafter is not None:
            outcomes = max(plan.num_outcomes for plan in self.policy.plans)
            rows.append(tokens + self.drafter.scratch_rows(nodes, outcomes))
        return rows

    def _lists(self, request: Request) -> list[list[int]]:
        return [request.target_pages, request.drafter_pages]

    def _fits(self, request: Request) -> bool:
        needs = zip(self._pools(), self._rows(len(request.tokens)), self._lists(request))
        return all(cache.pages_for(rows) - len(pages) <= cache.num_free for cache, rows, pages in needs)

    def _grow(self, request: Request) -> None:
        for cache, rows, pages in zip(self._pools(), self._rows(len(request.tokens)), self._lists(request)):
            cache.extend(pages, rows)
