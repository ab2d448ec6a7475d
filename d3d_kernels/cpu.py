"""CPU backend: the compiled library on as many threads as torch uses."""

from __future__ import annotations

import torch
from torch import get_num_threads

from . import _C
from .addresses import kv_buffers
from .compiled import Compiled
from .types import KVLayout


class Cpu(Compiled):
    def _run(
        self,
        function: str,
        device: torch.device,
        arguments: tuple,
        *,
        workspace: tuple | None = None,
        counters: int | None = None,
    ) -> None:
        getattr(self.library, function)(*arguments, get_num_threads())

    def _kv_table(self, layout: KVLayout) -> tuple[_C.KVTable]:
        table = layout.tables.get("cpu")
        if table is None:
            table = layout.tables["cpu"] = self.library.KVTable()
            for buffer in kv_buffers(layout):
                table.add(*buffer)
        return (table,)


BACKEND = Cpu(_C)
