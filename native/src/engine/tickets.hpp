// Operations that outlive their calls, and how their ends are told.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "common/types.hpp"

namespace clary {

class Tickets {
 public:
  int64_t open();
  // The end of an operation: nullptr for a good one. Unknown tickets are ignored.
  void finish(int64_t ticket, int source, const Failure* failure);
  void watch(int64_t ticket);
  bool isDone(int64_t ticket);

  enum class End { kGood, kFailed, kNotYet };
  // Waits until the ticket is finished or `limit` passes (nullopt: for ever). A told ticket is forgotten.
  End wait(int64_t ticket, std::optional<Duration> limit, int* source, std::optional<Failure>* failure);

  // As clary_next_watched.
  int64_t nextWatched(Duration limit);
  // Ends all waits and returns when the last thread has left them: the object may be destroyed then.
  void stop();

 private:
  struct Entry {
    bool isDone = false;
    bool isWatched = false;
    int source = 0;
    std::optional<Failure> failure;
  };
  // A thread that waits here. Made and ended under the lock.
  struct Visit {
    explicit Visit(Tickets& tickets) : tickets(tickets) { ++tickets.visitors_; }
    ~Visit() {
      if (--tickets.visitors_ == 0) tickets.allLeft_.notify_all();
    }
    Tickets& tickets;
  };
  std::mutex mutex_;
  std::condition_variable allLeft_;
  int visitors_ = 0;
  std::condition_variable finished_;
  std::condition_variable watchedFinished_;
  std::unordered_map<int64_t, Entry> entries_;
  std::deque<int64_t> watched_;
  int64_t last_ = 0;
  bool isStopped_ = false;
};

}  // namespace clary
