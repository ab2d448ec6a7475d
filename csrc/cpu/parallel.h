// Work sharing among a few threads that wait for it.
#pragma once

#include <cstdint>

namespace d3d::cpu {

// Calls task(i) once for each i in [0, count), on this thread and on at most num_threads - 1 helpers. Tasks
// must not throw. Several threads may call at once; each gets what helpers are free.
template <class Task>
void parallel_for(int64_t count, int num_threads, Task task);

void run_shared(int64_t count, int num_threads, void (*run)(void* context, int64_t i), void* context);

template <class Task>
void parallel_for(int64_t count, int num_threads, Task task) {
  if (num_threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) task(i);
  } else {
    run_shared(
        count, num_threads, [](void* context, int64_t i) { (*static_cast<Task*>(context))(i); }, &task);
  }
}

}  // namespace d3d::cpu
