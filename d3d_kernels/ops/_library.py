"""Registration of ops as ``torch.ops.d3d.*``, so that they survive torch.compile, export and fake tensors.

The registered ops take flat tensors; a record is its fields in order. Called eagerly, the public functions
skip them and dispatch directly, which is cheaper; while torch traces, they go through them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..types import Candidates, DraftTree, KVLayout, Outcomes, Penalties, SamplingTensors, Verdict

LIBRARY = torch.library.Library("d3d", "DEF")

tracing = torch.compiler.is_compiling

# A record in an op's argument list, and the schema arguments that it stands for.
RECORDS = {
    "sampling": (
        SamplingTensors,
        ("Tensor temperature", "Tensor top_k", "Tensor top_p", "Tensor min_p", "Tensor seed"),
    ),
    "penalties": (
        Penalties,
        (
            "Tensor? prompt_ids=None",
            "Tensor? output_ids=None",
            "Tensor? presence=None",
            "Tensor? frequency=None",
            "Tensor? repetition=None",
            "Tensor? bias_ids=None",
            "Tensor? bias_values=None",
            "Tensor? allowed_bits=None",
        ),
    ),
    "candidates": (
        Candidates,
        ("Tensor candidate_ids", "Tensor candidate_log_probs", "Tensor candidate_scores"),
    ),
    "tree": (
        DraftTree,
        ("Tensor token_ids", "Tensor parents", "Tensor depths", "Tensor num_nodes", "Tensor mask_bits"),
    ),
    "outcomes": (Outcomes, ("Tensor parent_node", "Tensor outcome_ids", "Tensor outcome_scores")),
    "verdict": (
        Verdict,
        ("Tensor accepted_nodes", "Tensor num_accepted", "Tensor bonus_ids", "Tensor status"),
    ),
    "layout": (
        KVLayout,
        (
            "Tensor(a!)[] keys",
            "Tensor(b!)[] values",
            "str order",
            "Tensor(c!)[] key_scales",
            "Tensor(d!)[] value_scales",
        ),
    ),
}


def register(name: str, arguments: Sequence[str], returns: str, run: Callable, fake: Callable) -> Callable:
    """Define ``torch.ops.d3d.<name>`` and return a function that calls it with records.

    ``arguments`` are schema arguments or names of records. ``run`` serves CPU and CUDA tensors and ``fake``
    makes results of the right shape and dtype; both get one value for each entry of ``arguments``.
    """
    flat = [argument for entry in arguments for argument in RECORDS.get(entry, (None, (entry,)))[1]]
    plan = [
        (RECORDS[entry][0], len(RECORDS[entry][1])) if entry in RECORDS else (None, 1) for entry in arguments
    ]

    def with_records(function: Callable) -> Callable:
        def call(*values):
            values += (None,) * (len(flat) - len(values))  # torch drops trailing defaults, all of them None
            grouped, at = [], 0
            for record, width in plan:
                fields = values[at : at + width]
                grouped.append(fields[0] if record is None else _record(record, fields))
                at += width
            return function(*grouped)

        return call

    LIBRARY.define(f"{name}({', '.join(flat)}) -> {returns}")
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, with_records(run), key)
    torch.library.register_fake(f"d3d::{name}", with_records(fake), lib=LIBRARY)
    op = getattr(torch.ops.d3d, name)

    def call_op(*values):
        flattened = []
        for value, (record, width) in zip(values, plan, strict=True):
            if record is None:
                flattened.append(value)
            else:
                flattened.extend((None,) * width if value is None else value.tensors())
        return op(*flattened)

    return call_op


def _record(record: type, fields: tuple):
    return None if all(field is None for field in fields) else record(*fields)


def copy_record(out, result):
    """While tracing, a caller's ``out=`` receives a copy of the functional result."""
    if out is None:
        return result
    for mine, theirs in zip(out.tensors(), result.tensors(), strict=True):
        mine.copy_(theirs)
    return out
