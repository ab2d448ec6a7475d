"""DFlash drafters: every draft of a run against a small reference written out here; what is refused (failure 36)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from d3d_runtime import Engine, SamplingParams
from d3d_runtime.drafters.dflash import DFlashDrafter
from d3d_runtime.errors import UserError
from d3d_runtime.models.attention import causal_attention
from d3d_runtime.models.config import ModelConfig
from d3d_runtime.models.dflash import DFlashConfig, DFlashModel, save_dflash
from d3d_runtime.models.loader import load_model, save_model
from d3d_runtime.prefix import Prefix

from .tiny_pair import EOS, MASK, SAMPLING, VOCAB, assert_idle, plain_decoder, random_decoder, random_prompts, results

TARGET = ModelConfig(VOCAB, 32, 64, 6, 4, 2, 8, 192, eos_token_id=EOS)
OWN = ModelConfig(VOCAB, 32, 48, 2, 4, 1, 16, 192, rope_theta=3e4)
DFLASH = DFlashConfig(OWN, block_size=5, mask_token_id=MASK, taps=(1, 3, 4), target_layers=6)


@dataclass(frozen=True)
class Pair:
    target: Path
    drafter: Path


def random_dflash(own_head: bool = False) -> DFlashModel:
    torch.manual_seed(5)
    model = DFlashModel(DFLASH, TARGET.hidden_size, own_head)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * (0.25 if weight.ndim == 2 else 0.2) + ("norm" in name))
    return model


def save_pair(folder: Path, own_head: bool) -> Pair:
    made = Pair(folder / "target", folder / "drafter")
    save_model(random_decoder(TARGET, 0), made.target, dtype=torch.float32)
    save_dflash(random_dflash(own_head), DFLASH, made.drafter, torch.float32)
    return made


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    return save_pair(tmp_path_factory.mktemp("dflash"), own_head=False)


@pytest.fixture(params=[False, True], ids=["the target's head", "its own head"])
def either(request, tmp_path) -> Pair:
    return save_pair(tmp_path, request.param)


# ---- the reference: everything from scratch, for one text


def reference_logits(
    pair: Pair, tokens: list[int], *, taps: tuple[int, ...] = DFLASH.taps, causal: bool = False
) -> Tensor:
    """[block - 1, V] of the slots behind the last token, by the definition, from the files on disk."""
    weights = {name: weight.double() for name, weight in load_file(pair.drafter / "model.safetensors").items()}
    target, _ = load_model(pair.target, torch.float64)
    context, root, dim = len(tokens) - 1, tokens[-1], OWN.head_dim

    # Outputs of the tapped layers, layer by layer.
    x, outputs = target.embed(torch.tensor([tokens[:-1]])), []
    rotation = target.rotation(torch.arange(context)[None], x)
    for layer in target.layers:
        x = layer(x, rotation, causal_attention)
        outputs.append(x[0])

    def norm(rows: Tensor, name: str) -> Tensor:
        return rows / (rows.pow(2).mean(-1, keepdim=True) + OWN.rms_norm_eps).sqrt() * weights[name]

    def turned(rows: Tensor, positions: Tensor) -> Tensor:
        """[T, H, D] as complex numbers (low, high), times e^(i angle)."""
        turns = OWN.rope_theta ** (-torch.arange(dim // 2, dtype=torch.float64) * 2 / dim)
        angle = positions.double()[:, None, None] * turns
        spun = torch.complex(rows[..., : dim // 2], rows[..., dim // 2 :]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((spun.real, spun.imag), dim=-1)

    c = norm(torch.cat([outputs[tap] for tap in taps], dim=-1) @ weights["fc.weight"].T, "hidden_norm.weight")
    block = target.embed(torch.tensor([root] + [MASK] * (DFLASH.block_size - 1)))
    at, count = torch.arange(context + DFLASH.block_size), DFLASH.block_size
    for i in range(OWN.num_hidden_layers):
        name, inner = f"layers.{i}.self_attn.", norm(block, f"layers.{i}.input_layernorm.weight")
        q = norm((inner @ weights[name + "q_proj.weight"].T).unflatten(-1, (-1, dim)), name + "q_norm.weight")
        seen = torch.cat((c, inner))  # the context as it is, not through the layer's norm
        k = norm((seen @ weights[name + "k_proj.weight"].T).unflatten(-1, (-1, dim)), name + "k_norm.weight")
        v = (seen @ weights[name + "v_proj.weight"].T).unflatten(-1, (-1, dim))
        q, k = turned(q, at[context:]), turned(k, at)
        heads = []
        for head in range(OWN.num_attention_heads):
            group = head // (OWN.num_attention_heads // OWN.num_key_value_heads)
            scores = q[:, head] @ k[:, group].T / dim**0.5
            if causal:
                scores = scores.masked_fill(at > at[context:, None], -torch.inf)
            heads.append(scores.softmax(-1) @ v[:, group])
        block = block + torch.cat(heads, dim=-1) @ weights[name + "o_proj.weight"].T
        inner = norm(block, f"layers.{i}.post_attention_layernorm.weight")
        gate, up = (inner @ weights[f"layers.{i}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        block = block + (gate * gate.sigmoid() * up) @ weights[f"layers.{i}.mlp.down_proj.weight"].T
    assert len(block) == count
    head = weights.get("lm_head.weight", target.embed.weight)
    return norm(block, "norm.weight")[1:] @ head.T


def recorded_drafts(engine: Engine, monkeypatch) -> list[tuple[list[int], Tensor]]:
    """(position of the root, logits) of every draft that the engine makes from here on."""
    drafts: list = []
    drafter, logits = engine._drafter, engine._drafter.logits
    monkeypatch.setattr(drafter, "logits", lambda hidden: drafts.append(logits(hidden)) or drafts[-1])
    return drafts


@pytest.fixture(scope="module")
def engine(pair) -> Engine:
    return Engine(pair.target, pair.drafter, mode="sync", dtype="float64", max_batch_size=4)


@pytest.fixture(scope="module")
def plain(pair):
    return plain_decoder(Engine(pair.target, mode="autoregressive", dtype="float64", max_batch_size=1))


PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("length", [2, 9, 40])
def test_every_draft_is_the_references(either, monkeypatch, length):
    """The context grows by prefill and by what rounds accept; any row that is off, by one or by a layer, shows here."""
    engine = Engine(either.target, either.drafter, mode="sync", dtype="float64", max_batch_size=4)
    prompt = [5, 5, 5, *range(2, length)]
    drafts = recorded_drafts(engine, monkeypatch)
    (output,) = engine.generate([prompt], PARAMS)
    tokens, at = prompt + output.token_ids, len(prompt)
    emitted = list(output.metrics.acceptance_histogram.elements())
    assert len(drafts) == output.metrics.rounds and sum(emitted) + len(emitted) == 24
    assert output.metrics.rounds < 24  # rounds that accept something are among them
    for increment, logits in zip(rounds_of(engine, prompt), drafts):
        torch.testing.assert_close(logits[0], reference_logits(either, tokens[:at]), rtol=0, atol=1e-9)
        at += increment


def rounds_of(engine: Engine, prompt: list[int]) -> list[int]:
    """Tokens of each round; the same ones again, because a request is a function of its prompt."""
    return [len(increment.token_ids) for increment in engine.stream(prompt, PARAMS)]


def test_failure_36_a_wrong_tap_or_a_causal_mask_changes_the_drafts(pair):
    """Either is lossless and lets tau collapse without a word, so the reference above must be able to tell."""
    tokens = list(range(2, 22))
    right = reference_logits(pair, tokens)
    for taps in ((0, 2, 3), (2, 4, 5), (3, 1, 4)):
        assert (reference_logits(pair, tokens, taps=taps) - right).abs().max() > 0.05, taps
    causal = reference_logits(pair, tokens, causal=True)
    assert (causal[:-1] - right[:-1]).abs().max() > 0.05
    torch.testing.assert_close(causal[-1:], right[-1:], rtol=0, atol=1.0)  # its last slot saw everything already


def test_failure_36_a_head_of_its_own_is_used(either):
    engine = Engine(either.target, either.drafter, mode="sync")
    stored = load_file(either.drafter / "model.safetensors")
    head = engine._drafter.model.head
    assert (head is not None) == ("lm_head.weight" in stored)
    if head is not None:
        assert torch.equal(head.weight, stored["lm_head.weight"]) and engine._drafter.logits is head


# ---- the text


@pytest.mark.parametrize("name", SAMPLING)
def test_the_text_is_that_of_plain_decoding(engine, plain, name):
    params = SamplingParams(max_tokens=30, seed=5, **SAMPLING[name])
    prompts = random_prompts(7, seed=3)
    assert results(engine.generate(prompts, params)) == [plain(prompt, params) for prompt in prompts]
    assert_idle(engine)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("sync", {"num_pages": 14}),
        ("sync", {"num_nodes": 40}),
        ("pingpong", {}),
        ("pingpong", {"num_pages": 14}),
        ("auto", {}),
    ],
    ids=str,
)
def test_other_modes_and_preemption(pair, plain, mode, options):
    """With few pages requests are preempted, and their context is read again."""
    engine = Engine(pair.target, pair.drafter, mode=mode, dtype="float64", max_batch_size=4, **options)
    prompts = random_prompts(6, seed=9)
    for params in (PARAMS, replace(PARAMS, temperature=0.9, seed=1)):
        assert results(engine.generate(prompts, params)) == [plain(prompt, params) for prompt in prompts]
    assert_idle(engine)
    engine.close()


def test_bfloat16_features_cross_to_another_process(pair):
    engine = Engine(pair.target, pair.drafter, mode="pingpong", dtype="bfloat16", max_batch_size=4)
    outputs = engine.generate(random_prompts(4), PARAMS)
    assert all(len(output.token_ids) == 24 for output in outputs)
    engine.close()


def test_the_drafts_of_a_conversation_are_those_of_a_new_request(pair, engine, plain, monkeypatch):
    """Failure 26: a prefix that the target remembers and the drafter does not."""
    prefix, prompt = Prefix(), [5, 6, 7]
    for turn in range(3):
        if turn == 2:
            engine.switch_mode("autoregressive")  # its features are read all the same
        tokens = [t for part in engine.stream(prompt, PARAMS, prefix=prefix) for t in part.token_ids]
        engine.switch_mode("sync")
        assert tokens == plain(prompt, PARAMS)[0]
        prompt = prompt + tokens + [8, 9 + turn]
    drafts = recorded_drafts(engine, monkeypatch)
    list(engine.stream(prompt, PARAMS, prefix=prefix))
    warm = list(drafts)
    drafts.clear()
    list(engine.stream(prompt, PARAMS))
    assert len(warm) == len(drafts) > 2
    for ours, theirs in zip(warm, drafts):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    engine.forget(prefix)
    assert_idle(engine)


# ---- refusals


def refusal(pair: Pair, tmp_path: Path, *, config=lambda raw: None, tensors=lambda stored: None, **options) -> str:
    raw, stored = json.loads((pair.drafter / "config.json").read_text()), load_file(pair.drafter / "model.safetensors")
    config(raw)
    tensors(stored)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(UserError) as refused:
        Engine(pair.target, tmp_path, **({"mode": "sync"} | options))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"tensors": lambda t: t.update(d2t=torch.zeros(4))},
            "a reduced vocabulary with a table of its own (d2t, t2d)",
        ),
        ({"tensors": lambda t: t.update({"layers.0.conv.weight": torch.zeros(4)})}, "DFlash2, with convolutions"),
        ({"tensors": lambda t: t.update({"embed_tokens.weight": torch.zeros(4)})}, "an embedding of its own"),
        ({"config": lambda c: c.update(architectures=["DSparkModel"])}, "DSpark, where slot 0 predicts"),
        ({"config": lambda c: c.update(layer_types=["sliding_attention"])}, "asks for sliding-window attention"),
        ({"config": lambda c: c["dflash_config"].update(causal=True)}, "causal attention within the block"),
        ({"config": lambda c: c.pop("block_size")}, "config.json has no 'block_size'; a DFlash drafter needs it"),
        ({"config": lambda c: c["dflash_config"].pop("mask_token_id")}, "no 'dflash_config.mask_token_id'"),
        ({"config": lambda c: c["dflash_config"].pop("target_layer_ids")}, "no 'dflash_config.target_layer_ids'"),
        ({"config": lambda c: c["dflash_config"].update(mask_token_id=99)}, "mask_token_id 99 is outside the target's"),
        ({"config": lambda c: c.update(num_target_layers=36)}, "made for a target of 36 layers, this one has 6"),
        (
            {"config": lambda c: c["dflash_config"].update(target_layer_ids=[1, 3, 6])},
            "made for a target of 6 layers, this one has 6",
        ),
        ({"config": lambda c: c.update(vocab_size=VOCAB + 1)}, f"its vocabulary has {VOCAB + 1} tokens, the target's"),
        ({"tensors": lambda t: t.pop("fc.weight")}, "the weights have no tensor 'fc.weight'"),
        ({"tensors": lambda t: t.update({"fc.weight": torch.zeros(32, 64)})}, "'fc.weight' has the shape (32, 64)"),
        ({"tensors": lambda t: t.update(extra=torch.zeros(1))}, "the weights have 'extra', which no DFlash drafter"),
        ({"mode": "async"}, "mode: 'async' needs a drafter that drafts ahead"),
        ({"block_size": 4}, "block_size: a DFlash drafter's own config decides that"),
    ],
    ids=str,
)
def test_variants_and_misfits(pair, tmp_path, change, message):
    assert message in refusal(pair, tmp_path, **change)


def test_it_is_known_by_its_config(pair):
    assert isinstance(Engine(pair.target, pair.drafter, mode="sync")._drafter, DFlashDrafter)
