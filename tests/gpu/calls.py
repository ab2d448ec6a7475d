"""One call of each op, on tensors of a GPU, with the outputs allocated: what graphs, streams and sanitizers repeat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import d3d_kernels as dk
from d3d_kernels import registry
from tests.kernels import cases
from tests.kernels.harness import place, tensors_in

BATCH, NODES, LENGTH, K, OUTCOMES = 6, 12, 3, 5, 7


@dataclass
class Call:
    """``run(inputs, out, backend)``; where ``out`` is None the op works in place on its inputs."""

    run: Callable[[tuple, Any, str], Any]
    inputs: tuple
    out: Any

    def __call__(self, backend: str) -> Any:
        self.run(self.inputs, self.out, backend)
        return self.results()

    def results(self) -> Any:
        return self.inputs[:1] if self.out is None else self.out

    def to(self, device: str) -> Call:
        return Call(self.run, place(self.inputs, device), place(self.out, device))

    def take_inputs_of(self, other: Call) -> None:
        """The other call's values in this call's memory."""
        for mine, theirs in zip(tensors_in(self.inputs), tensors_in(other.inputs), strict=True):
            mine.copy_(theirs)

    def poison(self) -> None:
        for tensor in tensors_in(self.out):
            tensor.fill_(-77)


def _rows(seed: int, vocab: int, *shape: int):
    g = cases.generator("gpu", seed, vocab, shape)
    logits = cases.logits(*shape, vocab, g=g, dtype=torch.bfloat16, stride="padded")
    return g, logits, cases.sampling(shape[0], g), cases.positions(shape[0], g)


def sample(seed: int, vocab: int) -> Call:
    g, logits, sampling, positions = _rows(seed, vocab, BATCH)
    out = torch.empty(BATCH, dtype=torch.int64)
    return Call(
        lambda i, out, backend: dk.sample(*i[:3], None, i[3], out=out, backend=backend),
        (logits, sampling, positions, cases.penalties(BATCH, vocab, g)),
        out,
    )


def draft_candidates(seed: int, vocab: int) -> Call:
    _, logits, sampling, positions = _rows(seed, vocab, BATCH, LENGTH)
    return Call(
        lambda i, out, backend: dk.draft_candidates(i[0], K, *i[1:], out=out, backend=backend),
        (logits, sampling, positions),
        dk.Candidates.empty(BATCH, LENGTH, K),
    )


def build_tree(seed: int, vocab: int) -> Call:
    g = cases.generator("gpu tree", seed)
    ids = torch.randint(0, vocab, (BATCH, LENGTH, K), generator=g)
    scores = -torch.rand(BATCH, LENGTH, K, generator=g).mul(4).sort(dim=2).values
    return Call(
        lambda i, out, backend: dk.build_tree(
            i[0], dk.Candidates(i[1], i[2], i[2]), NODES, OUTCOMES, stop_ids=i[3], out=out, backend=backend
        ),
        (torch.randint(0, vocab, (BATCH,), generator=g), ids, scores, ids[0, 0, :2].clone()),
        (dk.DraftTree.empty(BATCH, NODES), dk.Outcomes.empty(BATCH, OUTCOMES)),
    )


def verify_tree(seed: int, vocab: int) -> Call:
    g, logits, sampling, positions = _rows(seed, vocab, BATCH, NODES)
    tree = cases.random_trees(BATCH, NODES, min(vocab, 4), g)
    return Call(
        lambda i, out, backend: dk.verify_tree(*i, out=out, backend=backend),
        (logits, tree, sampling, positions),
        dk.Verdict.empty(BATCH, NODES),
    )


def verify_penalised_tree(seed: int, vocab: int) -> Call:
    call = verify_tree(seed, vocab)
    return Call(call.run, (*call.inputs, cases.penalties(BATCH, vocab, cases.generator("gpu pen", seed))), call.out)


def verify_chain(seed: int, vocab: int) -> Call:
    g, logits, sampling, positions = _rows(seed, vocab, BATCH, LENGTH + 1)
    draft_ids = torch.randint(-1, min(vocab, 4), (BATCH, LENGTH), generator=g)
    return Call(
        lambda i, out, backend: dk.verify_chain(i[0], i[1], None, *i[2:], out=out, backend=backend),
        (logits, draft_ids, sampling, positions),
        dk.Verdict.empty(BATCH, LENGTH + 1),
    )


def select_outcome(seed: int, vocab: int) -> Call:
    g = cases.generator("gpu select", seed)
    count = torch.randint(0, 4, (BATCH,), generator=g).int()
    verdict = dk.Verdict(
        torch.randint(1, 4, (BATCH, NODES), generator=g).int(),
        count,
        torch.randint(-1, 3, (BATCH,), generator=g),
        torch.zeros(BATCH, dtype=torch.int32),
    )
    parents, tokens = (torch.randint(0, 4, (BATCH, OUTCOMES), generator=g) for _ in range(2))
    outcomes = dk.Outcomes(parents.int(), tokens, torch.zeros(BATCH, OUTCOMES))
    return Call(
        lambda i, out, backend: dk.select_outcome(*i, out=out, backend=backend),
        (verdict, outcomes),
        torch.empty(BATCH, dtype=torch.int32),
    )


def move_kv(seed: int, vocab: int) -> Call:
    g = cases.generator("gpu kv", seed)
    cache = torch.randint(0, 99, (2, 2, 8, 16, 3, 24), generator=g).to(torch.bfloat16)  # layer, K or V, pages, ...
    slots = torch.arange(BATCH)[:, None] * 20 + torch.arange(6)
    layouts: dict[int, dk.KVLayout] = {}

    def run(i, out, backend):
        layout = layouts.get(i[0].data_ptr())
        if layout is None:
            layout = layouts[i[0].data_ptr()] = dk.KVLayout(keys=list(i[0][:, 0]), values=list(i[0][:, 1]))
        dk.move_kv(layout, *i[1:], backend=backend)

    counts = torch.randint(0, 7, (BATCH,), generator=g).int()
    return Call(run, (cache, slots + 3, slots, counts), None)


CALLS: dict[str, Callable[[int, int], Call]] = {
    make.__name__: make
    for make in (
        sample,
        draft_candidates,
        build_tree,
        verify_tree,
        verify_penalised_tree,
        verify_chain,
        select_outcome,
        move_kv,
    )
}
OP_OF = {"verify_penalised_tree": "verify_tree"}


def runs(name: str, backend: str) -> bool:
    """Whether the backend has the op itself, and does not hand it to another."""
    return hasattr(registry.load(backend), OP_OF.get(name, name))
