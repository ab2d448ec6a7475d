"""Flags that several commands share, and what they make: an engine, sampling parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from d3d_runtime.cli.console import Waiting
from d3d_runtime.errors import UserError
from d3d_runtime.models.hub import hub_name_of
from d3d_runtime.sampling_params import SamplingParams

if TYPE_CHECKING:
    from d3d_runtime import Engine

MODES = ("auto", "autoregressive", "sync", "async")
DTYPES = ("float32", "bfloat16", "float64")
DEFAULTS = SamplingParams()
ENGINE_FLAGS = (  # those that are Engine arguments of the same name
    "target",
    "drafter",
    "device",
    "dtype",
    "weights",
    "block_size",
    "mask_token_id",
    "logit_shift",
    "clean_attention",
)


class TokenBias(click.ParamType):
    """`ID:VALUE`, a token id and what is added to its logit."""

    name = "id:value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        token, _, bias = value.partition(":")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not ID:VALUE, such as 42:-1.5 or 42:-inf", param, ctx)


def _together(*options: Callable) -> Callable:
    def decorate(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _number(flag: str, kind: type, help: str) -> Callable:
    """A numeric SamplingParams field as a flag of the same name and default."""
    default = getattr(DEFAULTS, flag.lstrip("-").replace("-", "_"))
    return click.option(flag, type=kind, default=default, show_default=default is not None, help=help)


debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")

engine_options = _together(
    click.option("--target", metavar="PATH", help="Model folder or .gguf file.  [default: the embedded pair]"),
    click.option(
        "--drafter",
        metavar="PATH",
        help="Its block-diffusion drafter, 'ngram' or 'none'.  [default: the embedded pair's]",
    ),
    click.option("--block-size", type=int, metavar="L", help="Of the drafter, where its config does not say."),
    click.option("--mask-token-id", type=int, metavar="ID", help="The same."),
    click.option("--logit-shift/--no-logit-shift", default=None, help="The same."),
    click.option("--clean-attention", type=click.Choice(("causal", "block_causal")), help="The same."),
    click.option("--device", default="cpu", show_default=True, help="cpu or cuda."),
    click.option("--dtype", type=click.Choice(DTYPES), help="Number format.  [default: the engine's choice]"),
    click.option("--weights", type=click.Choice(("int8",)), help="Matrices in one byte a number (bfloat16, cpu)."),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="T",
        help="Processor threads of an operator.  [default: torch's choice]",
    ),
    click.option("--outcomes", type=int, metavar="E", help="Outcomes drafted ahead (async)."),
)

sampling_options = _together(
    _number("--max-tokens", int, "Longest answer."),
    _number("--temperature", float, "0 is greedy."),
    _number("--top-k", int, "Keep the k most likely tokens; 0 is off."),
    _number("--top-p", float, "Keep the most likely tokens of this total probability."),
    _number("--min-p", float, "Drop tokens less likely than this share of the likeliest."),
    _number("--seed", int, "Same seed, same text.  [default: drawn, and reported]"),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text (repeatable)."),
    click.option("--stop-token-id", "stop_token_ids", type=int, multiple=True, metavar="ID", help="End at this token."),
    click.option("--ignore-eos", is_flag=True, help="Go on after the end token."),
    _number("--presence-penalty", float, "Taken from tokens already in the output."),
    _number("--frequency-penalty", float, "The same, for each time they occur."),
    _number("--repetition-penalty", float, "Divides what prompt and output hold."),
    click.option(
        "--logit-bias",
        type=TokenBias(),
        multiple=True,
        metavar="ID:VALUE",
        help="Add to a token's logit; -inf bans.",
    ),
)


def sampling_params(flags: dict[str, Any]) -> SamplingParams:
    """The parameters among a command's flags, checked; flags that are not SamplingParams' are left alone."""
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    chosen = {
        name: list(value) if isinstance(value, tuple) else value for name, value in flags.items() if name in names
    }
    if "logit_bias" in chosen:
        chosen["logit_bias"] = dict(chosen["logit_bias"])
    return SamplingParams(**chosen)


def check_folder(flag: str, path: str | None) -> None:
    """Raises UserError for a path that is no model, naming the one that was probably meant."""
    if path is None or (Path(path).is_file() and Path(path).suffix == ".gguf"):
        return
    if not Path(path).exists() and hub_name_of(path) is not None:
        return
    if Path(path).is_dir():
        inside = sorted(config.parent for config in Path(path).glob("*/config.json"))
        if inside and not (Path(path) / "config.json").exists():
            found = " or ".join(repr(str(folder)) for folder in inside[:3])
            raise UserError(f"{flag} {path!r}: this folder holds no model itself; did you mean {found}?")
        return
    if Path(path).exists():
        raise UserError(f"{flag} {path!r}: this is a file; expected a Hugging Face model folder, or a .gguf file")
    parent = Path(path).parent
    beside = [entry.name for entry in parent.iterdir() if entry.is_dir()] if parent.is_dir() else []
    near = get_close_matches(Path(path).name, beside, n=1, cutoff=0.5)
    hint = f"did you mean {str(parent / near[0])!r}?" if near else "expected a Hugging Face model folder"
    raise UserError(f"{flag} {path!r}: no such folder; {hint}")


def open_engine(flags: dict[str, Any], **overrides: Any) -> Engine:
    """The engine a command's flags ask for; `overrides` are Engine arguments that win over them."""
    check_folder("--target", flags["target"])
    if flags["drafter"] not in ("none", "ngram"):
        check_folder("--drafter", flags["drafter"])
    arguments = {name: flags[name] for name in ENGINE_FLAGS}
    arguments["num_outcomes"] = flags["outcomes"]
    with Waiting("loading") as progress:
        import torch

        from d3d_runtime import Engine

        if flags["threads"] is not None:
            torch.set_num_threads(flags["threads"])
        return Engine(**(arguments | overrides), progress=progress)
