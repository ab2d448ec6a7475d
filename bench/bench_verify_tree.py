"""`verify_tree`, accepted length 5: only rows on the accepted path need to be read."""

from __future__ import annotations

import pytest
import torch

import d3d_kernels as dk
from bench.harness import VOCAB, compare, read_bandwidth
from bench.inputs import LOGITS, SAMPLERS, agreeing_tree, torch_sample

ACCEPTED = 5


def torch_walk(tree: dk.DraftTree, sampled) -> list[list[int]]:
    """All rows are sampled, then the walk runs over Python lists, as published tree decoders do."""
    paths = []
    for tokens, parents, targets in zip(tree.token_ids.tolist(), tree.parents.tolist(), sampled.tolist()):
        node, path = 0, []
        children = {(parent, token): i for i, (parent, token) in reversed(list(enumerate(zip(parents, tokens))))}
        while (child := children.get((node, targets[node]))) is not None:
            node = child
            path.append(node)
        paths.append(path + [targets[node]])
    return paths


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("name", SAMPLERS)
def bench_verify_tree(benchmark, name, kind, dtype):
    batch, nodes, settings = 4, 64, SAMPLERS[name]
    logits = LOGITS[kind](batch, nodes, dtype=dtype)
    sampling, positions = dk.SamplingTensors.full(batch, **settings), torch.arange(batch)
    tree = agreeing_tree(logits, sampling, positions, ACCEPTED)
    out = dk.Verdict.empty(batch, nodes)
    compare(
        benchmark,
        lambda: dk.verify_tree(logits, tree, sampling, positions, out=out),
        lambda: torch_walk(tree, torch_sample(logits.flatten(0, 1), **settings).view(batch, nodes)),
        peer_name="torch over all rows + walk",
        moved=batch * (ACCEPTED + 1) * VOCAB * logits.element_size(),
        ceiling=read_bandwidth(),
    )
