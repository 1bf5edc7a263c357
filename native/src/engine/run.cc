#include "engine/run.hpp"

#include <algorithm>
#include <cstdio>

#include "reduce/kernels.hpp"

namespace clary {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Bad news wakes all sleepers; this bounds what a wake-up that was lost between look and sleep can cost.
constexpr Duration kLongestSleep = milliseconds(50);
// How long a rank that waits for its host stays with its lanes before it looks again.
constexpr Duration kLaneTurn = microseconds(100);
// A broken lane is often only the first sign; the cause is on its way on the side channel.
constexpr Duration kPatienceForCause = milliseconds(250);
// A rank that waits for another host lets ranks that see the culprit itself speak first.
constexpr Duration kPatienceForWitness = milliseconds(400);
// And a rank whose neighbours wait for another host is farther from the culprit still.
constexpr Duration kPatienceForNeighbour = milliseconds(800);
constexpr int kLooksPerClock = 32;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", value);
  return text;
}

}  // namespace

Run::Run(const Operation& operation, Machinery& machinery, Duration spin)
    : operation_(operation), machinery_(machinery), spin_(spin), began_(Clock::now()) {}

void Run::meet() {
  HostTeam& shared = team();
  if (machinery_.headers != nullptr) {
    try {
      machinery_.headers->begin(operation_);
    } catch (const LaneBroken& broken) {
      failLane(broken);
    }
  }
  if (shared.members() == 1) {
    shared.publish();
    checkNews();
    return;
  }
  const uint64_t extent = shared.announcement(shared.index(), operation_.sequence).extent;
  Announcement own = operation_.announcement();
  own.extent = extent;
  shared.announcement(shared.index(), operation_.sequence) = own;
  const Step step = shared.publish();
  awaitHost(step);
  compareAnnouncements();
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
  if (spin_.count() > 0) {
    const TimePoint until = Clock::now() + spin_;
    do {
      for (int look = 0; look < kLooksPerClock; ++look) {
        if (shared.allReached(step)) return;
        relax();
      }
    } while (Clock::now() < until);
  }
  const bool hasLanes = machinery_.lanes != nullptr;
  for (;;) {
    const int member = shared.slowest();
    const Step seen = shared.published(member);
    if (hasReached(seen, step)) return;
    checkNews();
    const int peer = layout().localRanks()[member];
    // What it published before it left is visible once its leaving is.
    if (machinery_.hasLeft(peer) && !hasReached(shared.published(member), step)) {
      throw Failure(Code::kPeerLost, peer, layout().describe(peer) + " has left the group");
    }
    const TimePoint now = Clock::now();
    if (now >= operation_.deadline) timeOutOnHost(step, now >= operation_.deadline + kPatienceForNeighbour);
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
void Run::awaitLane(int peer, const char* what, Done done) {
  if (done()) return;
  team().setWaitsFor(peer);
  while (!done()) {
    checkNews();
    const TimePoint now = Clock::now();
    if (now >= operation_.deadline + kPatienceForWitness) timeOutOnLane(peer, what);
    moveLanes(kLongestSleep);
  }
  team().setWaitsFor(-1);
}

void Run::awaitReceived(int peer, LaneSet::Position position) {
  awaitLane(peer, "receive from", [&] { return lanes().isReceived(peer, position); });
  machinery_.headers->verify();
}

void Run::awaitSent(int peer, LaneSet::Position position) {
  awaitLane(peer, "send to", [&] { return lanes().isSent(peer, position); });
}

void Run::moveLanes(Duration limit) {
  try {
    lanes().progress(limit);
  } catch (const LaneBroken& broken) {
    failLane(broken);
  }
}

void Run::failLane(const LaneBroken& broken) {
  const TimePoint until = Clock::now() + kPatienceForCause;
  while (Clock::now() < until) {
    checkNews();
    timespec pause{0, 2000000};
    nanosleep(&pause, nullptr);
  }
  throw Failure(Code::kPeerLost, broken.peer, layout().describe(broken.peer) + " is lost: " + broken.what());
}

void Run::checkNews() {
  if (machinery_.hasBadNews->load(std::memory_order_acquire)) machinery_.raiseBadNews();
}

void Run::timeOutOnHost(Step step, bool isLastWord) {
  HostTeam& shared = team();
  std::string late;
  std::string kept;
  int culprit = -1;
  int keeper = -1;
  for (int member = 0; member < shared.members(); ++member) {
    if (hasReached(shared.published(member), step)) continue;
    const int peer = layout().localRanks()[member];
    const int other = shared.waitsFor(member);
    if (other >= 0) {
      keeper = keeper < 0 ? other : keeper;
      kept +=
          (kept.empty() ? "" : ", ") + layout().describe(peer) + " (which waits for " + layout().describe(other) + ")";
      continue;
    }
    if (culprit < 0) culprit = peer;
    late += (late.empty() ? "" : ", ") + layout().describe(peer);
  }
  if (culprit >= 0) {
    throw Failure(Code::kTimeout, culprit,
                  "waited " + seconds(elapsedSeconds()) + " for " + late +
                      ", which did not come this far: stopped, stuck elsewhere, or not calling this collective");
  }
  if (isLastWord && keeper >= 0) {
    throw Failure(Code::kTimeout, keeper, "waited " + seconds(elapsedSeconds()) + " for " + kept);
  }
}

void Run::timeOutOnLane(int peer, const char* what) {
  const int host = layout().hostOf[peer];
  const bool begun = machinery_.headers->hasBegun(host, operation_.sequence);
  throw Failure(
      Code::kTimeout, peer,
      "waited " + seconds(elapsedSeconds()) + " to " + what + " " + layout().describe(peer) +
          (begun ? ": stopped, cut off, or waiting itself"
                 : ": its host never began this operation (stopped, cut off, or not calling this collective)"));
}

double Run::elapsedSeconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

void Run::reduce(void* destination, void* mirror, const void* const* sources, int numSources, size_t count,
                 int divisor) {
  if (count == 0) return;
  reduceInto(destination, mirror, sources, numSources, count, operation_.dtype, operation_.op, divisor);
  machinery_.bytesReduced->fetch_add(count * operation_.elementSize() * static_cast<uint64_t>(numSources),
                                     std::memory_order_relaxed);
}

}  // namespace clary
