"""frontier_inputs against the definition of its rows, one by one, in plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import d3d_kernels as dk

from . import cases
from .harness import Target, assert_same, call, place

MASK = 77


def scene(batch: int, nodes: int, outcomes: int, *seed: object) -> tuple[dk.DraftTree, dk.Outcomes]:
    """Ragged trees with their masks, empty lanes among them, and outcomes some of which are padding."""
    g = cases.generator("frontier", batch, nodes, outcomes, *seed)
    tree = cases.random_trees(batch, nodes, 50, g)
    for b in range(batch):
        for i in range(int(tree.num_nodes[b])):
            parent = int(tree.parents[b, i])
            seen = (ancestors(tree, b, parent) if parent >= 0 else []) + [i]
            tree.mask_bits[b, i] = torch.tensor(words(seen, nodes), dtype=torch.int64).to(torch.int32)
    parent = torch.randint(0, nodes, (batch, outcomes), generator=g).int()
    parent = torch.where(parent < tree.num_nodes[:, None], parent, -1)
    token_ids = torch.randint(0, 50, (batch, outcomes), generator=g).where(parent >= 0, -1)
    return tree, dk.Outcomes(parent, token_ids, torch.zeros(batch, outcomes))


def ancestors(tree: dk.DraftTree, b: int, node: int) -> list[int]:
    """With the node itself."""
    found = []
    while node >= 0:
        found.append(node)
        node = int(tree.parents[b, node])
    return found


def words(bits: list[int], width: int) -> list[int]:
    values = [0] * ((width + 31) // 32)
    for bit in bits:
        values[bit // 32] |= 1 << bit % 32
    return values


def rows_of(tree, outcomes, b: int, root: int, block: int) -> list[tuple]:
    """(token, position, columns seen) of each row of a request, None where it does not exist."""
    nodes, count = tree.token_ids.shape[1], int(tree.num_nodes[b])
    rows: list = []
    for i in range(1, nodes):
        seen = [j - 1 for j in ancestors(tree, b, i) if j > 0] if i < count else []
        rows.append((int(tree.token_ids[b, i]), root + int(tree.depths[b, i]), seen) if i < count else None)
    for e in range(outcomes.token_ids.shape[1]):
        m, g = int(outcomes.parent_node[b, e]), int(outcomes.token_ids[b, e])
        first = nodes - 1 + e * block
        if not (0 <= m < count and g >= 0):
            rows += [None] * block
            continue
        path = [j - 1 for j in ancestors(tree, b, m) if j > 0]
        depth = int(tree.depths[b, m]) + 1
        rows.append((g, root + depth, [*path, first]))
        own = list(range(first, first + block))
        rows += [(MASK, root + depth + o, path + own) for o in range(1, block)]
    return rows


def check(got: dk.FrontierInputs, tree, outcomes, roots, table, page_size: int, block: int) -> None:
    for b in range(len(roots)):
        root = int(roots[b])
        rows = rows_of(tree, outcomes, b, root, block)
        assert got.token_ids.shape[1] == len(rows)
        for i, row in enumerate(rows):
            logical = root + 1 + i
            page = int(table[b, logical // page_size]) if logical // page_size < table.shape[1] else -1
            slot = page * page_size + logical % page_size if page >= 0 else -1
            token, position, seen = row or (0, 0, [])
            assert (int(got.token_ids[b, i]), int(got.positions[b, i])) == (token, position)
            assert int(got.slots[b, i]) == (slot if row else -1)
            bits = [word & 0xFFFFFFFF for word in got.mask_bits[b, i].tolist()]
            assert bits == words(seen, len(rows))
        for e in range(outcomes.token_ids.shape[1]):
            first = rows[tree.token_ids.shape[1] - 1 + e * block]
            assert int(got.draft_positions[b, e]) == (first[1] + 1 if first else -1)
            assert int(got.request_ids[b, e]) == (b if first else -1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
@pytest.mark.parametrize(
    "batch,nodes,outcomes,block,page_size",
    [(6, 9, 4, 3, 4), (3, 1, 3, 5, 16), (2, 33, 0, 4, 1), (2, 64, 16, 16, 64), (5, 5, 2, 1, 7), (1, 1, 0, 2, 8)],
)
def test_rows_of_the_pass(on: Target, dtype, batch, nodes, outcomes, block, page_size) -> None:
    tree, expected = scene(batch, nodes, outcomes, block)
    roots = torch.arange(batch) * 5
    pages = (int(roots.max()) + nodes + outcomes * block) // page_size + 1
    table = torch.randperm(batch * pages + 3, generator=cases.generator(nodes))[: batch * pages].view(batch, pages)
    table = torch.cat((table, torch.full((batch, 2), 9)), dim=1).to(dtype)[:, :pages]  # padded rows
    got = call(on, "frontier_inputs", tree, expected, roots, table, page_size, block, MASK)
    check(got, tree, expected, roots, table, page_size, block)


@given(st.data())
def test_any_tree_and_any_outcomes(on: Target, data: st.DataObject) -> None:
    batch, nodes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40))
    outcomes, block = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 9))
    page_size, pages = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 12))
    tree, expected = scene(batch, nodes, outcomes, data.draw(st.integers(0, 999)))
    roots = torch.tensor(data.draw(st.lists(st.integers(0, 40), min_size=batch, max_size=batch)))
    table = torch.randint(-1, 99, (batch, pages), generator=cases.generator(page_size, pages))
    got = call(on, "frontier_inputs", tree, expected, roots, table, page_size, block, MASK)
    check(got, tree, expected, roots, table, page_size, block)


def test_failure_23_lanes_and_rows_that_do_not_exist_write_nothing(on: Target) -> None:
    """Draft steps for padding lanes wrote KV through stale block tables.

    The tables of empty lanes hold pages of live requests; a table too short, or with holes, has no slots there.
    """
    tree, outcomes = scene(5, 8, 4, "failure 23")
    assert tree.num_nodes[4] == 0
    stale = dk.Outcomes(torch.zeros(5, 4, dtype=torch.int32), torch.full((5, 4), 3), outcomes.scores)
    roots, table = torch.full((5,), 6), torch.arange(50).view(5, 10)
    for expected in (outcomes, stale):  # outcomes of the lane's last request
        got = call(on, "frontier_inputs", tree, expected, roots, table, 4, 3, MASK)
        assert (got.slots[4] == -1).all() and (got.request_ids[4] == -1).all() and not got.mask_bits[4].any()
        exists = torch.arange(1, 8) < tree.num_nodes[:, None]
        assert ((got.slots[:, :7] >= 0) == exists).all()
    used = got.slots[got.slots >= 0]
    assert used.unique().numel() == used.numel(), "no two rows may write one slot"

    short, holes = table[:, :3].contiguous(), table.clone()
    holes[:, 2] = -1
    for pages, lacking in ((short, range(5, 19)), (holes, range(1, 5))):  # logical slot 7 + i, page 2 is slots 8 .. 11
        got = call(on, "frontier_inputs", tree, stale, roots, pages, 4, 3, MASK)
        assert (got.slots[:, list(lacking)] == -1).all()
        assert got.slots[0, 0] >= 0
    nowhere = call(on, "frontier_inputs", tree, stale, torch.full((5,), -3), table, 4, 3, MASK)
    assert (nowhere.slots == -1).all(), "a root that stands nowhere"


def test_failure_09_ids_outside_never_reach_the_embedding(on: Target) -> None:
    """Ids of -1 in ragged tails were embedded. Rows without a token have 0, and nobody sees them."""
    tree, outcomes = scene(4, 9, 5, "failure 9")
    tree.token_ids[tree.token_ids < 0] = -(2**40)
    outcomes.token_ids[0, 0] = -(2**40)
    table = torch.arange(40).view(4, 10)
    got = call(on, "frontier_inputs", tree, outcomes, torch.zeros(4, dtype=torch.int64), table, 8, 4, MASK)
    assert (got.token_ids >= 0).all() and (got.positions >= 0).all()
    gone = got.slots == -1
    assert (got.token_ids[gone] == 0).all() and not got.mask_bits[gone].any()
    shifts = torch.arange(32, dtype=torch.int32)
    seen = (got.mask_bits[..., None] >> shifts & 1).bool().flatten(2)[..., : got.slots.shape[1]]
    assert not (seen & gone[:, None]).any()


def test_failure_11_an_outcome_behind_a_node_that_is_none(on: Target) -> None:
    """A parent outside the tree was followed. Such a branch does not exist; the others do not notice."""
    tree, outcomes = scene(1, 6, 6, "failure 11")
    good = outcomes.parent_node.clone()
    for bad in (-(2**31), -2, 6, 7, 2**31 - 1):
        outcomes.parent_node.copy_(good)
        outcomes.parent_node[0, ::2] = bad
        outcomes.token_ids.fill_(5)
        arguments = tree, outcomes, torch.tensor([3]), torch.arange(12)[None], 4, 2, MASK
        got = call(on, "frontier_inputs", *arguments)
        check(got, tree, outcomes, [3], torch.arange(12)[None], 4, 2)
        assert (got.request_ids[0, ::2] == -1).all()


def test_failure_22_mask_words_are_cleared_on_reuse(on: Target) -> None:
    """Packed mask rows kept the bits of the previous, larger tree; here nothing of it is left."""
    tree, outcomes = scene(2, 40, 5, "failure 22")
    roots, table = torch.zeros(2, dtype=torch.int64), torch.arange(20).view(2, 10)
    small = dk.DraftTree(*(t.clone() for t in tree.tensors()))
    small.num_nodes.copy_(torch.tensor([1, 0]))
    tree, small, outcomes, roots, table = place((tree, small, outcomes, roots, table), on.device)
    reused = dk.frontier_inputs(tree, outcomes, roots, table, 16, 4, MASK, backend=on.backend)
    assert reused.mask_bits[0].any()
    dk.frontier_inputs(small, outcomes, roots, table, 16, 4, MASK, out=reused, backend=on.backend)
    assert not reused.mask_bits[:, :39].any() and not reused.mask_bits[1].any()
    assert_same(reused, dk.frontier_inputs(small, outcomes, roots, table, 16, 4, MASK, backend=on.backend))


def test_bits_behind_the_tree_are_not_columns_of_branches(on: Target) -> None:
    """A mask with garbage behind its last node must not open the branches that stand there now."""
    tree, outcomes = scene(1, 10, 3, "garbage")
    clean = call(on, "frontier_inputs", tree, outcomes, torch.tensor([0]), torch.arange(40)[None], 1, 4, MASK)
    tree.mask_bits.bitwise_or_(-(1 << 10))
    dirty = call(on, "frontier_inputs", tree, outcomes, torch.tensor([0]), torch.arange(40)[None], 1, 4, MASK)
    exists = clean.slots >= 0
    assert_same(dirty.mask_bits[exists], clean.mask_bits[exists])


def test_empty_batches(on: Target) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    arguments = dk.DraftTree.empty(0, 5), dk.Outcomes.empty(0, 2), none, torch.zeros(0, 3, dtype=torch.int64)
    assert call(on, "frontier_inputs", *arguments, 4, 3, MASK).mask_bits.shape == (0, 10, 1)
