"""verify_chain: the verdict on one drafted continuation a request."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks
from ..types import DraftTree, Penalties, SamplingTensors, Status, Verdict, mask_words
from .verify_tree import verify_tree

RULES = ("coupled", "ratio", "block")


def verify_chain(
    target_logits: Tensor,
    draft_ids: Tensor,
    draft_logits: Tensor | None,
    sampling: SamplingTensors,
    positions: Tensor,
    rule: str = "coupled",
    penalties: Penalties | None = None,
    *,
    out: Verdict | None = None,
    backend: str | None = None,
) -> Verdict:
    """``verify_tree`` of chains: node 0 is the root, node j the j-th drafted token.

    Args:
        target_logits: [B,n+1,V]; row 0 is the root's, row j that of draft token j - 1.
        draft_ids: [B,n] i64; the first id outside [0, V) ends a chain (ragged drafts are padded with -1).
        draft_logits: not read by the coupled rule, which needs no draft probabilities.
        sampling: parameters of the B requests.
        positions: [B] i64, position of the *first* drafted token (root + 1).
        rule: "coupled": accept a draft while it equals the target's own seeded sample.
        penalties: of the B requests; row j sees the committed tokens and the first j drafts.
        out: Verdict to write and return, accepted_nodes [B,n+1].
        backend: forces one backend for this call.

    Returns:
        Verdict with accepted_nodes[B,n+1] = 1, 2, .. num_accepted, then -1.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device or stride, by name; a rule that
            is unknown or not available.
    """
    if rule != "coupled":
        known = "is not available yet" if rule in RULES else f"is unknown, expected one of {', '.join(RULES)}"
        raise ValueError(f"rule: {rule!r} {known}")
    checks.logits("target_logits", target_logits, (3,))
    batch, rows, _ = target_logits.shape
    device = target_logits.device
    checks.dense_rows("draft_ids", draft_ids, torch.int64, (batch, rows - 1), device)
    checks.vector("positions", positions, torch.int64, (batch,), device)

    # A token outside the vocabulary is never accepted, so it ends its chain; as padding it is no error.
    index = torch.arange(-1, rows, dtype=torch.int32, device=device).expand(batch, rows + 1)
    tree = DraftTree(
        token_ids=torch.nn.functional.pad(draft_ids, (1, 0)),
        parents=index[:, :-1],
        depths=index[:, 1:],
        num_nodes=index.new_full((batch,), rows),
        mask_bits=index.new_empty(batch, rows, mask_words(rows)),  # verification does not read it
    )
    verdict = verify_tree(target_logits, tree, sampling, positions - 1, penalties, out=out, backend=backend)
    verdict.status.bitwise_and_(~int(Status.BAD_TOKEN))
    return verdict
