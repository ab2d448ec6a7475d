"""The one place where a round is written down, for all modes.

    DRAFT    rows that were not drafted ahead draft from their root
    TREE     the N best prefixes to verify, and the E likeliest outcomes
    VERIFY   on the target  ||  on the drafter's lane, the blocks behind those outcomes
    SELECT   the outcome that came true: its block is the next draft, for free
    COMMIT   tokens to requests, cut at the first stop condition

`autoregressive` has no draft and a tree of the root alone, `sync` no outcomes. The host reads nothing before COMMIT.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.batch import Batch
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.lanes import CpuLane, Stopwatch, one_core
from d3d_runtime.metrics import RoundTimes
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
    def __init__(self, target: Target, drafter: DiffusionDrafter | None, plan: Plan):
        self.target, self.drafter = target, drafter
        self.lane: CpuLane | None = None
        self.follow(plan)

    def follow(self, plan: Plan) -> None:
        """Rounds go by this plan from now on."""
        self.close()
        self.plan = plan
        self.lane = CpuLane("d3d-drafter") if plan.num_outcomes else None

    def close(self) -> None:
        if self.lane is not None:
            self.lane.close()

    @torch.inference_mode()
    def run(self, batch: Batch) -> None:
        """One round of every request of the batch; afterwards each has at least one more token, or is finished."""
        times, watch = RoundTimes(), Stopwatch()
        if self.plan.drafts:
            self._draft_missing(batch)
            times.draft_ms = watch.lap()
        tree, outcomes = self._tree(batch)
        times.tail_ms = watch.lap()
        if self.plan.num_outcomes:
            verification, ahead = self._verify_and_draft_ahead(batch, tree, outcomes, times)
            watch.lap()
            self.drafter.keep(batch, tree, outcomes, verification.verdict, ahead.index)
        else:
            verification, ahead = self.target.verify(batch, tree), None
            times.verify_ms = watch.lap()
        kept = self._commit(batch, tree, verification, ahead)
        times.tail_ms += watch.lap()
        for request, count in zip(batch.requests, kept):
            request.metrics.add_round(count, times)

    def _draft_missing(self, batch: Batch) -> None:
        """Rows without a draft: every row in `sync`, misses and newcomers in `async`; the others wait for them."""
        missing = batch.subset([i for i, request in enumerate(batch.requests) if request.draft is None])
        if len(missing):
            candidates = self.drafter.draft(missing)
            for request, draft in zip(missing.requests, zip(candidates.token_ids, candidates.scores)):
                request.draft = draft

    def _tree(self, batch: Batch) -> tuple[dk.DraftTree, dk.Outcomes]:
        if not self.plan.drafts:
            return root_only(batch), dk.Outcomes.empty(len(batch), 0, batch.device)
        token_ids, scores = (torch.stack(column) for column in zip(*(request.draft for request in batch.requests)))
        candidates = dk.Candidates(token_ids, scores, scores)
        return dk.build_tree(
            batch.root_ids,
            candidates,
            num_nodes=self.plan.num_nodes,
            num_outcomes=self.plan.num_outcomes,
            stop_ids=batch.stop_ids,
        )

    def _verify_and_draft_ahead(
        self, batch: Batch, tree: dk.DraftTree, outcomes: dk.Outcomes, times: RoundTimes
    ) -> tuple[Verification, Ahead]:
        both = Stopwatch()
        ticket = self.lane.submit(self.drafter.draft_frontier, batch, tree, outcomes)
        try:
            with one_core():
                watch = Stopwatch()
                verification = self.target.verify(batch, tree)
                times.verify_ms = watch.lap()
        finally:  # also after an error: nobody may release pages that the lane still writes
            frontier = ticket.wait()
        times.overlap_ms = both.lap()
        shape = outcomes.token_ids.shape
        index = dk.select_outcome(verification.verdict, outcomes)
        return verification, Ahead(frontier.token_ids.unflatten(0, shape), frontier.scores.unflatten(0, shape), index)

    def _commit(self, batch: Batch, tree: dk.DraftTree, verification: Verification, ahead: Ahead | None) -> list[int]:
        """The one read of the round: tokens of the accepted path and the bonus token, to their requests."""
        verdict = verification.verdict
        path = tree.token_ids.gather(1, verdict.accepted_nodes.long().clamp(min=0)).tolist()
        accepted, bonus = verdict.num_accepted.tolist(), verdict.bonus_ids.tolist()
        hits = ahead.index.tolist() if ahead is not None else None
        kept = []
        for b, request in enumerate(batch.requests):
            length = len(request.tokens)
            count = request.commit(path[b][: accepted[b]] + [bonus[b]])
            kept.append(count)
            if request.params.logprobs is not None:
                rows = [0] + verdict.accepted_nodes[b, : count - 1].tolist()
                request.logprobs += token_logprobs(
                    verification.logits[b, rows], request.tokens[length:], request.params.logprobs
                )
            request.draft = None
            if hits is not None:
                hit = hits[b] >= 0
                request.drafter_length = length + accepted[b] + hit
                if hit:
                    request.draft = ahead.token_ids[b, hits[b]], ahead.scores[b, hits[b]]
                if not request.finished:  # an outcome that ends the request needs no draft
                    request.metrics.hits += hit
                    request.metrics.misses += not hit
        return kept


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
