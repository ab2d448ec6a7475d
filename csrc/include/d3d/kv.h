// Moving KV rows in place.
//
// After verification the rows of the accepted path lie scattered behind the root and move to the slots right
// after it. A parent comes before its child, so the j-th accepted node is at least node j, and branches stand
// behind all nodes: targets never pass sources, sources ascend, and copying in list order never overwrites a
// row that is still to be read. A rank owns some columns of every row and walks the whole list, so ranks
// never touch each other's bytes and need neither staging nor barriers.
#pragma once

#include <cstring>

#include "d3d.h"
#include "team.h"

D3D_NAMESPACE_BEGIN

D3D_INLINE unsigned char* slot_row(const d3d_kv_buffer& buffer, int64_t page_size, int64_t slot) {
  return static_cast<unsigned char*>(buffer.data) + slot / page_size * buffer.page_stride +
         slot % page_size * buffer.offset_stride;
}

struct Move {
  int64_t source, target;
};

// Where a cache's rows can be.
struct Slots {
  int64_t page_size, count;

  D3D_INLINE bool moves(Move move) const {
    return move.source != move.target && move.source >= 0 && move.target >= 0 && move.source < count &&
           move.target < count;
  }
};

// A request's moves, from two lists.
struct ListedMoves {
  const int64_t* sources;
  const int64_t* targets;
  int64_t count;

  D3D_INLINE Move operator[](int64_t j) const { return {sources[j], targets[j]}; }
};

D3D_INLINE ListedMoves moves_of(const d3d_move_kv_args& args, int64_t request) {
  return {args.sources + request * args.num_moves, args.targets + request * args.num_moves,
          smaller<int64_t>(args.counts[request], args.num_moves)};
}

// A request's moves in one cache, from its verdict. Nodes or a branch outside the list move nothing.
struct RollbackMoves {
  const int64_t* slots;
  const int32_t* nodes;
  int64_t accepted;   // rows of the path
  int64_t count;      // and of the bonus token, if it has been drafted from
  int64_t bonus_row;  // where that stands among the slots
  int64_t num_slots;

  D3D_INLINE Move operator[](int64_t j) const {
    const int64_t row = j < accepted ? nodes[j] : bonus_row;
    const bool inside = row >= 0 && row < num_slots && j + 1 < num_slots;
    return inside ? Move{slots[row], slots[j + 1]} : Move{-1, -1};
  }
};

D3D_INLINE RollbackMoves moves_of(const d3d_rollback_kv_args& args, const d3d_rollback_cache& cache,
                                  int64_t request) {
  const int64_t accepted = larger<int64_t>(0, smaller<int64_t>(args.num_accepted[request], args.num_nodes));
  const int64_t outcome =
      cache.block_size > 0 && args.bonus_ids[request] >= 0 ? args.outcome_index[request] : -1;
  const bool hit = outcome >= 0 && outcome < args.num_outcomes;
  return {cache.slots + request * cache.num_slots,
          args.accepted_nodes + request * args.num_nodes,
          accepted,
          accepted + hit,
          args.num_nodes + outcome * cache.block_size,
          cache.num_slots};
}

struct CopyBytes {
  D3D_INLINE void operator()(unsigned char* to, const unsigned char* from, int64_t bytes) const {
    memcpy(to, from, bytes);
  }
};

// One request's moves in one tensor; ranks share the heads.
template <class Team, class Moves, class Copy>
D3D_INLINE void move_rows(Team& team, const d3d_kv_buffer& buffer, Slots slots, const Moves& moves,
                          Copy copy) {
  for (int64_t j = 0; j < moves.count; ++j) {
    const Move move = moves[j];
    if (!slots.moves(move)) continue;
    const unsigned char* from = slot_row(buffer, slots.page_size, move.source);
    unsigned char* to = slot_row(buffer, slots.page_size, move.target);
    for (int64_t head = team.rank(); head < buffer.num_heads; head += team.size())
      copy(to + head * buffer.head_stride, from + head * buffer.head_stride, buffer.head_bytes);
  }
}

template <class Team, class Copy = CopyBytes>
D3D_INLINE void move_kv_request(Team& team, const d3d_move_kv_args& args, const d3d_kv_buffer& buffer,
                                int64_t request, Copy copy = {}) {
  const Slots slots{args.page_size, args.num_pages * args.page_size};
  move_rows(team, buffer, slots, moves_of(args, request), copy);
}

template <class Team, class Copy = CopyBytes>
D3D_INLINE void rollback_kv_request(Team& team, const d3d_rollback_kv_args& args,
                                    const d3d_rollback_cache& cache, const d3d_kv_buffer& buffer,
                                    int64_t request, Copy copy = {}) {
  const Slots slots{cache.page_size, cache.num_pages * cache.page_size};
  move_rows(team, buffer, slots, moves_of(args, cache, request), copy);
}

// Which rows and pages of the first cache stay; by one rank. The rows of a page follow each other in the
// list, so a page is free if it begins behind the last row that stays.
D3D_INLINE void rollback_pages_request(const d3d_rollback_kv_args& args, int64_t request) {
  const d3d_rollback_cache& cache = args.caches[0];
  const RollbackMoves moves = moves_of(args, cache, request);
  const bool empty = args.bonus_ids[request] < 0 && moves.count == 0;  // lane
  const int64_t kept = empty ? 0 : smaller(1 + moves.count, cache.num_slots);
  if (args.kept_rows) args.kept_rows[request] = static_cast<int32_t>(kept);
  if (!args.freed_pages) return;
  int64_t* const freed = args.freed_pages + request * args.num_freed;
  int64_t last = kept > 0 && moves.slots[kept - 1] >= 0 ? moves.slots[kept - 1] / cache.page_size : -1;
  int64_t found = 0;
  for (int64_t i = kept; i < cache.num_slots && found < args.num_freed; ++i) {
    const int64_t page = moves.slots[i] >= 0 ? moves.slots[i] / cache.page_size : -1;
    if (page < 0 || page == last) continue;
    freed[found++] = last = page;
  }
  for (; found < args.num_freed; ++found) freed[found] = -1;
}

D3D_NAMESPACE_END
