// One operation under way: what algorithms may do, and how they wait.
//
// All waits end: with what was waited for, with bad news (another rank or thread found the group broken), or at the
// operation's deadline. While a rank waits for its host its lanes go on moving, so that ranks which wait for each other
// across hosts never stand still together.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <optional>

#include "common/room.hpp"
#include "engine/headers.hpp"
#include "engine/operation.hpp"
#include "engine/store_choice.hpp"
#include "topology/cost_model.hpp"
#include "topology/layout.hpp"
#include "transport/host_team.hpp"
#include "transport/lanes.hpp"
#include "transport/peer_memory.hpp"
#include "transport/side_channel.hpp"

namespace clary {

// What of a communicator an operation works with; lives as long as the communicator.
struct Machinery {
  const Layout* layout = nullptr;
  HostTeam* team = nullptr;
  PeerMemory* peers = nullptr;
  LaneSet* lanes = nullptr;  // nullptr where all ranks share a host
  Headers* headers = nullptr;
  LinkConstants link;
  std::string forcedAlgorithm;
  std::atomic<bool>* hasBadNews = nullptr;
  std::function<void()> raiseBadNews;  // throws the first cause as a Failure
  std::function<bool(int)> hasLeft;    // whether a peer has closed the group in order
  // Ask a peer what it is doing; nullopt if it does not answer.
  std::function<std::optional<Whereabouts>(int peer, Duration limit)> ask;
  std::atomic<int>* waitsFor = nullptr;  // what this rank answers: whom it waits for, -1 for nobody
  std::atomic<uint64_t>* bytesReduced = nullptr;
  StoreChoice stores;
  std::array<Room, 6> rooms;  // of whichever algorithm runs
};

class Run {
 public:
  // patience: how long a wait in shared memory stays awake, giving way to others, before it sleeps.
  Run(const Operation& operation, Machinery& machinery, Duration patience);

  const Operation& operation() const { return operation_; }
  const Layout& layout() const { return *machinery_.layout; }
  HostTeam& team() { return *machinery_.team; }
  LaneSet& lanes() { return *machinery_.lanes; }
  Machinery& machinery() { return machinery_; }
  // Working memory; each algorithm numbers its own from 0.
  Room& room(size_t number) { return machinery_.rooms.at(number); }

  // First phase of every operation: says what this rank is doing, publishes, waits for the others of this host and
  // compares. What a rank offers in the first phase must lie in its slot before.
  void meet() { comeTogether(announce()); }
  // The two halves of `meet`: say and publish; wait and compare.
  Step announce();
  void comeTogether(Step step);
  // Whether all members of this host have reached a step; waits at most as long as this run stays awake.
  bool hasMet(Step step);

  Step publish() { return team().publish(); }
  void awaitHost(Step step);

  // A slot or outbox half of this rank that nobody reads any more.
  HostTeam::Buffer takeSlot();
  HostTeam::Buffer takeOutbox();

  void awaitReceived(int peer, LaneSet::Position position);
  void awaitSent(int peer, LaneSet::Position position);

  // Copy into memory of this host's ranks that others read, and from there into the caller's memory.
  //
  // [Note: caches] Slots of small operations are written past the cache: a plain store to a line that a reader holds
  // must take it back first. Large operations are bound by memory; there the caller's memory is written past the cache,
  // and slots as StoreChoice finds faster.
  void offer(void* destination, const void* source, size_t bytes);
  void take(void* destination, const void* source, size_t bytes);

  // Copy from the memory of another member of this host, which has shown it for this operation.
  void takeFrom(int member, void* destination, const std::byte* source, size_t bytes);

  // mirror: nullptr, or a second place for the result that other ranks read.
  void reduce(void* destination, void* mirror, const void* const* sources, int numSources, size_t count, int divisor);

  // For errors.
  [[noreturn]] void failLane(const LaneBroken& broken);

 private:
  void checkNews();
  void reduceAndOffer(void* destination, void* mirror, const void* const* sources, int numSources, size_t count,
                      int divisor);
  void hearCause(Duration patience);
  void compareAnnouncements();
  void moveLanes(Duration limit);
  // Find out who keeps `peer`, that this rank waits for, and throw a timeout that names the culprit.
  [[noreturn]] void timeOut(int peer);
  template <typename Done>
  void awaitLane(int peer, Done done);
  double elapsedSeconds() const;

  const Operation& operation_;
  Machinery& machinery_;
  Duration patience_;
  bool isLarge_;
  TimePoint began_;
};

}  // namespace clary
