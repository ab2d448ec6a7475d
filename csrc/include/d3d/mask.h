// Bit masks: who among the new rows of a pass sees whom, and what other libraries want to be told of it.
//
// A pass adds Q rows behind a context that all of them see. Bit j % 32 of word j / 32 of a row's mask says
// whether it sees new row j. So a row of the whole mask over [context | new] is a run of ones, the row's
// bits, and zeros. Ranks own the outputs, elements or words of 64 bits: nothing is written twice.
#pragma once

#include <cstring>

#include "d3d.h"
#include "team.h"

D3D_NAMESPACE_BEGIN

// The bits [low, high) of word w of a mask.
D3D_INLINE uint32_t bit_range(int64_t low, int64_t high, int64_t w) {
  low = larger<int64_t>(low - 32 * w, 0);
  high = smaller<int64_t>(high - 32 * w, 32);
  if (low >= high) return 0;
  return ~0u >> (32 - (high - low)) << low;
}

// 64 bits from bit `first` on; beyond the words there are zeros.
D3D_INLINE uint64_t bits_from(const int32_t* words, int64_t num_words, int64_t first) {
  const int64_t w = first / 32;
  const int shift = static_cast<int>(first % 32);
  const auto word = [&](int64_t i) -> uint64_t {
    return i < num_words ? static_cast<uint32_t>(words[i]) : 0;
  };
  const uint64_t low = word(w) | word(w + 1) << 32;
  return shift == 0 ? low : low >> shift | word(w + 2) << (64 - shift);
}

// Element = an unsigned integer as wide as the mask's elements.
template <class Element, class Team>
D3D_INLINE void dense_mask_row(Team& team, const d3d_dense_mask_args& args, int64_t row) {
  const int64_t columns = args.num_columns;
  const int64_t context = larger<int64_t>(args.context_lengths[row / args.num_rows], 0);
  const int32_t* words = args.mask_bits + row * args.num_words;
  const auto visible = static_cast<Element>(args.visible), hidden = static_cast<Element>(args.hidden);
  Element* out = static_cast<Element*>(args.mask) + row * columns;

  const int64_t end = smaller(context, columns);
  for (int64_t c = team.rank(); c < end; c += team.size()) out[c] = visible;
  const int64_t bits = smaller(32 * args.num_words, columns - end);
  for (int64_t j = team.rank(); j < bits; j += team.size())
    out[end + j] = static_cast<uint32_t>(words[j / 32]) >> j % 32 & 1 ? visible : hidden;
  for (int64_t c = end + bits + team.rank(); c < columns; c += team.size()) out[c] = hidden;
}

struct PackedRequest {
  int64_t rows, context, columns;

  D3D_INLINE PackedRequest(const d3d_packed_mask_args& a, int64_t request) {
    const auto between = [](int64_t x, int64_t high) { return smaller(larger<int64_t>(x, 0), high); };
    rows = a.counts ? between(a.counts[request], a.num_rows) : a.num_rows;
    context = between(a.context_lengths[request], a.max_context);
    columns = context + rows;
  }

  D3D_INLINE int64_t bytes() const { return (rows * columns + 7) / 8; }
};

// One request's bytes, and its entry of byte_starts; the last request also clears what lies behind it.
template <class Team>
D3D_INLINE void packed_mask_request(Team& team, const d3d_packed_mask_args& args, int64_t request) {
  int64_t before = 0;
  for (int64_t b = team.rank(); b < request; b += team.size()) before += PackedRequest(args, b).bytes();
  before = team.reduce(before, [](int64_t a, int64_t b) { return a + b; });
  const PackedRequest own(args, request);
  const int64_t bytes = own.bytes(), all_bits = own.rows * own.columns;
  const bool is_last = request + 1 == args.num_requests;
  if (team.rank() == 0) {
    args.byte_starts[request] = static_cast<int32_t>(before);
    if (is_last) args.byte_starts[request + 1] = static_cast<int32_t>(before + bytes);
  }

  uint8_t* out = args.bits + before;
  const int32_t* masks = args.mask_bits + request * args.num_rows * args.num_words;
  const int64_t own_words = (own.rows + 31) / 32;  // of a mask: rows that do not exist are no columns
  // A rank's words of 64 bits, and where each begins; a step of all ranks is a step of rows and columns.
  const int64_t step = 64 * static_cast<int64_t>(team.size());
  int64_t at = 64 * static_cast<int64_t>(team.rank());
  if (at >= all_bits) at = all_bits;
  int64_t row = own.columns ? at / own.columns : 0, column = own.columns ? at % own.columns : 0;
  const int64_t row_step = own.columns ? step / own.columns : 0, column_step = step - row_step * own.columns;
  for (; at < all_bits; at += step) {
    uint64_t word = 0;
    int64_t r = row, c = column;
    for (int filled = 0; filled < 64 && r < own.rows; ++r, c = 0) {
      const int64_t left = own.columns - c;
      uint64_t piece;
      if (c >= own.context)
        piece = bits_from(masks + r * args.num_words, own_words, c - own.context);
      else if (own.context - c >= 64)
        piece = ~uint64_t{0};
      else
        piece = ~uint64_t{0} >> (64 - (own.context - c)) | bits_from(masks + r * args.num_words, own_words, 0)
                                                               << (own.context - c);
      if (left < 64) piece &= ~uint64_t{0} >> (64 - left);
      word |= piece << filled;
      filled += static_cast<int>(smaller<int64_t>(left, 64 - filled));
    }
    const int64_t byte = at / 8, count = smaller<int64_t>(bytes - byte, 8);
    for (int64_t i = 0; i < count; ++i) out[byte + i] = static_cast<uint8_t>(word >> 8 * i);
    row += row_step;
    column += column_step;
    if (column >= own.columns) {
      column -= own.columns;
      ++row;
    }
  }

  if (!is_last) return;
  const int64_t capacity = args.num_requests * ((args.num_rows * (args.max_context + args.num_rows) + 7) / 8);
  for (int64_t i = before + bytes + team.rank(); i < capacity; i += team.size()) args.bits[i] = 0;
}

D3D_NAMESPACE_END
