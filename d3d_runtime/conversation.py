"""A chat: messages in, streamed answers out, and the KV of what was said kept between the turns."""

from __future__ import annotations

from collections.abc import Iterator

from d3d_runtime.engine import Engine
from d3d_runtime.errors import UserError
from d3d_runtime.prefix import Prefix
from d3d_runtime.request import RequestOutput
from d3d_runtime.sampling_params import SamplingParams


class ContextFull(UserError):
    """The conversation and the new message do not fit into the model's context."""


class Conversation:
    """Turns of a user and a model, each answered with all turns before it.

    The model's chat template is rendered anew for every turn, since it may leave out or change earlier messages; both
    models then read only the tokens that differ from what they have read. system: instructions before the first turn.
    """

    def __init__(self, engine: Engine, system: str | None = None):
        if engine.tokenizer is None or not engine.tokenizer.has_chat_template:
            raise UserError("target: this model has no chat template, so it cannot chat; generate takes plain text")
        self.engine, self.system = engine, system
        self._prefix = Prefix()
        self.reset()

    def stream(self, text: str, params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Answers `text`, and remembers both, an answer that was cut short included.

        Raises ContextFull before anything has changed.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        tokens = self.engine.tokenizer.encode_chat(messages)
        limit = self.engine.config.max_position_embeddings
        if len(tokens) >= limit:
            raise ContextFull(f"the conversation has {len(tokens)} tokens with this message; the model takes {limit}")
        said, stream = [], self.engine.stream(tokens, params, prefix=self._prefix)
        try:
            for increment in stream:
                said.append(increment.text)
                yield increment
        finally:
            stream.close()  # the next turn may follow at once, and needs the pages
            if said:
                self.messages = [*messages, {"role": "assistant", "content": "".join(said)}]

    @property
    def length(self) -> int:
        """Tokens of the last turn that was answered, everything before it included."""
        return len(self._prefix.tokens)

    def reset(self) -> None:
        """Forgets all turns and frees their pages."""
        self.messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        self.engine.forget(self._prefix)
