"""draft_candidates: the drafter's K best tokens for each draft position."""

from __future__ import annotations

from torch import Tensor

from .. import checks, registry
from ..types import Candidates, Penalties, SamplingTensors
from . import _arguments, _library


def draft_candidates(
    logits: Tensor,
    k: int,
    sampling: SamplingTensors,
    positions: Tensor,
    request_ids: Tensor | None = None,
    penalties: Penalties | None = None,
    *,
    beta: float = 1.0,
    mask_token_id: int = -1,
    out: Candidates | None = None,
    backend: str | None = None,
) -> Candidates:
    """The K best tokens of each of L draft positions, under the noise that the target will use there.

    Candidates are the top K of filter(penalised logits / T) + G(seed, position, v), with the request's own
    filters and the very noise of ``sample``, so that the drafter guesses the target's sample and not merely
    its distribution (coupling: Daliri, Musco, Suresh, arXiv 2408.07978; lists of candidates: arXiv
    2506.05632). Below T = 1e-5: the top K of the penalised logits.

    Args:
        logits: [R,L,V] f32, bf16, f16 or f64, any strides but V dense. NaN counts as -inf.
        k: K >= 1.
        sampling: parameters of B requests.
        positions: [R] i64, position of the *first* drafted token (root + 1); slot l is at positions[r] + l.
        request_ids: [R] i32 in [0, B) (any other id: no candidates); None: R == B.
        penalties: of the same B requests; the committed tokens only.
        beta: temper of the sampled scores, > 0; below 1 it sharpens them.
        mask_token_id: never a candidate (the drafter's mask token); -1: none.
        out: Candidates to write and return.
        backend: forces one backend for this call.

    Returns:
        Candidates, best first, ties: the lowest id. log_probs: log of the filtered, tempered q. scores:
        log_probs at T < 1e-5, else the log-softmax of the K perturbed values / beta. A row with fewer than K
        tokens to choose from is padded with (-1, -inf, -inf).

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device, stride or range, by name.
    """
    if _library.tracing():
        arguments = (logits, k, sampling, positions, request_ids, beta, mask_token_id, penalties, backend)
        return _library.copy_record(out, Candidates(*_op(*arguments)))
    return _eager(logits, k, sampling, positions, request_ids, penalties, beta, mask_token_id, out, backend)


def _eager(logits, k, sampling, positions, request_ids, penalties, beta, mask_token_id, out, backend):
    checks.logits("logits", logits, (3,))
    checks.at_least("k", k, 1)
    if not beta > 0:
        raise ValueError(f"beta: expected a positive number, got {beta}")
    rows, length, _ = logits.shape
    device = logits.device
    _arguments.requests(logits, rows, sampling, "positions", positions, request_ids, penalties)
    if out is None:
        out = Candidates.empty(rows, length, k, device)
    else:
        _arguments.sizes_of("out", out, Candidates)
        out.expect("out", device, rows, length, k, contiguous=True)
    if rows and length:
        run = registry.kernel("draft_candidates", device, backend)
        run(logits, k, sampling, positions, request_ids, penalties, beta, mask_token_id, *out.tensors())
    return out


def _run(logits, k, sampling, positions, request_ids, beta, mask_token_id, penalties, backend):
    return _eager(logits, k, sampling, positions, request_ids, penalties, beta, mask_token_id, None, backend).tensors()


def _fake(logits, k, *_):
    return Candidates.empty(*logits.shape[:2], k, logits.device).tensors()


_op = _library.register(
    "draft_candidates",
    (
        "Tensor logits",
        "int k",
        "sampling",
        "Tensor positions",
        "Tensor? request_ids",
        "float beta",
        "int mask_token_id",
        "penalties",
        "str? backend=None",
    ),
    "(Tensor token_ids, Tensor log_probs, Tensor scores)",
    _run,
    _fake,
)
