// One group as one of its ranks sees it: a queue of operations, a thread that runs them, and what became of them.
//
// A synchronous operation with nothing before it runs in its caller's thread: no hand-over, no wake-up. A small
// asynchronous all_reduce is tried there for as long as a hand-over would take (docs/adr/0104). All others are queued
// and run by the executor, which is started with the first of them. The first thing that goes wrong poisons the group:
// it is told to all ranks, ends what is under way, and answers every later call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/call_record.hpp"
#include "engine/fork_guard.hpp"
#include "engine/headers.hpp"
#include "engine/operation.hpp"
#include "engine/run.hpp"
#include "engine/tickets.hpp"
#include "topology/layout.hpp"
#include "transport/host_team.hpp"
#include "transport/lanes.hpp"
#include "transport/side_channel.hpp"

namespace clary {

class Communicator {
 public:
  // Takes over the descriptors of the group, also when it throws Failure.
  explicit Communicator(const clary_group& group);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // 0 when done, else a ticket. Throws Failure.
  int64_t run(Operation& operation, bool isAsynchronous, double timeoutSeconds);
  int64_t send(const void* data, uint64_t bytes, int peer, int64_t tag, double timeoutSeconds);
  int64_t receive(void* data, uint64_t bytes, int peer, int64_t tag, double timeoutSeconds);
  void abort(const std::string& reason);

  // Whether this process was forked from the one that made it. Such a process has no part in the group: threads are
  // missing, locks may be held for ever, shared memory is not mapped. `run`, `send` and `receive` say so; nothing else
  // may be called but this and `checkNotForked`, nor may it be destroyed.
  bool isForked() const { return guard_->isInChild(); }
  void checkNotForked() const;  // throws Failure(CLOSED)

  Tickets& tickets() { return tickets_; }
  const Layout& layout() const { return layout_; }
  // Before the first operation.
  void record(void* rows, int32_t count) { record_.writeTo(rows, count); }
  std::string explain(Collective kind, uint64_t bytes) const;
  std::vector<uint64_t> counters() const;

 private:
  struct Job {
    Job(const Operation& original, int ranks, int64_t ticket) : kept(original, ranks), ticket(ticket) {}
    KeptOperation kept;
    int64_t ticket;
  };
  void check(const Operation& operation) const;
  void checkSlots(uint64_t slotBytes) const;
  void execute(const Operation& operation, Duration patience);
  // Whether an asynchronous operation that nothing precedes may be tried in its caller's thread.
  bool mayBeTried(const Operation& operation) const;
  int64_t tryInCaller(Operation& operation);
  void runQueue();
  void startExecutor();
  Duration limitOf(double timeoutSeconds) const;
  std::string where(const std::string& what) const;
  // Remember the first that went wrong and end all waits. `isOwn`: found here, so the others must be told.
  void poison(const BadNews& news, bool isOwn);
  [[noreturn]] void raiseFirstCause() const;
  void wakeWaiters();

  std::string name_;
  Layout layout_;
  double timeoutSeconds_;
  int wakeFd_ = -1;
  std::unique_ptr<HostTeam> team_;
  std::unique_ptr<PeerMemory> peers_;
  std::unique_ptr<LaneSet> lanes_;
  std::unique_ptr<Headers> headers_;
  std::unique_ptr<SideChannel> side_;
  std::atomic<SideChannel*> messenger_{nullptr};  // side_, once its own thread may use it
  std::unique_ptr<ForkGuard> guard_;
  Machinery machinery_;

  std::mutex queueMutex_;
  std::condition_variable queueChanged_;
  std::deque<std::unique_ptr<Job>> queue_;
  bool isBusy_ = false;
  int waiting_ = 0;  // threads in `run` that wait for what they queued
  bool isStopping_ = false;
  bool isCut_ = false;  // an operation has failed: what it posted may be memory that is its caller's again
  uint64_t sequence_ = 0;
  CallRecord record_;
  std::thread executor_;
  Tickets tickets_;

  std::atomic<bool> hasBadNews_{false};
  mutable std::mutex newsMutex_;
  std::optional<BadNews> news_;
  std::unique_ptr<std::atomic<bool>[]> hasLeft_;

  std::atomic<int> waitsFor_{-1};
  std::atomic<uint64_t> begun_{0};  // sequence number of the last operation that was begun

  std::atomic<uint64_t> operations_{0};
  std::atomic<uint64_t> inCaller_{0};
  std::atomic<uint64_t> bytesReduced_{0};
};

}  // namespace clary
