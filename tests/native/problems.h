// Calls of every op: ordinary, ragged, empty and hostile ones. A list is made anew for each seed.
#pragma once

#include "inputs.h"

namespace proof {

constexpr int32_t kDtypes[] = {D3D_F32, D3D_BF16, D3D_F16, D3D_F64};

template <class Args>
using Problems = std::deque<Problem<Args>>;

template <class Args>
Problem<Args>& add(Problems<Args>& problems, const std::string& name) {
  problems.emplace_back();
  problems.back().name = name + " " + std::to_string(problems.size() - 1);
  return problems.back();
}

// The arguments point to it, so it lives with them.
inline const d3d_penalties* optional_penalties(Memory& memory, Random& random, int64_t requests,
                                               int32_t vocab, bool wanted) {
  if (!wanted) return nullptr;
  return memory.input(std::vector<d3d_penalties>{penalties(memory, random, requests, vocab)});
}

inline Problems<d3d_sample_args> sample_problems(uint64_t seed) {
  Problems<d3d_sample_args> problems;
  Random random(seed);
  for (const int32_t vocab : {1, 3, 37, 150})
    for (const int32_t dtype : kDtypes)
      for (const bool penalised : {false, true}) {
        auto& [name, memory, args] = add(problems, "sample");
        const int64_t rows = 2 * kRowKinds + 1, requests = 7, stride = vocab + random.below(4);
        args = {logits(memory, random, dtype, rows, vocab, stride),
                dtype,
                vocab,
                rows,
                stride,
                sampling(memory, random, requests),
                positions(memory, random, rows),
                memory.input(list<int32_t>(rows, [&] { return random.between(-1, requests); })),
                optional_penalties(memory, random, requests, vocab, penalised),
                memory.output<int64_t>(rows),
                memory.output<int32_t>(rows),
                nullptr};
      }
  return problems;
}

inline Problems<d3d_draft_args> draft_problems(uint64_t seed) {
  Problems<d3d_draft_args> problems;
  Random random(seed);
  for (const int32_t vocab : {2, 5, 70})
    for (const int32_t dtype : kDtypes)
      for (const bool penalised : {false, true}) {
        auto& [name, memory, args] = add(problems, "draft_candidates");
        const int64_t rows = 5, length = 3, requests = 6, stride = vocab + random.below(4);
        const int32_t k = static_cast<int32_t>(random.between(1, 9));
        args = {logits(memory, random, dtype, rows * length, vocab, stride),
                dtype,
                vocab,
                rows,
                length,
                length * stride,
                stride,
                k,
                random.chance(0.5) ? static_cast<int32_t>(random.below(vocab)) : -1,
                0.5f,
                sampling(memory, random, requests),
                positions(memory, random, rows),
                memory.input(list<int32_t>(rows, [&] { return random.between(-1, requests); })),
                optional_penalties(memory, random, requests, vocab, penalised),
                memory.output<int64_t>(rows * length * k),
                memory.output<float>(rows * length * k),
                memory.output<float>(rows * length * k)};
      }
  return problems;
}

// Outputs of a tree that a caller may not want.
inline void add_links(d3d_build_tree_args& args, Memory& memory, Random& random, int64_t nodes) {
  if (random.chance(0.7)) args.positions = memory.output<int64_t>(nodes);
  if (random.chance(0.3)) return;
  args.first_child = memory.output<int32_t>(nodes);
  args.next_sibling = memory.output<int32_t>(nodes);
}

inline Problems<d3d_build_tree_args> build_tree_problems(uint64_t seed) {
  struct Size {
    int64_t length, k;
    int32_t nodes, outcomes;
  };
  constexpr Size kSizes[] = {{0, 0, 1, 0},  {0, 3, 2, 2},   {1, 1, 1, 3},     {3, 4, 7, 5},
                             {5, 3, 33, 1}, {6, 8, 64, 24}, {9, 16, 200, 40}, {64, 32, 256, 64}};
  Problems<d3d_build_tree_args> problems;
  Random random(seed);
  for (const auto& [length, k, nodes, outcomes] : kSizes)
    for (const int64_t stops : {0, 3}) {
      auto& [name, memory, args] = add(problems, "build_tree");
      const int64_t batch = 5, branches = random.chance(0.5) ? 3 : 0,
                    lists = batch * length * (branches ? branches : 1);
      std::vector<int64_t> ids;
      std::vector<float> scores;
      for (int64_t i = 0; i < lists; ++i) {
        auto sorted = list<float>(k, [&] { return std::round(random.real(-9, 0)) * 0.5f; });  // many ties
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        for (const float score : sorted) {
          ids.push_back(random.chance(0.05) ? -1 : random.below(40));
          scores.push_back(random.chance(0.03) ? kNaN : random.chance(0.03) ? -kInfinity : score);
        }
      }
      args = {batch,
              length,
              static_cast<int32_t>(k),
              nodes,
              outcomes,
              static_cast<int32_t>(random.chance(0.5) ? length : random.between(0, length)),
              memory.input(list<int64_t>(batch, [&] { return random.between(-1, 6); })),
              memory.input(ids),
              memory.input(scores),
              {stops ? memory.input(list<int64_t>(stops * batch, [&] { return random.between(-1, 39); }))
                     : nullptr,
               stops, stops},
              memory.output<int64_t>(batch * nodes),
              memory.output<int32_t>(batch * nodes),
              memory.output<int32_t>(batch * nodes),
              memory.output<int32_t>(batch),
              memory.output<int32_t>(batch * nodes * ((nodes + 31) / 32)),
              memory.output<int32_t>(batch * outcomes),
              memory.output<int64_t>(batch * outcomes),
              memory.output<float>(batch * outcomes),
              branches ? memory.input(list<int32_t>(batch, [&] { return random.between(-2, branches); }))
                       : nullptr,
              branches,
              random.chance(0.5) ? positions(memory, random, batch) : nullptr};
      add_links(args, memory, random, batch * nodes);
    }
  return problems;
}

// Candidates and tree in one call; the candidates may be wanted or not.
inline Problems<d3d_draft_tree_args> draft_tree_problems(uint64_t seed) {
  Problems<d3d_draft_tree_args> problems;
  Random random(seed);
  for (const int64_t length : {0, 1, 4})
    for (const bool penalised : {false, true})
      for (const bool wanted : {false, true}) {
        auto& [name, memory, args] = add(problems, "draft_tree");
        const int64_t batch = 3;
        const int32_t vocab = 21, k = 4, nodes = static_cast<int32_t>(random.between(1, 40)), outcomes = 6;
        d3d_draft_args& draft = args.draft;
        draft.logits = logits(memory, random, D3D_F32, batch * length, vocab, vocab);
        draft.dtype = D3D_F32;
        draft.vocab = vocab;
        draft.num_rows = batch;
        draft.num_positions = length;
        draft.row_stride = length * vocab;
        draft.position_stride = vocab;
        draft.num_candidates = k;
        draft.mask_token_id = 3;
        draft.beta = 0.7f;
        draft.sampling = sampling(memory, random, batch);
        draft.positions = positions(memory, random, batch);
        draft.penalties = optional_penalties(memory, random, batch, vocab, penalised);
        if (wanted) {
          draft.token_ids = memory.output<int64_t>(batch * length * k);
          draft.log_probs = memory.output<float>(batch * length * k);
          draft.scores = memory.output<float>(batch * length * k);
        }
        d3d_build_tree_args& tree = args.tree;
        tree.num_nodes = nodes;
        tree.num_outcomes = outcomes;
        tree.max_depth = static_cast<int32_t>(random.between(0, length));
        tree.root_ids = memory.input(list<int64_t>(batch, [&] { return random.between(-1, 6); }));
        tree.stop = {memory.input(list<int64_t>(2, [&] { return random.below(vocab); })), 0, 2};
        tree.token_ids = memory.output<int64_t>(batch * nodes);
        tree.parents = memory.output<int32_t>(batch * nodes);
        tree.depths = memory.output<int32_t>(batch * nodes);
        tree.node_counts = memory.output<int32_t>(batch);
        tree.mask_bits = memory.output<int32_t>(batch * nodes * ((nodes + 31) / 32));
        tree.outcome_parents = memory.output<int32_t>(batch * outcomes);
        tree.outcome_token_ids = memory.output<int64_t>(batch * outcomes);
        tree.outcome_scores = memory.output<float>(batch * outcomes);
        add_links(tree, memory, random, batch * nodes);
      }
  return problems;
}

// Trees of two tokens, so that walks go deep; lanes are ragged, one is empty. A hostile tree has parents and
// ids that are anything.
template <int32_t... dtypes>
Problems<d3d_verify_tree_args> verify_tree_problems(uint64_t seed) {
  struct Size {
    int32_t nodes, vocab;
  };
  constexpr Size kSizes[] = {{1, 5}, {2, 2}, {9, 3}, {40, 6}, {33, 130}};
  Problems<d3d_verify_tree_args> problems;
  Random random(seed);
  for (const auto& [nodes, vocab] : kSizes)
    for (const int32_t dtype : {dtypes...})
      for (const bool penalised : {false, true})
        for (const bool hostile : {false, true}) {
          auto& [name, memory, args] = add(problems, hostile ? "verify_tree, hostile" : "verify_tree");
          const int64_t batch = 6, rows = batch * nodes, stride = vocab + random.below(3);
          const bool packed = random.chance(0.5);
          std::vector<int64_t> tokens;
          std::vector<int32_t> parents;
          for (int64_t b = 0; b < batch; ++b)
            for (int32_t i = 0; i < nodes; ++i) {
              const bool bad = hostile && random.chance(0.2);
              parents.push_back(static_cast<int32_t>(bad     ? random.between(-2, nodes + 1)
                                                     : i > 0 ? std::max<int64_t>(0, i - 1 - random.below(3))
                                                             : -1));
              tokens.push_back(bad ? static_cast<int64_t>(random.bits()) : random.below(vocab));
            }
          args = {
              logits(memory, random, dtype, rows, vocab, stride),
              dtype,
              vocab,
              batch,
              nodes,
              nodes * stride,
              stride,
              packed
                  ? memory.input(list<int32_t>(
                        batch,
                        [&] { return hostile ? random.between(-2, rows) : random.below(rows - nodes + 1); }))
                  : nullptr,
              rows,
              memory.input(tokens),
              memory.input(parents),
              memory.input(list<int32_t>(
                  batch, [&] { return hostile ? random.between(-1, nodes + 3) : random.between(0, nodes); })),
              sampling(memory, random, batch),
              positions(memory, random, batch),
              optional_penalties(memory, random, batch, vocab, penalised),
              memory.output<int32_t>(rows),
              memory.output<int32_t>(batch),
              memory.output<int64_t>(batch),
              memory.output<int32_t>(batch)};
          if (random.chance(0.5)) continue;
          args.num_outcomes = 30;
          args.outcome_parents = memory.input(list<int32_t>(30 * batch, [&] { return random.below(nodes); }));
          args.outcome_token_ids =
              memory.input(list<int64_t>(30 * batch, [&] { return random.below(vocab); }));
          args.outcome_index = memory.output<int32_t>(batch);
        }
  return problems;
}

// Every rule and kind of drafter, its rows in another dtype than the target's; drafts end in padding or
// foreign ids.
inline Problems<d3d_verify_chain_args> verify_chain_problems(uint64_t seed) {
  Problems<d3d_verify_chain_args> problems;
  Random random(seed);
  for (const int32_t rule : {D3D_RULE_COUPLED, D3D_RULE_RATIO, D3D_RULE_BLOCK})
    for (const int32_t kind : {D3D_DRAFT_CERTAIN, D3D_DRAFT_LOGITS, D3D_DRAFT_PROBABILITIES})
      for (const bool penalised : {false, true}) {
        auto& [name, memory, args] = add(problems, "verify_chain");
        const int32_t vocab = static_cast<int32_t>(random.between(1, 9)), drafts = random.chance(0.1) ? 0 : 5;
        const int64_t batch = 8, stride = vocab + random.below(3), draft_stride = vocab + random.below(3);
        const int32_t dtype = kDtypes[random.below(4)], draft_dtype = kDtypes[random.below(4)];
        args = {
            logits(memory, random, dtype, batch * (drafts + 1), vocab, stride),
            dtype,
            vocab,
            batch,
            drafts,
            rule,
            (drafts + 1) * stride,
            stride,
            memory.input(list<int64_t>(
                batch * drafts,
                [&] { return random.chance(0.05) ? random.between(-1, 1LL << 40) : random.below(vocab); })),
            drafts,
            logits(memory, random, draft_dtype, batch * drafts, vocab, draft_stride),
            draft_dtype,
            kind,
            drafts * draft_stride,
            draft_stride,
            sampling(memory, random, batch),
            positions(memory, random, batch),
            optional_penalties(memory, random, batch, vocab, penalised),
            memory.output<int32_t>(batch * (drafts + 1)),
            memory.output<int32_t>(batch),
            memory.output<int64_t>(batch),
            memory.output<int32_t>(batch)};
      }
  return problems;
}

inline Problems<d3d_select_outcome_args> select_outcome_problems(uint64_t seed) {
  Problems<d3d_select_outcome_args> problems;
  Random random(seed);
  for (const int32_t nodes : {1, 5})
    for (const int32_t outcomes : {0, 1, 33, 300}) {
      auto& [name, memory, args] = add(problems, "select_outcome");
      const int64_t batch = 20;
      args = {batch,
              nodes,
              outcomes,
              memory.input(list<int32_t>(batch * nodes, [&] { return random.below(nodes); })),
              memory.input(list<int32_t>(batch, [&] { return random.below(nodes + 1); })),
              memory.input(list<int64_t>(batch, [&] { return random.between(-1, 2); })),
              memory.input(list<int32_t>(batch * outcomes, [&] { return random.between(-1, nodes - 1); })),
              memory.input(list<int64_t>(batch * outcomes, [&] { return random.between(-1, 2); })),
              memory.output<int32_t>(batch)};
      if (outcomes == 1) continue;
      const int64_t length = 3, k = 5, size = length * k;
      args.num_positions = length;
      args.num_candidates = k;
      args.candidate_ids =
          memory.input(list<int64_t>(batch * outcomes * size, [&] { return random.below(99); }));
      args.candidate_log_probs =
          memory.input(list<float>(batch * outcomes * size, [&] { return random.real(-9, 0); }));
      args.candidate_scores =
          memory.input(list<float>(batch * outcomes * size, [&] { return random.real(-9, 0); }));
      args.draft_ids = memory.output<int64_t>(batch * size);
      args.draft_log_probs = memory.output<float>(batch * size);
      args.draft_scores = memory.output<float>(batch * size);
    }
  return problems;
}

// Trees whose masks are any bits, lanes that are empty or claim too many nodes, page tables with holes.
inline Problems<d3d_frontier_args> frontier_problems(uint64_t seed) {
  Problems<d3d_frontier_args> problems;
  Random random(seed);
  for (const int32_t nodes : {1, 2, 33, 70})
    for (const int32_t outcomes : {0, 1, 9})
      for (const int32_t page_id_bytes : {4, 8}) {
        if (nodes == 1 && outcomes == 0) continue;
        auto& [name, memory, args] = add(problems, "frontier_inputs");
        const int32_t batch = 4, block = static_cast<int32_t>(random.between(1, 5));
        const int64_t rows = nodes - 1 + outcomes * block, pages = random.below(6),
                      stride = pages + random.below(2);
        const auto page = [&] { return random.between(-1, 50); };
        args = {
            batch,
            nodes,
            outcomes,
            block,
            7,
            memory.input(list<int64_t>(batch * nodes, [&] { return random.between(-1, 40); })),
            memory.input(list<int32_t>(batch * nodes, [&] { return random.below(9); })),
            memory.input(list<int32_t>(batch, [&] { return random.between(0, nodes + 2); })),
            memory.input(list<int32_t>(batch * nodes * ((nodes + 31) / 32), [&] { return random.bits(); })),
            memory.input(list<int32_t>(batch * outcomes, [&] { return random.between(-1, nodes - 1); })),
            memory.input(list<int64_t>(batch * outcomes, [&] { return random.between(-1, 40); })),
            memory.input(list<int64_t>(batch, [&] { return random.between(-1, 60); })),
            page_id_bytes == 4 ? static_cast<void*>(memory.input(list<int32_t>(batch * stride, page)))
                               : static_cast<void*>(memory.input(list<int64_t>(batch * stride, page))),
            page_id_bytes,
            stride,
            pages,
            static_cast<int32_t>(random.between(1, 17)),
            memory.output<int64_t>(batch * rows),
            memory.output<int64_t>(batch * rows),
            memory.output<int64_t>(batch * rows),
            memory.output<int32_t>(batch * rows * ((rows + 31) / 32)),
            memory.output<int64_t>(batch * outcomes),
            memory.output<int32_t>(batch * outcomes)};
      }
  return problems;
}

inline Problems<d3d_dense_mask_args> dense_mask_problems(uint64_t seed) {
  Problems<d3d_dense_mask_args> problems;
  Random random(seed);
  for (const int32_t element_bytes : {1, 2, 4, 8})
    for (const int64_t rows : {1, 5, 40})
      for (const int64_t columns : {0, 1, 31, 100}) {
        auto& [name, memory, args] = add(problems, "dense_mask");
        const int64_t batch = 3, words = (rows + 31) / 32;
        args = {batch,
                rows,
                words,
                memory.input(list<int32_t>(batch * rows * words, [&] { return random.bits(); })),
                memory.input(list<int64_t>(batch, [&] { return random.between(-2, columns + 3); })),
                columns,
                element_bytes,
                random.bits(),
                random.bits(),
                memory.output<unsigned char>(batch * rows * columns * element_bytes)};
      }
  return problems;
}

inline Problems<d3d_packed_mask_args> packed_mask_problems(uint64_t seed) {
  Problems<d3d_packed_mask_args> problems;
  Random random(seed);
  for (const int64_t rows : {0, 1, 5, 33, 90})
    for (const int64_t context : {0, 7, 200})
      for (const bool ragged : {false, true}) {
        auto& [name, memory, args] = add(problems, "packed_mask");
        const int64_t batch = 4, words = (rows + 31) / 32, bytes = (rows * (context + rows) + 7) / 8;
        args = {batch,
                rows,
                words,
                memory.input(list<int32_t>(batch * rows * words, [&] { return random.bits(); })),
                memory.input(list<int64_t>(batch, [&] { return random.between(-2, context + 3); })),
                ragged ? memory.input(list<int32_t>(batch, [&] { return random.between(-1, rows + 2); }))
                       : nullptr,
                context,
                memory.output<uint8_t>(batch * bytes),
                memory.output<int32_t>(batch + 1)};
      }
  return problems;
}

// Rollbacks: of each request's own slots, shuffled over the pages, ascending positions move to the front,
// with padding and foreign slots in between. Heads lie apart, so their pieces have gaps.
inline Problems<d3d_move_kv_args> move_kv_problems(uint64_t seed) {
  Problems<d3d_move_kv_args> problems;
  Random random(seed);
  for (const int64_t page_size : {1, 4, 16})
    for (const int64_t heads : {1, 3, 40})
      for (const int64_t head_bytes : {1, 8, 34}) {
        auto& [name, memory, args] = add(problems, "move_kv");
        const int64_t batch = 3, own = 16, slots = batch * own, pages = slots / page_size;
        std::vector<d3d_kv_buffer> buffers;
        for (int i = 0; i < 2; ++i) {
          const int64_t head_stride = head_bytes + i, offset_stride = heads * head_stride,
                        page_stride = page_size * offset_stride + 5 * i;
          const Bytes cache = list<unsigned char>(pages * page_stride, [&] { return random.bits(); });
          buffers.push_back(
              {memory.in_place(cache), page_stride, offset_stride, head_stride, heads, head_bytes});
        }
        std::vector<int64_t> order(static_cast<size_t>(slots));
        for (int64_t i = 0; i < slots; ++i) order[static_cast<size_t>(i)] = i;
        for (int64_t i = slots; i > 1; --i)
          std::swap(order[static_cast<size_t>(i - 1)], order[static_cast<size_t>(random.below(i))]);
        std::vector<int64_t> sources, targets;
        for (int64_t b = 0; b < batch; ++b) {
          const int64_t* mine = order.data() + b * own;
          for (int64_t i = 0, kept = 0; i < own; ++i) {
            const bool skipped = random.chance(0.4), foreign = !skipped && random.chance(0.1);
            sources.push_back(skipped ? -1 : foreign ? slots + random.below(3) : mine[i]);
            targets.push_back(random.chance(0.1) ? -1 : mine[kept]);
            kept += !skipped;
          }
        }
        args = {memory.input(buffers),
                2,
                pages,
                page_size,
                batch,
                own,
                memory.input(sources),
                memory.input(targets),
                memory.input(list<int32_t>(batch, [&] { return random.between(-1, own + 2); }))};
      }
  return problems;
}

}  // namespace proof
