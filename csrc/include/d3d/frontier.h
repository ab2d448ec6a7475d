// The rows of the drafter's pass ahead of a verdict.
//
//     rows 0 .. N-2             tree node i + 1, clean
//     rows N-1 + e block + o    branch e: its bonus token g (o = 0), then masks
//
// Row i stands in logical slot root + 1 + i, so the rows' own columns are their numbers. A node sees its
// ancestors and itself: the tree's mask without the root, whose column is context. Branch e, behind node m,
// sees what m sees, and of itself g only g, a mask all of the branch. What does not exist, a padded node or a
// branch without an outcome, has no slot and nobody's attention: nothing of it can be written or seen.
#pragma once

#include "d3d.h"
#include "mask.h"
#include "team.h"

D3D_NAMESPACE_BEGIN

// One request's slices of the arguments.
struct Frontier {
  const d3d_frontier_args& args;
  int64_t request, root, rows, words, tree_words;
  int64_t first_page;     // page and
  uint32_t first_offset;  // offset of row 0
  int32_t nodes;

  D3D_INLINE Frontier(const d3d_frontier_args& a, int64_t b)
      : args(a),
        request(b),
        root(a.root_positions[b]),
        rows(a.num_nodes - 1 + static_cast<int64_t>(a.num_outcomes) * a.block_size),
        words((rows + 31) / 32),
        tree_words((a.num_nodes + 31) / 32),
        first_page((root + 1) / a.page_size),
        first_offset(static_cast<uint32_t>((root + 1) % a.page_size)),
        nodes(smaller(a.node_counts[b], a.num_nodes)) {}

  // Of the row's logical slot; -1: it has no page. 32-bit divisions, since there is one a row.
  D3D_INLINE int64_t slot_of(int64_t row) const {
    const uint32_t offset = first_offset + static_cast<uint32_t>(row), size = args.page_size;
    const int64_t index = first_page + offset / size;
    if (root < 0 || index >= args.num_pages) return -1;
    const int64_t entry = request * args.page_table_stride + index;
    const int64_t page = args.page_id_bytes == 4 ? static_cast<const int32_t*>(args.page_table)[entry]
                                                 : static_cast<const int64_t*>(args.page_table)[entry];
    return page < 0 ? -1 : page * size + offset % size;
  }

  // A row that sees what `node` sees, and the rows [low, high).
  D3D_INLINE void write(int64_t row, bool exists, int64_t token, int64_t depth, int32_t node, int64_t low,
                        int64_t high) const {
    const int64_t at = request * rows + row;
    args.row_token_ids[at] = exists && token >= 0 ? token : 0;
    args.row_positions[at] = exists ? root + depth : 0;
    args.row_slots[at] = exists ? slot_of(row) : -1;

    int32_t* mask = args.row_mask_bits + at * words;
    const int32_t* tree = args.mask_bits + (request * args.num_nodes + node) * tree_words;
    const int64_t shared = exists ? smaller(tree_words, words) : 0;
    for (int64_t w = 0; w < shared; ++w)  // bit 0 is the root's, which is no row
      mask[w] = static_cast<int32_t>(static_cast<uint32_t>(bits_from(tree, tree_words, 32 * w + 1)) &
                                     bit_range(0, args.num_nodes - 1, w));
    for (int64_t w = shared; w < words; ++w) mask[w] = 0;
    if (exists && low < high)
      for (int64_t w = low / 32; w <= (high - 1) / 32; ++w)
        mask[w] |= static_cast<int32_t>(bit_range(low, high, w));
  }
};

template <class Team>
D3D_INLINE void frontier_request(Team& team, const d3d_frontier_args& args, int64_t request) {
  const Frontier frontier(args, request);
  const int64_t first_node = request * args.num_nodes, first_outcome = request * args.num_outcomes;
  const int64_t first_row = args.num_nodes - 1;

  for (int64_t row = team.rank(); row < frontier.rows; row += team.size()) {
    if (row < first_row) {
      const int32_t node = static_cast<int32_t>(row) + 1;
      frontier.write(row, node < frontier.nodes, args.token_ids[first_node + node],
                     args.depths[first_node + node], node, 0, 0);
      continue;
    }
    const uint32_t behind = static_cast<uint32_t>(row - first_row), size = args.block_size;
    const int64_t branch = behind / size, offset = behind % size;
    const int32_t parent = args.outcome_parents[first_outcome + branch];
    const int64_t token = args.outcome_token_ids[first_outcome + branch];
    const bool exists = parent >= 0 && parent < frontier.nodes && token >= 0;
    const int64_t depth = exists ? args.depths[first_node + parent] + 1 + offset : 0;
    const int64_t low = first_row + branch * args.block_size;
    frontier.write(row, exists, offset == 0 ? token : args.mask_token_id, depth, parent, low,
                   offset == 0 ? low + 1 : low + args.block_size);
    if (offset > 0) continue;
    args.draft_positions[first_outcome + branch] = exists ? frontier.root + depth + 1 : -1;
    args.request_ids[first_outcome + branch] = exists ? static_cast<int32_t>(request) : -1;
  }
}

D3D_NAMESPACE_END
