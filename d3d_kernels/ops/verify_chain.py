"""verify_chain: the verdict on one drafted continuation a request, under one of three rules."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from ..types import Penalties, SamplingTensors, Verdict
from . import _arguments, _library

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
    draft_probs: Tensor | None = None,
    out: Verdict | None = None,
    backend: str | None = None,
) -> Verdict:
    """How many drafted tokens of each request to keep, and the token behind them.

    "coupled" accepts a draft while it equals the target's own seeded sample, as ``verify_tree`` does on a chain:
    it needs no draft probabilities, and the drafter may share the sampler's noise. "ratio" (Leviathan, Kalman,
    Matias 2023; Chen et al. 2023) and "block" (Sun et al. 2024, arXiv 2403.10444) compare the target's p with the
    drafter's q, for stacks that draw drafts from a q of their own; what they emit follows p exactly if each draft
    was drawn from exactly that q, with noise that is independent of this op's. The noise here comes from the
    request's seed under purposes of its own, so ``sample`` with the same seed is a valid drafter: for "ratio" as
    it is, for "block" with a seed that differs in each round, because there a round's verdict depends on drafts
    that it does not keep. Below T = 1e-5 all rules are greedy: a draft is kept while it is the argmax, and q is
    not read.

    Args:
        target_logits: [B,n+1,V] f32, bf16, f16 or f64, any strides but V dense; row 0 is the root's, row j that of
            draft j - 1. p: penalties, temperature and filters of the request, as in ``sample``.
        draft_ids: [B,n] i64; the first id outside [0, V) ends a chain (ragged drafts are padded with -1).
        draft_logits: [B,n,V], any of the dtypes, row j is what draft j was drawn from. q: temperature and filters
            of the request, no penalties. None, without draft_probs: each draft was certain, q is a point mass at
            it (prompt lookup, greedy drafters). Not read by "coupled".
        sampling: parameters of the B requests.
        positions: [B] i64, position of the *first* drafted token (root + 1).
        rule: "coupled", "ratio" or "block".
        penalties: of the B requests; row j sees the committed tokens and the first j drafts.
        draft_probs: [B,n,V], instead of draft_logits: q itself, for drafters with a sampler of their own. Values are
            taken into [0, 1] (NaN: 0) and divided by their sum; no temperature, no filter.
        out: Verdict to write and return, accepted_nodes [B,n+1].
        backend: forces one backend for this call.

    Returns:
        Verdict with accepted_nodes[B,n+1] = 1, 2, .. num_accepted, then -1; bonus_ids in [0, V): ties, the lowest
        id. status: NO_FINITE_LOGIT if a row that was read has nothing to choose from; it is certain of token 0.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device or stride, by name; an unknown rule;
            draft_logits and draft_probs at once.
    """
    if _library.tracing():
        arguments = (target_logits, draft_ids, draft_logits, sampling, positions, rule, penalties, draft_probs, backend)
        return _library.copy_record(out, Verdict(*_op(*arguments)))
    return _eager(
        target_logits, draft_ids, draft_logits, sampling, positions, rule, penalties, draft_probs, out, backend
    )


def _eager(target_logits, draft_ids, draft_logits, sampling, positions, rule, penalties, draft_probs, out, backend):
    if rule not in RULES:
        raise ValueError(f"rule: expected one of {', '.join(RULES)}, got {rule!r}")
    checks.logits("target_logits", target_logits, (3,))
    batch, rows, _ = target_logits.shape
    if rows < 1:
        raise ValueError("target_logits: expected at least one row a request, the root's, got none")
    device = target_logits.device
    checks.dense_rows("draft_ids", draft_ids, torch.int64, (batch, rows - 1), device)
    _arguments.requests(target_logits, batch, sampling, "positions", positions, None, penalties)
    kind, draft_rows = "certain", None
    if rule != "coupled":
        kind, draft_rows = _drafter(target_logits, draft_logits, draft_probs)
    if out is None:
        out = Verdict.empty(batch, rows, device)
    else:
        _arguments.sizes_of("out", out, Verdict)
        out.expect("out", device, batch, rows, contiguous=True)
    if out.outcome_index is not None:
        out.outcome_index.fill_(-1)  # a chain has no outcomes
    if batch:
        run = registry.kernel("verify_chain", device, backend)
        run(target_logits, draft_ids, draft_rows, kind, rule, sampling, positions, penalties, *out.tensors()[:4])
    return out


def _drafter(target_logits: Tensor, logits: Tensor | None, probs: Tensor | None) -> tuple[str, Tensor | None]:
    """What q is read as, and where from."""
    if logits is None and probs is None:
        return "certain", None
    if logits is not None and probs is not None:
        raise ValueError("draft_probs: expected either draft_logits or draft_probs, got both")
    name, kind, rows = ("draft_logits", "logits", logits) if probs is None else ("draft_probs", "probabilities", probs)
    checks.logits(name, rows, (3,))
    batch, count, vocab = target_logits.shape
    if rows.shape != (batch, count - 1, vocab):
        raise ValueError(f"{name}: expected shape {(batch, count - 1, vocab)}, got {tuple(rows.shape)}")
    if rows.device != target_logits.device:
        raise ValueError(f"{name}: expected device {target_logits.device}, got {rows.device}")
    return kind, rows


def _run(target_logits, draft_ids, draft_logits, sampling, positions, rule, penalties, draft_probs, backend):
    return _eager(
        target_logits, draft_ids, draft_logits, sampling, positions, rule, penalties, draft_probs, None, backend
    ).tensors()


def _fake(target_logits, *_):
    return Verdict.empty(*target_logits.shape[:2], target_logits.device).tensors()


_op = _library.register(
    "verify_chain",
    (
        "Tensor target_logits",
        "Tensor draft_ids",
        "Tensor? draft_logits",
        "sampling",
        "Tensor positions",
        "str rule",
        "penalties",
        "Tensor? draft_probs=None",
        "str? backend=None",
    ),
    "(Tensor accepted_nodes, Tensor num_accepted, Tensor bonus_ids, Tensor status, Tensor outcome_index)",
    _run,
    _fake,
)
