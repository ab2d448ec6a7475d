// The CPU's team: one thread, tiles of 64 tokens in SIMD packs.
#pragma once

#include "d3d/philox.h"
#include "d3d/row.h"

D3D_NAMESPACE_BEGIN

struct CpuTeam : SoloTeam {
  static constexpr int kLanes = 2 * kVectorBytes / 4;
  static constexpr int kTile = 64;
  static constexpr int kHeapLimit = 256;

  D3D_INLINE static void draw(const Noise& noise, int32_t first, Tile<uint32_t, CpuTeam>& words) {
    constexpr int kBlocks =
        kVectorBytes / 4;  // in two vectors of 64-bit lanes: sixteen would not fit registers
    using Wide = Vec<uint64_t, kBlocks>;
    Wide index;
    for (int i = 0; i < kBlocks; ++i) index.part[i / (kBlocks / 2)][i % (kBlocks / 2)] = i;
    uint64_t pairs[kTile / 2];
    for (int block = 0; block < kTile / 4; block += kBlocks) {
      const Counter<Wide> c =
          philox<Wide>({Wide::splat(noise.position[0]), Wide::splat(noise.position[1]),
                        index + static_cast<uint64_t>(first / 4 + block), Wide::splat(noise.purpose)},
                       noise.key[0], noise.key[1]);
      // Back into token order: lane i holds words 4 i .. 4 i + 3.
      constexpr uint64_t kLow = 0xFFFFFFFFu;
      const Wide even = (c.c0 & kLow) | (c.c1 << 32), odd = (c.c2 & kLow) | (c.c3 << 32);
      uint64_t evens[kBlocks], odds[kBlocks];
      store(evens, even);
      store(odds, odd);
      for (int i = 0; i < kBlocks; ++i) {
        pairs[2 * (block + i)] = evens[i];
        pairs[2 * (block + i) + 1] = odds[i];
      }
    }
    memcpy(&words, pairs, sizeof pairs);  // little-endian: the low word comes first
  }
};

D3D_NAMESPACE_END
