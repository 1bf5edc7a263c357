// Working memory that an algorithm uses again and again: grows, is never cleared, never shrinks.
//
// A std::vector would clear what the network overwrites, and fresh memory costs a fault a page in every operation.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace clary {

class Room {
 public:
  // At least `bytes`, aligned for vectors. What was there before is lost when it grows. Throws std::bad_alloc.
  std::byte* atLeast(size_t bytes) {
    if (bytes > capacity_) {
      capacity_ = 0;
      memory_.reset();
      const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
      if (memory_ == nullptr) throw std::bad_alloc();
      capacity_ = rounded;
    }
    return memory_.get();
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t capacity_ = 0;
};

}  // namespace clary
