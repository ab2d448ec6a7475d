"""verify_tree: walk each draft tree with the target's own seeded sample."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from ..types import DraftTree, Outcomes, Penalties, SamplingTensors, Verdict
from . import _arguments, _library


def verify_tree(
    logits: Tensor,
    tree: DraftTree,
    sampling: SamplingTensors,
    root_positions: Tensor,
    penalties: Penalties | None = None,
    *,
    row_starts: Tensor | None = None,
    outcomes: Outcomes | None = None,
    out: Verdict | None = None,
    backend: str | None = None,
) -> Verdict:
    """Accept the longest path of the tree that the target itself would have sampled, and the token after it.

    Walk from the root: at a node at position t the target's token is y = y(t + 1), exactly as ``sample``
    defines it. The lowest child that carries y is accepted and the walk goes on there; without one, y is the
    bonus token. Path and bonus are token for token what sampling one at a time gives: losslessness holds by
    construction, for any tree, at any temperature and filter, greedy included. Only rows on the path matter.

    Args:
        logits: [B,N,V], row of node i of request b; or packed rows [R,V] with ``row_starts``. f32, bf16, f16
            or f64, any strides but V dense. NaN counts as -inf.
        tree: B trees of at most N nodes; num_nodes[b] = 0 marks an empty lane. mask_bits is not read.
        sampling: parameters of the B requests.
        root_positions: [B] i64, absolute position of the root.
        penalties: of the B requests; a node's row sees the committed tokens and the tokens of its ancestors
            and its own (the root is committed already).
        row_starts: [B] i32, packed row of each root; node i has row row_starts[b] + i.
        outcomes: what was drafted ahead for these trees; which of it came true is part of the verdict.
        out: Verdict to write and return; with outcomes it needs an outcome_index.
        backend: forces one backend for this call.

    Returns:
        Verdict: accepted_nodes[B,N] (root excluded, -1 padded), num_accepted[B], bonus_ids[B] (-1 in an empty
        lane), status[B] and outcome_index[B], what ``select_outcome`` would say: the lowest outcome that is
        (last accepted node, bonus token), -1 for a miss and without outcomes. Status bits: BAD_TREE if a parent
        is not smaller than its node, is missing, or a row lies outside the logits; BAD_TOKEN if a token is
        outside [0, V); such nodes are never accepted. NO_FINITE_LOGIT if a row on the path has nothing to
        choose from (its token is 0).

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device or stride, by name.
    """
    arguments = logits, row_starts, tree, sampling, root_positions, penalties, outcomes
    if _library.tracing():
        return _library.copy_record(out, Verdict(*_op(*arguments, backend)))
    return _eager(*arguments, out, backend)


def _eager(logits, row_starts, tree, sampling, root_positions, penalties, outcomes, out, backend):
    checks.logits("logits", logits, (3,) if row_starts is None else (2,))
    batch, nodes, _ = _arguments.sizes_of("tree", tree, DraftTree)
    device = logits.device
    tree.expect("tree", device)
    if row_starts is not None:
        checks.vector("row_starts", row_starts, torch.int32, (batch,), device)
    elif logits.shape[:2] != (batch, nodes):
        raise ValueError(f"logits: expected shape ({batch}, {nodes}, V) as in tree, got {tuple(logits.shape)}")
    _arguments.requests(logits, batch, sampling, "root_positions", root_positions, None, penalties)
    if out is None:
        out = Verdict.empty(batch, nodes, device)
    else:
        _arguments.sizes_of("out", out, Verdict)
        out.expect("out", device, batch, nodes, contiguous=True)
    if outcomes is not None:
        _arguments.sizes_of("outcomes", outcomes, Outcomes)
        outcomes.expect("outcomes", device, batch)
        if out.outcome_index is None:
            raise ValueError("out.outcome_index: expected a tensor, since outcomes are given, got None")
    if batch:
        run = registry.kernel("verify_tree", device, backend)
        run(
            logits,
            row_starts,
            tree.token_ids,
            tree.parents,
            tree.depths,
            tree.num_nodes,
            sampling,
            root_positions,
            penalties,
            *out.tensors(),
            outcomes,
        )
    return out


def _run(*arguments):
    *inputs, backend = arguments
    return _eager(*inputs, None, backend).tensors()


def _fake(logits, row_starts, tree, *_):
    return Verdict.empty(*tree.token_ids.shape, logits.device).tensors()


_op = _library.register(
    "verify_tree",
    (
        "Tensor logits",
        "Tensor? row_starts",
        "tree",
        "sampling",
        "Tensor root_positions",
        "penalties",
        "outcomes?",
        "str? backend=None",
    ),
    "(Tensor accepted_nodes, Tensor num_accepted, Tensor bonus_ids, Tensor status, Tensor outcome_index)",
    _run,
    _fake,
)
