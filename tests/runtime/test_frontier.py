"""What drafter and target leave in their caches, and that a block drafted ahead is the one drafted later.

A frontier row that is wrong does not change tokens, only how many are accepted; so it is tested here row by
row, against caches that were prefilled from the tokens alone.
"""

from __future__ import annotations

from random import Random

import pytest
import torch

import d3d_kernels as dk
from d3d_runtime import SamplingParams
from d3d_runtime.batch import Batch
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.kv_cache import KVCache
from d3d_runtime.models.loader import load_model
from d3d_runtime.request import Request
from d3d_runtime.round import root_only
from d3d_runtime.target import Target

from .tiny_pair import SAMPLING, random_prompts

NODES, OUTCOMES, PAGE_SIZE = 11, 7, 4
ROUNDING = {"rtol": 0, "atol": 1e-10}

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture
def no_gradients():
    with torch.inference_mode():
        yield


def new_cache(model) -> KVCache:
    return KVCache(model.config, 200, PAGE_SIZE, torch.float64, torch.device("cpu"))


@pytest.fixture(params=["pair", "unshifted_pair"])
def drafter(request) -> DiffusionDrafter:
    model, diffusion = load_model(request.getfixturevalue(request.param).drafter, torch.float64)
    return DiffusionDrafter(model, new_cache(model), diffusion, 8)


@pytest.fixture
def target(pair) -> Target:
    model, _ = load_model(pair.target, torch.float64)
    return Target(model, new_cache(model))


def new_request(tokens: list[int], params: SamplingParams, drafter: DiffusionDrafter) -> Request:
    """Prefilled for the drafter; its pages are a random choice of the free ones."""
    request = Request("r", list(tokens), params, frozenset(), 100, None)
    Random(len(tokens)).shuffle(drafter.cache._free)
    request.drafter_pages = drafter.cache.allocate(len(tokens) + 20 + drafter.scratch_rows(NODES, OUTCOMES))
    drafter.prefill(request.drafter_pages, request.tokens[:-1], 0)
    request.drafter_length = len(tokens) - 1
    return request


def rows_of(cache: KVCache, pages: list[int], count: int) -> list[torch.Tensor]:
    """The first `count` rows of a request in every layer."""
    slots = cache.table([pages], count).physical(torch.arange(count)[None])[0]
    return [layer[slots] for layer in cache.rows]


def assert_rows_equal(cache: KVCache, pages: list[int], other: list[int], count: int) -> None:
    for one, two in zip(rows_of(cache, pages, count), rows_of(cache, other, count)):
        torch.testing.assert_close(one, two, **ROUNDING)


def tree_path(tree: dk.DraftTree, b: int, node: int) -> list[int]:
    """Nodes from below the root to `node`."""
    path = []
    while node > 0:
        path.append(node)
        node = tree.parents[b, node].item()
    return path[::-1]


class Scene:
    """A batch of ragged requests, one draft tree each, and the blocks drafted behind its outcomes."""

    def __init__(self, drafter: DiffusionDrafter, sampling: dict):
        params = [SamplingParams(seed=i, **sampling) for i in range(4)]
        self.drafter = drafter
        self.requests = [new_request(t, p, drafter) for t, p in zip(random_prompts(4, seed=5), params)]
        self.batch = Batch(self.requests, torch.device("cpu"))
        candidates = drafter.draft(self.batch)
        self.tree, self.outcomes = dk.build_tree(self.batch.root_ids, candidates, NODES, OUTCOMES)
        self.ahead = drafter.draft_frontier(self.batch, self.tree, self.outcomes)

    def verdict(self, chosen: list[tuple[int, int]]) -> dk.Verdict:
        """The verdict that accepts the path to a node and ends with a bonus token, for each request."""
        verdict = dk.Verdict.empty(len(chosen), NODES)
        verdict.accepted_nodes.fill_(-1)
        verdict.status.zero_()
        for b, (node, bonus) in enumerate(chosen):
            path = tree_path(self.tree, b, node)
            verdict.accepted_nodes[b, : len(path)] = torch.tensor(path, dtype=torch.int32)
            verdict.num_accepted[b], verdict.bonus_ids[b] = len(path), bonus
        return verdict

    def tokens_after(self, b: int, node: int) -> list[int]:
        path = [self.tree.token_ids[b, i].item() for i in tree_path(self.tree, b, node)]
        return self.requests[b].tokens + path


@pytest.fixture
def scene(drafter):
    return lambda sampling: Scene(drafter, sampling)


@pytest.mark.parametrize("kind", SAMPLING)
def test_a_block_drafted_ahead_equals_the_block_drafted_from_the_outcome(kind, scene, drafter):
    world = scene(SAMPLING[kind])
    ahead_ids = world.ahead.token_ids.unflatten(0, (4, OUTCOMES))
    ahead_scores = world.ahead.scores.unflatten(0, (4, OUTCOMES))
    compared = 0
    for b, request in enumerate(world.requests):
        for e in range(OUTCOMES):
            node = world.outcomes.parent_node[b, e].item()
            if node < 0:
                continue
            tokens = world.tokens_after(b, node) + [world.outcomes.token_ids[b, e].item()]
            prompt_length = request.prompt_length
            later = new_request(tokens, request.params, drafter)
            later.prompt_length = prompt_length
            candidates = drafter.draft(Batch([later], torch.device("cpu")))
            drafter.cache.release(later.drafter_pages)
            assert torch.equal(candidates.token_ids[0], ahead_ids[b, e])
            torch.testing.assert_close(candidates.scores[0], ahead_scores[b, e], rtol=0, atol=1e-5)
            compared += 1
    assert compared > OUTCOMES
    assert world.outcomes.parent_node.unique().numel() > 2  # branches of the root alone would prove little


@pytest.mark.parametrize("which", range(OUTCOMES))
def test_keep_leaves_the_cache_as_a_prefill_would(which, scene, drafter):
    """A hit on outcome `which` in even rows, a miss behind the deepest node in odd ones."""
    world = scene(SAMPLING["T=1"])
    chosen, hits = [], []
    for b in range(4):
        hit = b % 2 == 0 and world.outcomes.parent_node[b, which] >= 0
        deepest = world.tree.depths[b].argmax().item()
        outcome = world.outcomes.parent_node[b, which].item(), world.outcomes.token_ids[b, which].item()
        chosen.append(outcome if hit else (deepest, 63))
        hits.append(bool(hit))
    verdict = world.verdict(chosen)
    index = torch.tensor([which if hit else -1 for hit in hits], dtype=torch.int32)
    drafter.keep(world.batch, world.tree, world.outcomes, verdict, index)
    for b, ((node, bonus), hit) in enumerate(zip(chosen, hits)):
        clean = world.tokens_after(b, node) + ([bonus] if hit else [])
        fresh = new_request(clean + [2], world.requests[b].params, drafter)
        assert_rows_equal(drafter.cache, world.requests[b].drafter_pages, fresh.drafter_pages, len(clean))
        drafter.cache.release(fresh.drafter_pages)


def test_a_miss_drafts_as_if_it_had_never_drafted_ahead(scene, drafter):
    """Rows lack one clean token, or several, or none: all in one pass."""
    world = scene(SAMPLING["T=1"])
    verdict = world.verdict([(world.tree.depths[b].argmax().item(), 40 + b) for b in range(4)])
    drafter.keep(world.batch, world.tree, world.outcomes, verdict, torch.full((4,), -1, dtype=torch.int32))
    for b, request in enumerate(world.requests):
        length = len(request.tokens)
        tokens = world.tokens_after(b, world.tree.depths[b].argmax().item())
        request.tokens += tokens[length:] + [40 + b]
        # Row 0 has only its root to add; the others forget some of what they have and feed it again.
        request.drafter_length = len(request.tokens) - 1 - min(b, len(request.tokens) - 1)
    candidates = drafter.draft(Batch(world.requests, torch.device("cpu")))
    for b, request in enumerate(world.requests):
        fresh = new_request(request.tokens, request.params, drafter)
        fresh.prompt_length = request.prompt_length
        alone = drafter.draft(Batch([fresh], torch.device("cpu")))
        assert torch.equal(candidates.token_ids[b], alone.token_ids[0])
        assert_rows_equal(drafter.cache, request.drafter_pages, fresh.drafter_pages, len(request.tokens))
        drafter.cache.release(fresh.drafter_pages)


def test_a_branch_sees_no_other_branch(scene, drafter):
    """The same outcome, alone and among others, drafts the same block."""
    world = scene(SAMPLING["T=1"])
    one = dk.Outcomes(*(column[:, 2:3].contiguous() for column in world.outcomes.tensors()))
    alone = drafter.draft_frontier(world.batch, world.tree, one)
    among = world.ahead.token_ids.unflatten(0, (4, OUTCOMES))[:, 2]
    assert torch.equal(alone.token_ids, among)


@pytest.mark.parametrize("kind", ["T=1", "top_p", "penalties"])
def test_the_target_keeps_root_and_accepted_path(kind, scene, target):
    world = scene(SAMPLING[kind])
    for request in world.requests:
        request.target_pages = target.cache.allocate(len(request.tokens) + NODES)
        target.prefill(request.target_pages, request.tokens[:-1], 0)
    verdict = target.verify(world.batch, world.tree).verdict
    assert verdict.num_accepted.max() >= 1
    for b, request in enumerate(world.requests):
        accepted = verdict.num_accepted[b].item()
        path = world.tree.token_ids[b, verdict.accepted_nodes[b, :accepted].long()].tolist()
        fresh = Request("fresh", request.tokens + path + [2], request.params, frozenset(), 9, None)
        fresh.target_pages = target.cache.allocate(len(fresh.tokens))
        target.prefill(fresh.target_pages, fresh.tokens[:-1], 0)
        assert_rows_equal(target.cache, request.target_pages, fresh.target_pages, len(fresh.tokens) - 1)
        target.cache.release(fresh.target_pages)


def test_tree_logits_equal_a_walk_down_each_path(scene, target):
    """Every node's logits are those of its root-to-node path decoded one token at a time."""
    world = scene(SAMPLING["T=1"])
    for request in world.requests:
        request.target_pages = target.cache.allocate(len(request.tokens) + NODES)
        target.prefill(request.target_pages, request.tokens[:-1], 0)
    logits = target.verify(world.batch, world.tree).logits
    for b, request in enumerate(world.requests):
        for node in range(world.tree.num_nodes[b]):
            walked = Request("w", world.tokens_after(b, node), request.params, frozenset(), 9, None)
            walked.target_pages = target.cache.allocate(len(walked.tokens) + 1)
            target.prefill(walked.target_pages, walked.tokens[:-1], 0)
            step = Batch([walked], torch.device("cpu"))
            alone = target.verify(step, root_only(step)).logits[0, 0]
            torch.testing.assert_close(logits[b, node], alone, **ROUNDING)
            target.cache.release(walked.target_pages)


def test_an_empty_lane_is_left_alone(scene, target, drafter):
    """A negative root marks an empty lane: no verdict, no draft, no row of its pages written."""
    world = scene(SAMPLING["T=1"])
    for request in world.requests:
        request.target_pages = target.cache.allocate(len(request.tokens) + NODES)
        target.prefill(request.target_pages, request.tokens[:-1], 0)
    before = [layer.clone() for layer in target.cache.rows]
    roots = world.batch.root_ids.clone()
    roots[1] = -1
    candidates = dk.Candidates.empty(4, drafter.draft_length, 8)
    candidates.token_ids.fill_(3)
    candidates.scores.fill_(-1.0)
    tree, outcomes = dk.build_tree(roots, candidates, NODES, OUTCOMES)
    drafter.draft_frontier(world.batch, tree, outcomes)
    verdict = target.verify(world.batch, tree).verdict
    assert verdict.bonus_ids[1] == -1 and verdict.num_accepted[1] == 0
    used = target.cache.table([world.requests[1].target_pages], len(world.requests[1].tokens) + NODES)
    slots = (used.table[0][:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()
    for old, new in zip(before, target.cache.rows):
        assert torch.equal(old[slots], new[slots]) and new.isfinite().all()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_round_leaves_both_caches_as_a_prefill_would(mode, engines, pair):
    """After each round of a running engine: the target lacks the root, the drafter what its request says."""
    engine = engines(pair, mode, num_nodes=7)
    for seed, prompt in enumerate(random_prompts(3, seed=17)):
        engine.submit(prompt, SamplingParams(max_tokens=20, temperature=1.0, seed=seed, ignore_eos=True))
    engine.step()
    seen, scheduler = set(), engine._scheduler
    while scheduler.running:
        engine._lane.submit(int).wait()  # the lane has kept what it keeps
        for request in scheduler.running:
            lacking = len(request.tokens) - request.drafter_length
            seen.add(lacking)
            assert 0 <= lacking <= 7
            assert (lacking == 0) == (request.draft is not None)
            fresh = Request("fresh", request.tokens + [2], request.params, frozenset(), 9, None)
            rows = len(fresh.tokens)
            fresh.target_pages = engine._target.cache.allocate(rows)
            fresh.drafter_pages = engine._drafter.cache.allocate(rows)
            engine._target.prefill(fresh.target_pages, fresh.tokens[:-1], 0)
            engine._drafter.prefill(fresh.drafter_pages, fresh.tokens[:-1], 0)
            kept = len(request.tokens) - 1
            assert_rows_equal(engine._target.cache, request.target_pages, fresh.target_pages, kept)
            kept = request.drafter_length
            assert_rows_equal(engine._drafter.cache, request.drafter_pages, fresh.drafter_pages, kept)
            engine._target.cache.release(fresh.target_pages)
            engine._drafter.cache.release(fresh.drafter_pages)
        engine.step()
    assert seen >= ({0, 1} if mode == "async" else {2, 3})
