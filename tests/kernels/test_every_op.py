"""Every op of the registry on every backend, over whatever dtypes, strides and ragged shapes hypothesis finds.

Each call writes poisoned outputs between canaries and must leave its inputs as they were, bit for bit (harness,
every_op). test_parity goes through the same ops on fixed grids.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import d3d_kernels as dk
from d3d_kernels import registry

from .every_op import CASES, REFERENCE, InPlace, generator
from .harness import Target, assert_same

ops = pytest.mark.parametrize("op", CASES)


def test_every_op_has_a_case() -> None:
    """A new op must be added to CASES before anything else will pass."""
    public = {name for name in dk.__all__ if inspect.isfunction(getattr(dk, name)) and name != "set_backend"}
    assert set(registry.OPS) <= public
    assert public == set(CASES), "ops without a parity case, or cases without an op"


@pytest.fixture
def other(on: Target) -> Target:
    if on == REFERENCE:
        pytest.skip("the reference is what the others are compared with")
    return on


@ops
@given(data=st.data())
def test_results_are_those_of_the_reference(other: Target, op: str, data: st.DataObject) -> None:
    case = CASES[op]
    arguments = case.arguments(data.draw, generator(data.draw))
    case.check(other, op, arguments)


@ops
@given(data=st.data())
@settings(max_examples=20)
def test_results_do_not_depend_on_the_other_requests(on: Target, op: str, data: st.DataObject) -> None:
    """The same requests in another order, and each third of them alone, in other places of memory."""
    case = CASES[op]
    arguments = case.arguments(data.draw, generator(data.draw))
    order = torch.tensor(data.draw(st.permutations(range(case.batch(arguments)))), dtype=torch.int64)
    if isinstance(case, InPlace):  # requests move rows of their own, and the cache is the same in any order
        assert_same(case.run(on, op, case.selected(arguments, order)), case.run(on, op, arguments))
        return
    whole = case.by_request(case.run(on, op, arguments), len(order))
    for index in (order, order[::3]):
        chosen = case.by_request(case.run(on, op, case.selected(arguments, index)), len(index))
        for got, request in zip(chosen, index.tolist(), strict=True):
            assert_same(got, whole[request])


@ops
@given(data=st.data())
@settings(max_examples=4)
def test_failure_19_a_thousand_runs_give_the_same_bits(on: Target, op: str, data: st.DataObject) -> None:
    """Float atomics: accept counts differed between runs, and ranks that should agree did not."""
    case = CASES[op]
    runs = 10 if on.backend == "reference" else 250
    arguments = case.arguments(data.draw, generator(data.draw))
    first = case.run(on, op, arguments)
    for _ in range(runs):
        assert_same(case.run(on, op, arguments), first)
