"""`d3d generate`: prompts in, streamed text out, and what it cost."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from d3d_runtime.cli.console import Waiting, notes, output
from d3d_runtime.cli.options import (
    MODES,
    debug_option,
    engine_options,
    open_engine,
    sampling_options,
    sampling_params,
)
from d3d_runtime.cli.prompts import Prompt, read_prompts
from d3d_runtime.cli.streaming import INTERRUPTED, Answer, CtrlC, printer, stream_answer
from d3d_runtime.errors import UserError

if TYPE_CHECKING:
    from d3d_runtime import Engine, RequestOutput, SamplingParams

EPILOG = """\b
Examples:
  d3d generate                                      a held-out word problem, checked
  d3d generate --show-blocks --compare              where its tokens came from; the speed-up
  d3d generate "What is 47 + 38?" --temperature 0.7 --seed 1
  d3d generate --target DIR --drafter DIR --mode async "Once upon a time" --raw
  cat question.txt | d3d generate - --json

The text goes to stdout, everything said about it to stderr. A .jsonl prompt file holds one request a
line: "text", [token ids], [{"role": ..., "content": ...}], or an object with "prompt" or "messages"."""


@click.command("generate", epilog=EPILOG, short_help="Answer a prompt, or a held-out word problem.")
@click.argument("prompt", required=False)
@click.option("--prompt-file", metavar="FILE", help="Read the prompt from a file; several from a .jsonl file.")
@click.option("--problem", type=int, metavar="NUMBER", help="Which held-out problem.  [default: a random one]")
@click.option("--raw", is_flag=True, help="Do not wrap the prompt in the model's chat template.")
@click.option("--token-ids", is_flag=True, help="The prompt is token ids, such as '12 7 1024'.")
@click.option("--mode", type=click.Choice(MODES), default="auto", show_default=True)
@engine_options
@click.option("--nodes", type=int, metavar="N", help="Nodes of a draft tree, the root included.")
@sampling_options
@click.option("--show-blocks", is_flag=True, help="Colour the tokens by how they came.")
@click.option("--compare", is_flag=True, help="Also decode plainly, and print the speed-up.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a request.")
@click.option("--logprobs", type=int, metavar="K", help="Report log-probabilities and the K best (with --json).")
@click.option("--n", type=int, default=1, show_default=True, help="Answers a prompt.")
@debug_option
def command(**flags: Any) -> int | None:
    """Answer PROMPT ('-': stdin); without one, a held-out word problem."""
    params = sampling_params(flags)
    prompts = read_prompts(flags["prompt"], flags["prompt_file"], flags["problem"], flags["token_ids"])
    several = len(prompts) > 1 or params.n > 1
    if several and (flags["compare"] or flags["show_blocks"]):
        raise UserError("--compare and --show-blocks: they take one prompt and one answer at a time")
    engine = open_engine(flags, mode=flags["mode"], num_nodes=flags["nodes"])
    if several:
        return _answer_all(engine, prompts, params, flags)
    return _answer_one(engine, prompts[0], params, flags)


def _answer_one(engine: Engine, prompt: Prompt, params: SamplingParams, flags: dict[str, Any]) -> int | None:
    content = prompt.for_engine(engine.tokenizer, flags["raw"])
    if prompt.problem is not None:
        notes().print(prompt.problem.question, style="bold")
    plain = None
    if flags["compare"]:
        plain = open_engine(flags, mode="autoregressive", drafter="none", num_outcomes=None)
        with Waiting("warming up"):  # first calls allocate; neither side should pay for them
            for each in (engine, plain):
                each.generate([content], replace(params, max_tokens=4, stop=[], seed=0))
    if flags["as_json"]:
        with Waiting("answering") as engine.progress:
            answer = stream_answer(engine, engine.stream(content, params), None)
    else:
        show = printer(engine, params.stop, flags["show_blocks"])
        answer = stream_answer(engine, engine.stream(content, params), show)
        output().print()
    report = _describe(prompt, answer.output, engine)
    report |= {"seconds": answer.seconds, "tokens_per_second": answer.tokens_per_second}
    if plain is not None and not answer.interrupted:
        report["compare"] = _compare(plain, content, replace(params, seed=answer.output.seed), answer)
    if flags["as_json"]:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        if flags["show_blocks"]:
            notes().print(_legend(engine.mode))
        _closing_lines(report, params)
    return 130 if answer.interrupted else None


def _legend(mode: str) -> Any:
    from d3d_runtime.cli.blocks import legend

    return legend(mode)


def _answer_all(engine: Engine, prompts: list[Prompt], params: SamplingParams, flags: dict[str, Any]) -> int | None:
    """A batch; outputs in the order of the prompts. Ctrl-C ends all of them with what they have."""
    contents = [prompt.for_engine(engine.tokenizer, flags["raw"]) for prompt in prompts]
    sources = [prompt for prompt in prompts for _ in range(params.n)]
    began = time.perf_counter()
    finished: dict[str, RequestOutput] = {}
    heads = [engine.submit(content, params, request_id=f"{index}") for index, content in enumerate(contents)]
    ids = [head if copy == 0 else f"{head}-{copy}" for head in heads for copy in range(params.n)]
    with Waiting(f"answering {len(ids)} requests") as progress, CtrlC() as ctrl_c:
        ctrl_c.may_wait = True
        while len(finished) < len(ids) and not ctrl_c.pressed:
            finished |= {done.request_id: done for done in engine.step()}
            progress(f"answering {len(ids)} requests", len(finished), len(ids))
    seconds = time.perf_counter() - began
    cut = [engine.abort(request_id) for request_id in ids if request_id not in finished]
    answered = finished | {done.request_id: replace(done, finish_reason=INTERRUPTED) for done in cut if done.token_ids}
    for number, (request_id, prompt) in enumerate(zip(ids, sources, strict=True), start=1):
        done = answered.get(request_id)
        if done is None:
            continue
        if flags["as_json"]:
            click.echo(json.dumps(_describe(prompt, done, engine), ensure_ascii=False))
        else:
            notes().print(f"[{number}] seed {done.seed}" if params.temperature > 0 else f"[{number}]", style="dim")
            output().print(done.text if done.text is not None else " ".join(map(str, done.token_ids)))
    tokens = sum(len(done.token_ids) for done in answered.values())
    notes().print(
        f"{len(finished)} of {len(ids)} requests, {tokens} tokens in {seconds:.2f} s, {tokens / seconds:.0f} tokens/s",
        style="dim",
    )
    return 130 if cut else None


def _describe(prompt: Prompt, done: RequestOutput, engine: Engine) -> dict[str, Any]:
    """What --json prints for a request."""
    report = {
        "request_id": done.request_id,
        "prompt": prompt.content,
        "text": done.text,
        "token_ids": done.token_ids,
        "finish_reason": done.finish_reason,
        "seed": done.seed,
        "mode": engine.mode,
        "num_nodes": engine.num_nodes,
        "num_outcomes": engine.num_outcomes,
        "metrics": vars(done.metrics) | {"tau": done.metrics.tau, "hit_rate": done.metrics.hit_rate},
    }
    if done.logprobs is not None:
        report["logprobs"] = [asdict(token) for token in done.logprobs]
    if prompt.problem is not None:
        from d3d_runtime.training.problems import check

        report |= {"answer": prompt.problem.answer, "correct": check(prompt.problem.answer, done.text or "")}
    return report


def _compare(plain: Engine, content: Any, params: SamplingParams, answer: Answer) -> dict[str, Any]:
    """The same request decoded plainly: how much slower, and whether it says the same."""
    from d3d_runtime.report.compare import first_difference

    with Waiting("decoding plainly, to compare") as plain.progress:
        other = stream_answer(plain, plain.stream(content, params), None)
    return {
        "seconds": other.seconds,
        "tokens_per_second": other.tokens_per_second,
        "speedup": answer.tokens_per_second / other.tokens_per_second,
        "first_difference": first_difference(answer.output.token_ids, other.output.token_ids),
    }


def _closing_lines(report: dict[str, Any], params: SamplingParams) -> None:
    console, metrics, tokens = notes(), report["metrics"], len(report["token_ids"])
    parts = [
        f"{tokens} tokens in {report['seconds']:.2f} s",
        f"{report['tokens_per_second']:.0f} tokens/s",
        f"mode {report['mode']}",
    ]
    if report["num_nodes"] > 1:
        parts.append(f"tau {metrics['tau']:.2f} ({metrics['rounds']} rounds)")
    if outcomes := metrics["hits"] + metrics["misses"]:
        parts.append(f"{metrics['hits']} of {outcomes} outcomes drafted ahead")
    if params.temperature > 0:
        parts.append(f"seed {report['seed']}")
    if report["finish_reason"] == "length":
        parts.append("cut at --max-tokens or at the model's limit")
    elif report["finish_reason"] == INTERRUPTED:
        parts.append(INTERRUPTED)
    console.print(", ".join(parts), style="dim")
    if "compare" in report:
        plain, at = report["compare"], report["compare"]["first_difference"]
        same = "the same text, token for token" if at is None else f"another text from token {at} on"
        timing = f"{plain['seconds']:.2f} s, {plain['tokens_per_second']:.0f} tokens/s"
        console.print(f"autoregressive: {timing}; speed-up {plain['speedup']:.2f}x, {same}", style="bold")
    if "correct" in report:
        right = report["correct"]
        verdict = "right" if right else f"wrong: it is {report['answer']}"
        console.print(f"The answer is {verdict}.", style="green" if right else "red")
