"""Runs the same requests in several modes, in turns, so that noise of the machine hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from d3d_runtime.metrics import Metrics, total
from d3d_runtime.sampling_params import SamplingParams
from d3d_runtime.training.problems import Problem, check

if TYPE_CHECKING:
    from d3d_runtime import Engine, RequestOutput

BASELINE = "autoregressive"


@dataclass(frozen=True)
class Task:
    """One request: what the engine gets, and the problem that checks its answer."""

    content: str | list[dict[str, str]]
    params: SamplingParams
    problem: Problem


@dataclass
class Contender:
    """A mode with its engine and what it has done so far: one list of batches a repeat."""

    name: str
    engine: Engine
    repeats: list[list[Timed]] = field(default_factory=list)

    @property
    def mode(self) -> str:
        return self.engine.mode

    def speeds(self) -> list[float]:
        """Emitted tokens per second of each repeat, prefill included."""
        return [
            sum(batch.tokens for batch in repeat) / sum(batch.seconds for batch in repeat)
            for repeat in self.repeats
        ]

    def seconds(self) -> float:
        return sum(batch.seconds for repeat in self.repeats for batch in repeat)

    def rounds(self) -> int:
        """Of the engine: a batch takes as many as its longest request, the others share them."""
        batches = [batch for repeat in self.repeats for batch in repeat]
        return sum(max(output.metrics.rounds for output in batch.outputs) for batch in batches)

    def outputs(self, repeat: int = 0) -> list[RequestOutput]:
        return [output for batch in self.repeats[repeat] for output in batch.outputs]

    def metrics(self) -> Metrics:
        """The sum over everything it ran."""
        return total(output.metrics for index in range(len(self.repeats)) for output in self.outputs(index))


@dataclass(frozen=True)
class Timed:
    """One batch, run to its end."""

    seconds: float
    outputs: list[RequestOutput]

    @property
    def tokens(self) -> int:
        return sum(len(output.token_ids) for output in self.outputs)


def make_tasks(problems: list[Problem], params: SamplingParams, tokenizer, seed: int) -> list[Task]:
    """The i-th request has seed + i, in every mode and repeat."""
    chat = tokenizer is not None and tokenizer.has_chat_template
    return [
        Task(
            [{"role": "user", "content": p.question}] if chat else p.question,
            replace(params, seed=seed + i),
            p,
        )
        for i, p in enumerate(problems)
    ]


def compare(
    contenders: list[Contender],
    tasks: list[Task],
    batch: int,
    deadline: float,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Fills `contenders`: one repeat, then more while one of the same length ends by `deadline` (monotonic).

    Contenders take turns at every batch, and who begins changes. `progress` is called after each batch.
    """
    batches = [tasks[begin : begin + batch] for begin in range(0, len(tasks), batch)]
    for contender in contenders:  # the first calls allocate and start threads
        run_batch(
            contender.engine,
            [replace(task, params=replace(task.params, max_tokens=8)) for task in batches[0]],
        )
    length = 0.0
    while not contenders[0].repeats or time.monotonic() + length < deadline:
        began = time.monotonic()
        for contender in contenders:
            contender.repeats.append([])
        for turn, requests in enumerate(batches):
            first = turn % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                contender.repeats[-1].append(run_batch(contender.engine, requests))
                progress()
        length = time.monotonic() - began


def run_batch(engine: Engine, tasks: list[Task]) -> Timed:
    began = time.perf_counter()
    outputs = engine.generate([task.content for task in tasks], [task.params for task in tasks])
    return Timed(time.perf_counter() - began, outputs)


def first_difference(ours: list[int], other: list[int]) -> int | None:
    """Index of the first token that differs, a missing one included; None for identical lists."""
    return next((i for i, (a, b) in enumerate(zip_longest(ours, other)) if a != b), None)


def differences(contender: Contender, baseline: Contender) -> list[tuple[int, int]]:
    """(request, index of its first token that differs), over the first repeat."""
    pairs = zip(contender.outputs(), baseline.outputs(), strict=True)
    found = [first_difference(ours.token_ids, other.token_ids) for ours, other in pairs]
    return [(request, index) for request, index in enumerate(found) if index is not None]


def repeatable(contender: Contender) -> bool:
    """Whether every repeat said the same."""
    said = [
        [output.token_ids for output in contender.outputs(index)] for index in range(len(contender.repeats))
    ]
    return all(each == said[0] for each in said)


def solved(contender: Contender, tasks: list[Task]) -> int:
    return sum(
        check(task.problem.answer, output.text or "")
        for task, output in zip(tasks, contender.outputs(), strict=True)
    )
