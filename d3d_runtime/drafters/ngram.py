"""Prompt lookup: what followed the last tokens when they stood here before, in the prompt or in the answer so far.

The ends of the text of 1 to MAX_NGRAM tokens are looked up; what followed an earlier occurrence is a guess, the longer
the match the better, and a later occurrence before an earlier one. Guesses that disagree give a tree: at each position
a token has the share of the weight of the guesses that carry it. No weights, no cache, nothing to train.
(Idea: Saxena, "Prompt Lookup Decoding", 2023.)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime.batch import DraftBatch

MAX_NGRAM = 4
LENGTHENS = 8.0  # how much more a match of one token more weighs
CONTINUES = 0.9  # chance that a guess that was right goes on being right: it ends chains before it branches them


class NgramDrafter:
    cache = None
    taps = ()

    def __init__(self, draft_length: int, num_candidates: int, vocab_size: int):
        self.draft_length, self.num_candidates, self.vocab_size = draft_length, num_candidates, vocab_size

    def scratch_rows(self, num_nodes: int, num_outcomes: int) -> int:
        return 0

    def settled(self, length: int) -> int:
        """Nothing: it reads the whole text for each draft."""
        return 0

    def settled_by_draft(self, length: int) -> int:
        return 0

    def prefill(self, pages: list[int], tokens: list[int], start: int, features: Tensor | None = None) -> None:
        """Nothing to do; with nothing settled it is never called."""

    def draft(self, batch: DraftBatch) -> dk.Candidates:
        """Scores are log-shares; a position without a guess has no candidates."""
        shape = (len(batch), self.draft_length, self.num_candidates)
        token_ids, scores = np.full(shape, -1, np.int64), np.full(shape, -np.inf, np.float32)
        for row, tokens in enumerate(batch.lacking):
            self._draft_row(np.asarray(tokens), token_ids[row], scores[row])
        ids, values = (torch.from_numpy(array).to(batch.device) for array in (token_ids, scores))
        return dk.Candidates(ids, values, values.clone())

    def _draft_row(self, tokens: np.ndarray, token_ids: np.ndarray, scores: np.ndarray) -> None:
        guesses = self._guesses(tokens)
        total = sum(weight for _, weight in guesses)
        for position in range(self.draft_length):
            shares: dict[int, float] = {}
            for begin, weight in guesses:
                if begin + position < len(tokens):
                    token = int(tokens[begin + position])
                    shares[token] = shares.get(token, 0.0) + weight
            best = sorted(shares, key=lambda token: (-shares[token], token))[: self.num_candidates]
            for rank, token in enumerate(best):
                token_ids[position, rank] = token
                scores[position, rank] = math.log(shares[token] / total * CONTINUES)

    def _guesses(self, tokens: np.ndarray) -> list[tuple[int, float]]:
        """(where a continuation begins, its weight) of the best occurrences of the text's end, the best first."""
        ends = np.arange(1, len(tokens))  # a match ends before such an index
        length = np.zeros(len(ends), np.int64)
        for back in range(1, min(MAX_NGRAM, len(tokens) - 1) + 1):
            reaches = (length == back - 1) & (ends >= back)
            length[reaches] += tokens[ends[reaches] - back] == tokens[-back]
        found = ends[length > 0]
        order = sorted(found.tolist(), key=lambda end: (-length[end - 1], -end))[: self.num_candidates]
        return [(end, LENGTHENS ** float(length[end - 1] - 1)) for end in order]
