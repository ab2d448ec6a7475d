"""build_tree: the likeliest draft tree, and the likeliest outcomes of verifying it, from one enumeration."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from ..types import Candidates, DraftTree, Outcomes
from . import _arguments, _library


def build_tree(
    root_ids: Tensor,
    candidates: Candidates,
    num_nodes: int,
    num_outcomes: int = 0,
    max_depth: int | None = None,
    stop_ids: Tensor | None = None,
    *,
    out: tuple[DraftTree, Outcomes] | None = None,
    backend: str | None = None,
) -> tuple[DraftTree, Outcomes]:
    """The N likeliest prefixes of the drafter's product distribution, and the next E entries as outcomes.

    Best-first search with a heap (the enumeration of DDTree): a node's value is the fp32 sum of the scores on
    its path. The outcomes are the likeliest pairs (last accepted node, bonus token): entries of the same
    enumeration whose parent is in the tree and that are not nodes themselves.

    Args:
        root_ids: [B] i64, the last committed token of each request; negative: an empty lane.
        candidates: token_ids[B,L,K] i64 and scores[B,L,K] f32, best first. A negative token or a score that
            is not finite ends its list.
        num_nodes: N >= 1, root included.
        num_outcomes: E >= 0.
        max_depth: nodes lie no deeper; None: L, or L - 1 if outcomes are wanted, so that a fully accepted
            path has outcomes too.
        stop_ids: [S] i64 for all requests or [B,S] (-1 pads): nothing is expanded below a stop id, and none
            is an outcome, because the request would be over.
        out: (DraftTree, Outcomes) to write and return.
        backend: forces one backend for this call.

    Returns:
        DraftTree in the order of discovery (parents before children) and Outcomes, likeliest first. Ties: the
        smaller parent, then the better rank. Padding: token -1, parent -1, depth 0, mask 0, score -inf.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device, stride or range, by name.
    """
    if _library.tracing():
        flat = _op(root_ids, candidates, num_nodes, num_outcomes, max_depth, stop_ids, backend)
        result = DraftTree(*flat[:5]), Outcomes(*flat[5:])
        return result if out is None else tuple(map(_library.copy_record, out, result))
    return _eager(root_ids, candidates, num_nodes, num_outcomes, max_depth, stop_ids, out, backend)


def _eager(root_ids, candidates, num_nodes, num_outcomes, max_depth, stop_ids, out, backend):
    batch, length, _ = _arguments.sizes_of("candidates", candidates, Candidates)
    device = candidates.checked("candidates").device
    checks.vector("root_ids", root_ids, torch.int64, (batch,), device)
    checks.at_least("num_nodes", num_nodes, 1)
    checks.at_least("num_outcomes", num_outcomes, 0)
    if max_depth is None:
        max_depth = max(length - 1, 0) if num_outcomes else length
    else:
        checks.at_least("max_depth", max_depth, 0)
    if stop_ids is not None:
        width = checks.is_tensor("stop_ids", stop_ids).shape[-1] if stop_ids.ndim else -1
        stop_shape = (batch, width) if stop_ids.ndim == 2 else (width,)
        checks.dense_rows("stop_ids", stop_ids, torch.int64, stop_shape, device)
    if out is None:
        out = DraftTree.empty(batch, num_nodes, device), Outcomes.empty(batch, num_outcomes, device)
    else:
        _arguments.sizes_of("out[0]", out[0], DraftTree)
        _arguments.sizes_of("out[1]", out[1], Outcomes)
        out[0].expect("out[0]", device, batch, num_nodes, contiguous=True)
        out[1].expect("out[1]", device, batch, num_outcomes, contiguous=True)
    if batch:
        run = registry.kernel("build_tree", device, backend)
        tree, outcomes = out
        run(
            root_ids,
            candidates.token_ids,
            candidates.scores,
            num_nodes,
            num_outcomes,
            max_depth,
            stop_ids,
            *tree.tensors(),
            *outcomes.tensors(),
        )
    return out


def _run(*arguments):
    *inputs, backend = arguments
    tree, outcomes = _eager(*inputs, None, backend)
    return *tree.tensors(), *outcomes.tensors()


def _fake(root_ids, candidates, num_nodes, num_outcomes, *_):
    batch, device = root_ids.shape[0], root_ids.device
    tree, outcomes = DraftTree.empty(batch, num_nodes, device), Outcomes.empty(batch, num_outcomes, device)
    return *tree.tensors(), *outcomes.tensors()


_op = _library.register(
    "build_tree",
    (
        "Tensor root_ids",
        "candidates",
        "int num_nodes",
        "int num_outcomes",
        "int? max_depth=None",
        "Tensor? stop_ids=None",
        "str? backend=None",
    ),
    "(Tensor token_ids, Tensor parents, Tensor depths, Tensor num_nodes, Tensor mask_bits, "
    "Tensor parent_node, Tensor outcome_ids, Tensor outcome_scores)",
    _run,
    _fake,
)
