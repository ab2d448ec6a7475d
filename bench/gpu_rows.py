"""Microbenchmark rows on a GPU: median microseconds of a launch in a graph, bytes that have to move, their share of the
measured copy bandwidth.

Inputs rotate through as much memory as keeps them out of the L2 cache, where that fits; each row says so if it did not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import d3d_kernels as dk
from bench.harness import VOCAB
from bench.inputs import LOGITS, SAMPLERS
from d3d_kernels import registry

COPY_BYTES = 1 << 30
COLD_BYTES = 256 << 20  # several times the L2 cache of an H200
MOST_COPIES = 16
REPEATS = 7
LAYERS, HEADS, DIM, MOVED = 36, 8, 128, 5  # Qwen3-8B
NODES, LENGTH, K, OUTCOMES, ACCEPTED = 64, 15, 16, 16, 5


@dataclass
class Row:
    op: str
    backend: str
    batch: int
    case: str
    moved: int  # bytes
    microseconds: float = 0.0
    cold: bool = True

    def bandwidth(self) -> float:
        return self.moved / self.microseconds * 1e6


Make = Callable[[], Callable[[], object]]  # inputs of its own -> the call to measure


def copy_bandwidth() -> float:
    """Bytes/s, read and written, of the device's own copies."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / (_measure([lambda: target.copy_(source)]) * 1e-6)


def rows() -> Iterator[tuple[Row, Make]]:
    for backend in registry.available("cuda"):
        if backend == "reference":
            continue
        module = registry.load(backend)
        for batch in (1, 8, 64):
            for op, maker in MAKERS.items():
                if hasattr(module, op):
                    for case, moved, make in maker(batch, backend):
                        yield Row(op, backend, batch, case, moved), make


def measure(row: Row, make: Make) -> Row:
    copies = max(1, min(MOST_COPIES, -(-COLD_BYTES // max(row.moved, 1))))
    row.cold = copies * row.moved >= COLD_BYTES
    row.microseconds = _measure([make() for _ in range(copies)])
    return row


def _measure(calls: list[Callable[[], object]]) -> float:
    """Median microseconds of one call, over replays of a graph of all of them."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(REPEATS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times[1:])


def _logits(kind: str, *shape: int) -> torch.Tensor:
    few = LOGITS[kind](min(shape[0], 4), *shape[1:], dtype=torch.bfloat16)
    return few[torch.arange(shape[0]) % len(few)].cuda()


def _vocabulary_cases() -> Iterator[tuple[str, str, dict]]:
    for kind in LOGITS:
        for name, settings in SAMPLERS.items():
            yield f"bf16 {kind} {name}", kind, settings


def _sample(batch: int, backend: str):
    for case, kind, settings in _vocabulary_cases():

        def make(kind=kind, settings=settings):
            logits, sampling = _logits(kind, batch), dk.SamplingTensors.full(batch, "cuda", **settings)
            positions, out = torch.arange(batch, device="cuda"), torch.empty(batch, dtype=torch.int64, device="cuda")
            return lambda: dk.sample(logits, sampling, positions, out=out, backend=backend)

        yield case, batch * VOCAB * 2, make


def _draft_candidates(batch: int, backend: str):
    for case, kind, settings in _vocabulary_cases():

        def make(kind=kind, settings=settings):
            logits, sampling = _logits(kind, batch, LENGTH), dk.SamplingTensors.full(batch, "cuda", **settings)
            positions, out = torch.arange(batch, device="cuda"), dk.Candidates.empty(batch, LENGTH, K, "cuda")
            return lambda: dk.draft_candidates(logits, K, sampling, positions, out=out, backend=backend)

        yield case, batch * LENGTH * VOCAB * 2, make


def _verify_tree(batch: int, backend: str):
    """A chain of ACCEPTED nodes that the target agrees to, then leaves. All nodes see the same row."""
    for case, kind, settings in _vocabulary_cases():

        def make(kind=kind, settings=settings):
            row = _logits(kind, batch)
            logits = row[:, None].expand(batch, NODES, VOCAB)
            logits = logits.contiguous() if batch == 1 else logits
            sampling = dk.SamplingTensors.full(batch, "cuda", **settings)
            positions = torch.arange(batch, device="cuda")
            tree = dk.DraftTree.empty(batch, NODES, "cuda")
            depths = torch.arange(NODES, device="cuda").clamp(max=ACCEPTED + 1)
            tree.depths.copy_(depths.expand(batch, -1))
            tree.parents.copy_((torch.arange(NODES, device="cuda") - 1).clamp(max=ACCEPTED).expand(batch, -1))
            tree.token_ids.fill_(VOCAB - 1)
            tree.num_nodes.fill_(NODES)
            for node in range(ACCEPTED):
                tree.token_ids[:, node + 1] = dk.sample(row, sampling, positions + node + 1, backend=backend)
            out = dk.Verdict.empty(batch, NODES, "cuda")
            return lambda: dk.verify_tree(logits, tree, sampling, positions, out=out, backend=backend)

        rows = NODES if batch == 1 else batch * (ACCEPTED + 1)  # above the crossover only the path is read
        yield case, rows * VOCAB * 2, make


def _build_tree(batch: int, backend: str):
    def make():
        scores = -torch.rand(batch, LENGTH, K, device="cuda").mul(4).sort(dim=2).values
        ids = torch.randint(VOCAB, (batch, LENGTH, K), device="cuda")
        candidates, roots = dk.Candidates(ids, scores, scores), torch.zeros(batch, dtype=torch.int64, device="cuda")
        out = dk.DraftTree.empty(batch, NODES, "cuda"), dk.Outcomes.empty(batch, OUTCOMES, "cuda")
        return lambda: dk.build_tree(roots, candidates, NODES, OUTCOMES, out=out, backend=backend)

    yield f"L={LENGTH} K={K} N={NODES} E={OUTCOMES}", 0, make


def _select_outcome(batch: int, backend: str):
    def make():
        verdict, outcomes = dk.Verdict.empty(batch, NODES, "cuda"), dk.Outcomes.empty(batch, OUTCOMES, "cuda")
        for tensor in (*verdict.tensors(), *outcomes.tensors()):
            tensor.zero_()
        out = torch.empty(batch, dtype=torch.int32, device="cuda")
        return lambda: dk.select_outcome(verdict, outcomes, out=out, backend=backend)

    yield f"E={OUTCOMES}", 0, make


def _move_kv(batch: int, backend: str):
    def make():
        shape = (2 * batch, NODES, HEADS, DIM)
        caches = [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2 * LAYERS)]
        layout = dk.KVLayout(caches[:LAYERS], caches[LAYERS:])
        slots = torch.arange(batch, device="cuda")[:, None] * 2 * NODES + torch.arange(1, MOVED + 1, device="cuda")
        counts = torch.full((batch,), MOVED, dtype=torch.int32, device="cuda")
        sources = slots + 4 * torch.arange(1, MOVED + 1, device="cuda")
        return lambda: dk.move_kv(layout, sources, slots, counts, backend=backend)

    yield f"{MOVED} tokens, {LAYERS} layers", 2 * batch * MOVED * 2 * LAYERS * HEADS * DIM * 2, make


MAKERS = {
    "sample": _sample,
    "draft_candidates": _draft_candidates,
    "verify_tree": _verify_tree,
    "build_tree": _build_tree,
    "select_outcome": _select_outcome,
    "move_kv": _move_kv,
}
