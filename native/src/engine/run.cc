#include "engine/run.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "reduce/kernels.hpp"

namespace clary {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Bad news wakes all sleepers; this bounds what a wake-up that was lost between look and sleep can cost.
constexpr Duration kLongestSleep = milliseconds(50);
// How long a rank that waits for its host stays with its lanes before it looks again.
constexpr Duration kLaneTurn = microseconds(100);
// A broken lane, or a peer that leaves, is often only the first sign; the cause is on its way on the side channel.
constexpr Duration kPatienceForCause = milliseconds(250);
constexpr Duration kNewsLook = milliseconds(2);
// How long a peer may take to say what it is doing. Its side channel answers even while it computes.
constexpr Duration kAnswerLimit = milliseconds(300);
// A few microseconds of looking before the first system call: what ranks that run side by side need.
constexpr int kLooks = 64;
constexpr size_t kBlockBytes = 16384;
// Of another rank's memory that is read in one piece: a millisecond, between two looks at bad news.
constexpr size_t kReadBytes = 4u << 20;
// Pieces that are long enough to tell fast from slow.
constexpr size_t kLeastTimedBytes = 8192;
// Buffers of this size and more come from memory and go back there.
constexpr uint64_t kLargeBytes = 2u << 20;
// Results of operations of this size gain by being written past the cache: reduce_scatter of two ranks of a Zen 3 takes
// a tenth less time from here on, and a fifth more at half of it.
constexpr uint64_t kColdBytes = 8u << 20;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether a reduction writes what nobody reads soon: large results for the caller, not what this rank sends on. A
// source that is overwritten is in the cache already.
bool isColdResult(const Operation& operation, int ranks, const void* destination, const void* const* sources,
                  int numSources) {
  if (operation.bytes(ranks) < kColdBytes) return false;
  const auto offset = reinterpret_cast<uintptr_t>(destination) - reinterpret_cast<uintptr_t>(operation.output);
  return offset < operation.count * operation.elementSize() &&
         std::find(sources, sources + numSources, destination) == sources + numSources;
}

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", value);
  return text;
}

}  // namespace

Run::Run(const Operation& operation, Machinery& machinery, Duration patience)
    : operation_(operation),
      machinery_(machinery),
      patience_(patience),
      isLarge_(operation.bytes(machinery.layout->size) >= kLargeBytes),
      began_(Clock::now()) {}

Step Run::announce() {
  HostTeam& shared = team();
  if (machinery_.headers != nullptr) {
    try {
      machinery_.headers->begin(operation_);
    } catch (const LaneBroken& broken) {
      failLane(broken);
    }
  }
  if (shared.members() == 1) return shared.publish();
  const uint64_t extent = shared.announcement(shared.index(), operation_.sequence).extent;
  Announcement own = operation_.announcement();
  own.extent = extent;
  shared.announcement(shared.index(), operation_.sequence) = own;
  return shared.publish();
}

void Run::comeTogether(Step step) {
  if (team().members() == 1) {
    checkNews();
    return;
  }
  awaitHost(step);
  compareAnnouncements();
}

bool Run::hasMet(Step step) {
  const HostTeam& shared = team();
  for (int look = 0; look < kLooks; ++look) {
    if (shared.allReached(step)) return true;
    relax();
  }
  const TimePoint patient = Clock::now() + patience_;
  while (!shared.allReached(step)) {
    if (Clock::now() >= patient) return false;
    sched_yield();
  }
  return true;
}

void Run::compareAnnouncements() {
  HostTeam& shared = team();
  const Announcement own = operation_.announcement();
  for (int member = 0; member < shared.members(); ++member) {
    const Announcement& other = shared.announcement(member, operation_.sequence);
    if (own.matches(other)) continue;
    const int peer = layout().localRanks()[member];
    throw Failure(Code::kOrderMismatch, peer,
                  layout().describe(layout().rank) + " called " + describe(own) + " while " + layout().describe(peer) +
                      " called " + describe(other) + "; every rank must call the same collectives in the same order");
  }
}

void Run::awaitHost(Step step) {
  HostTeam& shared = team();
  if (shared.members() == 1 || shared.allReached(step)) return;
  for (int look = 0; look < kLooks; ++look) {
    relax();
    if (shared.allReached(step)) return;
  }
  // A processor that nobody else wants stays awake for us; one that a peer or another program waits for is given up.
  const bool hasLanes = machinery_.lanes != nullptr;
  const TimePoint patient = Clock::now() + patience_;
  while (Clock::now() < patient) {
    sched_yield();
    if (shared.allReached(step)) return;
    if (hasLanes && lanes().hasPending()) moveLanes(Duration::zero());
  }
  for (;;) {
    if (shared.allReached(step)) {
      machinery_.waitsFor->store(-1, std::memory_order_relaxed);
      return;
    }
    const int member = shared.slowest();
    const Step seen = shared.published(member);
    // That one has come meanwhile; another may be the slowest now.
    if (hasReached(seen, step)) continue;
    checkNews();
    const int peer = layout().localRanks()[member];
    // What it published before it left is visible once its leaving is.
    if (machinery_.hasLeft(peer) && !hasReached(shared.published(member), step)) {
      hearCause(kPatienceForCause);
      throw Failure(Code::kPeerLost, peer, layout().describe(peer) + " has left the group");
    }
    const TimePoint now = Clock::now();
    if (now >= operation_.deadline) timeOut(peer);
    machinery_.waitsFor->store(peer, std::memory_order_relaxed);
    if (hasLanes && lanes().hasPending()) {
      moveLanes(kLaneTurn);
    } else {
      shared.sleep(member, seen, kLongestSleep);
    }
  }
}

HostTeam::Buffer Run::takeSlot() {
  const HostTeam::Buffer slot = team().nextSlot();
  awaitHost(team().freeAt(slot));
  return slot;
}

HostTeam::Buffer Run::takeOutbox() {
  const HostTeam::Buffer outbox = team().nextOutbox();
  awaitHost(team().freeAt(outbox));
  return outbox;
}

template <typename Done>
void Run::awaitLane(int peer, Done done) {
  if (done()) return;
  // As in awaitHost: to sleep and be woken takes longer than most messages are under way.
  const TimePoint patient = Clock::now() + patience_;
  while (Clock::now() < patient) {
    moveLanes(Duration::zero());
    if (done()) return;
    sched_yield();
  }
  machinery_.waitsFor->store(peer, std::memory_order_relaxed);
  while (!done()) {
    checkNews();
    if (Clock::now() >= operation_.deadline) timeOut(peer);
    moveLanes(kLongestSleep);
  }
  machinery_.waitsFor->store(-1, std::memory_order_relaxed);
}

void Run::awaitReceived(int peer, LaneSet::Position position) {
  awaitLane(peer, [&] { return lanes().isReceived(peer, position); });
  machinery_.headers->verify();
}

void Run::awaitSent(int peer, LaneSet::Position position) {
  awaitLane(peer, [&] {
    if (lanes().isSent(peer, position)) return true;
    lanes().checkSends(peer);
    return false;
  });
}

void Run::moveLanes(Duration limit) {
  try {
    lanes().progress(limit);
  } catch (const LaneBroken& broken) {
    failLane(broken);
  }
}

void Run::failLane(const LaneBroken& broken) {
  hearCause(kPatienceForCause);
  throw Failure(Code::kPeerLost, broken.peer, layout().describe(broken.peer) + " is lost: " + broken.what());
}

void Run::hearCause(Duration patience) {
  const TimePoint until = Clock::now() + patience;
  while (Clock::now() < until) {
    checkNews();
    std::this_thread::sleep_for(kNewsLook);
  }
}

void Run::checkNews() {
  if (machinery_.hasBadNews->load(std::memory_order_acquire)) machinery_.raiseBadNews();
}

void Run::timeOut(int peer) {
  const std::string waited = "timeout after " + seconds(elapsedSeconds()) + " of waiting for ";
  std::string path;
  std::vector<bool> isAsked(layout().size, false);
  for (int suspect = peer;;) {
    checkNews();
    path += (path.empty() ? "" : ", which waits for ") + layout().describe(suspect);
    if (isAsked[suspect] || suspect == layout().rank) {
      throw Failure(Code::kTimeout, peer,
                    waited + path + ": they wait for each other; a slow or lossy link, or a defect");
    }
    isAsked[suspect] = true;
    const std::optional<Whereabouts> answer = machinery_.ask(suspect, kAnswerLimit);
    checkNews();
    if (!answer) {
      throw Failure(Code::kTimeout, suspect,
                    waited + path + ", which does not answer: its process is stopped, or cut off");
    }
    if (answer->waitsFor < 0) {
      const bool isBehind = answer->sequence < operation_.sequence;
      throw Failure(
          Code::kTimeout, suspect,
          waited + path + ", which is alive but " +
              (isBehind ? "has not called this collective (its last was #" + std::to_string(answer->sequence) +
                              "): stuck elsewhere, or not calling what the others call"
                        : "does not come forward: short of processor time, or stuck"));
    }
    suspect = answer->waitsFor;
  }
}

double Run::elapsedSeconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

void Run::offer(void* destination, const void* source, size_t bytes) {
  if (!isLarge_ || bytes < kLeastTimedBytes) {
    copyPastCache(destination, source, bytes);
    return;
  }
  const bool isPast = machinery_.stores.isPastCache();
  const TimePoint began = Clock::now();
  if (isPast) {
    copyPastCache(destination, source, bytes);
  } else {
    copyBytes(destination, source, bytes);
  }
  machinery_.stores.tell(isPast, bytes, Clock::now() - began);
}

void Run::take(void* destination, const void* source, size_t bytes) {
  if (isLarge_) {
    copyPastCache(destination, source, bytes);
  } else {
    copyBytes(destination, source, bytes);
  }
}

void Run::takeFrom(int member, void* destination, const std::byte* source, size_t bytes) {
  auto* to = static_cast<std::byte*>(destination);
  for (size_t done = 0; done < bytes; done += kReadBytes) {
    checkNews();
    const size_t piece = std::min(kReadBytes, bytes - done);
    const int error = machinery_.peers->read(member, operation_.sequence, to + done, source + done, piece);
    if (error != 0) {
      failLane(LaneBroken(layout().localRanks()[member],
                          std::string("its memory can no longer be read: ") + std::strerror(error)));
    }
  }
}

void Run::reduce(void* destination, void* mirror, const void* const* sources, int numSources, size_t count,
                 int divisor) {
  if (count == 0) return;
  if (mirror == nullptr) {
    const bool isCold = isColdResult(operation_, layout().size, destination, sources, numSources);
    reduceInto(destination, sources, numSources, count, operation_.dtype, operation_.op, divisor,
               isCold ? Placement::kPastCache : Placement::kCached);
  } else {
    reduceAndOffer(destination, mirror, sources, numSources, count, divisor);
  }
  machinery_.bytesReduced->fetch_add(count * operation_.elementSize() * static_cast<uint64_t>(numSources),
                                     std::memory_order_relaxed);
}

// Block by block, so that the copy for the others reads from the nearest cache.
void Run::reduceAndOffer(void* destination, void* mirror, const void* const* sources, int numSources, size_t count,
                         int divisor) {
  const size_t elementSize = operation_.elementSize();
  const size_t perBlock = kBlockBytes / elementSize;
  std::vector<const void*> at(sources, sources + numSources);
  for (size_t begin = 0; begin < count; begin += perBlock) {
    const size_t num = std::min(perBlock, count - begin);
    for (int i = 0; i < numSources; ++i) at[i] = static_cast<const std::byte*>(sources[i]) + begin * elementSize;
    std::byte* result = static_cast<std::byte*>(destination) + begin * elementSize;
    reduceInto(result, at.data(), numSources, num, operation_.dtype, operation_.op, divisor);
    offer(static_cast<std::byte*>(mirror) + begin * elementSize, result, num * elementSize);
  }
}

}  // namespace clary
