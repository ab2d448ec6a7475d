"""Deliberately broken kernels: what is changed, and the check that must notice.

``caught_by`` is a test of the suite, run on kernels built from the changed sources, or a native program of
``tests/native``. The default run takes the ones that are ``quick`` or show a kind of mistake that no other
does; ``-m slow`` adds the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

TREE, KV = "csrc/include/d3d/tree.h", "csrc/include/d3d/kv.h"
CHAIN, FRONTIER = "csrc/include/d3d/chain.h", "csrc/include/d3d/frontier.h"
ROW, VOCAB, FILTER = "csrc/include/d3d/row.h", "csrc/include/d3d/vocab.h", "csrc/include/d3d/filter.h"
TOKEN = "csrc/include/d3d/token.h"
PHILOX, PENALTIES = "csrc/include/d3d/philox.h", "csrc/include/d3d/penalties.h"
REFERENCE = "d3d_kernels/reference/vocab.py"

ROWS_FAIL, BATCHES_FAIL = "tests/kernels/test_failures_rows.py::", "tests/kernels/test_failures_batches.py::"
PARITY, CANDIDATES = "tests/kernels/test_parity.py::", "tests/kernels/test_candidates.py::"
BUILD_TREE, MOVE_KV = "tests/kernels/test_build_tree.py::", "tests/kernels/test_kv.py::"

PARITY_SAMPLE = PARITY + "test_sample[cpu-plain-float32-padded-33]"
PARITY_PENALISED = PARITY + "test_sample[cpu-penalised-float32-padded-33]"
PARITY_VERIFY = PARITY + "test_verify_tree[cpu-plain-float32-dense-5]"
CHAIN_RULES, FRONTIER_INPUTS = "tests/kernels/test_chain_rules.py::", "tests/kernels/test_frontier_inputs.py::"
PLAIN = "Parameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)"
NATIVE = "native:"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    before: str  # occurs exactly once
    after: str
    caught_by: str
    default: bool = True


MUTANTS = (
    # ---- growing trees ----
    Mutant(
        "a parent one too small",
        TREE,
        "parents[node] = parent;",
        "parents[node] = parent > 0 ? parent - 1 : parent;",
        BUILD_TREE + "test_ties_go_to_the_smaller_parent_then_the_better_rank[cpu]",
    ),
    Mutant(
        "tied prefixes by the larger parent",
        TREE,
        "return parent < other.parent;",
        "return parent > other.parent;",
        BUILD_TREE + "test_ties_go_to_the_smaller_parent_then_the_better_rank[cpu]",
    ),
    Mutant(
        "an outcome that is a stop id",
        TREE,
        "if (stops(token)) continue;",
        "",
        BUILD_TREE + "test_a_stop_id_is_a_node_but_grows_nothing_and_is_no_outcome[cpu]",
        default=False,
    ),
    Mutant(
        "mask words of unused nodes left stale",
        TREE,
        "for (int32_t i = 0; i < args.num_nodes; ++i) {\n      uint32_t bits = 0;",
        "for (int32_t i = 0; i < nodes; ++i) {\n      uint32_t bits = 0;",
        BUILD_TREE + "test_failure_22_mask_words_are_cleared_on_reuse[cpu]",
    ),
    Mutant(
        "no barrier between the tree and its masks",
        TREE,
        "  team.sync();\n\n  // Each rank owns columns",
        "\n  // Each rank owns columns",
        NATIVE + "team_trees",
    ),
    # ---- walking trees ----
    Mutant(
        "noise of the position before",
        TREE,
        "args.root_positions[request] + length + 1",
        "args.root_positions[request] + length",
        PARITY_VERIFY,
    ),
    Mutant(
        "every token from the root's row",
        TREE,
        "bonus = sample(row,",
        "bonus = sample(row_of(0),",
        PARITY_VERIFY,
    ),
    Mutant(
        "the last of duplicate siblings",
        TREE,
        "i < count && next == INT32_MAX; i +=",
        "i < count; i +=",
        BATCHES_FAIL + "test_failure_02_more_than_32_siblings[cpu-0.0-300]",
        default=False,
    ),
    Mutant(
        "a walk that follows a cycle",
        TREE,
        "for (int32_t i = node + 1 + team.rank(); i < count",
        "for (int32_t i = team.rank(); i < count",
        BATCHES_FAIL + "test_failure_11_a_root_that_claims_a_parent[cpu-3]",
    ),
    Mutant(
        "a parent behind its child goes unreported",
        TREE,
        "if (parents[i] < 0 || parents[i] >= i) flags",
        "if (parents[i] < 0) flags",
        BATCHES_FAIL + "test_failure_11_cyclic_or_missing_parent[cpu-0.0-[-1, 3, 0, 2]]",
        default=False,
    ),
    Mutant(
        "a drafted id below zero goes unreported",
        TREE,
        "if (tokens[i] < 0 || tokens[i] >= args.vocab) flags",
        "if (tokens[i] >= args.vocab) flags",
        BATCHES_FAIL + "test_failure_09_draft_ids_outside_the_vocabulary[cpu-0.0]",
        default=False,
    ),
    Mutant(
        "a row without a finite logit goes unreported",
        TREE,
        "flags |= D3D_STATUS_NO_FINITE_LOGIT;",
        "",
        PARITY_VERIFY,
    ),
    Mutant(
        "an empty lane is verified",
        TREE,
        "for (int32_t node = count > 0 ? 0 : -1; node >= 0;)",
        "for (int32_t node = 0; node >= 0;)",
        BATCHES_FAIL + "test_failure_13_empty_batches_and_filters_of_zero[cpu]",
    ),
    Mutant(
        "int32 row offset of a packed row",
        "csrc/cpu/tree.cpp",
        "(first + row * a.row_stride) * dtype_bytes",
        "static_cast<int32_t>(first + row * a.row_stride) * dtype_bytes",
        ROWS_FAIL + "test_failure_04_row_offsets_past_two_to_the_31[cpu-0.0]",
        default=False,
    ),
    Mutant(
        "the last outcome that came true",
        TREE,
        "e < count && first == INT32_MAX; e +=",
        "e < count; e +=",
        PARITY + "test_select_outcome[cpu-33]",
        default=False,
    ),
    # ---- moving KV rows ----
    Mutant(
        "rows copied from the last to the first",
        KV,
        "for (int64_t j = 0; j < moves.count; ++j)",
        "for (int64_t j = moves.count - 1; j >= 0; --j)",
        MOVE_KV + "test_failure_20_in_place_moves_with_overlapping_ranges[cpu-NHD]",
    ),
    Mutant(
        "a slot one past the last page",
        KV,
        "move.source < count &&",
        "move.source <= count &&",
        NATIVE + "abi-address",
        default=False,
    ),
    Mutant(
        "ranks copy each other's heads",
        KV,
        "for (int64_t head = team.rank(); head",
        "for (int64_t head = 0; head",
        NATIVE + "team_trees",
        default=False,
    ),
    # ---- reading rows ----
    Mutant(
        "NaN reads as the largest value",
        ROW,
        "return smaller(larger(x, splat<P>(Limits<Real>::kNone)),",
        "return smaller(larger(splat<P>(Limits<Real>::kNone), x),",
        ROWS_FAIL + "test_failure_03_nan_row_returned_an_id_outside_the_vocabulary[cpu-0.0]",
    ),
    Mutant(
        "int32 row offset",
        "csrc/cpu/vocab.cpp",
        "offset(a.logits, a.dtype, row * a.row_stride)",
        "offset(a.logits, a.dtype, static_cast<int32_t>(row * a.row_stride))",
        ROWS_FAIL + "test_failure_04_row_offsets_past_two_to_the_31[cpu-1.0]",
    ),
    Mutant(
        "the last of tied maxima",
        VOCAB,
        "if (ranked[j] > sink.bar() &&",
        "if (ranked[j] >= sink.bar() &&",
        ROWS_FAIL + "test_failure_14_argmax_ties_go_to_the_lowest_id[cpu-torch.float32-0.0-3.0]",
    ),
    Mutant(
        "tied candidates by the larger id",
        TOKEN,
        "(x == other.x && id < other.id)",
        "(x == other.x && id > other.id)",
        ROWS_FAIL + "test_failure_14_argmax_ties_go_to_the_lowest_id[cpu-torch.float32-0.0-3.0]",
        default=False,
    ),
    # ---- filters ----
    Mutant(
        "top-k drops ties on its border",
        TOKEN,
        "return s >= floor && (",
        "return s > floor && (",
        CANDIDATES + "test_borders_of_the_filters[cpu-{'top_k': 2}-3]",
    ),
    Mutant(
        "top-p keeps what lies behind its border",
        VOCAB,
        "if (team_sum(team, above) < top_p_target(",
        "if (team_sum(team, above) <= top_p_target(",
        CANDIDATES + "test_borders_of_the_filters_of_a_sample[cpu-{'top_p': 0.5}-{2}]",
        default=False,
    ),
    Mutant(
        "top-p target one unit of mass too high",
        FILTER,
        "return share >= 1 ? static_cast<uint64_t>(share) : 1;",
        "return share >= 1 ? static_cast<uint64_t>(share) + 1 : 1;",
        CANDIDATES + "test_borders_of_the_filters[cpu-{'top_p': 0.5}-1]",
        default=False,
    ),
    Mutant(
        "min-p drops its border",
        TOKEN,
        "relative_weight(s, top) >= min_p",
        "relative_weight(s, top) > min_p",
        CANDIDATES + "test_borders_of_the_filters[cpu-{'min_p': 0.5}-3]",
        default=False,
    ),
    Mutant(
        "no barrier before the histogram is filled",
        FILTER,
        "histogram[d] = 0;\n    team.sync();",
        "histogram[d] = 0;",
        NATIVE + "team_rows",
    ),
    # ---- noise ----
    Mutant(
        "noise without the upper half of the seed",
        PHILOX,
        "static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32)",
        "0u",
        PARITY_SAMPLE,
    ),
    Mutant(
        "noise shared between far positions",
        PHILOX,
        "static_cast<uint32_t>(static_cast<uint64_t>(at) >> 32)",
        "0u",
        PARITY_SAMPLE,
        default=False,
    ),
    Mutant(
        "pruning that drops a word too many",
        PHILOX,
        "0xFFFFFFFFu >> static_cast<int>(exponent)",
        "0x7FFFFFFFu >> static_cast<int>(exponent)",
        NATIVE + "noise",
    ),
    Mutant(
        "a uniform draw of one",
        PHILOX,
        "0x1p-32f, 0x1p-33f), splat<F>(1.0f - 0x1p-24f))",
        "0x1p-32f, 0x1p-33f), splat<F>(1.0f))",
        NATIVE + "noise",
        default=False,
    ),
    Mutant(
        "residuals drawn with the drafter's noise",
        PHILOX,
        "kResidual = 2",
        "kResidual = 0",
        CHAIN_RULES + f"test_failure_01_drafts_by_our_own_sampler_with_the_same_seed[cpu-2-{PLAIN}-ratio]",
    ),
    # ---- chains ----
    Mutant(
        "block verification that forgets the drafts before",
        CHAIN,
        "here = carried(here, link",
        "here = carried(1, link",
        CHAIN_RULES + f"test_verdicts_are_the_oracles[cpu-logits-{PLAIN}-block]",
        default=False,
    ),
    Mutant(
        "acceptance tested with the word of another draft",
        CHAIN,
        "words[j % 4]",
        "words[0]",
        CHAIN_RULES + f"test_verdicts_are_the_oracles[cpu-logits-{PLAIN}-ratio]",
        default=False,
    ),
    # ---- the drafter's pass ahead ----
    Mutant(
        "rows that do not exist write KV",
        FRONTIER,
        "args.row_slots[at] = exists ? slot_of(row) : -1;",
        "args.row_slots[at] = slot_of(row);",
        FRONTIER_INPUTS + "test_failure_23_lanes_and_rows_that_do_not_exist_write_nothing[cpu]",
    ),
    # ---- penalties ----
    Mutant(
        "marks of the history left behind",
        PENALTIES,
        "      marks[v] = 0;\n",
        "",
        PARITY_PENALISED,
        default=False,
    ),
    Mutant(
        "no barrier between the copied row and its penalties",
        PENALTIES,
        "store(row + first + i * Team::kLanes, tile.pack[i]);\n  }\n  team.sync();",
        "store(row + first + i * Team::kLanes, tile.pack[i]);\n  }",
        NATIVE + "team_trees",
        default=False,
    ),
    # ---- threads of the CPU library ----
    # ---- the reference, which the others are compared with ----
    Mutant(
        "reference: top-p keeps what lies behind its border",
        REFERENCE,
        "_mass_above(ordered, mass) < limit",
        "_mass_above(ordered, mass) <= limit",
        CANDIDATES + "test_borders_of_the_filters[reference-{'top_p': 0.5}-1]",
        default=False,
    ),
    Mutant(
        "reference: top-k drops ties on its border",
        REFERENCE,
        "keep = ordered >= ordered.gather(1, k[:, None] - 1)",
        "keep = ordered > ordered.gather(1, k[:, None] - 1)",
        CANDIDATES + "test_borders_of_the_filters[reference-{'top_k': 2}-3]",
    ),
)
