// The noise at the ends of its range, where random words never lead, and the bound that lets a scan skip
// words.
#include "d3d/philox.h"
#include "inputs.h"

namespace {

using namespace d3d;
using namespace proof;

constexpr int kLanes = 8;
using Words = Vec<uint32_t, kLanes>;

// u strictly inside (0, 1), G finite and falling with the word, below the maximum that scans count on; packs
// as single lanes.
void ends_of_the_range() {
  std::vector<uint32_t> words;
  for (uint32_t i = 0; i < 600; ++i)
    for (const uint32_t at : {0u, 0x7FFFFF00u, 0xFFFFFDA8u}) words.push_back(at + i);
  std::sort(words.begin(), words.end());
  float last = kGumbelMax;
  for (const uint32_t word : words) {
    const float u = uniform(word), g = gumbel(word);
    expect(u > 0 && u < 1, "u of word " + std::to_string(word) + " is " + std::to_string(u));
    expect(std::isfinite(g) && g < kGumbelMax && g > -2.83f, "G of word " + std::to_string(word));
    expect(g <= last, "G rises at word " + std::to_string(word));
    last = g;
  }
  for (size_t i = 0; i + kLanes <= words.size(); i += kLanes) {
    float lanes[kLanes];
    store(lanes, gumbel(Words::load(words.data() + i)));
    for (size_t j = 0; j < kLanes; ++j)
      expect(lanes[j] == gumbel(words[i + j]), "a pack differs from its lanes");
  }
}

// No word above the limit may lift the value to the bar.
template <class Real>
void bound(Random& random) {
  for (int i = 0; i < 200'000; ++i) {
    const Real value = static_cast<Real>(random.real(-50, 50)) * (random.chance(0.1) ? Real(1e4) : Real(1));
    const Real bar = value + static_cast<Real>(random.real(-4, 24));
    const uint32_t limit = word_limit(value, bar);
    if (limit == 0xFFFFFFFFu) continue;
    const uint32_t above = limit + 1 + static_cast<uint32_t>(random.below(random.chance(0.5) ? 2 : 1 << 20));
    if (above <= limit) continue;  // wrapped
    expect(value + static_cast<Real>(gumbel(above)) < bar,
           "word_limit(" + std::to_string(value) + ", " + std::to_string(bar) + ") leaves out a winner");
  }
}

// A block of words depends on every bit of the seed, the position, the block and the purpose.
void every_bit_counts() {
  uint32_t plain[4];
  draw_block(Noise(0, 0, Purpose::kGumbel), 0, plain);
  for (int bit = 0; bit < 64; ++bit)
    for (int which = 0; which < 3; ++which) {
      const int64_t flipped = static_cast<int64_t>(1ull << bit);
      if (which == 2 && bit >= 32) continue;
      uint32_t words[4];
      draw_block(Noise(which == 0 ? flipped : 0, which == 1 ? flipped : 0, Purpose::kGumbel),
                 which == 2 ? static_cast<uint32_t>(flipped) : 0, words);
      for (int i = 0; i < 4; ++i)
        expect(words[i] != plain[i], "bit " + std::to_string(bit) + " changes nothing");
    }
}

}  // namespace

int main() {
  Random random(1);
  ends_of_the_range();
  bound<float>(random);
  bound<double>(random);
  every_bit_counts();
}
