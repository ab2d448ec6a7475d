"""select_outcome: did one of the pre-drafted outcomes come true?"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from ..types import Outcomes, Verdict
from . import _arguments, _library


def select_outcome(
    verdict: Verdict, outcomes: Outcomes, *, out: Tensor | None = None, backend: str | None = None
) -> Tensor:
    """The index of the outcome that verification arrived at, or -1 (a miss).

    Args:
        verdict: accepted_nodes[B,N], num_accepted[B], bonus_ids[B].
        outcomes: parent_node[B,E] i32, token_ids[B,E] i64.
        out: [B] i32, written and returned if given.
        backend: forces one backend for this call.

    Returns:
        index [B] i32: the lowest e whose parent_node is the last accepted node (0 if none was accepted) and
        whose token is the bonus token; -1 if there is none, or in an empty lane (bonus -1).

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device or stride, by name.
    """
    if _library.tracing():
        index = _op(verdict, outcomes, backend)
        return index if out is None else out.copy_(index)
    return _eager(verdict, outcomes, out, backend)


def _eager(verdict, outcomes, out, backend):
    batch, _ = _arguments.sizes_of("verdict", verdict, Verdict)
    device = verdict.checked("verdict").device
    _arguments.sizes_of("outcomes", outcomes, Outcomes)
    outcomes.expect("outcomes", device, batch)
    if out is None:
        out = torch.empty(batch, dtype=torch.int32, device=device)
    else:
        checks.output("out", out, torch.int32, (batch,), device)
    if batch:
        run = registry.kernel("select_outcome", device, backend)
        run(
            verdict.accepted_nodes,
            verdict.num_accepted,
            verdict.bonus_ids,
            outcomes.parent_node,
            outcomes.token_ids,
            out,
        )
    return out


def _run(verdict, outcomes, backend):
    return _eager(verdict, outcomes, None, backend)


def _fake(verdict, *_):
    return torch.empty_like(verdict.num_accepted)


_op = _library.register("select_outcome", ("verdict", "outcomes", "str? backend=None"), "Tensor", _run, _fake)
