"""Finding out how a drafter was trained, when its config does not say: try what it may be and see what guesses well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from d3d_runtime.errors import UserError
from d3d_runtime.models.checkpoint import open_checkpoint
from d3d_runtime.models.config import DiffusionConfig
from d3d_runtime.models.loader import load_decoder
from d3d_runtime.models.tokenizer import Tokenizer
from d3d_runtime.progress import Progress, silent
from d3d_runtime.training.acceptance import accepted_lengths, anchors_of
from d3d_runtime.training.data import Batch

BLOCK_SIZES = (16, 32)
QWEN3_MASKS = (151669, 151671)  # unused ids of its vocabulary that published drafters take
ANCHORS = 8
CLEARLY = 1.2  # a block of twice as many rows must guess so much more to be recommended


@dataclass(frozen=True)
class Probe:
    """A candidate, and the mean number of tokens of a block that it guesses."""

    diffusion: DiffusionConfig
    accepted: float

    def flags(self) -> str:
        shift = "--logit-shift" if self.diffusion.logit_shift else "--no-logit-shift"
        blocks = "" if self.diffusion.clean_attention == "causal" else " --clean-attention block_causal"
        return (
            f"--block-size {self.diffusion.block_size} --mask-token-id {self.diffusion.mask_token_id} {shift}{blocks}"
        )


def candidates(path: Path, target: Path) -> Iterator[DiffusionConfig]:
    """What the drafter's config says is taken as it is; the rest is tried."""
    checkpoint = open_checkpoint(path)
    raw, vocabulary = checkpoint.raw, checkpoint.config.vocab_size

    def stated(key: str, otherwise: tuple) -> tuple:
        return otherwise if raw.get(key) is None else (raw[key],)

    yield from (
        DiffusionConfig(*settings)
        for settings in product(
            stated("block_size", BLOCK_SIZES),
            stated("mask_token_id", tuple(id_ for id_ in _masks(path, target) if id_ < vocabulary)),
            stated("logit_shift", (True, False)),
            stated("clean_attention", ("causal", "block_causal")),
        )
    )


def _masks(*paths: Path) -> list[int]:
    """The tokenizers' mask tokens, tokens that are called so, and those of the published drafters."""
    ids: list[int] = []
    for tokenizer in (Tokenizer(path) for path in paths if Tokenizer.exists(path)):
        ids += [tokenizer.mask_token_id] if tokenizer.mask_token_id is not None else []
        added = tokenizer.backend.get_added_tokens_decoder()
        ids += [id_ for id_, token in sorted(added.items()) if "mask" in token.content.lower()]
    return list(dict.fromkeys([*ids, *QWEN3_MASKS]))


def probe(
    path: Path, target: Path, text: Batch, device: str, dtype: torch.dtype, progress: Progress = silent
) -> list[Probe]:
    """All candidates, the recommended first: the one that guesses most; of two alike the smaller block."""
    tried = list(candidates(path, target))
    if not tried:
        raise UserError(f"drafter {str(path)!r}: nothing tells its mask token; add mask_token_id to its config.json")
    drafter = load_decoder(path, dtype, device, progress)
    probes = []
    for count, diffusion in enumerate(tried, start=1):
        anchors = anchors_of(text, ANCHORS, max(candidate.block_size for candidate in tried))
        lengths = accepted_lengths(drafter, text, anchors, diffusion)
        probes.append(Probe(diffusion, lengths.double().mean().item()))
        progress("trying settings", count, len(tried))
    best = max(each.accepted for each in probes)
    return sorted(probes, key=lambda p: (p.accepted * CLEARLY < best, p.diffusion.block_size, -p.accepted))
