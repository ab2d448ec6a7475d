"""What the user wants answered: an argument, stdin, a file, or a held-out word problem."""

from __future__ import annotations

import json
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d3d_runtime.errors import UserError

if TYPE_CHECKING:
    from d3d_runtime.models.tokenizer import Tokenizer
    from d3d_runtime.training.problems import Problem

Content = str | list[int] | list[dict[str, str]]


@dataclass(frozen=True)
class Prompt:
    """content: text, token ids or chat messages; problem: where the answer can be checked."""

    content: Content
    problem: Problem | None = None

    def for_engine(self, tokenizer: Tokenizer | None, raw: bool) -> Content:
        """Text becomes a chat message if the model has a template, unless `raw`."""
        if isinstance(self.content, str) and not raw and tokenizer is not None and tokenizer.has_chat_template:
            return [{"role": "user", "content": self.content}]
        return self.content


def read_prompts(argument: str | None, file: str | None, problem: int | None, token_ids: bool) -> list[Prompt]:
    """The prompts of one command line; several only from a .jsonl file."""
    if sum(source is not None for source in (argument, file, problem)) > 1:
        raise UserError("prompt: give one of PROMPT, --prompt-file and --problem")
    if argument is None and file is None:
        return [held_out_problem(secrets.randbits(20) if problem is None else problem)]
    if file is not None and Path(file).suffix == ".jsonl":
        return [Prompt(content) for content in _json_lines(decode(_read_file(file), file), file)]
    if file is not None:
        text = decode(_read_file(file), file)
    else:
        text = decode(sys.stdin.buffer.read(), "stdin") if argument == "-" else decode(os.fsencode(argument), "PROMPT")
    if not text.strip():
        raise UserError("prompt: it is empty; expected text")
    return [Prompt(_token_ids(text) if token_ids else text)]


def held_out_problem(number: int) -> Prompt:
    """A word problem in a wording the embedded pair never saw in training."""
    from d3d_runtime.training.problems import generate

    problem = next(generate(number, 1, "held_out_wordings"))
    return Prompt(problem.question, problem)


def _read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"--prompt-file {path!r}: cannot be read ({error.strerror})") from None


def decode(data: bytes, source: str) -> str:
    """Raises UserError, with the place, for what is no UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"prompt: {source} is not UTF-8 text (byte {data[error.start]:#04x} at offset {error.start})"
        ) from None


def _token_ids(text: str) -> list[int]:
    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise UserError(f"prompt: expected token ids such as '12 7 1024', got {text[:40]!r}") from None


def _json_lines(text: str, file: str) -> list[Content]:
    contents = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                contents.append(_content(json.loads(line)))
            except ValueError as error:
                raise UserError(f"--prompt-file {file!r}, line {number}: {error}") from None
    if not contents:
        raise UserError(f"--prompt-file {file!r}: it holds no prompts")
    return contents


def _content(value: Any) -> Content:
    """A line of a .jsonl file: text, token ids, messages, or an object with `prompt` or `messages`."""
    if isinstance(value, dict):
        value = value.get("messages", value.get("prompt"))
    if isinstance(value, str) and value.strip():
        return value
    if (
        isinstance(value, list)
        and value
        and len({type(part) for part in value}) == 1
        and isinstance(value[0], int | dict)
    ):
        return value
    raise ValueError('expected "text", [token ids], [{"role", "content"}] or an object with "prompt" or "messages"')
