"""Requests in and out: who waits, who runs, who has pages.

A request is admitted when both pools can hold all it can ever need (prompt, max_tokens, scratch of one round), so that
a running request never lacks a page. Requests join and leave between rounds. What a conversation keeps between two of
its requests (a `Prefix`) stays in the pools only while nobody else waits for its pages.
"""

from __future__ import annotations

from collections import deque

import torch

from d3d_runtime.batch import Batch
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.errors import UserError
from d3d_runtime.kv_cache import KVCache
from d3d_runtime.lanes import Stopwatch
from d3d_runtime.prefix import Prefix
from d3d_runtime.progress import Progress, silent
from d3d_runtime.request import Request
from d3d_runtime.round import Round
from d3d_runtime.target import Target


class Scheduler:
    def __init__(
        self,
        target: Target,
        drafter: DiffusionDrafter | None,
        round_: Round,
        max_batch_size: int,
        progress: Progress = silent,
    ):
        self.target, self.drafter, self.round = target, drafter, round_
        self.max_batch_size, self.progress = max_batch_size, progress
        self.prefixes: list[Prefix] = []  # those that hold pages, the one unused for longest first
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
        prefix = request.prefix
        if prefix is not None and not prefix.is_empty and prefix not in self.prefixes:
            raise UserError("prefix: its pages belong to another engine")
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
        while self.waiting and len(self.running) < self.max_batch_size and self._make_room(self.waiting[0]):
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

    def forget(self, prefix: Prefix) -> None:
        """Takes a prefix's pages back into the pools."""
        if prefix in self.prefixes:
            self.prefixes.remove(prefix)
            for cache, pages in zip(self._pools(), prefix.pages):
                cache.release(pages)
            prefix.forget()

    def _pools(self) -> list[KVCache]:
        return [self.target.cache] + ([self.drafter.cache] if self.drafter is not None else [])

    def _rows(self, request: Request) -> list[int]:
        most, plan = request.prompt_length + request.max_tokens, self.round.plan
        rows = [most + plan.num_nodes]
        if self.drafter is not None and plan.drafts:
            rows.append(most + self.drafter.scratch_rows(plan.num_nodes, plan.num_outcomes))
        elif self.drafter is not None:  # what an earlier request left there, for a later one that drafts
            rows.append(request.drafter_length)
        return rows

    def _make_room(self, request: Request) -> bool:
        """Whether its pages are there. Other prefixes give theirs, one at a time, if that is enough."""
        others = [prefix for prefix in self.prefixes if prefix is not request.prefix]
        if not self._fits(request, others):
            return False
        while not self._fits(request, []):
            self.forget(others.pop(0))
        return True

    def _fits(self, request: Request, freed: list[Prefix]) -> bool:
        """Whether it would fit if these prefixes were gone. What its own prefix holds is its own."""
        own = request.prefix.pages if request.prefix is not None else ([], [])
        return all(
            cache.pages_for(rows) <= cache.num_free + len(own[pool]) + sum(len(prefix.pages[pool]) for prefix in freed)
            for pool, (cache, rows) in enumerate(zip(self._pools(), self._rows(request)))
        )

    @torch.inference_mode()
    def _admit(self, request: Request) -> None:
        """Pages and prefill; if that fails the request waits on without pages."""
        watch = Stopwatch()
        try:
            if request.prefix in self.prefixes:
                self.prefixes.remove(request.prefix)
                request.prefix.hand_over(request)
            for cache, pages, rows in zip(self._pools(), request.pages, self._rows(request)):
                cache.resize(pages, rows)
            self.target.prefill(request, self.progress)
            if self.round.plan.drafts:
                self.drafter.prefill(request, self.progress)
        except BaseException:
            self._release(request)
            raise
        request.metrics.prefill_ms = watch.lap()

    def _release(self, request: Request) -> None:
        """Its pages go to its prefix, or back into the pools."""
        prefix, request.draft = request.prefix, None
        if prefix is not None and request.target_pages:
            self.forget(prefix)  # another request of the same conversation ended before
            prefix.take_back(request)
            self.prefixes.append(prefix)
            for cache, pages, length in zip(self._pools(), prefix.pages, prefix.lengths):
                cache.resize(pages, length)
        else:
            for cache, pages in zip(self._pools(), request.pages):
                cache.release(pages)
        request.target_length = request.drafter_length = 0
