"""A wrong argument is refused with an error that names it, what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import d3d_kernels as dk

B, N, L, K, E, V, S, BLOCK = 2, 4, 3, 2, 3, 40, 8, 2


def i64(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def i32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def penalties() -> dk.Penalties:
    return dk.Penalties(
        prompt_ids=i64(B, 3),
        presence=torch.zeros(B),
        bias_ids=i64(B, 2),
        bias_values=torch.zeros(B, 2),
        allowed_bits=i32(B, 2),
    )


def tree() -> dk.DraftTree:
    return dk.DraftTree(*(t.zero_() for t in dk.DraftTree.empty(B, N).tensors()))


def outcomes() -> dk.Outcomes:
    return dk.Outcomes(i32(B, E), i64(B, E), torch.zeros(B, E))


def candidates(rows: int) -> dk.Candidates:
    return dk.Candidates(i64(rows, L, K), torch.zeros(rows, L, K), torch.zeros(rows, L, K))


def verdict() -> dk.Verdict:
    return dk.Verdict(*(t.zero_() for t in dk.Verdict.empty(B, N).tensors()))


def layout() -> dk.KVLayout:
    return dk.KVLayout([torch.zeros(2, 4, 1, 8)], [torch.zeros(2, 4, 1, 8)])


# Correct arguments of every op: a fresh set for each test.
CORRECT: dict[str, Callable[[], dict]] = {
    "sample": lambda: {
        "logits": torch.zeros(B, V),
        "sampling": dk.SamplingTensors.full(B),
        "positions": i64(B),
        "request_ids": i32(B),
        "penalties": penalties(),
        "status": i32(B),
        "out": i64(B),
    },
    "draft_candidates": lambda: {
        "logits": torch.zeros(B, L, V),
        "k": K,
        "sampling": dk.SamplingTensors.full(B),
        "positions": i64(B),
        "request_ids": i32(B),
        "penalties": penalties(),
        "out": dk.Candidates.empty(B, L, K),
    },
    "build_tree": lambda: {
        "root_ids": i64(B),
        "candidates": candidates(B * 5),
        "num_nodes": N,
        "num_outcomes": E,
        "stop_ids": i64(B, S),
        "outcome_index": i32(B),
        "root_positions": i64(B),
        "links": dk.TreeLinks.empty(B, N),
        "out": (dk.DraftTree.empty(B, N), dk.Outcomes.empty(B, E)),
    },
    "draft_tree": lambda: {
        "logits": torch.zeros(B, L, V),
        "root_ids": i64(B),
        "sampling": dk.SamplingTensors.full(B),
        "root_positions": i64(B),
        "num_nodes": N,
        "num_outcomes": E,
        "k": K,
        "penalties": penalties(),
        "stop_ids": i64(B, S),
        "candidates": dk.Candidates.empty(B, L, K),
        "links": dk.TreeLinks.empty(B, N),
        "out": (dk.DraftTree.empty(B, N), dk.Outcomes.empty(B, E)),
    },
    "verify_tree": lambda: {
        "logits": torch.zeros(B, N, V),
        "tree": tree(),
        "sampling": dk.SamplingTensors.full(B),
        "root_positions": i64(B),
        "penalties": penalties(),
        "outcomes": outcomes(),
        "out": dk.Verdict.empty(B, N),
    },
    "verify_chain": lambda: {
        "target_logits": torch.zeros(B, N, V),
        "draft_ids": i64(B, N - 1),
        "draft_logits": None,
        "sampling": dk.SamplingTensors.full(B),
        "positions": i64(B),
        "rule": "ratio",
        "out": dk.Verdict.empty(B, N),
    },
    "select_outcome": lambda: {
        "verdict": verdict(),
        "outcomes": outcomes(),
        "candidates": candidates(B * E),
        "out": (i32(B), dk.Candidates.empty(B, L, K)),
    },
    "frontier_inputs": lambda: {
        "tree": tree(),
        "outcomes": outcomes(),
        "root_positions": i64(B),
        "page_table": i32(B, 3),
        "page_size": 4,
        "block_size": BLOCK,
        "mask_token_id": 1,
        "out": dk.FrontierInputs.empty(B, N, E, BLOCK),
    },
    "dense_mask": lambda: {
        "mask_bits": i32(B, N, 1),
        "context_lengths": i64(B),
        "num_columns": 9,
        "dtype": torch.float32,
        "out": torch.zeros(B, N, 9),
    },
    "packed_mask": lambda: {
        "mask_bits": i32(B, N, 1),
        "context_lengths": i64(B),
        "max_context": 9,
        "counts": i32(B),
        "out": dk.PackedMask.empty(B, N, 9),
    },
    "move_kv": lambda: {"layout": layout(), "src": i64(B, 2), "dst": i64(B, 2), "counts": i32(B)},
    "rollback_kv": lambda: {"layout": layout(), "slots": i64(B, N), "verdict": verdict()},
}


def but(name: str, **changes: object) -> Callable[[dict], object]:
    """The op's own correct record ``name``, some fields replaced."""
    return lambda arguments: replace(arguments[name], **changes)


META = torch.device("meta")
ON_META = torch.zeros(B, device=META)

# For each op: an argument, what to pass instead (or a function of the correct arguments that makes it), the
# error, and what its message must contain.
WRONG = {
    "sample": [
        ("logits", [[1.0]], TypeError, "logits: expected a torch.Tensor, got list"),
        ("logits", i32(B, V), TypeError, "logits: expected float32.*got torch.int32"),
        (
            "logits",
            torch.zeros(B, 1, V),
            ValueError,
            r"logits: expected 2 dimensions, got shape \(2, 1, 40\)",
        ),
        ("logits", torch.zeros(B, 0), ValueError, "logits: expected a vocabulary of 1 to"),
        ("logits", torch.zeros(1, 1).expand(B, 2**22), ValueError, "logits: expected a vocabulary"),
        ("logits", torch.zeros(V, B).T, ValueError, r"logits: expected its last dimension dense.*\(1, 2\)"),
        ("logits", torch.zeros(3, V), ValueError, r"positions: expected shape \(3,\), got \(2,\)"),
        ("logits", torch.zeros(B, V, device=META), ValueError, "sampling: expected device meta, got cpu"),
        ("sampling", None, TypeError, "sampling: expected SamplingTensors, got NoneType"),
        ("sampling", but("sampling", seed=i32(B)), TypeError, "sampling.seed: expected torch.int64"),
        ("sampling", but("sampling", top_k=i32(3)), ValueError, r"sampling.top_k: .*\(2,\), got \(3,\)"),
        ("sampling", but("sampling", top_p=0.9), TypeError, "sampling.top_p: .* got float"),
        ("sampling", but("sampling", min_p=ON_META), ValueError, "sampling.min_p: expected device cpu"),
        ("positions", i32(B), TypeError, "positions: expected torch.int64, got torch.int32"),
        ("positions", i64(2 * B)[::2], ValueError, "positions: expected its last dimension dense"),
        ("request_ids", i64(B), TypeError, "request_ids: expected torch.int32"),
        ("request_ids", i32(B + 1), ValueError, "request_ids: expected shape"),
        ("penalties", {}, TypeError, "penalties: expected Penalties, got dict"),
        ("penalties", dk.Penalties(), ValueError, "penalties: expected at least one tensor"),
        ("penalties", dk.Penalties(presence=torch.zeros(3)), ValueError, "penalties: expected sizes B = 2"),
        ("penalties", but("penalties", allowed_bits=i32(B, 1)), ValueError, "allowed_bits: expected 2 words"),
        ("penalties", but("penalties", bias_ids=None), ValueError, "bias_values: expected to come with"),
        (
            "penalties",
            but("penalties", bias_ids=i64(B, 3)),
            ValueError,
            r"bias_values: expected shape \(2, 3\)",
        ),
        (
            "penalties",
            but("penalties", prompt_ids=i64(6)),
            ValueError,
            "penalties.prompt_ids: expected shape",
        ),
        ("out", i32(B), TypeError, "out: expected torch.int64"),
        ("out", i64(2 * B)[::2], ValueError, "out: expected a contiguous tensor"),
        ("status", i64(B), TypeError, "status: expected torch.int32"),
        ("backend", "gpu", ValueError, "backend: expected one of reference, cpu, cuda, triton, got 'gpu'"),
        ("backend", "cuda", ValueError, "backend: 'cuda' cannot run on cpu tensors"),
    ],
    "draft_candidates": [
        ("logits", torch.zeros(B, V), ValueError, "logits: expected 3 dimensions"),
        ("k", 0, ValueError, "k: expected at least 1, got 0"),
        ("k", 2.0, TypeError, "k: expected an int, got float"),
        ("beta", 0.0, ValueError, "beta: expected a positive number, got 0.0"),
        ("out", dk.Candidates.empty(B, L, 3), ValueError, "out: expected sizes .*K = 2, got .*K = 3"),
    ],
    "build_tree": [
        ("root_ids", i32(B), TypeError, "root_ids: expected torch.int64"),
        ("root_ids", i64(B + 1), ValueError, "root_ids: expected shape"),
        ("candidates", None, TypeError, "candidates: expected Candidates, got NoneType"),
        (
            "candidates",
            but("candidates", scores=torch.zeros(B, L, K).double()),
            TypeError,
            "scores: .*float32",
        ),
        ("candidates", but("candidates", token_ids=i64(B, K)), ValueError, "candidates.token_ids: expected"),
        ("num_nodes", 0, ValueError, "num_nodes: expected at least 1"),
        ("num_outcomes", -1, ValueError, "num_outcomes: expected at least 0"),
        ("max_depth", -1, ValueError, "max_depth: expected at least 0"),
        ("stop_ids", i64(B + 1, S), ValueError, "stop_ids: expected shape"),
        ("stop_ids", i64(), ValueError, "stop_ids: expected shape"),
        ("out", (dk.DraftTree.empty(B, 5), dk.Outcomes.empty(B, E)), ValueError, r"out\[0\]: .*N = 4, got"),
        ("outcome_index", i64(B), TypeError, "outcome_index: expected torch.int32"),
        ("outcome_index", i32(B, 1), ValueError, "outcome_index: expected shape"),
        ("outcome_index", i32(3), ValueError, "candidates: expected a multiple of 3 rows .*, got 10"),
        ("outcome_index", None, ValueError, r"root_ids: expected shape \(10,\), got \(2,\)"),
        ("outcome_index", 3, TypeError, "outcome_index: expected a torch.Tensor, got int"),
        ("root_positions", i64(3), ValueError, "root_positions: expected shape"),
        ("links", dk.TreeLinks.empty(B, 5), ValueError, "links: expected sizes B = 2, N = 4, got B = 2, N = 5"),
        ("links", but("links", first_child=i64(B, N)), TypeError, "links.first_child: expected torch.int32"),
    ],
    "draft_tree": [
        ("logits", torch.zeros(B, V), ValueError, "logits: expected 3 dimensions"),
        ("root_ids", i64(3), ValueError, "root_ids: expected shape"),
        ("root_positions", i32(B), TypeError, "root_positions: expected torch.int64"),
        ("k", 0, ValueError, "k: expected at least 1, got 0"),
        ("beta", -1.0, ValueError, "beta: expected a positive number, got -1.0"),
        ("num_nodes", 0, ValueError, "num_nodes: expected at least 1"),
        ("stop_ids", i64(B + 1, S), ValueError, "stop_ids: expected shape"),
        ("candidates", dk.Candidates.empty(B, L, 3), ValueError, "candidates: expected sizes .*K = 2, got .*K = 3"),
        ("candidates", candidates(B + 1), ValueError, "candidates: expected sizes R = 2"),
        ("links", 1, TypeError, "links: expected TreeLinks, got int"),
        ("out", (dk.DraftTree.empty(B, N), dk.Outcomes.empty(B, 1)), ValueError, r"out\[1\]: .*E = 3, got"),
    ],
    "verify_tree": [
        ("logits", torch.zeros(B, V), ValueError, "logits: expected 3 dimensions"),
        ("logits", torch.zeros(B, 5, V), ValueError, r"logits: expected shape \(2, 4, V\) as in tree"),
        ("row_starts", i32(B), ValueError, "logits: expected 2 dimensions"),
        ("tree", but("tree", parents=i64(B, N)), TypeError, "tree.parents: expected torch.int32"),
        ("tree", but("tree", depths=i32(B, 3)), ValueError, "tree.depths: expected shape"),
        ("tree", but("tree", mask_bits=i32(B, N, 2)), ValueError, "tree.mask_bits: expected 1 words"),
        (
            "tree",
            but("tree", token_ids=i64(N, B).T),
            ValueError,
            "tree.token_ids: expected its last .* dense",
        ),
        ("root_positions", i64(3), ValueError, "root_positions: expected shape"),
        ("sampling", dk.SamplingTensors.full(3), ValueError, "sampling: expected sizes B = 2, got B = 3"),
        ("out", but("out", accepted_nodes=i32(B, 9)[:, :N]), ValueError, "out: expected contiguous"),
        ("out", but("out", outcome_index=None), ValueError, "out.outcome_index: expected a tensor, since outcomes"),
        ("outcomes", dk.Outcomes.empty(3, E), ValueError, "outcomes: expected sizes B = 2, got B = 3"),
        ("outcomes", i64(B, E), TypeError, "outcomes: expected Outcomes, got Tensor"),
    ],
    "verify_chain": [
        ("draft_ids", i64(B, N), ValueError, r"draft_ids: expected shape \(2, 3\), got \(2, 4\)"),
        ("target_logits", torch.zeros(B, V), ValueError, "target_logits: expected 3 dimensions"),
        ("target_logits", torch.zeros(B, 0, V), ValueError, "target_logits: expected at least one row a request"),
        ("rule", "lenient", ValueError, "rule: expected one of coupled, ratio, block, got 'lenient'"),
        (
            "draft_logits",
            torch.zeros(B, N, V),
            ValueError,
            r"draft_logits: expected shape \(2, 3, 40\), got \(2, 4, 40\)",
        ),
        ("draft_logits", i32(B, N - 1, V), TypeError, "draft_logits: expected float32"),
        ("draft_logits", torch.zeros(B, N - 1, V, device=META), ValueError, "draft_logits: expected device cpu"),
        ("draft_probs", torch.zeros(V), ValueError, "draft_probs: expected 3 dimensions"),
        (
            "draft_probs",
            lambda arguments: arguments.update(draft_logits=torch.zeros(B, N - 1, V)) or torch.zeros(B, N - 1, V),
            ValueError,
            "draft_probs: expected either draft_logits or draft_probs, got both",
        ),
        ("positions", i32(B), TypeError, "positions: expected torch.int64"),
        ("penalties", dk.Penalties(presence=torch.zeros(3)), ValueError, "penalties: expected sizes B = 2"),
        ("out", dk.Verdict.empty(B, N - 1), ValueError, "out: expected sizes B = 2, N = 4, got B = 2, N = 3"),
    ],
    "select_outcome": [
        ("verdict", None, TypeError, "verdict: expected Verdict"),
        ("outcomes", dk.Outcomes.empty(3, E), ValueError, "outcomes: expected sizes B = 2, got B = 3"),
        ("out", (i64(B), dk.Candidates.empty(B, L, K)), TypeError, r"out\[0\]: expected torch.int32"),
        ("out", (i32(B), dk.Candidates.empty(B, L, 3)), ValueError, r"out\[1\]: expected sizes .*K = 2, got .*K = 3"),
        ("candidates", candidates(B), ValueError, "candidates: expected sizes R = 6, got R = 2"),
    ],
    "frontier_inputs": [
        ("tree", None, TypeError, "tree: expected DraftTree"),
        ("outcomes", dk.Outcomes.empty(3, E), ValueError, "outcomes: expected sizes B = 2, got B = 3"),
        ("root_positions", i64(3), ValueError, "root_positions: expected shape"),
        ("page_table", torch.zeros(B, 3), TypeError, "page_table: expected torch.int64, got torch.float32"),
        ("page_table", i32(3, 3), ValueError, r"page_table: expected shape \(2, 3\), got \(3, 3\)"),
        ("page_table", i32(6), ValueError, "page_table: expected shape"),
        ("page_table", i32(3, B).T, ValueError, "page_table: expected its last dimension dense"),
        ("page_size", 0, ValueError, "page_size: expected at least 1, got 0"),
        ("block_size", 0, ValueError, "block_size: expected at least 1"),
        ("out", dk.FrontierInputs.empty(B, N, E, 3), ValueError, "out: expected sizes B = 2, Q = 9"),
    ],
    "dense_mask": [
        ("mask_bits", i64(B, N, 1), TypeError, "mask_bits: expected torch.int32"),
        ("mask_bits", i32(B, N), ValueError, "mask_bits: expected shape"),
        ("context_lengths", i32(B), TypeError, "context_lengths: expected torch.int64"),
        ("num_columns", -1, ValueError, "num_columns: expected at least 0"),
        ("dtype", torch.int32, TypeError, "dtype: expected bool, float32, .*got torch.int32"),
        ("out", torch.zeros(B, N, 8), ValueError, r"out: expected shape \(2, 4, 9\), got \(2, 4, 8\)"),
    ],
    "packed_mask": [
        ("mask_bits", i32(B, 33, 1), ValueError, "mask_bits: expected at least 2 words for Q = 33, got 1"),
        ("context_lengths", i64(3), ValueError, "context_lengths: expected shape"),
        ("max_context", -1, ValueError, "max_context: expected at least 0"),
        ("max_context", 2**31, ValueError, r"max_context: expected a mask below 2\^31 bytes"),
        ("counts", i64(B), TypeError, "counts: expected torch.int32"),
        ("out", dk.PackedMask.empty(B, N, 8), ValueError, "out: expected sizes C = 14"),
    ],
    "move_kv": [
        ("layout", None, TypeError, "layout: expected KVLayout"),
        ("src", i32(B, 2), TypeError, "src: expected torch.int64"),
        ("dst", i64(B, 3), ValueError, "dst: expected shape"),
        ("counts", i64(B), TypeError, "counts: expected torch.int32"),
    ],
    "rollback_kv": [
        ("slots", i64(B, N + 1), ValueError, "slots: expected shape"),
        ("verdict", None, TypeError, "verdict: expected Verdict"),
    ],
}


@pytest.mark.parametrize("op", CORRECT)
def test_the_correct_arguments_are_accepted(op: str) -> None:
    getattr(dk, op)(**CORRECT[op](), backend="reference")


@pytest.mark.parametrize(
    "op,argument,value,error,message", [(op, *case) for op, wrong in WRONG.items() for case in wrong]
)
def test_wrong_argument(op: str, argument: str, value, error, message: str) -> None:
    arguments = {"backend": "reference", **CORRECT[op]()}
    arguments[argument] = value(arguments) if callable(value) else value
    with pytest.raises(error, match=message):
        getattr(dk, op)(**arguments)


KEYS = torch.zeros(2, 4, 1, 8)
SPARSE = torch.zeros(2, 4, 1, 16)[..., ::2]
WRONG_LAYOUTS = [
    ({"order": "NDH"}, ValueError, "order: expected"),
    ({"keys": [], "values": []}, ValueError, "values: expected one tensor a layer"),
    ({"keys": [KEYS, KEYS]}, ValueError, "values: expected one tensor a layer"),
    ({"keys": [KEYS[0]]}, ValueError, r"keys\[0\]: expected 4 dimensions"),
    ({"values": [KEYS.double()]}, TypeError, r"values\[0\]: expected torch.float32"),
    ({"values": [KEYS[:, :2]]}, ValueError, r"values\[0\]: expected shape"),
    ({"values": [SPARSE]}, ValueError, r"values\[0\]: expected its last dimension dense"),
    ({"key_scales": [KEYS[..., 0]] * 2}, ValueError, "key_scales: expected 1 tensors"),
]


@pytest.mark.parametrize("wrong,error,message", WRONG_LAYOUTS)
def test_wrong_layout(wrong: dict, error, message: str) -> None:
    with pytest.raises(error, match=message):
        dk.KVLayout(**{"keys": [KEYS], "values": [KEYS], **wrong})


def test_a_record_is_immutable_because_it_is_checked_once() -> None:
    sampling = dk.SamplingTensors.full(2)
    with pytest.raises(AttributeError):
        sampling.seed = torch.zeros(1)
