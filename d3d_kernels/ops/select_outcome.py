"""select_outcome: did one of the pre-drafted outcomes come true, and what was drafted behind it?"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from ..types import Candidates, Outcomes, Verdict
from . import _arguments, _library


def select_outcome(
    verdict: Verdict,
    outcomes: Outcomes,
    candidates: Candidates | None = None,
    *,
    out: Tensor | tuple[Tensor, Candidates] | None = None,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Candidates]:
    """The index of the outcome that verification arrived at, or -1 (a miss); and its draft, if wanted.

    ``verify_tree(outcomes=)`` finds the index in the same call as the verdict, and ``build_tree(outcome_index=)``
    reads the hit branch where it lies; this op is for what comes between other verifiers and drafts.

    Args:
        verdict: accepted_nodes[B,N], num_accepted[B], bonus_ids[B].
        outcomes: parent_node[B,E] i32, token_ids[B,E] i64.
        candidates: [B*E,L,K], what was drafted behind the outcomes: branch e of request b is row b * E + e.
        out: index [B] i32, or (index, Candidates [B,L,K]) with candidates: written and returned if given.
        backend: forces one backend for this call.

    Returns:
        index [B] i32: the lowest e whose parent_node is the last accepted node (0 if none was accepted) and
        whose token is the bonus token; -1 if there is none, or in an empty lane (bonus -1). With candidates,
        (index, Candidates [B,L,K]): those of the branch, or (-1, -inf, -inf) on a miss.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device or stride, by name.
    """
    if not _library.tracing():
        return _eager(verdict, outcomes, candidates, out, backend)
    if candidates is None:
        index = _op(verdict, outcomes, None, None, backend)
        return index if out is None else out.copy_(index)
    drafts = _empty_drafts(verdict, candidates) if out is None else out[1]
    index = _op(verdict, outcomes, candidates, drafts, backend)
    return (index if out is None else out[0].copy_(index)), drafts


def _empty_drafts(verdict: Verdict, candidates: Candidates) -> Candidates:
    _, length, k = candidates.token_ids.shape
    return Candidates.empty(verdict.num_accepted.shape[0], length, k, candidates.token_ids.device)


def _eager(verdict, outcomes, candidates, out, backend):
    batch, _nodes = _arguments.sizes_of("verdict", verdict, Verdict)
    device = verdict.checked("verdict").device
    _, num_outcomes = _arguments.sizes_of("outcomes", outcomes, Outcomes)
    outcomes.expect("outcomes", device, batch)
    if candidates is None:
        index, drafts = out, None
    else:
        _, length, k = _arguments.sizes_of("candidates", candidates, Candidates)
        candidates.expect("candidates", device, batch * num_outcomes)
        index, drafts = (None, _empty_drafts(verdict, candidates)) if out is None else out
        _arguments.sizes_of("out[1]", drafts, Candidates)
        drafts.expect("out[1]", device, batch, length, k, contiguous=True)
    if index is None:
        index = torch.empty(batch, dtype=torch.int32, device=device)
    else:
        checks.output("out" if candidates is None else "out[0]", index, torch.int32, (batch,), device)
    if batch:
        run = registry.kernel("select_outcome", device, backend)
        run(
            verdict.accepted_nodes,
            verdict.num_accepted,
            verdict.bonus_ids,
            outcomes.parent_node,
            outcomes.token_ids,
            index,
            candidates,
            drafts,
        )
    return index if candidates is None else (index, drafts)


def _run(verdict, outcomes, candidates, drafts, backend):
    if candidates is None:
        return _eager(verdict, outcomes, None, None, backend)
    index = torch.empty_like(verdict.num_accepted)
    return _eager(verdict, outcomes, candidates, (index, drafts), backend)[0]


def _fake(verdict, *_):
    return torch.empty_like(verdict.num_accepted)


_op = _library.register(
    "select_outcome", ("verdict", "outcomes", "candidates?", "drafts!", "str? backend=None"), "Tensor", _run, _fake
)
