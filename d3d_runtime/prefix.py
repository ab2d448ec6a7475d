"""What a request leaves to the next one of a conversation: its tokens, and the pages that hold their KV."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

from d3d_runtime.request import Request


@dataclass(eq=False)
class Prefix:
    """The KV of both models behind one conversation, between two of its requests; empty before the first.

    Pages have one holder at a time. A request takes them over when it is admitted and keeps the rows of the tokens
    that it begins with; when it ends, the prefix takes them back, without what was scratch. The scheduler takes them
    away when another request needs them, and then the next turn is read from its beginning.
    """

    tokens: list[int] = field(default_factory=list)
    target_pages: list[int] = field(default_factory=list)
    drafter_pages: list[int] = field(default_factory=list)
    target_length: int = 0  # tokens whose KV is in the target's pages
    drafter_length: int = 0  # the same of the drafter's: behind an answer without drafts they are fewer

    @property
    def pages(self) -> tuple[list[int], list[int]]:
        return self.target_pages, self.drafter_pages

    @property
    def lengths(self) -> tuple[int, int]:
        return self.target_length, self.drafter_length

    @property
    def is_empty(self) -> bool:
        return not self.target_pages and not self.drafter_pages

    def hand_over(self, request: Request) -> None:
        """The request gets all pages; its root, the last token, has to be computed whatever they hold."""
        shared = min(common_length(self.tokens, request.tokens), len(request.tokens) - 1)
        request.target_length = request.metrics.reused = min(shared, self.target_length)
        request.drafter_length = min(shared, self.drafter_length)
        request.target_pages, request.drafter_pages = self.pages
        self.forget()

    def take_back(self, request: Request) -> None:
        """From a request that ended, wherever it stood."""
        self.tokens = list(request.tokens)
        self.target_length = request.target_length
        # A block that was cut at a stop leaves rows of tokens that never came.
        self.drafter_length = min(request.drafter_length, len(request.tokens))
        self.target_pages, self.drafter_pages = request.pages
        request.target_pages, request.drafter_pages = [], []

    def forget(self) -> None:
        """Empty again; the pages are somebody else's by now."""
        self.tokens, self.target_pages, self.drafter_pages = [], [], []
        self.target_length = self.drafter_length = 0


def common_length(ours: list[int], other: list[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, other)))
