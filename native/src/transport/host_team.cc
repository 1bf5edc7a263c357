#include "transport/host_team.hpp"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <string>

namespace clary {
namespace {

constexpr uint64_t kHeaderBytes = 65536;
constexpr uint64_t kControlBytes = 4096;
constexpr uint64_t kHugePage = 2u << 20;
constexpr uint64_t kAnnouncementOffset = 256;
constexpr uint64_t kAnnouncementStride = 128;
constexpr uint64_t kWindowOffset = 512;
constexpr uint64_t kWindowStride = 128;
static_assert(sizeof(Announcement) <= kAnnouncementStride && sizeof(Window) <= kWindowStride);

// Shared between processes, so without FUTEX_PRIVATE_FLAG.
long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, limit, nullptr, 0);
}

}  // namespace

uint64_t HostTeam::segmentBytes(int members, uint64_t slotBytes) {
  const uint64_t wanted = kHeaderBytes + static_cast<uint64_t>(members) * (kControlBytes + 3 * slotBytes);
  return (wanted + kHugePage - 1) / kHugePage * kHugePage;
}

HostTeam::HostTeam(int index, int members, int fd, uint64_t segmentBytes, uint64_t slotBytes)
    : index_(index), members_(members), slotBytes_(slotBytes) {
  if (members == 1) return;
  if (slotBytes < 4096 || slotBytes % 4096 != 0) {
    throw Failure(Code::kInvalid, -1,
                  "slot_bytes is " + std::to_string(slotBytes) + ": expected a positive multiple of 4096");
  }
  const uint64_t expected = HostTeam::segmentBytes(members, slotBytes);
  if (fd < 0 || segmentBytes != expected) {
    throw Failure(Code::kInvalid, -1,
                  "the shared segment has " + std::to_string(segmentBytes) + " bytes: " + std::to_string(members) +
                      " ranks on this host with slots of " + std::to_string(slotBytes) + " need " +
                      std::to_string(expected));
  }
  void* mapped = mmap(nullptr, segmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    throw Failure(Code::kSystem, -1,
                  "mmap of " + std::to_string(segmentBytes) + " bytes of shared memory: " + std::strerror(errno));
  }
  base_ = static_cast<std::byte*>(mapped);
  mappedBytes_ = segmentBytes;
  // Fewer page faults and TLB misses where the machine offers huge pages for shared memory; no harm where not.
  madvise(mapped, segmentBytes, MADV_HUGEPAGE);
  madvise(mapped, segmentBytes, MADV_DONTFORK);
}

HostTeam::~HostTeam() {
  if (base_ != nullptr) munmap(base_, mappedBytes_);
}

std::byte* HostTeam::control(int member) const {
  return base_ + kHeaderBytes + static_cast<uint64_t>(member) * kControlBytes;
}

HostTeam::Counter& HostTeam::counter(int member) const {
  // The segment is zeroed memory, and zero is a valid counter: nobody constructs it.
  return *std::launder(reinterpret_cast<Counter*>(control(member)));
}

Announcement& HostTeam::announcement(int member, uint64_t sequence) {
  return *std::launder(
      reinterpret_cast<Announcement*>(control(member) + kAnnouncementOffset + (sequence & 1) * kAnnouncementStride));
}

Window& HostTeam::window(int member, uint64_t sequence) {
  return *std::launder(reinterpret_cast<Window*>(control(member) + kWindowOffset + (sequence & 1) * kWindowStride));
}

std::byte* HostTeam::buffer(int member, Buffer which) {
  std::byte* slots = base_ + kHeaderBytes + static_cast<uint64_t>(members_) * kControlBytes +
                     static_cast<uint64_t>(member) * 3 * slotBytes_;
  switch (which) {
    case kSlot0:
      return slots;
    case kSlot1:
      return slots + slotBytes_;
    case kOutbox0:
      return slots + 2 * slotBytes_;
    case kOutbox1:
      return slots + 2 * slotBytes_ + outboxBytes();
  }
  return nullptr;
}

Step HostTeam::publish() {
  ++step_;
  if (members_ == 1) return step_;
  if (step_ % kStepsBetweenLooks == 0) moveUpStale();  // [Note: stale steps]
  Counter& own = counter(index_);
  // Sequentially consistent, as in `sleep`: either the sleeper sees the new step or we see the sleeper.
  own.step.store(step_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) != 0) {
    wakes_.fetch_add(1, std::memory_order_relaxed);
    futex(&own.step, FUTEX_WAKE, INT_MAX, nullptr);
  }
  return step_;
}

void HostTeam::moveUpStale() {
  for (Step& freeAt : freeAt_) {
    if (step_ - freeAt > kMostStepsBehind && hasReached(step_, freeAt)) freeAt = step_ - kMostStepsBehind;
  }
}

void HostTeam::startAt(Step step) {
  step_ = step;
  if (members_ > 1) counter(index_).step.store(step, std::memory_order_seq_cst);
}

Step HostTeam::published(int member) const {
  if (member == index_) return step_;
  return counter(member).step.load(std::memory_order_acquire);
}

bool HostTeam::allReached(Step step) const {
  for (int member = 0; member < members_; ++member) {
    if (!hasReached(published(member), step)) return false;
  }
  return true;
}

int HostTeam::slowest() const {
  int slowestMember = index_;
  for (int member = 0; member < members_; ++member) {
    if (!hasReached(published(member), published(slowestMember))) slowestMember = member;
  }
  return slowestMember;
}

void HostTeam::sleep(int member, Step seen, Duration limit) {
  Counter& other = counter(member);
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count();
  if (nanoseconds <= 0) return;
  const timespec relative{static_cast<time_t>(nanoseconds / 1000000000), static_cast<long>(nanoseconds % 1000000000)};
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  other.sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (other.step.load(std::memory_order_seq_cst) == seen) futex(&other.step, FUTEX_WAIT, seen, &relative);
  other.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void HostTeam::wakeAll() {
  for (int member = 0; member < members_ && members_ > 1; ++member) {
    futex(&counter(member).step, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

}  // namespace clary
