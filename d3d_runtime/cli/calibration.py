"""The text that a drafter is measured with: what its target says to some prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from d3d_runtime.cli.prompts import Prompt, read_prompts
from d3d_runtime.errors import UserError

if TYPE_CHECKING:
    from d3d_runtime.training.data import Batch

prompt_file_option = click.option(
    "--prompt-file",
    metavar="FILE",
    help="A .jsonl file of prompts, as for d3d generate.  [default: word problems]",
)


def target_text(target: Path, prompt_file: str | None, count: int, **engine_options: Any) -> Batch:
    """At most `count` prompts, with the target's greedy answers."""
    from d3d_runtime.models.tokenizer import Tokenizer
    from d3d_runtime.training.acceptance import answers

    tokenizer = Tokenizer(target) if Tokenizer.exists(target) else None
    if prompt_file is not None:
        prompts = read_prompts(None, prompt_file, None, token_ids=False)[:count]
    elif tokenizer is None:
        raise UserError("--prompt-file: this target has no tokenizer; give a .jsonl file of [token ids]")
    else:
        from d3d_runtime.training.problems import generate

        prompts = [Prompt(problem.question) for problem in generate(0, count, "train")]
    return answers(target, [prompt.for_engine(tokenizer, raw=False) for prompt in prompts], **engine_options)
