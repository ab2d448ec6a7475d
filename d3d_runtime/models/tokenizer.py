"""Text in and out: `tokenizers` for the vocabulary, the checkpoint's own Jinja template for chats."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d3d_runtime.errors import UserError
from d3d_runtime.models.gguf_file import is_gguf, open_gguf
from d3d_runtime.models.gguf_tokenizer import read_tokenizer

if TYPE_CHECKING:
    import tokenizers


class Tokenizer:
    """A folder's tokenizer.json with its special tokens and chat template, or what a GGUF file holds of these."""

    def __init__(self, path: Path):
        if is_gguf(path):
            self.backend, self.config = read_tokenizer(open_gguf(path))
        else:
            self.backend, self.config = _read_folder(path)

    @staticmethod
    def exists(path: Path) -> bool:
        if is_gguf(path):
            return "tokenizer.ggml.model" in open_gguf(path).metadata
        return (path / "tokenizer.json").is_file()

    @cached_property
    def eos_token_id(self) -> int | None:
        return self._special("eos_token")

    @cached_property
    def mask_token_id(self) -> int | None:
        return self._special("mask_token")

    def _special(self, name: str) -> int | None:
        token = self._special_text(name)
        return None if token is None else self.backend.token_to_id(token)

    def _special_text(self, name: str) -> str | None:
        token = self.config.get(name)
        return token.get("content") if isinstance(token, dict) else token

    def first_difference(self, other: Tokenizer) -> tuple[int, str, str] | None:
        """The lowest id that means one token here and another there. Tokens that only one has are no difference:
        a drafter may have a mask token of its own."""
        ours, theirs = ({i: token for token, i in t.backend.get_vocab().items()} for t in (self, other))
        different = [i for i in ours.keys() & theirs.keys() if ours[i] != theirs[i]]
        return (min(different), ours[min(different)], theirs[min(different)]) if different else None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """add_special_tokens: what the model begins every text with, such as Llama 3's <|begin_of_text|>."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_chat(self, messages: list[dict[str, str]], **template_args) -> list[int]:
        """Messages of {role, content} -> token ids, ending where the assistant's answer begins."""
        return self.encode(self.render_chat(messages, **template_args))

    def render_chat(self, messages: list[dict[str, str]], **template_args) -> str:
        for message in messages:
            if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
                raise UserError(f"prompt: chat messages are {{role, content}}, got {message!r}")
        special = {name: self._special_text(name) or "" for name in ("bos_token", "eos_token")}
        return self._template.render(messages=messages, add_generation_prompt=True, **special, **template_args)

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
        # Jinja's own escapes <, > and & for HTML.
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        return environment.from_string(self.config["chat_template"])


def _read_folder(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        template = folder / "chat_template.jinja"  # newer folders keep it beside the config
        if template.is_file():
            config["chat_template"] = template.read_text(encoding="utf-8")
    except Exception as error:  # the Rust side raises bare Exception
        raise UserError(f"tokenizer {str(folder)!r}: cannot be read ({error})") from None
    if isinstance(config.get("chat_template"), list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in config["chat_template"]}
        config["chat_template"] = named.get("default")
    return backend, config
