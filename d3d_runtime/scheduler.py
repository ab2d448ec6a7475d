"""Requests in and out: who waits, who runs, who has pages.

A request is admitted when both pools can hold all it can ever need (prompt, max_tokens, scratch of one round), so that
a running request never lacks a page. Requests join and leave between rounds.
"""

from __future__ import annotations

from collections import deque

import torch

from d3d_runtime.batch import Batch
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.errors import UserError
from d3d_runtime.lanes import Stopwatch
from d3d_runtime.request import Request
from d3d_runtime.round import Round
from d3d_runtime.target import Target


class Scheduler:
    def __init__(self, target: Target, drafter: DiffusionDrafter | None, round_: Round, max_batch_size: int):
        self.target, self.drafter, self.round = target, drafter, round_
        self.max_batch_size = max_batch_size
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

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
        needs, pools = self._rows(request), self._pools()
        for cache, rows in zip(pools, needs):
            if cache.pages_for(rows) > cache.num_pages - 1:
                raise UserError(
                    f"prompt: {request.prompt_length} tokens with max_tokens {request.max_tokens} need "
                    f"{cache.pages_for(rows)} pages; "
                    f"the KV cache has {cache.num_pages - 1}; lower max_tokens or raise num_pages"
                )

    def step(self) -> list[Request]:
        """Admits who fits, runs one round, and returns the requests that ran; the finished ones have left."""
        while self.waiting and len(self.running) < self.max_batch_size and self._fits(self.waiting[0]):
            self._admit(self.waiting[0])
            self.running.append(self.waiting.popleft())
        ran = list(self.running)
        try:
            if ran:
                self.round.run(Batch(ran, self.target.cache.device))
        finally:  # an error in the middle of a commit leaves some finished: they must not run again
            self.running = [request for request in ran if not request.finished]
            for request in ran:
                if request.finished:
                    self._release(request)
        return ran

    def abort(self, request_id: str) -> Request:
        """Ends a request where it stands: nothing of it runs between two steps."""
        for queue in (self.waiting, self.running):
            for request in queue:
                if request.request_id == request_id:
                    queue.remove(request)
                    request.finish_reason = "abort"
                    self._release(request)
                    return request
        raise UserError(f"request_id: {request_id!r} is not waiting or running")

    def _pools(self) -> list:
        return [self.target.cache] + ([self.drafter.cache] if self.drafter is not None else [])

    def _rows(self, request: Request) -> list[int]:
        most, plan = request.prompt_length + request.max_tokens, self.round.plan
        rows = [most + plan.num_nodes]
        if self.drafter is not None:
            rows.append(most + self.drafter.scratch_rows(plan.num_nodes, plan.num_outcomes))
        return rows

    def _fits(self, request: Request) -> bool:
        return all(cache.pages_for(rows) <= cache.num_free for cache, rows in zip(self._pools(), self._rows(request)))

    @torch.inference_mode()
    def _admit(self, request: Request) -> None:
        """Pages and prefill; if that fails the request waits on without pages."""
        watch = Stopwatch()
        rows = self._rows(request)
        try:
            request.target_pages = self.target.cache.allocate(rows[0])
            self.target.prefill(request)
            if self.drafter is not None:
                request.drafter_pages = self.drafter.cache.allocate(rows[1])
                self.drafter.prefill(request)
        except BaseException:
            self._release(request)
            raise
        request.metrics.prefill_ms = watch.lap()

    def _release(self, request: Request) -> None:
        self.target.cache.release(request.target_pages)
        if self.drafter is not None:
            self.drafter.cache.release(request.drafter_pages)
        request.draft = None
