// A thread block on a CPU: one std::thread for each rank, so that a sanitizer watches the very bodies that
// the GPU runs. Packs and tiles are those of the CUDA team (csrc/cuda/team.cuh), and ranks divide the work
// alike.
//
// Ranks that wait at different barriers are undefined behaviour on a GPU. Here each barrier compares the
// places in the source from which its ranks came; a rank that has left waits in run_team, which is a place as
// well.
#pragma once

#include <atomic>
#include <barrier>
#include <source_location>
#include <thread>

#include "d3d/philox.h"
#include "d3d/row.h"
#include "memory.h"

D3D_NAMESPACE_BEGIN

class ThreadTeam {
 public:
  using Where = std::source_location;

  static constexpr int kLanes = 1;
  static constexpr int kTile = 4;
  static constexpr int kHeapLimit = 0;

  struct Shared {
    explicit Shared(int size) : barrier(size), slots(static_cast<size_t>(size)) {}

    struct alignas(64) Slot {
      unsigned char bytes[24];
      Where where[2];  // by turns: the next barrier's place is written while the last one's is still read
    };
    std::barrier<> barrier;
    std::vector<Slot> slots;
  };

  ThreadTeam(Shared& shared, int rank) : shared_(shared), rank_(rank) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(shared_.slots.size()); }

  void sync(Where where = Where::current()) {
    turn_ ^= 1;
    slot(rank_).where[turn_] = where;
    shared_.barrier.arrive_and_wait();
    const Where& other = slot((rank_ + 1) % size()).where[turn_];
    if (other.line() != where.line() || std::strcmp(other.file_name(), where.file_name()) != 0)
      proof::fail("ranks wait at different barriers: " + text(where) + " and " + text(other));
  }

  template <class T, class Op>
  T reduce(T value, Op op, Where where = Where::current()) {
    share(value, where);
    T total = shared_value<T>(0);
    for (int other = 1; other < size(); ++other) total = op(total, shared_value<T>(other));
    sync(where);  // the slots are free again
    return total;
  }

  template <class T>
  T scan(T value, Where where = Where::current()) {
    share(value, where);
    T before{};
    for (int other = 0; other < rank_; ++other) before += shared_value<T>(other);
    sync(where);
    return before;
  }

  void add(uint64_t& target, uint64_t value) { claim(target, value); }

  uint64_t claim(uint64_t& counter, uint64_t amount = 1) {
    return std::atomic_ref<uint64_t>(counter).fetch_add(amount, std::memory_order_relaxed);
  }

  bool arrives_last(uint32_t& counter, uint32_t count, Where where = Where::current()) {
    sync(where);  // all that the team wrote comes before its arrival
    int last = 0;
    if (rank_ == 0) {
      std::atomic_ref<uint32_t> arrived(counter);
      last = arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count;
      if (last) arrived.store(0, std::memory_order_relaxed);
    }
    return reduce(last, [](int a, int b) { return a | b; }, where);
  }

  static void draw(const Noise& noise, int32_t first, Tile<uint32_t, ThreadTeam>& words) {
    draw_block(noise, static_cast<uint32_t>(first) / 4, words.pack);
  }

 private:
  Shared::Slot& slot(int rank) { return shared_.slots[static_cast<size_t>(rank)]; }

  template <class T>
  void share(const T& value, Where where) {
    static_assert(sizeof(T) <= sizeof Shared::Slot::bytes && std::is_trivially_copyable_v<T>);
    std::memcpy(slot(rank_).bytes, &value, sizeof value);
    sync(where);
  }

  template <class T>
  T shared_value(int rank) {
    T value;
    std::memcpy(&value, slot(rank).bytes, sizeof value);
    return value;
  }

  static std::string text(const Where& where) {
    return std::string(where.file_name()) + ":" + std::to_string(where.line());
  }

  Shared& shared_;
  int rank_;
  int turn_ = 0;
};

// body(team) on `size` ranks.
template <class Body>
void run_team(int size, Body body) {
  ThreadTeam::Shared shared(size);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      ThreadTeam team(shared, rank);
      body(team);
      team.sync();
    });
}

// body(team, unit) by one team for each unit, all at the same time: the blocks of a grid.
template <class Body>
void run_teams(int64_t units, int size, Body body) {
  std::vector<std::jthread> teams;
  for (int64_t unit = 0; unit < units; ++unit)
    teams.emplace_back([&, unit] { run_team(size, [&](ThreadTeam& team) { body(team, unit); }); });
}

D3D_NAMESPACE_END
