// Arguments that notice what a call does to them: outputs are poisoned and lie between canaries, inputs end
// where their block of memory ends, and both are compared byte for byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace proof {

using Bytes = std::vector<unsigned char>;

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::fflush(stderr);
  std::_Exit(1);  // other threads may be waiting for each other
}

inline void expect(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

// What one call reads and writes.
class Memory {
 public:
  template <class T>
  T* input(const std::vector<T>& values) {
    return static_cast<T*>(add(Use::kInput, values.data(), values.size() * sizeof(T)));
  }

  template <class T>
  T* output(int64_t count) {
    return static_cast<T*>(add(Use::kOutput, nullptr, count * sizeof(T)));
  }

  // Read and written: part of the result, and as it was before each run.
  void* in_place(const Bytes& values) { return add(Use::kInPlace, values.data(), values.size()); }

  // Before a run. Two runs with different poison agree only if they write everything.
  void reset(unsigned char poison) {
    for (Block& block : blocks_) {
      if (block.use == Use::kOutput) std::memset(block.data(), poison, block.size);
      if (block.use == Use::kInPlace) std::copy(block.before.begin(), block.before.end(), block.data());
    }
  }

  // After it.
  Bytes result(const std::string& name) const {
    Bytes found;
    for (const Block& block : blocks_) {
      if (block.use == Use::kInput) {
        expect(std::equal(block.before.begin(), block.before.end(), block.data()),
               name + ": changed an input");
        continue;
      }
      for (size_t i = 0; i < kGuard; ++i)
        expect(block.data()[-1 - static_cast<ptrdiff_t>(i)] == kCanary &&
                   block.data()[block.size + i] == kCanary,
               name + ": wrote outside an output");
      found.insert(found.end(), block.data(), block.data() + block.size);
    }
    return found;
  }

 private:
  enum class Use { kInput, kOutput, kInPlace };
  static constexpr size_t kGuard = 64;
  static constexpr unsigned char kCanary = 0xA5;

  struct Block {
    Use use;
    size_t guard, size;
    std::unique_ptr<unsigned char[]> memory;
    Bytes before;

    unsigned char* data() const { return memory.get() + guard; }
  };

  void* add(Use use, const void* values, size_t size) {
    // A sanitizer sees the first byte behind an input: it has no guards.
    const size_t guard = use == Use::kInput ? 0 : kGuard;
    const auto* bytes = static_cast<const unsigned char*>(values);
    Block block{use, guard, size, std::make_unique<unsigned char[]>(size + 2 * guard),
                values ? Bytes(bytes, bytes + size) : Bytes()};
    std::memset(block.memory.get(), kCanary, size + 2 * guard);
    std::copy(block.before.begin(), block.before.end(), block.data());
    blocks_.push_back(std::move(block));
    return blocks_.back().data();
  }

  std::deque<Block> blocks_;
};

// One call of an op, named for messages.
template <class Args>
struct Problem {
  std::string name;
  Memory memory;
  Args args{};

  template <class Run>
  Bytes run(Run run, unsigned char poison) {
    memory.reset(poison);
    run(args);
    return memory.result(name);
  }
};

}  // namespace proof
