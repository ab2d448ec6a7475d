"""Any traffic: random requests arrive, run in any mode, are aborted or finish, against plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from d3d_runtime import SamplingParams

from .tiny_pair import VOCAB, assert_idle, results


@dataclass(frozen=True)
class Arrival:
    """A request, and the steps before which it arrives and, if it still runs, is aborted."""

    prompt: list[int]
    params: SamplingParams
    step: int
    abort: int | None


@st.composite
def sampling_params(draw) -> SamplingParams:
    def maybe(strategy, otherwise):
        return draw(st.one_of(st.just(otherwise), strategy))

    return SamplingParams(
        max_tokens=draw(st.integers(1, 20)),
        temperature=draw(st.one_of(st.sampled_from([0.0, 1e-8, 1.0]), st.floats(0.05, 3))),
        top_k=maybe(st.integers(1, VOCAB), 0),
        top_p=maybe(st.floats(0.015625, 1), 1.0),
        min_p=maybe(st.floats(0, 1), 0.0),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        stop_token_ids=maybe(st.lists(st.integers(0, VOCAB - 1), max_size=4), []),
        ignore_eos=draw(st.booleans()),
        presence_penalty=maybe(st.floats(-2, 2), 0.0),
        frequency_penalty=maybe(st.floats(-2, 2), 0.0),
        repetition_penalty=maybe(st.floats(0.5, 2), 1.0),
        logit_bias=maybe(
            st.dictionaries(
                st.integers(0, VOCAB - 1), st.sampled_from([-float("inf"), -2.0, 1.5, 30.0]), max_size=5
            ),
            {},
        ),
    )


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
        params=sampling_params(),
        step=st.integers(0, 8),
        abort=st.one_of(st.none(), st.integers(0, 14)),
    ),
    min_size=1,
    max_size=9,
)
ENGINES = st.sampled_from(
    [
        ("sync", {"num_nodes": 9, "max_batch_size": 3}),
        ("sync", {"num_nodes": 33, "max_batch_size": 8}),
        ("async", {"num_nodes": 2, "num_outcomes": 6, "max_batch_size": 2}),
        ("async", {"num_nodes": 9, "num_outcomes": 5, "max_batch_size": 3, "num_pages": 40}),
        ("async", {"num_nodes": 17, "num_outcomes": 3, "max_batch_size": 8}),
    ]
)


@settings(max_examples=25)
@given(arrivals=ARRIVALS, engine_of=ENGINES)
def test_any_traffic_is_token_identical(arrivals, engine_of, engines, pair, plain):
    mode, options = engine_of
    engine = engines(pair, mode, **options)
    names, outputs = {}, {}
    for step in range(200):
        for arrival in arrivals:
            if arrival.step == step:
                names[engine.submit(arrival.prompt, arrival.params)] = arrival
        for name, arrival in names.items():
            if arrival.abort == step and name not in outputs:
                outputs[name] = engine.abort(name)
        outputs |= {output.request_id: output for output in engine.step()}
        if step > 8 and len(outputs) == len(arrivals):
            break
    assert_idle(engine)
    for name, arrival in names.items():
        output, (tokens, reason) = outputs[name], plain(arrival.prompt, arrival.params)
        if output.finish_reason == "abort":
            assert arrival.abort is not None and output.token_ids == tokens[: len(output.token_ids)]
            assert len(output.token_ids) < len(tokens)
        else:
            assert results([output]) == [(tokens, reason)]
