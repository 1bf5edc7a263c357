// The ranks of one host: shared memory, one counter each, and buffers that others read.
//
// Each member counts the phases that it has finished, and publishes the count. All members of a group go through the
// same phases in the same order, so "member m has published step s" says exactly what m has written and read so far;
// it is the only synchronisation there is. A buffer remembers the step by which all members have read it.
//
// Segment: one page of header, then a page of control and three slots a member. Slots 0 and 1 hold what a member offers
// to others; the third is its outbox, in two halves, for what it has reduced.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/types.hpp"

namespace clary {

// What a member says it is doing; compared by the others before they touch its data.
struct Announcement {
  uint64_t sequence = 0;
  int32_t kind = 0;
  int32_t dtype = 0;
  int32_t op = 0;
  int32_t root = 0;
  uint64_t count = 0;
  uint64_t extent = 0;  // all_to_all: the largest chunk between members of this host, in bytes; not compared

  bool matches(const Announcement& other) const {
    return sequence == other.sequence && kind == other.kind && dtype == other.dtype && op == other.op &&
           root == other.root && count == other.count;
  }
};

// Where a member's input of an operation lies, for others that read it (peer_memory).
struct Window {
  int64_t pid = 0;
  uint64_t cookie = 0;
  uint64_t cookieAt = 0;
  uint64_t input = 0;
  uint32_t isBlind = 0;  // whether this member could not read all others
  uint32_t way = 0;      // that this member goes once it has seen all flags
};

using Step = uint32_t;

// Whether `seen` is at or past `wanted`; steps wrap around.
inline bool hasReached(Step seen, Step wanted) { return static_cast<int32_t>(seen - wanted) >= 0; }

class HostTeam {
 public:
  // A place that this member writes and others read.
  enum Buffer { kSlot0 = 0, kSlot1 = 1, kOutbox0 = 2, kOutbox1 = 3 };

  static uint64_t segmentBytes(int members, uint64_t slotBytes);

  // Maps the segment and closes nothing: the descriptor stays the caller's. fd -1 for a member that is alone.
  HostTeam(int index, int members, int fd, uint64_t segmentBytes, uint64_t slotBytes);
  ~HostTeam();
  HostTeam(const HostTeam&) = delete;
  HostTeam& operator=(const HostTeam&) = delete;

  int index() const { return index_; }
  int members() const { return members_; }
  uint64_t slotBytes() const { return slotBytes_; }
  uint64_t outboxBytes() const { return slotBytes_ / 2; }

  std::byte* buffer(int member, Buffer which);
  Announcement& announcement(int member, uint64_t sequence);  // two a member, by parity of the sequence number
  Window& window(int member, uint64_t sequence);              // likewise

  Step step() const { return step_; }  // the last that this member published
  Step publish();                      // one more phase is finished; returns its number
  // For tests: go on as if this member had finished so many phases. Before anyone waits.
  void startAt(Step step);
  Step published(int member) const;
  bool allReached(Step step) const;
  int slowest() const;  // the member that has published least

  // Sleep until `member` publishes something new, someone calls wakeAll, or `limit` passes. May return early.
  void sleep(int member, Step seen, Duration limit);
  void wakeAll();

  // The step by which all members have finished reading this member's buffer.
  Step freeAt(Buffer which) const { return freeAt_[which]; }
  void setFreeAt(Buffer which, Step step) { freeAt_[which] = step; }
  // Slots and outbox halves are used in turn.
  Buffer nextSlot() { return static_cast<Buffer>(slotUses_++ & 1); }
  bool isNextSlotFree() const { return members_ == 1 || allReached(freeAt_[slotUses_ & 1]); }
  Buffer nextOutbox() { return static_cast<Buffer>(kOutbox0 + (outboxUses_++ & 1)); }

  uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }
  uint64_t wakes() const { return wakes_.load(std::memory_order_relaxed); }

 private:
  struct alignas(128) Counter {
    std::atomic<uint32_t> step;
    std::atomic<uint32_t> sleepers;
  };
  Counter& counter(int member) const;
  std::byte* control(int member) const;
  // [Note: stale steps] A buffer that is long not used keeps a step that falls behind by half of all steps in the end,
  // and then looks as if it were still to come. So every kStepsBetweenLooks steps what lies far behind is moved up; to
  // where all members have long been, as they are never more than an operation apart.
  void moveUpStale();

  static constexpr Step kStepsBetweenLooks = Step{1} << 29;
  static constexpr Step kMostStepsBehind = Step{1} << 30;

  int index_;
  int members_;
  uint64_t slotBytes_;
  std::byte* base_ = nullptr;
  uint64_t mappedBytes_ = 0;
  Step step_ = 0;
  Step freeAt_[4] = {0, 0, 0, 0};
  uint32_t slotUses_ = 0;
  uint32_t outboxUses_ = 0;
  std::atomic<uint64_t> sleeps_{0};
  std::atomic<uint64_t> wakes_{0};
};

}  // namespace clary
