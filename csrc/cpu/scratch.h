// Scratch memory of a thread, kept from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace d3d::cpu {

// Zero when it is made larger, otherwise as it was left.
class Buffer {
 public:
  template <class T>
  T* reserve(size_t count) {
    const size_t bytes = count * sizeof(T);
    if (bytes > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(new (std::nothrow) std::byte[bytes]());  // aligned for every type used here
      if (!memory_) return nullptr;
      size_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t size_ = 0;
};

}  // namespace d3d::cpu
