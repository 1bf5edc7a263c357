// The last operations of a group, in memory that another process reads whenever it likes: also when this one is stuck,
// or was killed. The layout is that of src/clary/contract/collective_records.py.
//
// A row bears its number at both ends and is written from its beginning to its end, so that a reader who looks twice
// knows which rows are whole. Operation N is at N % rows.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/operation.hpp"

namespace clary {

class CallRecord {
 public:
  // `rows` is aligned to 8 bytes and outlives the communicator.
  void writeTo(void* rows, int32_t count) {
    rows_ = static_cast<Row*>(rows);
    count_ = static_cast<uint64_t>(count);
  }

  // Both are called by one thread at a time, `begin` in the order of sequence numbers.
  void begin(const Operation& operation, TimePoint now, bool isAwaited) {
    if (rows_ == nullptr) return;
    Row& row = at(operation.sequence);
    put(row.number, static_cast<int64_t>(operation.sequence));
    put(row.startedNs, nanoseconds(now));
    put(row.finishedNs, int64_t{0});
    put(row.count, static_cast<int64_t>(operation.count));
    put(row.peer, int32_t{-1});
    put(row.operation, static_cast<uint8_t>(static_cast<int>(operation.kind) + 1));
    const bool hasType = operation.kind != Collective::kBarrier;
    put(row.dtype, static_cast<uint8_t>(hasType ? static_cast<int>(operation.dtype) + 1 : 0));
    put(row.state, isAwaited ? kEntered : kUnderWay);
    put(row.again, static_cast<int64_t>(operation.sequence));
  }

  // Of an operation whose row another has taken by now, nothing is written.
  void end(uint64_t sequence, bool isGood) {
    if (rows_ == nullptr) return;
    Row& row = at(sequence);
    if (std::atomic_ref(row.number).load(std::memory_order_relaxed) != static_cast<int64_t>(sequence)) return;
    put(row.finishedNs, nanoseconds(Clock::now()));
    put(row.state, isGood ? kFinished : kFailed);
  }

 private:
  static constexpr uint8_t kEntered = 0;
  static constexpr uint8_t kUnderWay = 1;
  static constexpr uint8_t kFinished = 3;
  static constexpr uint8_t kFailed = 4;

  struct Row {
    int64_t number;
    int64_t startedNs;  // of CLOCK_MONOTONIC, which std::chrono::steady_clock is
    int64_t finishedNs;
    int64_t count;
    int32_t peer;
    uint8_t operation;
    uint8_t dtype;
    uint8_t state;
    uint8_t unused;
    int64_t again;
  };
  static_assert(sizeof(Row) == 48);

  Row& at(uint64_t sequence) const { return rows_[sequence % count_]; }
  static int64_t nanoseconds(TimePoint time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  }
  // Released, so that readers see stores in their order; the thread sanitizer knows no fences.
  template <typename Value>
  static void put(Value& place, Value value) {
    std::atomic_ref(place).store(value, std::memory_order_release);
  }

  Row* rows_ = nullptr;
  uint64_t count_ = 1;
};

}  // namespace clary
