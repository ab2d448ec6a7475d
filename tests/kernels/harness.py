"""Running ops in tests: on a given backend, with guarded and poisoned outputs, and unchanged inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_kernels.records import Record

GUARD_BYTES = 64
POISON = 0xA5
NEAR_TIE = 1e-5  # perturbed values closer than this may be ranked differently by different logarithms


@dataclass(frozen=True)
class Target:
    """Where a test runs."""

    backend: str
    device: str


@dataclass
class NearTies:
    """How many of the rows compared between backends differed, every one of them a near tie."""

    rows: int = 0
    count: int = 0


near_ties = NearTies()


def call(on: Target, op: str, *args: Any, written: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """``dk.<op>`` on the target; results on the CPU.

    The op runs twice: with fresh outputs, and with poisoned outputs between guard bytes. Both results must
    agree bit for bit, the guards must be intact and the inputs untouched. ``written`` are keyword arguments that
    are outputs too: they are treated alike, and filled in.
    """
    run = getattr(dk, op)
    args, kwargs = place(args, on.device), {key: place(value, on.device) for key, value in kwargs.items()}
    inputs = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
    before = [as_bytes(t).clone() for t in inputs]
    extra = {key: place(value, on.device) for key, value in (written or {}).items()}
    fresh = run(*args, **kwargs, **extra, backend=on.backend)
    buffers: list[Tensor] = []
    guarded = _guarded_like(fresh, buffers)
    guarded_extra = {key: _guarded_like(value, buffers) for key, value in extra.items()}
    returned = run(*args, **kwargs, **guarded_extra, backend=on.backend, out=guarded)
    for key, value in extra.items():
        for guarded_tensor, plain in zip(tensors_in(guarded_extra[key]), tensors_in(value), strict=True):
            assert same_bits(guarded_tensor, plain), f"{op}: {key} not fully written, or two runs differ"
        for given, plain in zip(tensors_in(written[key]), tensors_in(value), strict=True):
            given.copy_(plain)
    for ours, out, plain in zip(tensors_in(returned), tensors_in(guarded), tensors_in(fresh), strict=True):
        assert ours.data_ptr() == out.data_ptr(), f"{op}: out= was not returned"
        assert same_bits(out, plain), f"{op}: out= not fully written, or two runs differ"
    for buffer in buffers:
        ends = torch.cat([buffer[:GUARD_BYTES], buffer[-GUARD_BYTES:]])
        assert (ends == POISON).all(), f"{op}: wrote outside its output"
    for tensor, bits in zip(inputs, before, strict=True):
        assert torch.equal(as_bytes(tensor), bits), f"{op}: changed its input"
    return place(fresh, "cpu")


def sampled(on: Target, logits: Tensor, sampling: dk.SamplingTensors, first_position: int = 0) -> Tensor:
    """``sample`` at consecutive positions."""
    return call(on, "sample", logits, sampling, torch.arange(len(logits)) + first_position)


def within(seconds: float, run: Callable[[], object]) -> None:
    """Fails if ``run`` does not come back; its thread is abandoned."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as error:  # handed to the test's thread
            raised.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"still running after {seconds} s"
    if raised:
        raise raised[0]


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Record):
        yield from (t for t in value.tensors() if t is not None)
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_in(item)


def place(value: Any, device: str) -> Any:
    """The same value on a device. Views keep their strides."""
    if isinstance(value, Tensor):
        if value.device.type == device:
            return value
        if value._base is None:
            return value.to(device)
        return value._base.to(device).as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, Record):
        return type(value)(*(None if t is None else place(t, device) for t in value.tensors()))
    if isinstance(value, tuple):
        return tuple(place(item, device) for item in value)
    return value


def as_bytes(t: Tensor) -> Tensor:
    return t.contiguous().reshape(-1).view(torch.uint8)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(as_bytes(a), as_bytes(b))


def assert_same(got: Any, expected: Any) -> None:
    """Tensor for tensor, bit for bit."""
    for mine, theirs in zip(tensors_in(got), tensors_in(expected), strict=True):
        assert same_bits(mine, theirs), f"{mine}\n  differs from\n{theirs}"


def assert_tokens_agree(got: Tensor, expected: Tensor, perturbed: Tensor) -> None:
    """Tokens [R] may differ only where the two perturbed values, of perturbed[R,V], are a near tie."""
    near_ties.rows += got.numel()
    differ = (got != expected).nonzero().squeeze(1)
    near_ties.count += len(differ)
    for r in differ.tolist():
        gap = (perturbed[r, got[r]] - perturbed[r, expected[r]]).abs().item()
        assert gap < NEAR_TIE, f"row {r}: token {got[r]} instead of {expected[r]}, {gap} apart"


def _guarded_like(value: Any, buffers: list[Tensor]) -> Any:
    if value is None:
        return None
    if isinstance(value, Tensor):
        size = value.numel() * value.element_size()
        buffer = torch.full((size + 2 * GUARD_BYTES,), POISON, dtype=torch.uint8, device=value.device)
        buffers.append(buffer)
        return buffer[GUARD_BYTES : GUARD_BYTES + size].view(value.dtype).view(value.shape)
    if isinstance(value, Record):
        return type(value)(*(_guarded_like(t, buffers) for t in value.tensors()))
    return tuple(_guarded_like(item, buffers) for item in value)
