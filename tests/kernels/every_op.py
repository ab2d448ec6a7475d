"""For each op: arguments of any dtype, stride and ragged shape, and how results of two backends are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

import d3d_kernels as dk
from d3d_kernels.reference.vocab import read_rows

from . import cases, harness
from .harness import Target, assert_same, assert_tokens_agree, place
from .test_parity import _assert_candidates_agree, _assert_verdicts_agree, _perturbed

REFERENCE = Target("reference", "cpu")
Draw = Callable[[st.SearchStrategy], Any]
Arguments = dict[str, Any]

batches = st.sampled_from([0, 1, 2, 3, 7, 13])
vocabs = st.sampled_from([1, 2, 3, 31, 64, 65, 300])
dtypes = st.sampled_from(cases.DTYPES)
strides = st.sampled_from(cases.STRIDES)


def by_request(results: Any, batch: int) -> list[tuple[torch.Tensor, ...]]:
    """What belongs to each request, in their order."""
    return [tuple(t[b] for t in harness.tensors_in(results)) for b in range(batch)]


@dataclass(frozen=True)
class Case:
    """One op. ``requests`` are the arguments that have one entry for each request."""

    arguments: Callable[[Draw, torch.Generator], Arguments]
    requests: tuple[str, ...]
    agree: Callable[[Any, Any, Arguments], None] = lambda got, expected, _: assert_same(got, expected)
    by_request: Callable[[Any, int], list[tuple[torch.Tensor, ...]]] = by_request

    def run(self, on: Target, op: str, arguments: Arguments) -> Any:
        """Its results on the CPU; outputs poisoned and guarded, inputs compared, as in ``harness.call``."""
        return harness.call(on, op, **arguments)

    def check(self, on: Target, op: str, arguments: Arguments) -> None:
        """The reference says the same."""
        self.agree(self.run(on, op, arguments), self.run(REFERENCE, op, arguments), arguments)

    def batch(self, arguments: Arguments) -> int:
        first = arguments[self.requests[0]]
        return len(first) if isinstance(first, torch.Tensor) else first.batch

    def selected(self, arguments: Arguments, index: torch.Tensor) -> Arguments:
        """The same requests in another order, or some of them."""
        return {key: select(value, index) if key in self.requests else value for key, value in arguments.items()}


class TwoSteps(Case):
    """draft_tree: bit for bit what the backend's own candidates and the reference's tree are."""

    def check(self, on: Target, op: str, a: Arguments) -> None:
        got = self.run(on, op, a)
        drafting = (a["logits"], a["k"], a["sampling"], a["root_positions"] + 1, None, a["penalties"])
        drafted = place(dk.draft_candidates(*place(drafting, on.device), backend=on.backend), "cpu")
        growing = (a["root_ids"], drafted, a["num_nodes"], a["num_outcomes"])
        assert_same(got, dk.build_tree(*growing, stop_ids=a["stop_ids"], backend="reference"))


class InPlace(Case):
    """An op that moves rows of a cache: the result is the cache, gaps between its rows included."""

    def run(self, on: Target, op: str, arguments: Arguments) -> Any:
        storages, layout = arguments["cache"]
        copies = [storage.clone().to(on.device) for storage in storages]
        rest = {key: place(value, on.device) for key, value in arguments.items() if key != "cache"}
        before = [t.clone() for t in harness.tensors_in(tuple(rest.values()))]
        getattr(dk, op)(layout(copies), **rest, backend=on.backend)
        assert_same(tuple(harness.tensors_in(tuple(rest.values()))), tuple(before))
        return tuple(copy.cpu() for copy in copies)


def select(value: Any, index: torch.Tensor) -> Any:
    if value is None:
        return None
    return value[index] if isinstance(value, torch.Tensor) else value.select(index)


def generator(draw: Draw) -> torch.Generator:
    return cases.generator("every op", draw(st.integers(0, 10_000)))


def penalties(draw: Draw, batch: int, vocab: int, g: torch.Generator) -> dk.Penalties | None:
    return cases.penalties(batch, vocab, g) if draw(st.booleans()) else None


def sample(draw: Draw, g: torch.Generator) -> Arguments:
    batch, vocab = draw(batches), draw(vocabs)
    return {
        "logits": cases.logits(batch, vocab, g=g, dtype=draw(dtypes), stride=draw(strides)),
        "sampling": sampling(draw, batch, g),
        "positions": cases.positions(batch, g),
        "penalties": penalties(draw, batch, vocab, g),
    }


def sampling(draw: Draw, batch: int, g: torch.Generator) -> dk.SamplingTensors:
    """Parameters in any order over the requests."""
    everything = cases.sampling(len(cases.PARAMETERS), g)
    first = draw(st.integers(0, len(cases.PARAMETERS) - 1))
    return everything.select((torch.arange(batch) + first) % len(cases.PARAMETERS))


def agree_on_samples(got: torch.Tensor, expected: torch.Tensor, a: Arguments) -> None:
    rows = read_rows(a["logits"], a["sampling"], a["positions"], None, a["penalties"])
    assert_tokens_agree(got, expected, rows.perturbed)


def draft_candidates(draw: Draw, g: torch.Generator) -> Arguments:
    batch, length, vocab = draw(batches), draw(st.integers(0, 4)), draw(vocabs)
    return {
        "logits": cases.logits(batch, length, vocab, g=g, dtype=draw(dtypes), stride=draw(strides)),
        "k": draw(st.integers(1, 9)),
        "sampling": sampling(draw, batch, g),
        "positions": cases.positions(batch, g),
        "penalties": penalties(draw, batch, vocab, g),
        "mask_token_id": draw(st.integers(-1, vocab - 1)),
    }


def agree_on_candidates(got: dk.Candidates, expected: dk.Candidates, a: Arguments) -> None:
    ids = torch.arange(len(a["positions"])).int()
    arguments = (a["logits"], a["k"], a["sampling"], a["positions"], ids, a["penalties"], a["mask_token_id"])
    if got.token_ids.numel():
        _assert_candidates_agree(got, expected, _perturbed(*arguments))


def build_tree(draw: Draw, g: torch.Generator) -> Arguments:
    batch, length, k = draw(batches), draw(st.integers(0, 5)), draw(st.integers(1, 6))
    wide, long = draw(st.integers(0, 2)), draw(st.integers(0, 1))  # strides of a larger record
    ids = torch.randint(-1, 12, (batch, length + long, k + wide), generator=g)[:, :length, :k]
    scores = -torch.rand(batch, length + long, k + wide, generator=g).mul(4).round()
    scores = scores.sort(dim=2, descending=True).values[:, :length, :k]
    scores[torch.rand(scores.shape, generator=g) < 0.05] = torch.nan
    return {
        "root_ids": torch.randint(-1, 9, (batch,), generator=g),
        "candidates": dk.Candidates(ids, scores, scores),
        "num_nodes": draw(st.sampled_from([1, 2, 31, 32, 33, 70])),
        "num_outcomes": draw(st.sampled_from([0, 1, 5, 40])),
        "max_depth": draw(st.none() | st.integers(0, length)),
        "stop_ids": draw(st.sampled_from([None, torch.randint(-1, 12, (batch, 3), generator=g)])),
    }


def verify_tree(draw: Draw, g: torch.Generator) -> Arguments:
    """Trees in which the target's own token is planted among the children, and hostile ones."""
    batch, nodes, vocab = draw(batches), draw(st.sampled_from([1, 2, 9, 33])), draw(vocabs)
    logits = cases.logits(batch, nodes, vocab, g=g, dtype=draw(dtypes), stride=draw(strides))
    tree = cases.random_trees(batch, nodes, min(vocab, 4), g) if batch else dk.DraftTree.empty(0, nodes)
    requests, positions = sampling(draw, batch, g), cases.positions(batch, g)
    for node in range(1, nodes):
        parent = tree.parents[:, node].clamp(min=0).long()
        above = logits[torch.arange(batch), parent]
        tokens = dk.sample(above, requests, positions + tree.depths[:, node], backend="reference")
        planted = torch.rand(batch, generator=g) < 0.6
        tree.token_ids[:, node] = torch.where(planted, tokens, tree.token_ids[:, node])
    if draw(st.booleans()):
        hostile = torch.rand(batch, nodes, generator=g) < 0.2
        tree.parents[hostile] = torch.randint(-3, nodes + 3, (int(hostile.sum()),), generator=g).int()
        tree.token_ids[hostile.flip(0)] = torch.randint(-5, 2**40, (int(hostile.sum()),), generator=g)
    return {
        "logits": logits,
        "tree": tree,
        "sampling": requests,
        "root_positions": positions,
        "penalties": penalties(draw, batch, vocab, g),
    }


def agree_on_verdicts(got: dk.Verdict, expected: dk.Verdict, a: Arguments) -> None:
    _assert_verdicts_agree(got, (a["logits"], a["tree"], a["sampling"], a["root_positions"], a["penalties"]))


def verify_chain(draw: Draw, g: torch.Generator) -> Arguments:
    """Drafts that the target would draw itself, or the drafter, or nobody; q as logits, probabilities, or certain."""
    batch, drafts, vocab = draw(batches), draw(st.integers(0, 6)), draw(vocabs)
    logits = cases.logits(batch, drafts + 1, vocab, g=g, dtype=draw(dtypes), stride=draw(strides))
    rows = cases.logits(batch, drafts, vocab, g=g, dtype=draw(dtypes), stride=draw(strides))
    requests, positions = sampling(draw, batch, g), cases.positions(batch, g)
    draft_ids = torch.randint(-1, vocab + 1, (batch, drafts), generator=g)
    for j in range(drafts):
        of_whom = torch.rand(batch, generator=g)
        for who, (low, high) in ((logits, (0.0, 0.5)), (rows, (0.5, 0.9))):
            tokens = dk.sample(who[:, j], requests, positions + j, backend="reference")
            draft_ids[:, j] = torch.where((of_whom >= low) & (of_whom < high), tokens, draft_ids[:, j])
    kind = draw(st.sampled_from(["certain", "logits", "probabilities"]))
    return {
        "target_logits": logits,
        "draft_ids": draft_ids,
        "draft_logits": rows if kind == "logits" else None,
        "sampling": requests,
        "positions": positions,
        "rule": draw(st.sampled_from(["coupled", "ratio", "block"])),
        "penalties": penalties(draw, batch, vocab, g),
        "draft_probs": rows.sigmoid() if kind == "probabilities" else None,
    }


def draft_tree(draw: Draw, g: torch.Generator) -> Arguments:
    """From logits; the tree of near-tied candidates may be another one, so vocabularies are small and rows plain."""
    batch, length, vocab = draw(batches), draw(st.integers(0, 4)), draw(vocabs)
    return {
        "logits": cases.logits(batch, length, vocab, g=g, dtype=draw(dtypes), stride=draw(strides)),
        "root_ids": torch.randint(-1, vocab, (batch,), generator=g),
        "sampling": sampling(draw, batch, g),
        "root_positions": cases.positions(batch, g),
        "num_nodes": draw(st.sampled_from([1, 7, 33])),
        "num_outcomes": draw(st.sampled_from([0, 5])),
        "k": draw(st.integers(1, 6)),
        "penalties": penalties(draw, batch, vocab, g),
        "stop_ids": draw(st.sampled_from([None, torch.randint(-1, vocab, (batch, 3), generator=g)])),
    }


def select_outcome(draw: Draw, g: torch.Generator) -> Arguments:
    batch, nodes, outcomes = draw(batches), draw(st.integers(1, 6)), draw(st.sampled_from([0, 1, 4, 70]))
    verdict = dk.Verdict.empty(batch, nodes)
    verdict.accepted_nodes.copy_(torch.randint(1, max(nodes, 2), (batch, nodes), generator=g))
    verdict.num_accepted.copy_(torch.randint(0, nodes, (batch,), generator=g))
    verdict.bonus_ids.copy_(torch.randint(-1, 3, (batch,), generator=g))
    verdict.status.zero_()
    parents = torch.randint(-1, nodes, (batch, outcomes), generator=g).int()
    tokens = torch.randint(-1, 3, (batch, outcomes), generator=g)
    return {"verdict": verdict, "outcomes": dk.Outcomes(parents, tokens, torch.zeros(batch, outcomes))}


def frontier_inputs(draw: Draw, g: torch.Generator) -> Arguments:
    batch, nodes, outcomes = draw(batches), draw(st.sampled_from([1, 2, 31, 40])), draw(st.sampled_from([0, 1, 9]))
    tree = cases.random_trees(batch, nodes, 50, g) if batch else dk.DraftTree.empty(0, nodes)
    tree.mask_bits.copy_(torch.randint(-(2**31), 2**31, tree.mask_bits.shape, generator=g))
    parents = torch.randint(-1, nodes, (batch, outcomes), generator=g).int()
    tokens = torch.randint(-1, 50, (batch, outcomes), generator=g)
    pages = draw(st.integers(0, 5))
    table = torch.randint(-1, 40, (batch, pages + 1), generator=g)[:, :pages]
    return {
        "tree": tree,
        "outcomes": dk.Outcomes(parents, tokens, torch.zeros(batch, outcomes)),
        "root_positions": torch.randint(0, 60, (batch,), generator=g),
        "page_table": table.int() if draw(st.booleans()) else table,
        "page_size": draw(st.sampled_from([1, 4, 16])),
        "block_size": draw(st.integers(1, 5)),
        "mask_token_id": 49,
    }


def frontier_by_request(results: dk.FrontierInputs, batch: int) -> list[tuple[torch.Tensor, ...]]:
    """request_ids say where in the batch a request is, which is all that may depend on it."""
    *rows, request_ids = results.tensors()
    number = torch.arange(batch)[:, None]
    assert ((request_ids == number) | (request_ids == -1)).all()
    return by_request((*rows, request_ids >= 0), batch)


def mask_bits(draw: Draw, g: torch.Generator) -> torch.Tensor:
    batch, rows = draw(batches), draw(st.sampled_from([0, 1, 5, 33, 70]))
    return torch.randint(-(2**31), 2**31, (batch, rows, (rows + 31) // 32), generator=g).int()


def dense_mask(draw: Draw, g: torch.Generator) -> Arguments:
    bits, columns = mask_bits(draw, g), draw(st.sampled_from([0, 1, 40, 130]))
    return {
        "mask_bits": bits,
        "context_lengths": torch.randint(-2, columns + 3, (len(bits),), generator=g),
        "num_columns": columns,
        "dtype": draw(st.sampled_from([torch.bool, *cases.DTYPES])),
    }


def packed_mask(draw: Draw, g: torch.Generator) -> Arguments:
    bits, context = mask_bits(draw, g), draw(st.sampled_from([0, 7, 130]))
    counts = torch.randint(-1, bits.shape[1] + 2, (len(bits),), generator=g).int()
    return {
        "mask_bits": bits,
        "context_lengths": torch.randint(-2, context + 3, (len(bits),), generator=g),
        "max_context": context,
        "counts": draw(st.sampled_from([None, counts])),
    }


def cache(draw: Draw, g: torch.Generator, slots: int) -> tuple[list[torch.Tensor], Callable]:
    """Storage of two layers, keys and values interleaved and rows wider than a head, and the layout over it."""
    order, page_size = draw(st.sampled_from(["NHD", "HND"])), draw(st.sampled_from([1, 4, 16]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.float8_e4m3fn]))
    heads, dim, gap = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(0, 2))
    scaled = draw(st.booleans())
    pages = -(-slots // page_size)
    inner = (page_size, heads) if order == "NHD" else (heads, page_size)
    bits = torch.randint(0, 256, (2, pages, 2, *inner, (dim + gap) * dtype.itemsize), generator=g, dtype=torch.uint8)
    scales = torch.rand(4, pages, *inner, generator=g)

    def layout(storages: list[torch.Tensor]) -> dk.KVLayout:
        rows, of_rows = storages[0].view(dtype)[..., :dim], storages[1]
        return dk.KVLayout(
            keys=[rows[layer, :, 0] for layer in range(2)],
            values=[rows[layer, :, 1] for layer in range(2)],
            order=order,
            key_scales=list(of_rows[:2]) if scaled else None,
            value_scales=list(of_rows[2:]) if scaled else None,
        )

    return [bits, scales], layout


def own_slots(batch: int, count: int, g: torch.Generator) -> torch.Tensor:
    return torch.randperm(batch * count, generator=g).view(batch, count)


def move_kv(draw: Draw, g: torch.Generator) -> Arguments:
    """Ascending sources, packed to the front, with padding and foreign slots; some counts are out of range."""
    batch, moves = draw(batches), draw(st.integers(1, 8))
    slots = own_slots(batch, moves, g)
    kept = torch.rand(batch, moves, generator=g) < 0.6
    source, target = torch.where(kept, slots, -1), torch.full((batch, moves), -1)
    for b in range(batch):
        target[b, kept[b]] = slots[b, : int(kept[b].sum())]
    source[torch.rand(batch, moves, generator=g) < 0.1] = batch * moves + 16
    counts = torch.randint(-1, moves + 2, (batch,), generator=g).int()
    return {"cache": cache(draw, g, max(1, batch * moves)), "src": source, "dst": target, "counts": counts}


def rollback_kv(draw: Draw, g: torch.Generator) -> Arguments:
    batch, nodes = draw(batches), draw(st.integers(1, 9))
    verdict = dk.Verdict.empty(batch, nodes)
    for t in verdict.tensors():
        t.fill_(-1)
    for b in range(batch):
        path = (torch.rand(nodes - 1, generator=g) < 0.5).nonzero().flatten() + 1
        verdict.num_accepted[b] = len(path)
        verdict.accepted_nodes[b, : len(path)] = path.int()
    return {
        "cache": cache(draw, g, max(1, batch * nodes)),
        "slots": own_slots(batch, nodes, g),
        "verdict": verdict,
    }


def packed_by_request(results: dk.PackedMask, batch: int) -> list[tuple[torch.Tensor, ...]]:
    starts = results.byte_starts.tolist()
    assert not results.bits[starts[-1] :].any()
    return [(results.bits[starts[b] : starts[b + 1]],) for b in range(batch)]


PARAMETERS = ("sampling", "penalties")

CASES: dict[str, Case] = {
    "sample": Case(sample, ("logits", "positions", *PARAMETERS), agree_on_samples),
    "draft_candidates": Case(draft_candidates, ("logits", "positions", *PARAMETERS), agree_on_candidates),
    "build_tree": Case(build_tree, ("root_ids", "candidates", "stop_ids")),
    "draft_tree": TwoSteps(draft_tree, ("logits", "root_ids", "root_positions", "stop_ids", *PARAMETERS)),
    "verify_tree": Case(verify_tree, ("logits", "tree", "root_positions", *PARAMETERS), agree_on_verdicts),
    "verify_chain": Case(
        verify_chain, ("target_logits", "draft_ids", "draft_logits", "draft_probs", "positions", *PARAMETERS)
    ),
    "select_outcome": Case(select_outcome, ("verdict", "outcomes")),
    "frontier_inputs": Case(
        frontier_inputs, ("tree", "outcomes", "root_positions", "page_table"), by_request=frontier_by_request
    ),
    "dense_mask": Case(dense_mask, ("mask_bits", "context_lengths")),
    "packed_mask": Case(packed_mask, ("mask_bits", "context_lengths", "counts"), by_request=packed_by_request),
    "move_kv": InPlace(move_kv, ("src", "dst", "counts")),
    "rollback_kv": InPlace(rollback_kv, ("slots", "verdict")),
}
