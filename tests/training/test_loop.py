"""The training loop: what stops goes on as if it had never stopped, and the optimiser does what it says."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from d3d_runtime import Engine, SamplingParams
from d3d_runtime.models.config import ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.tokenizer import Tokenizer
from d3d_runtime.training import target as target_module
from d3d_runtime.training.data import CHUNK, Batch, collate, problem_batches, shuffled_batches
from d3d_runtime.training.drafter import train_drafter
from d3d_runtime.training.loop import Schedule, optimisers, train
from d3d_runtime.training.muon import Muon, orthogonalise
from d3d_runtime.training.problems import generate
from d3d_runtime.training.target import initialise, target_loss, train_target
from d3d_runtime.training.vocabulary import train_vocabulary

CONFIG = ModelConfig(32, 16, 24, 2, 2, 1, 8, 64)


def counting_batches(step: int):
    """Rows that count upwards from a start that follows from the step: easy to learn, never the same."""
    while True:
        rows = [[(4 + 7 * step + 3 * row + i) % 28 + 4 for i in range(10)] for row in range(6)]
        yield collate([(row[:2], row[2:]) for row in rows])
        step += 1


def run(
    checkpoint, steps: int, stop_at: int | None = None, **options
) -> tuple[Decoder, list[dict[str, float]]]:
    """`stop_at`: the process dies there."""
    torch.manual_seed(0)
    model = Decoder(CONFIG)
    initialise(model)

    def loss(batch: Batch, step: int) -> torch.Tensor:
        if step == stop_at:
            raise KeyboardInterrupt
        return target_loss(model, batch)

    history = train(model, counting_batches, loss, Schedule(steps, 0.02, warmup=4), checkpoint, **options)
    return model, history


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    """Killed at step 13, 5 steps after its last checkpoint, and started again: not one bit differs."""
    whole, history = run(tmp_path / "whole.pt", 20)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts.pt", 20, stop_at=13, save_every=8)
    resumed, after = run(tmp_path / "parts.pt", 20, save_every=8)
    for (name, one), two in zip(whole.named_parameters(), resumed.parameters()):
        assert torch.equal(one, two), name
    assert [entry["step"] for entry in history] == [entry["step"] for entry in after if "loss" in entry][-2:]


def test_a_finished_run_trains_no_more(tmp_path):
    model, _ = run(tmp_path / "run.pt", 6)
    again, _ = run(tmp_path / "run.pt", 6, stop_at=6)
    for one, two in zip(model.parameters(), again.parameters()):
        assert torch.equal(one, two)


def test_the_loss_falls(tmp_path):
    _, history = run(tmp_path / "run.pt", 80)
    losses = [entry["loss"] for entry in history]
    assert losses[-1] < 0.3 * losses[0]
    assert [entry["step"] for entry in history] == list(range(10, 81, 10))


def test_evaluations_are_in_the_history(tmp_path):
    _, history = run(tmp_path / "run.pt", 20, evaluate=lambda: {"accuracy": 0.5}, evaluate_every=5)
    assert [entry["step"] for entry in history if "accuracy" in entry] == [5, 10, 15, 20]


def test_a_time_limit_ends_a_run(tmp_path):
    torch.manual_seed(0)
    model = Decoder(CONFIG)
    initialise(model)
    schedule = Schedule(10**9, 0.01, minutes=0.3 / 60)
    train(model, counting_batches, lambda batch, _: target_loss(model, batch), schedule, tmp_path / "run.pt")
    assert (tmp_path / "run.pt").is_file()


def test_the_schedule_warms_up_stays_and_decays():
    schedule = Schedule(1000, 1.0, warmup=10, decay=0.4)
    assert [schedule.rate(0, step) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert [schedule.rate(progress, 999) for progress in (0.3, 0.6, 0.8)] == pytest.approx([1.0, 1.0, 0.5])
    assert schedule.rate(1.0, 999) == pytest.approx(0.02)  # never nothing
    assert math.isinf(Schedule(1, 1.0).minutes)


# ---- the optimiser


def test_every_weight_has_one_optimiser():
    model = Decoder(replace(CONFIG, tie_word_embeddings=False))
    muon, adamw = optimisers(model)
    hidden = {id(weight) for group in muon.param_groups for weight in group["params"]}
    others = {id(weight) for group in adamw.param_groups for weight in group["params"]}
    assert hidden | others == {id(weight) for weight in model.parameters()} and not hidden & others
    assert id(model.embed.weight) in others and id(model.head.weight) in others
    assert id(model.layers[0].qkv.weight) in hidden


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_orthogonalise_levels_the_singular_values(shape):
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1)) * 100
    before, after = torch.linalg.svd(matrices), torch.linalg.svd(orthogonalise(matrices))
    assert before.S.max() / before.S.min() > 3
    assert after.S.min() > 0.6 and after.S.max() < 1.3
    # The singular vectors stay: U^T X V is diagonal.
    turned = before.U.mT @ orthogonalise(matrices) @ before.Vh.mT
    off = turned.clone()
    torch.diagonal(off, dim1=-2, dim2=-1).zero_()
    assert off.abs().max() < 0.02


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_agrees_with_the_one_of_torch():
    """Theirs iterates in bfloat16, so to its rounding."""
    weights = [torch.randn(8, 12, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    ours = [nn.Parameter(weight.clone()) for weight in weights]
    theirs = [nn.Parameter(weight.clone()) for weight in weights]
    one = Muon(ours, lr=0.02)
    other = torch.optim.Muon(
        theirs, lr=0.02, momentum=0.95, weight_decay=0.1, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(5):
        for optimiser, parameters in ((one, ours), (other, theirs)):
            for i, weight in enumerate(parameters):
                weight.grad = torch.randn(8, 12, generator=torch.Generator().manual_seed(10 * step + i))
            optimiser.step()
    for start, mine, their in zip(weights, ours, theirs):
        moved = (their - start).norm()
        assert moved > 0.1 and (mine - their).norm() < 0.03 * moved


# ---- data


def test_a_batch_knows_its_answers():
    batch = collate([([5, 6, 7], [8, 0]), ([9], [10, 11, 0])])
    assert batch.token_ids.tolist() == [[5, 6, 7, 8, 0], [9, 10, 11, 0, 0]]
    assert (batch.prompt_lengths.tolist(), batch.lengths.tolist()) == ([3, 1], [5, 4])
    answers = [batch.token_ids[row, 1:][mask].tolist() for row, mask in enumerate(batch.answer_mask())]
    assert answers == [[8, 0], [10, 11, 0]]


def test_batches_hold_rows_of_like_length_each_once():
    pairs = [([i], [i] * (1 + i % 13)) for i in range(50)]
    batches = list(shuffled_batches(pairs, 4, seed=1))
    assert len(batches) == 12
    first = [batch.token_ids[:, 0].tolist() for batch in batches]
    assert len({i for row in first for i in row}) == 48
    assert all(batch.lengths.max() - batch.lengths.min() <= 2 for batch in batches)
    assert first != [b.token_ids[:, 0].tolist() for b in shuffled_batches(pairs, 4, seed=2)]
    assert first[5:] == [b.token_ids[:, 0].tolist() for b in shuffled_batches(pairs, 4, seed=1, skip=5)]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    train_vocabulary((p.question + " " + p.solution for p in generate(0, 300, "train", 0.1)), 320, folder)
    return folder


def test_problems_go_on_where_they_stopped(vocabulary):
    """A resumed run sees what it would have seen, across the border of a chunk as well."""
    tokenizer = Tokenizer(vocabulary)
    stream = problem_batches(tokenizer, seed=3, start_step=0, batch_size=2, drills=0.2)
    seen = [next(stream).token_ids for _ in range(CHUNK + 3)]
    for start in (1, CHUNK - 1, CHUNK, CHUNK + 2):
        resumed = problem_batches(tokenizer, seed=3, start_step=start, batch_size=2, drills=0.2)
        assert torch.equal(next(resumed).token_ids, seen[start])


def test_from_nothing_to_a_pair_that_runs(tmp_path, monkeypatch):
    """`d3d train target`, `d3d train drafter`, and an engine with both, in miniature."""
    small = ModelConfig(400, 16, 24, 3, 2, 1, 8, 512, eos_token_id=0)
    monkeypatch.setattr(target_module, "EMBEDDED_TARGET", small)
    monkeypatch.setattr(
        target_module, "generate", lambda seed, _, *more, **options: generate(seed, 200, *more)
    )
    settings = {"steps": 12, "minutes": math.inf, "batch_size": 2, "learning_rate": 0.01, "seed": 0}
    train_target(tmp_path / "target", drills=0.1, **settings)
    drafting = {"num_layers": 2, "block_size": 4, "num_anchors": 3, "gamma": 7.0, "distill": 0.5}
    train_drafter(tmp_path / "target", tmp_path / "drafter", **drafting, **settings)
    for name in ("target", "drafter"):
        curve = json.loads((tmp_path / name / f"{name}_loss.json").read_text())
        assert [entry["step"] for entry in curve] == [10] and curve[0]["loss"] > 0

    engine = Engine(tmp_path / "target", tmp_path / "drafter", mode="async", num_nodes=6, dtype="float64")
    plain = Engine(tmp_path / "target", dtype="float64")
    question = [{"role": "user", "content": "Anna has 3 pens."}]
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=1)
    assert engine.generate(question, params)[0].token_ids == plain.generate(question, params)[0].token_ids
    engine.close()
