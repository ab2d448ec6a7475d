"""A paged KV cache: one pool of pages a model, one list of pages a request.

Slots are *logical* (row j of a request's own pages) until `Pages.physical` maps them into the pool. Page 0 is the dummy
page: padding rows write there and padding page-table entries point there, so that no padded lane touches live memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.models.config import ModelConfig

DUMMY_PAGE = 0


class KVCache:
    """Keys and values side by side, [num_pages, page_size, 2 * H_kv, D] a layer: one write and one gather a layer."""

    def __init__(self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device):
        shape = (num_pages, page_size, 2 * config.num_key_value_heads, config.head_dim)
        self.page_size, self.dtype, self.device = page_size, dtype, device
        self.pages = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self.rows = [layer.flatten(0, 1) for layer in self.pages]
        keys, values = zip(*(layer.chunk(2, dim=-2) for layer in self.pages))
        self.layout = dk.KVLayout(keys=list(keys), values=list(values), order="NHD")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, DUMMY_PAGE, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def pages_for(self, num_rows: int) -> int:
        return -(-num_rows // self.page_size)

    def allocate(self, num_rows: int) -> list[int]:
        """Pages for `num_rows` rows. The scheduler admits a request only while they are free."""
        pages: list[int] = []
        self.resize(pages, num_rows)
        return pages

    def resize(self, pages: list[int], num_rows: int) -> None:
        """Takes pages from the pool, or gives the last ones back, so that `pages` are those of `num_rows` rows."""
        count = self.pages_for(num_rows)
        assert count - len(pages) <= len(self._free), "the scheduler admitted a request beyond the pool"
        while len(pages) < count:
            pages.append(self._free.pop())
        while len(pages) > count:
            self._free.append(pages.pop())

    def release(self, pages: list[int]) -> None:
        self.resize(pages, 0)

    def table(self, requests_pages: list[list[int]], num_rows: int) -> Pages:
        """The page tables of a batch, as wide as its longest request needs in this forward."""
        width = self.pages_for(num_rows)
        rows = [(pages + [DUMMY_PAGE] * width)[:width] for pages in requests_pages]
        return Pages(torch.tensor(rows, dtype=torch.int64, device=self.device), self.page_size)


@dataclass(frozen=True)
class Pages:
    """table [B, P] i64: the pages of each request, in order."""

    table: Tensor
    page_size: int

    @property
    def num_slots(self) -> int:
        """Logical slots a request spans in this table."""
        return self.table.shape[1] * self.page_size

    def physical(self, logical: Tensor) -> Tensor:
        """[B, M] i64 logical slots -> slots of the pool; below 0 -> below 0 (nothing is there)."""
        inside = logical.clamp(min=0)
        slots = self.table.gather(1, inside // self.page_size) * self.page_size + inside % self.page_size
        return slots.where(logical >= 0, -1)


def write_slots(slots: Tensor) -> Tensor:
    """Slots to write to: what has none writes into the dummy page."""
    return slots.clamp(min=DUMMY_PAGE)
