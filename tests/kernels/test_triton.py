"""What only the Triton backend has: its device functions, its splits, its search for cuts; and what its kernels take
when they are compiled for GPUs. The kernels' results are compared in the parity suite, by Triton's interpreter.

Races between threads and programs are invisible here: only a GPU can show them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import d3d_kernels as dk
from d3d_kernels import registry
from d3d_kernels.reference import philox
from d3d_kernels.reference.vocab import read_rows

from . import cases
from .harness import assert_same

triton = pytest.importorskip("triton", reason='needs Triton: pip install "d3d-engine[gpu]"')
tl = pytest.importorskip("triton.language")

INTERPRETED = "cpu" in registry.devices("triton")
interpreted = pytest.mark.skipif(not INTERPRETED, reason="there is a GPU, so that nothing is interpreted")
if INTERPRETED:
    from d3d_kernels.triton import filters, fp32, ranking
    from d3d_kernels.triton import philox as noise

    @triton.jit
    def noise_kernel(seeds, positions, words, gumbels, BLOCK: tl.constexpr, ROWS: tl.constexpr):
        row = tl.arange(0, ROWS)
        drawn = noise.noise_words(tl.load(seeds + row), tl.load(positions + row), noise.GUMBEL, BLOCK, BLOCK)
        at = row[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        tl.store(words + at, drawn.to(tl.int64))
        tl.store(gumbels + at, noise.gumbel(drawn))

    @triton.jit
    def gumbel_kernel(words, gumbels, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(gumbels + i, noise.gumbel(tl.load(words + i).to(tl.uint32)))

    @triton.jit
    def functions_kernel(x, exp, log, mass, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        value = tl.load(x + i)
        tl.store(exp + i, fp32.exp_negative(-value))
        tl.store(log + i, fp32.log_positive(value))
        tl.store(mass + i, filters.fixed_point(fp32.exp_negative(-value)))

    @triton.jit
    def key_kernel(x, keys, back, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        key = filters.key_of(tl.load(x + i))
        tl.store(keys + i, key)
        tl.store(back + i, filters.value_of(key, x.dtype.element_ty))


@interpreted
def test_noise_is_the_reference_s_word_for_word() -> None:
    """Tokens 512 .. 1023, seeds of either sign, positions beyond 32 bits."""
    rows, block = 8, 512
    g = cases.generator("triton noise")
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=g)
    positions = torch.tensor([0, 1, 2**31, 2**32 - 1, 2**32, 2**40 + 7, 12, 40_000])
    words = torch.empty(rows, block, dtype=torch.int64)
    gumbels = torch.empty(rows, block)
    noise_kernel[(1,)](seeds, positions, words, gumbels, BLOCK=block, ROWS=rows)
    counter = torch.arange(block // 4, 2 * block // 4)[None, :].expand(rows, -1)
    low, high = (half[:, None].expand_as(counter) for half in philox.halves(positions))
    key = tuple(half[:, None] for half in philox.halves(seeds))
    expected = torch.stack(philox.philox4x32((low, high, counter, torch.zeros_like(counter)), key), -1).flatten(1)
    assert_same(words, expected)
    torch.testing.assert_close(gumbels, philox.gumbel(philox.uniform(expected)), rtol=1e-6, atol=1e-6)


@interpreted
def test_failure_15_both_ends_of_the_uniform_give_finite_noise() -> None:
    words = torch.tensor([0, 1, 255, 256, 2**24, 2**31 - 1, 2**31, 2**32 - 257, 2**32 - 2, 2**32 - 1] + [7] * 6)
    gumbels = torch.empty(16)
    gumbel_kernel[(1,)](words, gumbels, BLOCK=16)
    torch.testing.assert_close(gumbels, philox.gumbel(philox.uniform(words)), rtol=1e-6, atol=1e-6)
    assert gumbels.max() < noise.GUMBEL_MAX.value


@interpreted
def test_exp_log_and_fixed_point() -> None:
    x = torch.cat([torch.logspace(-30, 1.93, 1000), torch.tensor([86.9, 87.1, 1e30, 1.0, 2 / 3, 4 / 3] + [1.0] * 18)])
    exp, log, mass = torch.empty(1024), torch.empty(1024), torch.empty(1024, dtype=torch.int64)
    functions_kernel[(1,)](x, exp, log, mass, BLOCK=1024)
    wanted = torch.where(x <= 87, (-x.double()).exp(), 0)
    torch.testing.assert_close(exp.double(), wanted, rtol=3e-7, atol=0)
    torch.testing.assert_close(log.double(), x.double().log(), rtol=3e-7, atol=1e-7)
    assert_same(mass, (exp.double() * 2.0**40).round().long())


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_keys_order_as_values_do(dtype) -> None:
    tiny, top = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    values = [-torch.inf, -top, -3.5, -1.0, -tiny, -tiny / 4, 0.0, tiny / 4, tiny, 1.0, 1.0 + 1e-7, 3.5, 1e30, top]
    x = torch.tensor([*values, torch.inf, torch.inf], dtype=dtype)
    keys, back = torch.empty(16, dtype=torch.int64), torch.empty(16, dtype=dtype)
    key_kernel[(1,)](x, keys, back, BLOCK=16)
    assert (keys[1:15] > keys[:14]).all()
    assert_same(back, x)


@interpreted
def test_failure_07_rows_on_which_a_search_may_never_end() -> None:
    """Constant rows, adjacent floats, subnormals, -inf but for one token: more equals than the list of a cut takes."""
    vocab = 700
    i = torch.arange(vocab)
    rows = torch.stack([
        torch.zeros(vocab),
        torch.full((vocab,), -1e30),
        torch.where(i == vocab - 1, 1.0, -torch.inf),
        torch.full((vocab,), -torch.inf),
        torch.where(i % 2 == 0, 1.0, 1.0 + 2**-23),
        torch.where(i % 2 == 0, 1e-45, 2e-45),
        torch.where(i % 3 == 0, 3e38, -3e38),
        i * -1e-45,
    ])  # fmt: skip
    parameters = ((3, 1.0, 0.0), (vocab - 1, 1.0, 0.0), (0, 0.5, 0.0), (400, 0.3, 0.2))
    logits = rows.repeat(len(parameters), 1)
    top_k, top_p, min_p = (torch.tensor(values).repeat_interleave(len(rows)) for values in zip(*parameters))
    sampling = dk.SamplingTensors(torch.ones(len(logits)), top_k.int(), top_p, min_p, torch.arange(len(logits)))
    arguments = logits, sampling, torch.arange(len(logits))
    assert_same(dk.sample(*arguments, backend="triton"), dk.sample(*arguments, backend="reference"))


@interpreted
def test_how_a_row_is_split_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    g = cases.generator("triton splits")
    logits = cases.logits(5, 1, 1500, g=g)
    arguments = logits, 4, cases.sampling(5, g), cases.positions(5, g)
    found = dk.draft_candidates(*arguments, backend="triton")
    for splits in (1, 4):
        monkeypatch.setattr(ranking, "splits_of", lambda *_, splits=splits: splits)
        assert_same(dk.draft_candidates(*arguments, backend="triton"), found)
    rows = read_rows(logits[:, 0], *arguments[2:], None, None)
    assert_same(found.token_ids[:, 0, 0], rows.perturbed.argmax(1))


@interpreted
def test_draft_trees_fall_back_for_the_structural_ops() -> None:
    logits, roots = torch.randn(1, 2, 9, generator=cases.generator("triton tree")), torch.tensor([3])
    arguments = logits, roots, dk.SamplingTensors.full(1), torch.tensor([7]), 4, 2, 3
    registry._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="'triton' has no build_tree"):
        tree, _ = dk.draft_tree(*arguments, backend="triton")
    assert_same(tree.token_ids, dk.draft_tree(*arguments, backend="reference")[0].token_ids)


# Upper limits. A kernel above them would still run, but fewer of its programs at once.
REGISTERS = {"weigh_kernel": 168}  # eight bars at once
REGISTERS_OF_OTHERS = 128
SHARED_BYTES = 48 << 10  # what every GPU gives without asking


@pytest.mark.parametrize(
    "capability,everything",
    [
        (90, False),
        *(pytest.param(c, e, marks=pytest.mark.slow) for c, e in ((80, False), (100, False), (90, True))),
    ],
)
def test_kernels_compile_within_limits_and_once_for_all_batch_sizes(capability, everything) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.triton_compile", str(capability)]
    run = subprocess.run(
        command + ["--everything"] * everything, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    report = json.loads(run.stdout)
    names = {name.split()[0] for name in report["kernels"]}
    assert names == {
        *("top_kernel", "weigh_kernel", "cut_kernel", "rank_kernel", "mark_kernel", "bias_kernel"),
        *("sample_kernel", "candidates_kernel", "check_kernel", "walk_kernel"),
    }
    assert report["before"] == report["after"], "a batch size compiled a kernel anew"
    for name, kernel in report["kernels"].items():
        assert kernel["stack"] == 0, f"{name} spills"
        assert kernel["registers"] <= REGISTERS.get(name.split()[0], REGISTERS_OF_OTHERS), name
        assert kernel["shared"] <= SHARED_BYTES, name
        assert not kernel["flushes_subnormals"] and not kernel["approximate_division"], name
        if name.startswith(("top_kernel", "weigh_kernel", "cut_kernel", "rank_kernel")):
            assert kernel["widest_load"] >= 2, f"{name} reads logits in narrow pieces"


def test_the_package_does_not_import_triton_before_it_is_asked_for() -> None:
    program = "import sys, d3d_kernels as dk, torch; dk.sample(torch.zeros(1, 4), dk.SamplingTensors.full(1), "
    program += "torch.zeros(1, dtype=torch.int64), backend='reference'); assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_triton_the_error_says_how_to_get_it() -> None:
    program = """
import sys
sys.modules["triton"] = None
from d3d_kernels import registry
assert 'pip install "d3d-engine[gpu]"' in str(registry.load("triton")), registry.load("triton")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
