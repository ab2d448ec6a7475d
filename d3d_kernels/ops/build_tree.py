"""build_tree: the likeliest draft tree, and the likeliest outcomes of verifying it, from one enumeration."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from ..types import Candidates, DraftTree, Outcomes, TreeLinks
from . import _arguments, _library


def build_tree(
    root_ids: Tensor,
    candidates: Candidates,
    num_nodes: int,
    num_outcomes: int = 0,
    max_depth: int | None = None,
    stop_ids: Tensor | None = None,
    *,
    outcome_index: Tensor | None = None,
    root_positions: Tensor | None = None,
    links: TreeLinks | None = None,
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
        outcome_index: [B] i32: the candidates are those behind the E' outcomes of an earlier tree, [B*E',L,K]
            with branch e of request b in row b * E' + e, and request b reads branch outcome_index[b] where it
            lies. Outside [0, E'), a miss, its tree is the root alone.
        root_positions: [B] i64, what links.positions count from; None: 0.
        links: TreeLinks [B,N], written if given.
        out: (DraftTree, Outcomes) to write and return.
        backend: forces one backend for this call.

    Returns:
        DraftTree in the order of discovery (parents before children) and Outcomes, likeliest first. Ties: the
        smaller parent, then the better rank. Padding: token -1, parent -1, depth 0, mask 0, score -inf.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device, stride or range, by name.
    """
    arguments = root_ids, candidates, num_nodes, num_outcomes, max_depth, stop_ids, outcome_index, root_positions, links
    if _library.tracing():
        flat = _op(*arguments, backend)
        result = DraftTree(*flat[:5]), Outcomes(*flat[5:])
        return result if out is None else tuple(map(_library.copy_record, out, result))
    return _eager(*arguments, out, backend)


def _eager(
    root_ids,
    candidates,
    num_nodes,
    num_outcomes,
    max_depth,
    stop_ids,
    outcome_index,
    root_positions,
    links,
    out,
    backend,
):
    batch, length, _ = _arguments.sizes_of("candidates", candidates, Candidates)
    device = candidates.checked("candidates").device
    if outcome_index is not None:
        batch = _branches_of(outcome_index, batch, device)
    max_depth, out = _arguments.tree_growth(
        root_ids, length, num_nodes, num_outcomes, max_depth, stop_ids, links, out, batch, device
    )
    if root_positions is not None:
        checks.vector("root_positions", root_positions, torch.int64, (batch,), device)
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
            outcome_index,
            root_positions,
            links,
        )
    return out


def _branches_of(outcome_index: Tensor, rows: int, device: torch.device) -> int:
    """How many requests these rows of candidates belong to."""
    batch = checks.is_tensor("outcome_index", outcome_index).numel()
    checks.vector("outcome_index", outcome_index, torch.int32, (batch,), device)
    if rows % batch if batch else rows:
        raise ValueError(f"candidates: expected a multiple of {batch} rows as outcome_index has entries, got {rows}")
    return batch


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
        "Tensor? outcome_index=None",
        "Tensor? root_positions=None",
        "links!",
        "str? backend=None",
    ),
    "(Tensor token_ids, Tensor parents, Tensor depths, Tensor num_nodes, Tensor mask_bits, "
    "Tensor parent_node, Tensor outcome_ids, Tensor outcome_scores)",
    _run,
    _fake,
)
