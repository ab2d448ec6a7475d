// Random and adversarial inputs, the same in every run.
#pragma once

#include <cmath>
#include <limits>

#include "d3d.h"
#include "memory.h"

namespace proof {

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }

  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  float real(float low, float high) {
    return low + (high - low) * static_cast<float>(bits() >> 40) * 0x1p-24f;
  }
  bool chance(double p) { return static_cast<double>(bits() >> 11) * 0x1p-53 < p; }

 private:
  uint64_t state_;
};

template <class T, class Draw>
std::vector<T> list(int64_t count, Draw draw) {
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = static_cast<T>(draw());
  return values;
}

// ---- rows of logits ----

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kRowKinds = 9;

inline float logit(Random& random, int kind) {
  const float x = random.real(-3, 3) + random.real(-3, 3);
  switch (kind % kRowKinds) {
    case 0:
      return x;
    case 1:
      return std::round(x);  // ties
    case 2:
      return random.chance(0.7) ? -kInfinity : x;
    case 3:
      return random.chance(0.2) ? kNaN : 0.1f * x;
    case 4:
      return random.chance(0.1) ? kInfinity : 1e30f * x;
    case 5:
      return random.chance(0.5) ? 1.0f : 1.0f + 0x1p-23f;  // neighbours
    case 6:
      return random.chance(0.5) ? 0.0f : -0.0f;
    case 7: {
      const auto bits = static_cast<uint32_t>(random.bits());  // subnormals, NaN, whatever there is
      float any;
      std::memcpy(&any, &bits, sizeof any);
      return any;
    }
    default:
      return random.chance(0.5) ? -kInfinity : kNaN;  // nothing to choose from
  }
}

// Nearest representable towards zero; NaN and infinities stay what they are.
inline uint16_t to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000u;
  if (x != x) return static_cast<uint16_t>(sign | 0x7E00u);
  const int exponent = static_cast<int>(bits >> 23 & 0xFFu) - 112;
  if (exponent >= 31) return static_cast<uint16_t>(sign | 0x7C00u);
  const uint32_t fraction = bits & 0x7FFFFFu;
  if (exponent > 0)
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 10 | fraction >> 13);
  return exponent < -10 ? static_cast<uint16_t>(sign)
                        : static_cast<uint16_t>(sign | (fraction | 0x800000u) >> (14 - exponent));
}

inline Bytes stored(float x, int32_t dtype) {
  const auto bytes_of = [](auto value) {
    Bytes bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  };
  switch (dtype) {
    case D3D_F32:
      return bytes_of(x);
    case D3D_BF16: {
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      return bytes_of(static_cast<uint16_t>(bits >> 16 | (x != x)));  // a NaN must not lose its last bit
    }
    case D3D_F16:
      return bytes_of(to_half(x));
    default:
      return bytes_of(static_cast<double>(x));
  }
}

// Rows of all kinds, `stride` elements apart. What lies between two rows would win; the last row ends where
// the memory ends.
inline void* logits(Memory& memory, Random& random, int32_t dtype, int64_t rows, int32_t vocab,
                    int64_t stride) {
  Bytes bytes;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t v = 0; v < (row + 1 < rows ? stride : vocab); ++v) {
      const Bytes element = stored(v < vocab ? logit(random, static_cast<int>(row)) : 1e4f, dtype);
      bytes.insert(bytes.end(), element.begin(), element.end());
    }
  return memory.input(bytes);
}

// ---- parameters ----

inline d3d_sampling sampling(Memory& memory, Random& random, int64_t requests) {
  struct Parameters {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
  };
  static constexpr Parameters kAll[] = {{0, 0, 1, 0},           {1, 0, 1, 0},
                                        {0.7f, 5, 1, 0},        {1, 0, 0.9f, 0},
                                        {1.3f, 0, 1, 0.1f},     {0.8f, 20, 0.8f, 0.05f},
                                        {1e-8f, 3, 0.5f, 0.5f}, {1e-4f, 0, 0.9f, 0},
                                        {2, 1, 1, 0},           {1, 0, 0, 0},
                                        {1, 0, 1, 2},           {-1, -1, 2, -1},
                                        {kNaN, 3, kNaN, kNaN},  {5, 1 << 30, 0.99f, 0.01f}};
  std::vector<float> temperature, top_p, min_p;
  std::vector<int32_t> top_k;
  const int64_t first = random.below(std::size(kAll));
  for (int64_t b = 0; b < requests; ++b) {
    const Parameters& p = kAll[(first + b) % std::size(kAll)];
    temperature.push_back(p.temperature);
    top_k.push_back(p.top_k);
    top_p.push_back(p.top_p);
    min_p.push_back(p.min_p);
  }
  return {requests,
          memory.input(temperature),
          memory.input(top_k),
          memory.input(top_p),
          memory.input(min_p),
          memory.input(list<int64_t>(requests, [&] { return random.bits(); }))};
}

inline int64_t* positions(Memory& memory, Random& random, int64_t rows) {
  return memory.input(
      list<int64_t>(rows, [&] { return random.below(40'000) + (random.chance(0.3) ? 1LL << 33 : 0); }));
}

// Lists with padding, foreign and repeated ids; odd strides.
inline d3d_penalties penalties(Memory& memory, Random& random, int64_t requests, int32_t vocab) {
  const auto ids = [&](int64_t length, int64_t stride) -> d3d_id_lists {
    return {memory.input(list<int64_t>(std::max<int64_t>(0, (requests - 1) * stride + length),
                                       [&] { return random.between(-2, vocab + 1); })),
            stride, length};
  };
  const auto reals = [&](float low, float high) {
    return memory.input(list<float>(requests, [&] { return random.real(low, high); }));
  };
  d3d_penalties p{};
  p.prompt = ids(9, 9);
  p.output = ids(11, 14);
  p.repetition = reals(0.7f, 1.6f);
  p.frequency = reals(-0.5f, 1);
  p.presence = reals(-0.5f, 1);
  p.bias = ids(7, 8);
  p.bias_values = memory.input(
      list<float>(8 * requests, [&] { return random.chance(0.1) ? -kInfinity : random.real(-3, 3); }));
  p.bias_values_stride = 8;
  p.allowed_stride = (vocab + 31) / 32 + 1;
  p.allowed_bits =
      memory.input(list<int32_t>(p.allowed_stride * requests, [&] { return random.bits() | random.bits(); }));
  return p;
}

}  // namespace proof
