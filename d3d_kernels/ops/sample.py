"""sample: the target's token y(t) for each row of logits."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks, registry
from ..types import Penalties, SamplingTensors
from . import _arguments, _library


def sample(
    logits: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    request_ids: Tensor | None = None,
    penalties: Penalties | None = None,
    *,
    status: Tensor | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Sample one token a row: y(t) = argmax over v of filter(penalised logits / T)[v] + G(seed, t, v).

    A pure function of the row, its request's parameters, and the position t of the token to be sampled: the
    batch, the order of rows and the backend do not matter. Gumbel-max over counter-based noise
    (Philox4x32-10; Gumbel 1954), so the result is an exact sample of the filtered softmax; T < 1e-5 is
    greedy, where filters change nothing.

    Args:
        logits: [R,V] f32, bf16, f16 or f64, any row stride. NaN counts as -inf, +inf as the largest finite
            value.
        sampling: parameters of B requests.
        positions: [R] i64, absolute position of the token to be sampled.
        request_ids: [R] i32 in [0, B), the request of each row (any other id: as a row without a finite
            logit); None: row r belongs to request r, R == B.
        penalties: of the same B requests.
        status: [R] i32, written if given: NO_FINITE_LOGIT where a row has nothing to choose from.
        out: [R] i64, written and returned if given.
        backend: forces one backend for this call.

    Filters apply in the order top-k, top-p (over what top-k left), min-p; ties on a border stay in and the
    maximum always survives.

    Returns:
        token_ids [R] i64 in [0, V). Ties: the lowest id. No finite logit: 0.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device or stride, by name.
    """
    if _library.tracing():
        token_ids, row_status = _op(logits, sampling, positions, request_ids, penalties, backend)
        if status is not None:
            status.copy_(row_status)
        return token_ids if out is None else out.copy_(token_ids)
    return _eager(logits, sampling, positions, request_ids, penalties, status, out, backend)


def _eager(logits, sampling, positions, request_ids, penalties, status, out, backend):
    checks.logits("logits", logits, (2,))
    rows, device = logits.shape[0], logits.device
    _arguments.requests(logits, rows, sampling, "positions", positions, request_ids, penalties)
    if out is None:
        out = torch.empty(rows, dtype=torch.int64, device=device)
    else:
        checks.output("out", out, torch.int64, (rows,), device)
    if status is None:
        status = torch.empty(rows, dtype=torch.int32, device=device)
    else:
        checks.output("status", status, torch.int32, (rows,), device)
    if rows:
        run = registry.kernel("sample", device, backend)
        run(logits, sampling, positions, request_ids, penalties, out, status)
    return out


def _run(logits, sampling, positions, request_ids, penalties, backend):
    token_ids, status = _fake(logits)
    _eager(logits, sampling, positions, request_ids, penalties, status, token_ids, backend)
    return token_ids, status


def _fake(logits, *_):
    rows = logits.shape[0]
    return logits.new_empty(rows, dtype=torch.int64), logits.new_empty(rows, dtype=torch.int32)


_op = _library.register(
    "sample",
    (
        "Tensor logits",
        "sampling",
        "Tensor positions",
        "Tensor? request_ids",
        "penalties",
        "str? backend=None",
    ),
    "(Tensor token_ids, Tensor status)",
    _run,
    _fake,
)
