"""Every instruction set of the CPU library gives the same bits: what the CUDA kernels are held to as well."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import d3d_kernels as dk
from d3d_kernels import registry

from . import cases
from .harness import as_bytes, tensors_in


def digest() -> str:
    """Of what the row ops return for rows of all kinds."""
    found = hashlib.sha256()
    for dtype in cases.DTYPES:
        for vocab in (1, 7, 33, 1030, 9001):
            g = cases.generator("simd", dtype, vocab)
            logits = cases.logits(13, 3, vocab, g=g, dtype=dtype, stride="padded")
            sampling, positions = cases.sampling(13, g), cases.positions(13, g)
            for penalties in (None, cases.penalties(13, vocab, g)):
                drafted = dk.draft_candidates(logits, 9, sampling, positions, None, penalties, backend="cpu")
                sampled = dk.sample(logits[:, 0], sampling, positions, None, penalties, backend="cpu")
                tree = cases.random_trees(13, 3, vocab, g)
                verdict = dk.verify_tree(logits, tree, sampling, positions, penalties, backend="cpu")
                chain = logits, tree.token_ids[:, 1:], logits[:, 1:], sampling, positions
                chains = tuple(
                    dk.verify_chain(*chain, rule, penalties, backend="cpu") for rule in ("coupled", "ratio", "block")
                )
                for t in tensors_in((drafted, sampled, verdict, *chains)):
                    found.update(as_bytes(t).numpy())
    return found.hexdigest()


@pytest.mark.parametrize("level", ["baseline", "avx2"])
def test_lower_instruction_sets_give_the_same_bits(level: str) -> None:
    """One process for each level, because it is chosen when the library is loaded."""
    program = f"from {__name__} import digest, level; print(level(), digest())"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "D3D_SIMD": level, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    ran, theirs = run.stdout.split()
    if ran != level:
        pytest.skip(f"this machine runs {ran} at most")
    assert theirs == digest()


def level() -> str:
    return registry.load("cpu").library.simd_level()


def test_thread_counts_give_the_same_bits() -> None:
    alone = digest()
    torch.set_num_threads(4)
    assert digest() == alone
