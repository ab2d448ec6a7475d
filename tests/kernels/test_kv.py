"""move_kv and rollback_kv against copies made with plain indexing, over layouts, page sizes and dtypes."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

import d3d_kernels as dk

from . import cases
from .harness import Target, as_bytes

LAYERS, HEADS, DIM = 3, 2, 5
FLOAT8 = torch.float8_e4m3fn

layouts = pytest.mark.parametrize("order", ["NHD", "HND"])
page_sizes = pytest.mark.parametrize("page_size", [1, 16, 64])


class Cache:
    """A KV cache filled with distinct values, and the rows that it should hold after each move."""

    def __init__(self, on: Target, order: str, pages: int, page_size: int, dtype=torch.float32, scales=False):
        self.order = order
        shape = (pages, page_size, HEADS) if order == "NHD" else (pages, HEADS, page_size)

        def rows() -> torch.Tensor:
            return self._filled((*shape, DIM), dtype).to(on.device)

        def one_scale_a_row() -> list[torch.Tensor] | None:
            return [self._filled(shape, torch.float32).to(on.device) for _ in range(LAYERS)] if scales else None

        # Keys and values interleaved in one buffer, as engines keep them: a page's stride is not its size.
        buffers = [torch.stack([rows(), rows()], dim=1) for _ in range(LAYERS)]
        self.layout = dk.KVLayout(
            keys=[b[:, 0] for b in buffers],
            values=[b[:, 1] for b in buffers],
            order=order,
            key_scales=one_scale_a_row(),
            value_scales=one_scale_a_row(),
        )
        self.expected = self.rows()

    @staticmethod
    def _filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        bits = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=cases.generator(shape))
        return bits.view(dtype).squeeze(-1)

    def rows(self) -> list[torch.Tensor]:
        """Each tensor as [slots, H, bytes]."""
        layout = self.layout
        tensors = [*layout.keys, *layout.values, *(layout.key_scales or []), *(layout.value_scales or [])]
        tensors = [t if self.order == "NHD" else t.transpose(1, 2) for t in tensors]
        return [as_bytes(t).view(layout.num_slots, HEADS, -1).clone().cpu() for t in tensors]

    def expect_move(self, source: int, target: int) -> None:
        for rows in self.expected:
            rows[target] = rows[source]

    def check(self) -> None:
        for got, expected in zip(self.rows(), self.expected, strict=True):
            assert torch.equal(got, expected)


def move(on: Target, cache: Cache, src: list[list[int]], dst: list[list[int]], counts: list[int]) -> None:
    tensors = torch.tensor(src), torch.tensor(dst), torch.tensor(counts, dtype=torch.int32)
    dk.move_kv(cache.layout, *(t.to(on.device) for t in tensors), backend=on.backend)


@layouts
@page_sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, FLOAT8], ids=str)
def test_failure_21_slots_are_pages_times_page_size_plus_offset(on: Target, order, page_size, dtype) -> None:
    """Token ids were used on the page dimension when page_size > 1. Rows move bit for bit in any layout."""
    cache = Cache(on, order, pages=-(-128 // page_size), page_size=page_size, dtype=dtype, scales=dtype == FLOAT8)
    g = cases.generator(order, page_size)
    slots = torch.randperm(128, generator=g).tolist()
    src, dst = [slots[0:5], slots[5:10]], [slots[10:15], slots[15:20]]
    move(on, cache, src, dst, [5, 3])
    for b, count in enumerate((5, 3)):
        for source, target in zip(src[b][:count], dst[b][:count], strict=True):
            cache.expect_move(source, target)
    cache.check()


@layouts
def test_skips_padding_and_foreign_slots(on: Target, order) -> None:
    """A slot of -1 or past the cache on either side moves nothing, and neither does src == dst."""
    cache = Cache(on, order, pages=4, page_size=4)
    move(on, cache, [[-1, 3, 16, 5, 7, 2]], [[2, -1, 1, 16, 7, 9]], [6])
    cache.expect_move(2, 9)
    cache.check()


@pytest.mark.parametrize("counts", [[0, 0], [-3, 0], [9, 1]], ids=str)
def test_counts_outside_the_list(on: Target, counts) -> None:
    cache = Cache(on, "NHD", pages=4, page_size=4)
    move(on, cache, [[4, 5], [8, 9]], [[0, 1], [2, 3]], counts)
    for b, count in enumerate(counts):
        for j in range(min(max(count, 0), 2)):
            cache.expect_move([[4, 5], [8, 9]][b][j], [[0, 1], [2, 3]][b][j])
    cache.check()


@layouts
def test_failure_20_in_place_moves_with_overlapping_ranges(on: Target, order) -> None:
    """Source and destination ranges overlapped, and rows were overwritten before they were read.

    Every accepted path of 6 nodes, that is, every monotone list of moves, one request each, slots scattered
    over the pages.
    """
    paths = [path for n in range(6) for path in combinations(range(1, 6), n)]
    cache = Cache(on, order, pages=len(paths), page_size=6)
    slots = torch.randperm(len(paths) * 6, generator=cases.generator("rollback")).view(-1, 6)
    verdict = dk.Verdict.empty(len(paths), 6)
    for t in verdict.tensors():
        t.fill_(-1)
    before = cache.rows()
    for b, path in enumerate(paths):
        verdict.num_accepted[b] = len(path)
        verdict.accepted_nodes[b, : len(path)] = torch.tensor(path, dtype=torch.int32)
        for rows, untouched in zip(cache.expected, before, strict=True):
            rows[slots[b, 1 : len(path) + 1]] = untouched[slots[b, list(path)]]
    dk.rollback_kv(cache.layout, slots.to(on.device), verdict.to(on.device), backend=on.backend)
    cache.check()


def test_one_node_trees_have_nothing_to_roll_back(on: Target) -> None:
    cache = Cache(on, "NHD", pages=2, page_size=4)
    verdict = dk.Verdict.empty(2, 1)
    verdict.num_accepted.zero_()
    verdict.accepted_nodes.fill_(-1)
    dk.rollback_kv(cache.layout, torch.tensor([[1], [2]]).to(on.device), verdict.to(on.device), backend=on.backend)
    cache.check()


def test_dense_cache_of_one_page_a_request(on: Target) -> None:
    cache = Cache(on, "NHD", pages=3, page_size=40)
    move(on, cache, [[7], [47], [87]], [[3], [43], [83]], [1, 1, 1])
    for source, target in ((7, 3), (47, 43), (87, 83)):
        cache.expect_move(source, target)
    cache.check()


@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 16, 1), (4, 2, 16)], ids=str)
def test_failure_24_refuses_scales_that_are_not_one_a_token_and_head(shape) -> None:
    """Per-block scales: a token was moved between blocks without requantising it."""
    caches = [torch.zeros(4, 16, 2, 8)]
    with pytest.raises(ValueError, match=r"key_scales\[0\].*requantis"):
        dk.KVLayout(caches, caches, key_scales=[torch.ones(shape)])


def branch_scene(on: Target, order: str, page_size: int, seed: int = 0):
    """Target and drafter of other layouts, three requests: a hit, a miss, an empty lane; and what must be where."""
    g = cases.generator(("branches", order, page_size, seed))
    nodes, outcomes, block = 6, 3, 4
    rows = nodes + outcomes * block
    target = Cache(on, order, pages=3 * (-(-nodes // page_size)), page_size=page_size)
    drafter = Cache(on, "HND" if order == "NHD" else "NHD", 3 * (-(-rows // 16)), 16, torch.bfloat16)
    slots = (torch.arange(3)[:, None] * (-(-nodes // page_size) * page_size) + torch.arange(nodes)).to(on.device)
    own = (torch.arange(3)[:, None] * (-(-rows // 16) * 16) + torch.arange(rows)).to(on.device)
    verdict = dk.Verdict(
        torch.tensor([[2, 3, 5, -1, -1, -1], [1, -1, -1, -1, -1, -1], [-1] * 6], dtype=torch.int32),
        torch.tensor([3, 1, 0], dtype=torch.int32),
        torch.tensor([7, 8, -1]),
        torch.zeros(3, dtype=torch.int32),
        torch.tensor([int(torch.randint(outcomes, (), generator=g)), -1, 1], dtype=torch.int32),
    )
    for cache, where in ((target, slots.cpu()), (drafter, own.cpu())):
        before = cache.rows()
        for b in range(3):
            path = verdict.accepted_nodes[b, : verdict.num_accepted[b]].tolist()
            if cache is drafter and b == 0:
                path.append(nodes + verdict.outcome_index[0].item() * block)
            for rows_now, untouched in zip(cache.expected, before, strict=True):
                for j, source in enumerate(path):
                    rows_now[where[b, j + 1]] = untouched[where[b, source]]
    rows_of_drafter = dk.CacheRows(drafter.layout, own, block)
    return target, drafter, slots, rows_of_drafter, verdict.to(on.device), outcomes


@layouts
@page_sizes
def test_target_and_drafter_in_one_call(on: Target, order, page_size) -> None:
    target, drafter, slots, rows, verdict, outcomes = branch_scene(on, order, page_size)
    out = dk.Rollback(*(t.fill_(99) for t in dk.Rollback.empty(3, 6, on.device).tensors()))
    result = dk.rollback_kv(
        target.layout, slots, verdict, drafter=rows, num_outcomes=outcomes, out=out, backend=on.backend
    )
    assert result is out
    target.check()
    drafter.check()
    assert out.kept_rows.tolist() == [4, 2, 0]
    for b, kept in enumerate((4, 2, 0)):
        held = {slot // page_size for slot in slots[b, :kept].tolist()}
        free = sorted({slot // page_size for slot in slots[b].tolist()} - held)
        assert out.freed_pages[b].tolist() == free + [-1] * (6 - len(free))


def test_an_outcome_outside_the_branches_keeps_nothing(on: Target) -> None:
    """Indices below 0 or from E on are misses; they read no row behind the list."""
    target, drafter, slots, rows, verdict, outcomes = branch_scene(on, "NHD", 16)
    before = drafter.rows()
    verdict.outcome_index.copy_(torch.tensor([outcomes, -5, 2**31 - 1], dtype=torch.int32))
    dk.rollback_kv(target.layout, slots, verdict, drafter=rows, num_outcomes=outcomes, backend=on.backend)
    drafter.expected = before
    for b, path in enumerate(([2, 3, 5], [1])):
        for now, untouched in zip(drafter.expected, [r.clone() for r in before], strict=True):
            for j, source in enumerate(path):
                now[rows.slots[b, j + 1]] = untouched[rows.slots[b, source]]
    drafter.check()


def test_failure_23_padded_lanes_and_missing_slots_move_nothing(on: Target) -> None:
    """Stale slots of padding lanes were written. -1 and slots outside the cache are nobody's."""
    cache = Cache(on, "NHD", pages=2, page_size=4)
    slots = torch.tensor([[0, 1, 2], [3, -1, 4], [5, 6, 8], [7, 7, 7]])
    verdict = dk.Verdict(
        torch.tensor([[-1, -1, -1], [2, -1, -1], [2, -1, -1], [1, 2, -1]], dtype=torch.int32),
        torch.tensor([0, 1, 1, 2], dtype=torch.int32),
        torch.tensor([-1, 5, 5, 5]),
        torch.zeros(4, dtype=torch.int32),
    )
    dk.rollback_kv(cache.layout, slots.to(on.device), verdict.to(on.device), backend=on.backend)
    cache.check()  # nothing moved
