"""draft_tree: from the drafter's logits to the tree to verify, in one call."""

from __future__ import annotations

from torch import Tensor

from .. import checks, registry
from ..types import Candidates, DraftTree, Outcomes, Penalties, SamplingTensors, TreeLinks
from . import _arguments, _library


def draft_tree(
    logits: Tensor,
    root_ids: Tensor,
    sampling: SamplingTensors,
    root_positions: Tensor,
    num_nodes: int,
    num_outcomes: int = 0,
    k: int = 8,
    *,
    penalties: Penalties | None = None,
    beta: float = 1.0,
    mask_token_id: int = -1,
    max_depth: int | None = None,
    stop_ids: Tensor | None = None,
    candidates: Candidates | None = None,
    links: TreeLinks | None = None,
    out: tuple[DraftTree, Outcomes] | None = None,
    backend: str | None = None,
) -> tuple[DraftTree, Outcomes]:
    """``draft_candidates`` of logits[B,L,V], then ``build_tree`` over them: bit for bit, in one launch.

    Whoever reduces the last position of a request to its candidates grows the request's tree, while others
    still read logits. The candidates are scratch.

    Args:
        logits: [B,L,V] f32, bf16, f16 or f64, any strides but V dense. NaN counts as -inf.
        root_ids: [B] i64, the last committed token of each request; negative: an empty lane.
        sampling: parameters of the B requests.
        root_positions: [B] i64, position of the root itself, one before the first drafted token.
        num_nodes: N >= 1, root included.
        num_outcomes: E >= 0.
        k: K >= 1 candidates of a position.
        penalties: of the B requests; the committed tokens only.
        beta, mask_token_id: as in ``draft_candidates``.
        max_depth, stop_ids: as in ``build_tree``.
        candidates: Candidates [B,L,K], written if given.
        links: TreeLinks [B,N], written if given.
        out: (DraftTree, Outcomes) to write and return.
        backend: forces one backend for this call.

    Returns:
        DraftTree and Outcomes of ``build_tree``.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device, stride or range, by name.
    """
    numbers = num_nodes, num_outcomes, k, beta, mask_token_id, max_depth
    arguments = logits, root_ids, sampling, root_positions, *numbers, stop_ids, penalties, candidates, links
    if _library.tracing():
        flat = _op(*arguments, backend)
        result = DraftTree(*flat[:5]), Outcomes(*flat[5:])
        return result if out is None else tuple(map(_library.copy_record, out, result))
    return _eager(*arguments, out, backend)


def _eager(
    logits,
    root_ids,
    sampling,
    root_positions,
    num_nodes,
    num_outcomes,
    k,
    beta,
    mask_token_id,
    max_depth,
    stop_ids,
    penalties,
    candidates,
    links,
    out,
    backend,
):
    checks.logits("logits", logits, (3,))
    checks.at_least("k", k, 1)
    if not beta > 0:
        raise ValueError(f"beta: expected a positive number, got {beta}")
    batch, length, _ = logits.shape
    device = logits.device
    _arguments.requests(logits, batch, sampling, "root_positions", root_positions, None, penalties)
    max_depth, out = _arguments.tree_growth(
        root_ids, length, num_nodes, num_outcomes, max_depth, stop_ids, links, out, batch, device
    )
    if candidates is not None:
        _arguments.sizes_of("candidates", candidates, Candidates)
        candidates.expect("candidates", device, batch, length, k, contiguous=True)
    if batch:
        run = registry.kernel("draft_tree", device, backend)
        tree, outcomes = out
        run(
            logits,
            root_ids,
            sampling,
            root_positions,
            num_nodes,
            num_outcomes,
            k,
            penalties,
            beta,
            mask_token_id,
            max_depth,
            stop_ids,
            *tree.tensors(),
            *outcomes.tensors(),
            candidates,
            links,
        )
    return out


def _run(*arguments):
    *inputs, backend = arguments
    tree, outcomes = _eager(*inputs, None, backend)
    return *tree.tensors(), *outcomes.tensors()


def _fake(logits, root_ids, sampling, root_positions, num_nodes, num_outcomes, *_):
    batch, device = root_ids.shape[0], root_ids.device
    tree, outcomes = DraftTree.empty(batch, num_nodes, device), Outcomes.empty(batch, num_outcomes, device)
    return *tree.tensors(), *outcomes.tensors()


_op = _library.register(
    "draft_tree",
    (
        "Tensor logits",
        "Tensor root_ids",
        "sampling",
        "Tensor root_positions",
        "int num_nodes",
        "int num_outcomes",
        "int k",
        "float beta",
        "int mask_token_id",
        "int? max_depth",
        "Tensor? stop_ids",
        "penalties",
        "candidates!",
        "links!",
        "str? backend=None",
    ),
    "(Tensor token_ids, Tensor parents, Tensor depths, Tensor num_nodes, Tensor mask_bits, "
    "Tensor parent_node, Tensor outcome_ids, Tensor outcome_scores)",
    _run,
    _fake,
)
