"""`d3d chat`: a conversation in a terminal, or one turn a line from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from d3d_runtime.cli.console import notes, output
from d3d_runtime.cli.options import (
    MODES,
    debug_option,
    engine_options,
    open_engine,
    sampling_options,
    sampling_params,
)
from d3d_runtime.cli.prompts import decode
from d3d_runtime.cli.streaming import Answer, printer, stream_answer
from d3d_runtime.errors import UserError

if TYPE_CHECKING:
    from d3d_runtime import Conversation, Engine, SamplingParams

EPILOG = """\b
Examples:
  d3d chat
  d3d chat --target DIR --drafter DIR --system "Answer in one sentence." --temperature 0.7
  printf 'What is 47 + 38?\\n/reset\\nWhat is 60 - 4?\\n' | d3d chat

/help lists what a conversation understands beside questions. Ctrl-C ends an answer, Ctrl-D the
conversation. From a pipe every line is a turn, answers go to stdout, and the first error ends it."""

EMBEDDED_NOTE = (
    "The embedded pair learned single word problems: it answers a first question of that kind and is lost in what "
    "follows. /reset before the next one, or bring a chat model with --target."
)


@click.command("chat", epilog=EPILOG, short_help="Talk with the target, turn by turn.")
@click.option("--system", metavar="TEXT", help="Instructions before the first turn.")
@click.option("--mode", type=click.Choice(MODES), default="auto", show_default=True)
@engine_options
@click.option("--nodes", type=int, metavar="N", help="Nodes of a draft tree, the root included.")
@sampling_options
@click.option("--show-blocks", is_flag=True, help="Colour the tokens by how they came.")
@debug_option
def command(**flags: Any) -> int | None:
    """Talk with the target; its chat template makes the prompt, and what was said stays in the KV cache."""
    params = sampling_params(flags)
    system = None if flags["system"] is None else decode(os.fsencode(flags["system"]), "--system")
    engine = open_engine(flags, mode="auto", num_nodes=flags["nodes"])  # with the drafter, for a later /mode
    if flags["mode"] != "auto":
        engine.switch_mode(flags["mode"])

    from d3d_runtime import Conversation

    in_terminal = sys.stdin.isatty()
    if in_terminal:
        limit = engine.config.max_position_embeddings
        notes().print(f"mode {engine.mode}, a context of {limit} tokens; /help says more, Ctrl-D leaves", style="dim")
        if flags["target"] is None:
            notes().print(EMBEDDED_NOTE, style="dim")
    chat = Chat(engine, Conversation(engine, system), params, flags["show_blocks"])
    return chat.run(_typed_lines() if in_terminal else sys.stdin.buffer, in_terminal)


@dataclass
class Chat:
    """What a line of the user's does."""

    engine: Engine
    conversation: Conversation
    params: SamplingParams
    show_blocks: bool
    answers: list[Answer] = field(default_factory=list)
    left: bool = False

    def run(self, lines: Iterator[bytes], in_terminal: bool) -> int | None:
        """Line by line to the end. In a terminal errors are told and the conversation goes on."""
        for number, raw in enumerate(lines, start=1):
            try:
                line = decode(raw, f"line {number}").rstrip("\r\n")
                if line.startswith("/"):
                    self._command(line)
                elif line.strip():
                    self._turn(line)
            except KeyboardInterrupt:
                if not in_terminal:
                    raise
                notes().print("interrupted", style="dim")
            except UserError as error:
                if not in_terminal:
                    raise
                notes().print(f"d3d: {error}", style="red")
            if self.left:
                return None
            if self.answers and self.answers[-1].interrupted and not in_terminal:
                return 130
        return None

    def _turn(self, text: str) -> None:
        from d3d_runtime.conversation import ContextFull

        show = printer(self.engine, self.params.stop, self.show_blocks)
        try:
            answer = stream_answer(self.engine, self.conversation.stream(text, self.params), show)
        except ContextFull as error:
            raise UserError(f"{error}; /reset starts a new one") from None
        self.answers.append(answer)
        output().print()
        if answer.interrupted:
            notes().print("interrupted", style="dim")
        elif answer.output.finish_reason == "length":
            limit = self.engine.config.max_position_embeddings
            full = self.conversation.length >= limit
            why = f"the context of {limit} tokens is full; /reset starts a new one" if full else "--max-tokens reached"
            notes().print(f"cut: {why}", style="dim")

    def _command(self, line: str) -> None:
        name, _, argument = line[1:].strip().partition(" ")
        if name not in COMMANDS:
            near = get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean /{near[0]}?" if near else "/help lists the commands"
            raise UserError(f"there is no command /{name}; {hint}")
        COMMANDS[name].run(self, argument.strip())

    def set_seed(self, value: str) -> None:
        if value:
            try:
                seed = None if value == "random" else int(value)
            except ValueError:
                raise UserError(f"/seed: expected an integer or 'random', got {value!r}") from None
            self.params = replace(self.params, seed=seed)
        seed = "random" if self.params.seed is None else self.params.seed
        unused = "; temperature 0 does not use it" if self.params.temperature == 0 else ""
        notes().print(f"seed {seed}{unused}", style="dim")

    def set_mode(self, value: str) -> None:
        if value:
            self.engine.switch_mode(value)
        notes().print(f"mode {self.engine.mode}", style="dim")

    def show_stats(self, _: str) -> None:
        from d3d_runtime.metrics import total

        if not self.answers:
            notes().print("no answer yet", style="dim")
            return
        last = self.answers[-1].output.metrics
        read = f"{last.reused} prompt tokens were in the KV cache, the others took {last.prefill_ms:.0f} ms"
        metrics = total(answer.output.metrics for answer in self.answers)
        drafted = f", tau {metrics.tau:.2f} ({metrics.rounds} rounds)"
        if outcomes := metrics.hits + metrics.misses:
            drafted += f", {metrics.hits} of {outcomes} outcomes drafted ahead"
        for line in (
            f"last answer: {_speed(self.answers[-1:])}; {read}",
            f"all answers ({len(self.answers)}): {_speed(self.answers)}{drafted}",
            f"context: {self.conversation.length} of {self.engine.config.max_position_embeddings} tokens, "
            f"mode {self.engine.mode}",
        ):
            notes().print(line, style="dim")

    def reset(self, _: str) -> None:
        self.conversation.reset()
        notes().print("a new conversation", style="dim")

    def show_help(self, _: str) -> None:
        for name, known in COMMANDS.items():
            notes().print(f"/{name + ' ' + known.argument:<16} {known.help}", style="dim")

    def leave(self, _: str) -> None:
        self.left = True


@dataclass(frozen=True)
class Command:
    argument: str
    help: str
    run: Callable[[Chat, str], None]


COMMANDS = {
    "seed": Command("[N]", "sample with this seed; 'random' draws one a turn", Chat.set_seed),
    "mode": Command("[MODE]", f"{', '.join(MODES)}; what was said stays", Chat.set_mode),
    "stats": Command("", "speed, tau and what the KV cache holds", Chat.show_stats),
    "reset": Command("", "forget what was said", Chat.reset),
    "help": Command("", "this list", Chat.show_help),
    "exit": Command("", "leave; so does Ctrl-D", Chat.leave),
}


def _speed(answers: list[Answer]) -> str:
    tokens = sum(len(answer.output.token_ids) for answer in answers)
    seconds = sum(answer.seconds for answer in answers)
    return f"{tokens} tokens in {seconds:.2f} s, {tokens / seconds:.0f} tokens/s"


def _typed_lines() -> Iterator[bytes]:
    """Lines of a terminal until Ctrl-D; Ctrl-C empties the line."""
    with suppress(ImportError):
        import readline  # noqa: F401  (gives input() a history and cursor keys)
    sys.stdin.reconfigure(errors="surrogateescape")  # what is no text is told by who decodes the line
    prompt = "> " if sys.stdout.isatty() else ""
    while True:
        try:
            yield os.fsencode(input(prompt))
        except KeyboardInterrupt:
            notes().print("\nCtrl-D or /exit leaves", style="dim")
        except EOFError:
            notes().print()
            return
