"""`d3d bench`: what it measures, predicts and writes."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from d3d_runtime.metrics import Metrics
from d3d_runtime.report.compare import Contender, Task, Timed, compare, first_difference
from d3d_runtime.report.prediction import RoundTimes, round_ms, tokens_per_second
from d3d_runtime.report.summary import make_rows
from d3d_runtime.report.tables import BEGIN, END, write_markdown
from d3d_runtime.request import RequestOutput
from d3d_runtime.sampling_params import SamplingParams
from d3d_runtime.training.problems import generate
from tests.cli.conftest import Pair, d3d_in_terminal, run_here

PROBLEM = next(generate(0, 1, "held_out_wordings"))


# ---- the whole command


def test_compares_all_modes_and_writes_both_files(pair: Pair, tmp_path, capsysbinary):
    readme, result = tmp_path / "README.md", tmp_path / "result.json"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    flags = ["--problems", "3", "--batch", "2", "--seconds", "0", "--max-tokens", "8", "--dtype", "float64"]
    files = ["--json", result, "--markdown", readme]
    code, out, err = run_here(capsysbinary, "bench", *pair.flags, *flags, *files, "--nodes", "4", "--nodes", "8")
    assert code == 0, err
    report = json.loads(result.read_text())
    rows = report["rows"]
    names = ["autoregressive", "sync N=4", "sync N=8", "async N=4 E=4", "async N=8 E=4"]
    assert [row["name"] for row in rows] == names and all(name in out for name in names)
    assert report["machine"]["torch"] in out and report["repeats"] == 1 and report["dtype"] == "float64"
    for row in rows:
        assert row["identical"] == row["outputs"] == 3 and row["first_difference"] is None
        assert (row["hit_rate"] is None) == (row["mode"] != "async")
        assert row["times"]["verify_ms"] > 0 and row["predicted_round_ms"] > 0
    assert rows[1]["tau"] > rows[0]["tau"] == 1
    text = readme.read_text()
    assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n") and "old" not in text
    assert "| sync N=4 |" in text and "| accepted | 0 |" in text


def test_a_terminal_gets_tables_that_fit_it(pair: Pair):
    flags = ["--problems", "1", "--seconds", "0", "--max-tokens", "4", "--mode", "async", "--nodes", "16"]
    code, shown = d3d_in_terminal("bench", *pair.flags, *flags)
    assert code == 0, shown
    assert "comparing" in shown and "loading" in shown
    assert "…" not in shown and "fastest here" in shown and "async N=16 E=4" in shown


# ---- its parts, on a fake engine whose speed is known


class FakeEngine:
    """Answers with `token_ids`, in rounds of two tokens; remembers who ran when."""

    def __init__(self, mode: str, token_ids: list[int], calls: list[str]):
        self.mode, self.num_nodes, self.num_outcomes = mode, 8, 4
        self.token_ids, self.calls = token_ids, calls

    def generate(self, contents, params):
        self.calls.append(self.mode)
        rounds = len(self.token_ids) // 2
        metrics = Metrics(rounds, len(self.token_ids), Counter({1: rounds}), hits=3, misses=1, draft_ms=2.0 * rounds)
        metrics.verify_ms, metrics.overlap_ms, metrics.tail_ms = 10.0 * rounds, 12.0 * rounds, 1.0 * rounds
        answer = f"The answer is {PROBLEM.answer}."
        return [RequestOutput("0", answer, self.token_ids, "stop", 0, None, metrics) for _ in contents]


@pytest.fixture
def contenders() -> list[Contender]:
    calls: list[str] = []
    said = {"autoregressive": [1, 2, 3, 4], "sync": [1, 2, 3, 4], "async": [1, 2, 9, 4]}
    return [Contender(mode, FakeEngine(mode, token_ids, calls)) for mode, token_ids in said.items()]


TASKS = [Task("x", SamplingParams(), PROBLEM)] * 4


def test_contenders_take_turns_and_none_always_goes_first(contenders):
    compare(contenders, TASKS, batch=2, deadline=0.0)
    calls = contenders[0].engine.calls
    assert [len(contender.repeats) for contender in contenders] == [1, 1, 1]
    warm_up, first, second = calls[:3], calls[3:6], calls[6:]
    assert sorted(warm_up) == sorted(first) == sorted(second)
    assert (first[0], second[0]) == ("autoregressive", "sync")


def test_repeats_until_the_deadline(contenders):
    compare(contenders, TASKS, batch=4, deadline=time.monotonic() + 0.2)
    assert len(contenders[0].repeats) > 1
    assert len({len(contender.repeats) for contender in contenders}) == 1


def test_rows_hold_what_was_measured(contenders):
    for seconds, contender in zip((2.0, 1.0, 0.5), contenders, strict=True):
        outputs = contender.engine.generate(TASKS, None)
        contender.repeats = [[Timed(seconds, outputs)], [Timed(2 * seconds, outputs)]]
    plain, sync, ahead = make_rows(contenders, TASKS, batch=4)
    assert (plain.tokens_per_second.low, plain.tokens_per_second.high) == (4.0, 8.0)
    assert (sync.speedup.median, ahead.speedup.median) == (2.0, 4.0)
    assert (sync.identical, ahead.identical, ahead.first_difference) == (4, 0, (0, 2))
    assert plain.solved == 4 and plain.repeatable
    assert ahead.tau == 2.0 and ahead.hit_rate == 0.75 and sync.hit_rate is None
    # Four requests share two rounds; T_d alone is what sync measured.
    assert ahead.round_ms == pytest.approx(1.5e3 / 4)
    assert ahead.predicted_round_ms == pytest.approx(12 + 1 + (1 - 0.75**4) * 2)


def test_rows_tell_when_repeats_differ(contenders):
    compare(contenders, TASKS, batch=4, deadline=0.0)
    contenders[1].engine.token_ids = [5, 6]
    again = Timed(1.0, contenders[1].engine.generate(TASKS, None))
    for contender in contenders:
        contender.repeats.append([again] if contender is contenders[1] else contender.repeats[0])
    assert [row.repeatable for row in make_rows(contenders, TASKS, batch=4)] == [True, False, True]


def test_gain_model():
    times = RoundTimes(draft_ms=4.0, verify_ms=10.0, overlap_ms=11.0, tail_ms=1.0)
    assert round_ms("autoregressive", times, 0.0, 1) == 11
    assert round_ms("sync", times, 0.0, 1) == 15
    assert round_ms("async", times, 0.5, 1) == 14
    assert round_ms("async", times, 0.5, 2) == 15
    assert tokens_per_second(emitted=30, prefill_ms=50.0, rounds=10, round_ms=15.0) == 150


@pytest.mark.parametrize(
    ("ours", "other", "index"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None)],
)
def test_first_difference(ours, other, index):
    assert first_difference(ours, other) == index


def test_markdown_is_made_with_the_markers_it_is_found_by(tmp_path):
    path = tmp_path / "results.md"
    for text in ("one\n", "two\n"):
        write_markdown(path, text)
    assert path.read_text() == f"{BEGIN}\ntwo\n{END}\n"
