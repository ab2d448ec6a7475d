"""Penalties, bias and allowed tokens against the oracle, alone and along the path of a tree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import d3d_kernels as dk

from . import cases, oracle
from .harness import Target, call
from .test_oracle import sampling_of

VOCAB = 7
tokens = st.integers(0, VOCAB - 1)
histories = st.builds(
    oracle.History,
    prompt=st.lists(tokens, max_size=4).map(tuple),
    output=st.lists(tokens, max_size=6).map(tuple),
    repetition=st.sampled_from([1.0, 0.5, 1.3, 2.0]),
    frequency=st.sampled_from([0.0, 0.7, -0.4]),
    presence=st.sampled_from([0.0, 1.1, -0.6]),
    bias=st.lists(st.tuples(tokens, st.sampled_from([2.5, -1.75, -torch.inf])), max_size=4).map(tuple),
    allowed=st.none() | st.frozensets(tokens, min_size=1),
)


def penalties_of(batch: list[oracle.History]) -> dk.Penalties:
    """-1 pads, and so does an id past the vocabulary."""

    def padded(lists: list[tuple], padding: float, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        width = max(len(row) for row in lists)
        return torch.tensor([[*row, *[padding] * (width - len(row))] for row in lists], dtype=dtype)

    everything = frozenset(range(VOCAB))
    bits = [sum(1 << v for v in (everything if h.allowed is None else h.allowed)) for h in batch]
    return dk.Penalties(
        prompt_ids=padded([h.prompt for h in batch], VOCAB),
        output_ids=padded([h.output for h in batch], -1),
        presence=torch.tensor([h.presence for h in batch]),
        frequency=torch.tensor([h.frequency for h in batch]),
        repetition=torch.tensor([h.repetition for h in batch]),
        bias_ids=padded([tuple(token for token, _ in h.bias) for h in batch], -1),
        bias_values=padded([tuple(value for _, value in h.bias) for h in batch], 9.0, torch.float32),
        allowed_bits=torch.tensor(bits, dtype=torch.int32)[:, None],
    )


@given(st.lists(histories, min_size=1, max_size=5), st.integers(0, 10_000))
def test_sample_sees_penalised_logits(on: Target, batch: list[oracle.History], seed: int) -> None:
    logits = torch.randn(len(batch), VOCAB, generator=cases.generator(seed)) * 2
    rows = [oracle.penalised(row, h) for row, h in zip(logits.tolist(), batch, strict=True)]
    for p in (oracle.Parameters(0.0), oracle.Parameters(0.9, top_k=4)):
        got = call(
            on,
            "sample",
            logits,
            sampling_of([p] * len(batch), torch.arange(len(batch)) + seed),
            torch.arange(len(batch)),
            None,
            penalties_of(batch),
        ).tolist()
        for b, row in enumerate(rows):
            anything = any(x > -torch.inf for x in row)
            assert got[b] == (oracle.target_token(row, p, seed + b, b) if anything else 0)


@pytest.mark.parametrize("p", [oracle.Parameters(0.0), oracle.Parameters(1.0, top_p=0.9)], ids=str)
def test_a_node_sees_the_tokens_of_its_path_as_output(on: Target, p: oracle.Parameters) -> None:
    """Losslessness under penalties: the verdict is what sampling one token at a time gives."""
    g = cases.generator("path", p)
    batch, nodes = 60, 8
    history = oracle.History((1, 2), (3, 3), 1.4, 0.9, 0.5, ((4, 0.5), (4, 0.25)), frozenset(range(6)))
    logits = torch.randn(batch, nodes, VOCAB, generator=g)
    parents = [cases.random_parents(nodes, g) for _ in range(batch)]
    drafts, emitted = [], []
    for b, row_parents in enumerate(parents):
        # Plant the target's own token at four nodes of five, below whatever path leads there.
        own, paths = [0], [()]
        for i in range(1, nodes):
            path = paths[row_parents[i]]
            row = oracle.penalised(logits[b, row_parents[i]].tolist(), _after(history, path))
            y = oracle.target_token(row, p, b, 100 + len(path) + 1)
            own.append(y if torch.rand(1, generator=g) < 0.8 else (y + 1) % VOCAB)
            paths.append((*path, own[i]))
        drafts.append(own)
        emitted.append(_one_at_a_time(logits[b].tolist(), row_parents, own, p, b, history))
    verdict = call(
        on,
        "verify_tree",
        logits,
        cases.tree_of(parents, drafts),
        sampling_of([p] * batch, torch.arange(batch)),
        torch.full((batch,), 100),
        penalties_of([history] * batch),
    )
    for b in range(batch):
        nodes_taken = verdict.accepted_nodes[b, : verdict.num_accepted[b]].tolist()
        assert [*(drafts[b][i] for i in nodes_taken), int(verdict.bonus_ids[b])] == emitted[b]
    assert verdict.num_accepted.max() >= 3


def _after(history: oracle.History, path: tuple[int, ...]) -> oracle.History:
    return oracle.History(**{**vars(history), "output": history.output + path})


def _one_at_a_time(rows, parents, drafts, p, seed, history) -> list[int]:
    emitted, node = [], 0
    while node is not None:
        row = oracle.penalised(rows[node], _after(history, tuple(emitted)))
        y = oracle.target_token(row, p, seed, 100 + len(emitted) + 1)
        emitted.append(y)
        node = next((i for i in range(len(drafts)) if parents[i] == node and drafts[i] == y), None)
    return emitted
