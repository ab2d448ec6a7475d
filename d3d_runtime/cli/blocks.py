"""`--show-blocks`: which tokens came from a draft, and which the target had to add itself.

A round emits the accepted part of a draft and one bonus token, so an increment of the stream is one round:
all its tokens but the last were drafted. The draft was made after a miss if the round before it counted one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from d3d_runtime.models.tokenizer import Tokenizer
    from d3d_runtime.request import RequestOutput

ACCEPTED, AFTER_MISS, BONUS = "green", "magenta", "bold yellow"
_DRAFTED = ((ACCEPTED, "accepted in a block"), (BONUS, "bonus, the target's own"))
_AHEAD = (_DRAFTED[0], (AFTER_MISS, "accepted, drafted after a miss"), _DRAFTED[1])
LEGEND = {"sync": _DRAFTED, "pingpong": _DRAFTED, "async": _AHEAD, "auto": _AHEAD}


class BlockPainter:
    """Colours the tokens of one streamed request; without a tokenizer a token shows as its id."""

    def __init__(self, tokenizer: Tokenizer | None, stop: list[str], mode: str):
        from d3d_runtime.detokenizer import Detokenizer

        self.detokenizer = Detokenizer(tokenizer, stop) if tokenizer is not None else None
        self.drafts = mode in LEGEND
        self.misses = 0
        self.missed = False

    def paint(self, increment: RequestOutput) -> Text:
        from rich.text import Text

        text = Text()
        for index, token in enumerate(increment.token_ids):
            bonus = index == len(increment.token_ids) - 1
            style = BONUS if bonus else AFTER_MISS if self.missed else ACCEPTED
            last = bonus and increment.finish_reason is not None
            text.append(self._text(token, last), style if self.drafts else None)
        # The metrics object lives on with the request: what it counts now is what this round added.
        self.missed, self.misses = increment.metrics.misses > self.misses, increment.metrics.misses
        return text

    def _text(self, token: int, last: bool) -> str:
        if self.detokenizer is None:
            return f"{token} "
        self.detokenizer.append(token)
        return self.detokenizer.take(flush=last)


def legend(mode: str) -> Text:
    from rich.text import Text

    if mode not in LEGEND:
        return Text(f"mode {mode}: every token is the target's own, there are no blocks to show")
    return Text("   ").join(Text(f"■ {meaning}", style) for style, meaning in LEGEND[mode])
