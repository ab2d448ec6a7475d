"""Tokens to text, one at a time, with stop strings.

A token may be part of a character, so text is settled only when the decoder yields no replacement character. Decoding
restarts from the last settled token rather than from the beginning: cost per token does not grow with the length.
"""

from __future__ import annotations

from d3d_runtime.models.tokenizer import Tokenizer

PARTIAL = "\ufffd"


class Detokenizer:
    def __init__(self, tokenizer: Tokenizer, stop: list[str]):
        self.tokenizer, self.stop = tokenizer, stop
        self.stopped = False
        self._text = ""
        self._taken = 0
        self._context: list[int] = []  # the settled tokens before the pending ones: some decoders need a neighbour
        self._pending: list[int] = []
        self._hold = max((len(text) for text in stop), default=1) - 1

    def append(self, token: int) -> None:
        self._pending.append(token)
        piece = self._decode_pending()
        whole = piece.rstrip(PARTIAL)
        if whole == piece or self._find_stop(whole) is not None:
            self._settle(whole)

    def take(self, flush: bool) -> str:
        """Text not yet taken; without `flush`, the tail that could begin a stop string stays behind."""
        if flush:
            self.finish()
        end = len(self._text) if flush or self.stopped else max(self._taken, len(self._text) - self._hold)
        begin, self._taken = self._taken, end
        return self._text[begin:end]

    def finish(self) -> str:
        """The whole text; a character that was never completed shows as the replacement character."""
        if self._pending and not self.stopped:
            self._settle(self._decode_pending())
        return self._text

    def _decode_pending(self) -> str:
        before = self.tokenizer.decode(self._context)
        return self.tokenizer.decode(self._context + self._pending)[len(before) :]

    def _settle(self, piece: str) -> None:
        stop = self._find_stop(piece)
        self._text += piece
        # Special tokens write nothing: alone they would leave the next word at the beginning of the text.
        self._context, self._pending = (self._pending if piece else self._context + self._pending), []
        if stop is not None:
            self._text, self.stopped = self._text[:stop], True

    def _find_stop(self, piece: str) -> int | None:
        """Where the first stop string begins in the text, once `piece` is there."""
        tail = max(0, len(self._text) - self._hold)
        recent = self._text[tail:] + piece
        found = [tail + at for at in (recent.find(text) for text in self.stop) if at >= 0]
        return min(found, default=None)
