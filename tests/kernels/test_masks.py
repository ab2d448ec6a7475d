"""dense_mask and packed_mask against the definition, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import d3d_kernels as dk

from . import cases
from .harness import Target, assert_same, call, place

DTYPES = (torch.bool, torch.float32, torch.bfloat16, torch.float16, torch.float64)


def random_bits(batch: int, rows: int, *seed: object, width: int | None = None) -> torch.Tensor:
    """[B,Q,W] masks over `width` rows, nothing set beyond."""
    g = cases.generator("bits", batch, rows, *seed)
    seen = torch.rand(batch, rows, rows if width is None else width, generator=g) < 0.4
    padded = np.pad(seen.numpy(), ((0, 0), (0, 0), (0, -seen.shape[2] % 32)))
    return torch.from_numpy(np.packbits(padded, axis=2, bitorder="little").view(np.int32).copy())


def seen_by(bits: torch.Tensor, b: int, row: int, context: int, column: int) -> bool:
    j = column - context
    words = bits[b, row].tolist()
    return j < 0 or (j < 32 * len(words) and bool(words[j // 32] >> j % 32 & 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 33, 70])
def test_dense(on: Target, dtype, rows) -> None:
    bits, contexts = random_bits(4, rows), torch.tensor([0, 5, 64, -2])
    for columns in (rows + 64, 40, 0):
        got = call(on, "dense_mask", bits, contexts, columns, dtype)
        on_value, off_value = (True, False) if dtype is torch.bool else (0.0, -torch.inf)
        for b in range(4):
            context = max(int(contexts[b]), 0)
            for row in range(rows):
                want = [on_value if seen_by(bits, b, row, context, c) else off_value for c in range(columns)]
                assert got[b, row].tolist() == want


def test_dense_is_what_attention_takes(on: Target) -> None:
    """Boolean and additive masks give the same attention over [context | tree]."""
    g = cases.generator("attention")
    roots, positions = torch.tensor([1, 2]), torch.tensor([7, 3])
    logits = torch.randn(2, 3, 20, generator=g)
    tree, _ = call(on, "draft_tree", logits, roots, dk.SamplingTensors.greedy(2), positions, 9)
    q, k, v = (torch.randn(2, 1, n, 8, generator=g, dtype=torch.float64) for n in (9, 16, 16))
    masks = [call(on, "dense_mask", tree.mask_bits, positions, 16, d).unsqueeze(1) for d in (torch.bool, torch.float64)]
    outputs = [torch.nn.functional.scaled_dot_product_attention(q, k, v, mask) for mask in masks]
    torch.testing.assert_close(*outputs)
    # Node 0 sees its context and itself: columns 0 .. position.
    alone = torch.nn.functional.scaled_dot_product_attention(q[:1, :, :1], k[:1, :, :8], v[:1, :, :8])
    torch.testing.assert_close(outputs[0][:1, :, :1], alone)


def packed_by_hand(bits: torch.Tensor, contexts: list[int], counts: list[int]) -> tuple[bytes, list[int]]:
    data, starts = b"", [0]
    for b, (context, count) in enumerate(zip(contexts, counts, strict=True)):
        columns = range(context + count)
        flat = [seen_by(bits, b, row, context, c) for row in range(count) for c in columns]
        data += np.packbits(np.array(flat, dtype=bool), bitorder="little").tobytes()
        starts.append(len(data))
    return data, starts


@given(st.data())
def test_packed(on: Target, data: st.DataObject) -> None:
    """FlashInfer's layout: rows without gaps, the lowest bit first, requests at whole bytes."""
    batch, rows, limit = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 70)), data.draw(st.integers(0, 150))
    lists = st.lists(st.integers(0, limit), min_size=batch, max_size=batch)
    contexts = data.draw(lists)
    counts = data.draw(st.lists(st.integers(0, rows), min_size=batch, max_size=batch) | st.none())
    bits = random_bits(batch, rows, data.draw(st.integers(0, 99)))
    given_counts = None if counts is None else torch.tensor(counts, dtype=torch.int32)
    got = call(on, "packed_mask", bits, torch.tensor(contexts), limit, given_counts)
    expected, starts = packed_by_hand(bits, contexts, counts or [rows] * batch)
    assert got.byte_starts.tolist() == starts
    assert bytes(got.bits.tolist()) == expected + bytes(len(got.bits) - len(expected))


def test_packed_lengths_outside_their_bounds(on: Target) -> None:
    """A context above the host's bound, or more rows than there are, must not write behind the memory."""
    bits = random_bits(3, 5)
    contexts, counts = torch.tensor([9, -4, 2**40]), torch.tensor([2**31 - 1, -3, 5], dtype=torch.int32)
    got = call(on, "packed_mask", bits, contexts, 8, counts)
    expected, starts = packed_by_hand(bits, [8, 0, 8], [5, 0, 5])
    assert got.byte_starts.tolist() == starts and bytes(got.bits.tolist()).startswith(expected)


def test_failure_22_packed_bytes_are_cleared_on_reuse(on: Target) -> None:
    """Nothing of a longer mask is left, between the requests or behind the last."""
    ones = torch.full((3, 40, 2), -1, dtype=torch.int32)
    long, short = torch.full((3,), 50), torch.tensor([3, 0, 1])
    few = torch.tensor([3, 0, 5], dtype=torch.int32)
    ones, long, short, few = place((ones, long, short, few), on.device)
    reused = dk.packed_mask(ones, long, 50, backend=on.backend)
    dk.packed_mask(ones, short, 50, few, out=reused, backend=on.backend)
    end = int(reused.byte_starts[-1])
    assert end == (3 * 6 + 7) // 8 + (5 * 6 + 7) // 8 and not reused.bits[end:].any()
    assert_same(reused, dk.packed_mask(ones, short, 50, few, backend=on.backend))


def test_empty_masks(on: Target) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert call(on, "dense_mask", torch.zeros(0, 3, 1, dtype=torch.int32), none, 9).shape == (0, 3, 9)
    assert call(on, "packed_mask", torch.zeros(0, 3, 1, dtype=torch.int32), none, 9).byte_starts.tolist() == [0]
    got = call(on, "packed_mask", torch.zeros(2, 0, 0, dtype=torch.int32), torch.zeros(2, dtype=torch.int64), 9)
    assert got.byte_starts.tolist() == [0, 0, 0] and got.bits.shape == (0,)
    wide = call(on, "dense_mask", torch.zeros(1, 1, 0, dtype=torch.int32), torch.tensor([2]), 4)
    assert wide.tolist() == [[[True, True, False, False]]]
