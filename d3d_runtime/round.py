"""The one place where a round is written down, for all modes.

    DRAFT    rows that were not drafted ahead draft from their root
    TREE     the N best prefixes to verify, and the E likeliest outcomes
    VERIFY   on the target  ||  on the drafter's lane, blocks behind those outcomes (async) or of other rows (pingpong)
    SELECT   the outcome that came true, found at the end of the walk: its block is the next draft, for free
    COMMIT   tokens to requests, cut at the first stop condition

`autoregressive` has no draft and a tree of the root alone, `sync` no outcomes. In `pingpong` the rows that have a draft
are verified while the others draft; next round they change places. The host reads nothing before COMMIT.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.batch import Batch
from d3d_runtime.drafters.drafter import Drafter
from d3d_runtime.lanes import Lane, Stopwatch, Ticket, one_core
from d3d_runtime.metrics import RoundReport, RoundTimes
from d3d_runtime.policy import Plan
from d3d_runtime.request import TokenLogprob
from d3d_runtime.target import Target, Verification


@dataclass(frozen=True)
class Ahead:
    """What was drafted while the target verified: candidates [B, E, L, K] and the outcome that came true, [B] i32."""

    token_ids: Tensor
    scores: Tensor
    index: Tensor


class Round:
    """lane: where the drafter runs; it overlaps in `async` and `pingpong`."""

    def __init__(self, target: Target, drafter: Drafter | None, lane: Lane):
        self.target, self.drafter, self.lane = target, drafter, lane

    @torch.inference_mode()
    def run(self, batch: Batch, plan: Plan) -> RoundReport:
        """One round; afterwards each request that verified has at least one more token, or is finished. All verify,
        but in `pingpong` those that had no draft."""
        times, watch = RoundTimes(), Stopwatch()
        beside = None
        if plan.drafts:
            batch, beside = self._draft_missing(batch, plan)
            times.draft_ms = watch.lap()
        tree, outcomes = self._tree(batch, plan)
        times.tail_ms = watch.lap()
        if plan.num_outcomes:
            ticket = self.lane.submit(self.drafter.draft_frontier, batch.for_drafter(), tree, outcomes)
            verification, frontier = self._verify_beside(ticket, batch, tree, outcomes, times)
            watch.lap()
            shape, index = outcomes.token_ids.shape, verification.verdict.outcome_index
            ahead = Ahead(frontier.token_ids.unflatten(0, shape), frontier.scores.unflatten(0, shape), index)
            self.lane.submit(self.drafter.keep, batch.for_drafter(), tree, outcomes, verification.verdict, index)
        elif beside is not None:
            ahead = None
            verification, candidates = self._verify_beside(beside.ticket, batch, tree, None, times)
            watch.lap()
            beside.receive(candidates)
        else:
            verification, ahead = self.target.verify(batch, tree), None
            times.verify_ms = watch.lap()
        if verification.features is not None:
            self._show(batch, verification)
        paths, hits = self._commit(batch, tree, verification, ahead)
        times.tail_ms += watch.lap()
        for request in batch.requests:
            request.metrics.add_times(times)
        return RoundReport(times, paths, hits)

    def _draft_missing(self, batch: Batch, plan: Plan) -> tuple[Batch, Drafting | None]:
        """The rows to verify, and those that draft beside them.

        Rows without a draft are all rows in `sync`, misses and newcomers in `async`; the others wait for them.
        """
        missing = [i for i, request in enumerate(batch.requests) if request.draft is None]
        others = [i for i, request in enumerate(batch.requests) if request.draft is not None]
        if plan.mode != "pingpong":
            if missing:
                self._draft(batch.subset(missing)).wait()
            return batch, None
        if not others:  # the beginning: one half drafts first
            others, missing = missing[: -(-len(missing) // 2)], missing[-(-len(missing) // 2) :]
            self._draft(batch.subset(others)).wait()
        return batch.subset(others), self._draft(batch.subset(missing)) if missing else None

    def _draft(self, batch: Batch) -> Drafting:
        return Drafting(self.drafter, batch, self.lane.submit(self.drafter.draft, batch.for_drafter()))

    def _tree(self, batch: Batch, plan: Plan) -> tuple[dk.DraftTree, dk.Outcomes]:
        if not plan.drafts:
            return root_only(batch), dk.Outcomes.empty(len(batch), 0, batch.device)
        token_ids, scores = (torch.stack(column) for column in zip(*(request.draft for request in batch.requests)))
        candidates = dk.Candidates(token_ids, scores, scores)
        return dk.build_tree(
            batch.root_ids,
            candidates,
            num_nodes=plan.num_nodes,
            num_outcomes=plan.num_outcomes,
            stop_ids=batch.stop_ids,
        )

    def _verify_beside(
        self,
        ticket: Ticket,
        batch: Batch,
        tree: dk.DraftTree,
        outcomes: dk.Outcomes | None,
        times: RoundTimes,
    ) -> tuple[Verification, dk.Candidates]:
        """Verifies while the lane drafts; returns both."""
        both = Stopwatch()
        try:
            with one_core():
                watch = Stopwatch()
                verification = self.target.verify(batch, tree, outcomes)
                times.verify_ms = watch.lap()
        finally:  # also after an error: nobody may release pages that the lane still writes
            candidates = ticket.wait()
        times.overlap_ms = both.lap()
        return verification, candidates

    def _show(self, batch: Batch, verification: Verification) -> None:
        """The features of the root and of the path accepted behind it, in order, to a drafter that reads them."""
        verdict, features = verification.verdict, verification.features
        rows = torch.nn.functional.pad(verdict.accepted_nodes.long().clamp(min=0), (1, 0))[:, : features.shape[1]]
        features = features.gather(1, rows[:, :, None].expand(-1, -1, features.shape[2]))
        self.lane.submit(self.drafter.observe, batch.for_drafter(), features, verdict.num_accepted + 1)
        for request, accepted in zip(batch.requests, verdict.num_accepted.tolist()):
            request.drafter_length = len(request.tokens) + accepted

    def _commit(
        self, batch: Batch, tree: dk.DraftTree, verification: Verification, ahead: Ahead | None
    ) -> tuple[list[list[int]], list[int]]:
        """The one read of the round: tokens of the accepted path and the bonus token, to their requests.

        Returns the accepted nodes of each request and the outcomes that came true."""
        verdict = verification.verdict
        nodes, accepted = verdict.accepted_nodes.tolist(), verdict.num_accepted.tolist()
        token_ids, bonus = tree.token_ids.tolist(), verdict.bonus_ids.tolist()
        hits = ahead.index.tolist() if ahead is not None else []
        paths = [row[:count] for row, count in zip(nodes, accepted)]
        for b, request in enumerate(batch.requests):
            length = len(request.tokens)
            count = request.commit([token_ids[b][node] for node in paths[b]] + [bonus[b]])
            request.metrics.add_emitted(count)
            if request.params.logprobs is not None:
                rows = [0] + paths[b][: count - 1]
                request.logprobs += token_logprobs(
                    verification.logits[b, rows], request.tokens[length:], request.params.logprobs
                )
            request.draft = None
            if hits:
                hit = hits[b] >= 0
                request.drafter_length = length + accepted[b] + hit
                if hit:
                    request.draft = ahead.token_ids[b, hits[b]], ahead.scores[b, hits[b]]
                if not request.finished:  # an outcome that ends the request needs no draft
                    request.metrics.hits += hit
                    request.metrics.misses += not hit
        return paths, hits


@dataclass(frozen=True)
class Drafting:
    """Rows that the lane drafts from their roots."""

    drafter: Drafter
    batch: Batch
    ticket: Ticket

    def wait(self) -> None:
        self.receive(self.ticket.wait())

    def receive(self, candidates: dk.Candidates) -> None:
        for request, draft in zip(self.batch.requests, zip(candidates.token_ids, candidates.scores)):
            request.draft = draft
            request.drafter_length = self.drafter.settled_by_draft(len(request.tokens))


def root_only(batch: Batch) -> dk.DraftTree:
    tree = dk.DraftTree.empty(len(batch), 1, batch.device)
    tree.token_ids[:, 0] = batch.root_ids
    tree.parents.fill_(-1)
    tree.depths.zero_()
    tree.num_nodes.fill_(1)
    tree.mask_bits.fill_(1)
    return tree


def token_logprobs(logits: Tensor, token_ids: list[int], count: int) -> list[TokenLogprob]:
    """logits [n, V] of the rows that emitted `token_ids`."""
    log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    best, best_ids = log_p.topk(min(count, log_p.shape[1]))
    return [
        TokenLogprob(token, log_p[i, token].item(), dict(zip(best_ids[i].tolist(), best[i].tolist())))
        for i, token in enumerate(token_ids)
    ]
