// Moving KV rows in place.
//
// After verification the rows of the accepted path lie scattered behind the root and move to the slots right
// after it. A parent comes before its child, so the j-th accepted node is at least node j: targets never pass
// sources, sources ascend, and copying in list order never overwrites a row that is still to be read. A rank
// owns a share of every row's bytes and walks the whole list, so ranks never touch each other's bytes and
// need neither staging nor barriers.
#pragma once

#include <cstring>

#include "d3d.h"
#include "team.h"

D3D_NAMESPACE_BEGIN

D3D_INLINE unsigned char* slot_row(const d3d_kv_buffer& buffer, int64_t page_size, int64_t slot) {
  return static_cast<unsigned char*>(buffer.data) + slot / page_size * buffer.page_stride +
         slot % page_size * buffer.offset_stride;
}

// One request's moves in one tensor; ranks share the heads.
template <class Team>
D3D_INLINE void move_kv_request(Team& team, const d3d_move_kv_args& args, const d3d_kv_buffer& buffer,
                                int64_t request) {
  const int64_t slots = args.num_pages * args.page_size;
  const int64_t* sources = args.sources + request * args.num_moves;
  const int64_t* targets = args.targets + request * args.num_moves;
  const int64_t count = smaller<int64_t>(args.counts[request], args.num_moves);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t source = sources[j], target = targets[j];
    if (source == target || source < 0 || target < 0 || source >= slots || target >= slots) continue;
    const unsigned char* from = slot_row(buffer, args.page_size, source);
    unsigned char* to = slot_row(buffer, args.page_size, target);
    for (int64_t head = team.rank(); head < buffer.num_heads; head += team.size())
      memcpy(to + head * buffer.head_stride, from + head * buffer.head_stride, buffer.head_bytes);
  }
}

D3D_NAMESPACE_END
