"""Batches of word problems. Everything follows from (seed, step), so a resumed run sees what it would have seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from d3d_runtime.models.tokenizer import Tokenizer
from d3d_runtime.training.problems import generate

CHUNK = 64  # batches that are sorted by length together: less padding, order still random


@dataclass(frozen=True)
class Batch:
    """token_ids [B, T] i64, right-padded with 0; prompt_lengths, lengths [B] i64 count tokens."""

    token_ids: Tensor
    prompt_lengths: Tensor
    lengths: Tensor

    def answer_mask(self) -> Tensor:
        """[B, T-1] bool: True where the *next* token belongs to the answer (its end token included)."""
        target = torch.arange(1, self.token_ids.shape[1])
        return (target >= self.prompt_lengths[:, None]) & (target < self.lengths[:, None])


def collate(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    """(prompt ids, answer ids) a row."""
    lengths = torch.tensor([len(prompt) + len(answer) for prompt, answer in pairs])
    token_ids = torch.zeros(len(pairs), int(lengths.max()), dtype=torch.int64)
    for row, (prompt, answer) in enumerate(pairs):
        token_ids[row, : lengths[row]] = torch.tensor(prompt + answer)
    return Batch(token_ids, torch.tensor([len(prompt) for prompt, _ in pairs]), lengths)


def problem_pairs(tokenizer: Tokenizer, seed: int, count: int, drills: float) -> list[tuple[list[int], list[int]]]:
    eos = tokenizer.eos_token_id
    return [
        (
            tokenizer.encode_chat([{"role": "user", "content": p.question}]),
            tokenizer.encode(p.solution) + [eos],
        )
        for p in generate(seed, count, "train", drills)
    ]


def problem_batches(
    tokenizer: Tokenizer, seed: int, start_step: int, batch_size: int, drills: float
) -> Iterator[Batch]:
    """An endless stream from `start_step` on. Drills thin out: their full share at first, a fifth of it late."""
    step = start_step
    while True:
        chunk = step // CHUNK
        share = max(drills * 0.2, drills * (1 - chunk / 16))
        pairs = problem_pairs(tokenizer, seed + 1_000_003 * chunk, CHUNK * batch_size, share)
        yield from shuffled_batches(pairs, batch_size, seed + chunk, skip=step % CHUNK)
        step = (chunk + 1) * CHUNK


def shuffled_batches(pairs: list, batch_size: int, seed: int, skip: int = 0) -> Iterator[Batch]:
    """Batches of rows of similar length, in random order; a last incomplete batch is dropped."""
    pairs = sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))
    order = torch.randperm(len(pairs) // batch_size, generator=torch.Generator().manual_seed(seed)).tolist()
    for index in order[skip:]:
        yield collate(pairs[index * batch_size : (index + 1) * batch_size])
