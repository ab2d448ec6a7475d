"""Text in and out: `tokenizers` for the vocabulary, the checkpoint's own Jinja template for chats."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from d3d_runtime.errors import UserError


class Tokenizer:
    """A folder's tokenizer.json with the special tokens and chat template of its tokenizer_config.json."""

    def __init__(self, folder: Path):
        import tokenizers

        try:
            self.backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        except Exception as error:  # the Rust side raises bare Exception
            raise UserError(f"tokenizer {str(folder)!r}: cannot be read ({error})") from None

    @staticmethod
    def exists(folder: Path) -> bool:
        return (folder / "tokenizer.json").is_file()

    @cached_property
    def eos_token_id(self) -> int | None:
        return self._special("eos_token")

    @cached_property
    def mask_token_id(self) -> int | None:
        return self._special("mask_token")

    def _special(self, name: str) -> int | None:
        token = self.config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        return None if token is None else self.backend.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_chat(self, messages: list[dict[str, str]], **template_args) -> list[int]:
        """Messages of {role, content} -> token ids, ending where the assistant's answer begins."""
        return self.encode(self.render_chat(messages, **template_args))

    def render_chat(self, messages: list[dict[str, str]], **template_args) -> str:
        for message in messages:
            if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
                raise UserError(f"prompt: chat messages are {{role, content}}, got {message!r}")
        return self._template.render(messages=messages, add_generation_prompt=True, **template_args)

    def decode(self, token_ids: list[int]) -> str:
        return self.backend.decode(token_ids, skip_special_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        return bool(self.config.get("chat_template"))

    @cached_property
    def _template(self):
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if not self.has_chat_template:
            raise UserError("prompt: this model has no chat template; pass text or token ids")

        def refuse(message: str):
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = refuse
        return environment.from_string(self.config["chat_template"])
