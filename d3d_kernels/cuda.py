"""CUDA backend: tensors to the compiled library, on the current stream. Ops it lacks run on the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _cuda
from .addresses import DTYPES, penalty_record, sampling_addresses
from .types import Penalties, SamplingTensors


def sample(
    logits: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    request_ids: Tensor | None,
    penalties: Penalties | None,
    token_ids: Tensor,
    status: Tensor,
) -> None:
    rows, vocab = logits.shape
    dtype = DTYPES[logits.dtype]
    with torch.cuda.device(logits.device):
        # Penalised rows are written out; torch's allocator hands the memory out in stream order.
        workspace = None
        if penalties is not None:
            size = _cuda.sample_workspace_bytes(rows, vocab, dtype)
            workspace = torch.empty(size, dtype=torch.uint8, device=logits.device)
        _cuda.sample(
            logits.data_ptr(),
            dtype,
            vocab,
            rows,
            logits.stride(0),
            *sampling_addresses(sampling),
            positions.data_ptr(),
            0 if request_ids is None else request_ids.data_ptr(),
            None if penalties is None else penalty_record(_cuda, penalties),
            token_ids.data_ptr(),
            status.data_ptr(),
            0 if workspace is None else workspace.data_ptr(),
            torch.cuda.current_stream().cuda_stream,
        )
