"""CUDA backend: the compiled library on the current stream.

Workspace comes from torch's allocator, which hands it out in stream order; inside a capture it is the graph's own. The
first move of a layout makes its table of pointers, which cannot be captured: call it once before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _cuda
from .addresses import kv_buffers
from .arrivals import arrivals
from .compiled import Compiled
from .types import KVLayout

MAX_CANDIDATES = 256  # D3D_CUDA_MAX_CANDIDATES
MAX_NODES = 1024  # D3D_CUDA_MAX_NODES


class Cuda(Compiled):
    def draft_candidates(self, logits: Tensor, k: int, *others) -> None:
        _at_most("k", k, MAX_CANDIDATES)
        super().draft_candidates(logits, k, *others)

    def build_tree(self, root_ids: Tensor, ids: Tensor, scores: Tensor, num_nodes: int, *others) -> None:
        _at_most("num_nodes", num_nodes, MAX_NODES)
        super().build_tree(root_ids, ids, scores, num_nodes, *others)

    def draft_tree(self, logits, root_ids, sampling, root_positions, num_nodes, num_outcomes, k, *others) -> None:
        _at_most("num_nodes", num_nodes, MAX_NODES)
        _at_most("k", k, MAX_CANDIDATES)
        super().draft_tree(logits, root_ids, sampling, root_positions, num_nodes, num_outcomes, k, *others)

    def _run(
        self,
        function: str,
        device: torch.device,
        arguments: tuple,
        *,
        workspace: tuple | None = None,
        counters: int | None = None,
    ) -> None:
        with self._on(device):
            stream = self._stream()
            memory = ()
            if workspace is not None:
                size = getattr(self.library, f"{function}_workspace_bytes")(*workspace)
                held = torch.empty(size, dtype=torch.uint8, device=device)
                memory = (held.data_ptr(),)
            if counters is not None:
                memory += (self._arrivals(device, stream, counters).data_ptr(),)
            getattr(self.library, function)(*arguments, *memory, stream)

    def _kv_table(self, layout: KVLayout) -> tuple[int, int]:
        """[buffers, 6] i64 on the device: d3d_kv_buffer records, whose fields are all 64 bits wide."""
        table = layout.tables.get("cuda")
        if table is None:
            rows = list(kv_buffers(layout))
            table = layout.tables["cuda"] = torch.tensor(rows, dtype=torch.int64, device=layout.device)
        return table.data_ptr(), table.shape[0]

    _on = staticmethod(torch.cuda.device)
    _arrivals = staticmethod(arrivals)

    @staticmethod
    def _stream() -> int:
        return torch.cuda.current_stream().cuda_stream


def _at_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise ValueError(f"{name}: expected at most {most} on CUDA, got {value}")


BACKEND = Cuda(_cuda)
