"""Requests in and out: who waits, who runs, who has pages.

Requests join and leave between rounds. One is admitted when both pools have the pages for its prompt and its next
round; after that its pages grow with its tokens. When a pool is exhausted, the youngest gives its pages up and waits at
the head of the queue; its tokens are kept and its KV is computed again, which changes nothing about its output. The
oldest is never preempted, so everyone's turn comes. What a conversation keeps between two of its requests (a `Prefix`)
stays in the pools only while nobody else waits for its pages.

Prompts are prefilled in chunks, so many tokens a step, so that a long one does not hold up those that run.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from d3d_runtime.batch import Batch
from d3d_runtime.drafters.drafter import Drafter
from d3d_runtime.errors import UserError
from d3d_runtime.kv_cache import KVCache
from d3d_runtime.lanes import Stopwatch
from d3d_runtime.policy import Policy
from d3d_runtime.prefix import Prefix
from d3d_runtime.progress import Progress, silent
from d3d_runtime.request import Request
from d3d_runtime.round import Round
from d3d_runtime.target import PREFILL_CHUNK, Target

STEP_TOKENS = 2 * PREFILL_CHUNK  # prompt tokens that a step may prefill before its round


class Scheduler:
    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        round_: Round,
        policy: Policy,
        max_batch_size: int,
        progress: Progress = silent,
    ):
        self.target, self.drafter, self.round, self.policy = target, drafter, round_, policy
        self.max_batch_size, self.progress = max_batch_size, progress
        self.prefixes: list[Prefix] = []  # those that hold pages, the one unused for longest first
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
        prefix = request.prefix
        if prefix is not None and not prefix.is_empty and prefix not in self.prefixes:
            raise UserError("prefix: its pages belong to another engine")
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
            for prefix in self.prefixes:
                prefix.drafter_length = 0
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

    def forget(self, prefix: Prefix) -> None:
        """Takes a prefix's pages back into the pools."""
        if prefix in self.prefixes:
            self.prefixes.remove(prefix)
            for cache, pages in zip(self._pools(), prefix.pages):
                cache.release(pages)
            prefix.forget()

    @torch.inference_mode()
    def _admit(self) -> None:
        """A page for each that runs is left, or the next round would preempt the newcomer."""
        while self.waiting and len(self.running) < self.max_batch_size and self._make_room(self.waiting[0]):
            request = self.waiting[0]
            if request.prefix in self.prefixes:
                self.prefixes.remove(request.prefix)
                request.prefix.hand_over(request)
            self._grow(request)
            self.running.append(self.waiting.popleft())
            self._keep_abreast(request)
            self._feed_drafter(request)

    def _make_room(self, request: Request) -> bool:
        """Whether its pages are there. Other prefixes give theirs, one at a time, if that is enough."""
        others = [prefix for prefix in self.prefixes if prefix is not request.prefix]
        if not self._has_room(request, others):
            return False
        while not self._has_room(request, []):
            self.forget(others.pop(0))
        return True

    def _has_room(self, request: Request, freed: list[Prefix]) -> bool:
        """Whether it would fit if these prefixes were gone. What its own prefix holds is its own."""
        own = request.prefix.pages if request.prefix is not None else ([], [])
        rows = self._rows(len(request.tokens))
        return all(
            cache.pages_for(rows[pool]) + len(self.running)
            <= cache.num_free + len(own[pool]) + sum(len(prefix.pages[pool]) for prefix in freed)
            for pool, cache in enumerate(self._pools())
        )

    @torch.inference_mode()
    def _prefill(self) -> None:
        """What requests lack, the oldest first, up to STEP_TOKENS; both models at once where the lane overlaps."""
        budget = STEP_TOKENS
        for request in self.running:
            self._keep_abreast(request)
            while budget > 0 and not request.prefilled:
                watch, start, end = Stopwatch(), request.target_length, len(request.tokens) - 1
                chunk = request.tokens[start : min(start + PREFILL_CHUNK, end)]
                features = self.target.prefill(request.target_pages, chunk, start)
                request.target_length += len(chunk)
                self._feed_drafter(request, features)
                request.metrics.prefill_ms += watch.lap()
                budget -= len(chunk)
                self.progress("reading the prompt", request.target_length, end)

    def _keep_abreast(self, request: Request) -> None:
        """A drafter that reads the target's features has them of what the target reads with it: the target reads again
        what the drafter lacks."""
        if self._drafts and self.drafter.taps:
            request.target_length = min(request.target_length, request.drafter_length)

    def _feed_drafter(self, request: Request, features: Tensor | None = None) -> None:
        """What the target has read."""
        if not self._drafts:
            return
        start, end = self.drafter.settled(request.drafter_length), self.drafter.settled(request.target_length)
        request.drafter_length = start
        if start < end:
            read = request.tokens[start:end]
            self.round.lane.submit(self.drafter.prefill, list(request.drafter_pages), read, start, features)
            request.drafter_length = end

    def _with_pages(self) -> list[Request]:
        """The prefilled requests, oldest first, each with pages for its next round."""
        ready = []
        for request in list(self.running):
            while request in self.running and request.prefilled and not self._fits(request):
                if self.prefixes:
                    self.forget(self.prefixes[0])
                else:
                    self._preempt(self.running[-1])
            if request in self.running and request.prefilled:
                self._grow(request)
                ready.append(request)
        return ready

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        request.metrics.preemptions += 1
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        """Its pages go to its prefix, or back into the pools."""
        (self.running if request in self.running else self.waiting).remove(request)
        prefix = request.prefix
        if prefix is not None and request.target_pages:
            self.forget(prefix)  # another request of the same conversation ended before
            prefix.take_back(request)
            self.prefixes.append(prefix)
            for cache, pages, length in zip(self._pools(), prefix.pages, prefix.lengths):
                cache.keep(pages, length)
        self._release(request)

    def _release(self, request: Request) -> None:
        for cache, pages in zip(self._pools(), request.pages):
            cache.release(pages)
        request.target_length = request.drafter_length = 0
        request.draft = None

    def _pools(self) -> list[KVCache]:
        return [self.target.cache] + ([self.drafter.cache] if self._drafter_keeps else [])

    @property
    def _drafter_keeps(self) -> bool:
        return self.drafter is not None and self.drafter.cache is not None

    @property
    def _drafts(self) -> bool:
        """Also while a plan does not: features that are not read when they come are gone."""
        return any(plan.drafts for plan in self.policy.plans) or bool(self.drafter is not None and self.drafter.taps)

    def _rows(self, tokens: int) -> list[int]:
        """Rows in each pool of a request of so many tokens, through its next round."""
        nodes = max(plan.num_nodes for plan in self.policy.plans)
        rows = [tokens - 1 + nodes]
        if self._drafts and self._drafter_keeps:
            outcomes = max(plan.num_outcomes for plan in self.policy.plans)
            rows.append(tokens + self.drafter.scratch_rows(nodes, outcomes))
        elif self._drafter_keeps:  # a prefix may bring some, for a later request that drafts
            rows.append(0)
        return rows

    def _missing(self, request: Request) -> list[int]:
        """Pages of each pool that it lacks for its next round."""
        needs = zip(self._pools(), self._rows(len(request.tokens)), request.pages)
        return [max(0, cache.pages_for(rows) - len(pages)) for cache, rows, pages in needs]

    def _fits(self, request: Request) -> bool:
        return all(count <= cache.num_free for cache, count in zip(self._pools(), self._missing(request)))

    def _grow(self, request: Request) -> None:
        for cache, pages, count in zip(self._pools(), request.pages, self._missing(request)):
            cache.take(pages, count)
