// A pool whose helpers are a bonus: the caller takes tasks too, and never waits for a helper that has not
// begun. So a call costs at most a wake-up more than running alone, and a process that has lost its helpers
// to fork() still works. The pool grows to what was asked for, is never torn down, and serves callers in
// order.
#include "parallel.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
  #include <pthread.h>
#endif

namespace d3d::cpu {
namespace {

struct Job {
  void (*run)(void*, int64_t);
  void* context;
  int64_t count;
  int places;      // helpers that may still join; guarded by the pool's mutex
  int inside = 0;  // helpers at work; guarded by the pool's mutex
  std::atomic<int64_t> next{0};

  void work() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) run(context, i);
  }
};

class Pool {
 public:
  void share(Job& job) {
    {
      std::lock_guard lock(mutex_);
      grow(job.places);
      jobs_.push_back(&job);
    }
    if (job.count > 2)
      wake_.notify_all();
    else
      wake_.notify_one();
    job.work();
    std::unique_lock lock(mutex_);
    std::erase(jobs_, &job);
    done_.wait(lock, [&] { return job.inside == 0; });
  }

 private:
  void grow(int helpers) {
    try {
      for (; helpers_ < helpers; ++helpers_) std::thread([this] { help(); }).detach();
    } catch (const std::system_error&) {
      // No more threads to be had: the caller does the work.
    }
  }

  [[noreturn]] void help() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return !jobs_.empty(); });
      Job& job = *jobs_.front();
      ++job.inside;
      if (--job.places == 0) jobs_.pop_front();
      lock.unlock();
      job.work();
      lock.lock();
      std::erase(jobs_, &job);  // nothing is left in it
      if (--job.inside == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Job*> jobs_;  // with free places
  int helpers_ = 0;
};

std::atomic<Pool*> shared_pool{nullptr};

Pool& pool() {
  static const bool created = [] {
    shared_pool = new Pool;
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork(nullptr, nullptr, [] { shared_pool = new Pool; });
#endif
    return true;
  }();
  static_cast<void>(created);
  return *shared_pool;
}

}  // namespace

void run_shared(int64_t count, int num_threads, void (*run)(void*, int64_t), void* context) {
  const int64_t helpers = num_threads - 1 < count - 1 ? num_threads - 1 : count - 1;
  Job job{run, context, count, static_cast<int>(helpers)};
  pool().share(job);
}

}  // namespace d3d::cpu
