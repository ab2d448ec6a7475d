"""Registration of ops as ``torch.ops.d3d.*``, so that they survive torch.compile, export and fake tensors.

The registered ops take flat tensors; a record is its fields in order. Called eagerly, the public functions
skip them and dispatch directly, which is cheaper; while torch traces, they go through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ..types import Candidates, DraftTree, KVLayout, Outcomes, Penalties, SamplingTensors, TreeLinks, Verdict

LIBRARY = torch.library.Library("d3d", "DEF")

tracing = torch.compiler.is_compiling

# A record in an op's argument list stands for its fields. Names are prefixed where two records share them.
# "name?" may be absent; "name!" may be absent and is written.
RECORDS = {
    "sampling": (SamplingTensors, ""),
    "penalties": (Penalties, ""),
    "candidates": (Candidates, "candidate_"),
    "drafts": (Candidates, "draft_"),
    "tree": (DraftTree, ""),
    "outcomes": (Outcomes, "outcome_"),
    "links": (TreeLinks, ""),
    "verdict": (Verdict, ""),
}
LAYOUT = (
    "Tensor(a!)[] keys",
    "Tensor(b!)[] values",
    "str order",
    "Tensor(c!)[] key_scales",
    "Tensor(d!)[] value_scales",
)


def _expand(entry: str, letters: Iterator[str]) -> tuple[type | None, tuple[str, ...]]:
    """An entry of an argument list -> the record that it stands for, if any, and its schema arguments."""
    if entry == "layout":
        return KVLayout, LAYOUT
    name, mark = (entry[:-1], entry[-1]) if entry[-1] in "?!" else (entry, "")
    if name not in RECORDS:
        return None, (entry,)
    kind, prefix = RECORDS[name]

    def type_of(optional: bool) -> str:
        written = f"({next(letters)}!)" if mark == "!" else ""
        return f"Tensor{written}{'?' if mark or optional else ''}"

    return kind, tuple(f"{type_of(spec['optional'])} {prefix}{field}" for field, spec in kind.FIELDS.items())


def _with_defaults(schema: list[str]) -> list[str]:
    """Optional tensors behind the last required argument default to None."""
    required = [i for i, argument in enumerate(schema) if "?" not in argument]
    last = max(required, default=-1)
    return [a if i < last or "?" not in a or "=" in a else f"{a}=None" for i, a in enumerate(schema)]


def register(name: str, arguments: Sequence[str], returns: str, run: Callable, fake: Callable) -> Callable:
    """Define ``torch.ops.d3d.<name>`` and return a function that calls it with records.

    ``arguments`` are schema arguments or names of records. ``run`` serves CPU and CUDA tensors and ``fake``
    makes results of the right shape and dtype; both get one value for each entry of ``arguments``.
    """
    letters = iter("abcdefgh")
    expanded = [_expand(entry, letters) for entry in arguments]
    flat = _with_defaults([argument for _, schema in expanded for argument in schema])
    plan = [(kind, len(schema)) for kind, schema in expanded]

    def with_records(function: Callable) -> Callable:
        def call(*values):
            values += (None,) * (len(flat) - len(values))  # torch drops trailing defaults, all of them None
            grouped, at = [], 0
            for kind, width in plan:
                fields = values[at : at + width]
                grouped.append(fields[0] if kind is None else _record(kind, fields))
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
        for value, (kind, width) in zip(values, plan, strict=True):
            if kind is None:
                flattened.append(value)
            else:
                flattened.extend((None,) * width if value is None else _fields(value))
        return op(*flattened)

    return call_op


def _record(kind: type, fields: tuple):
    return None if all(field is None for field in fields) else kind(*fields)


def _fields(value) -> tuple:
    """``value.tensors()``, spelled so that Dynamo can trace it."""
    return value.tensors() if isinstance(value, KVLayout) else tuple(getattr(value, n) for n in value.FIELDS)


def copy_record(out, result):
    """While tracing, a caller's ``out=`` receives a copy of the functional result."""
    if out is None:
        return result
    for mine, theirs in zip(_fields(out), _fields(result), strict=True):
        if mine is not None:
            mine.copy_(theirs)
    return out
