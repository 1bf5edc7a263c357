// The sends and receives of the side channel that have not ended, and their deadlines.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "common/types.hpp"

namespace clary {

struct Transfer {
  enum class Kind { kSend, kReceive };
  enum class Stage {
    kWaiting,  // nothing of the other side is known
    kMoving,   // matched, or handed to the connection: bytes are on their way
  };
  Kind kind;
  int64_t ticket;
  int peer;  // kAnyRank until a receive from any has matched
  int64_t tag;
  std::byte* data;  // of the caller; of a send only read
  uint64_t bytes;
  TimePoint deadline;
  TimePoint begun{};  // when it was asked for
  Stage stage = Stage::kWaiting;
  uint64_t moved = 0;
  uint64_t remote = 0;  // of a send that was cleared: the id of the receive there
};

class TransferTable {
 public:
  uint64_t add(const Transfer& transfer);  // its id, never 0, never used again
  Transfer* find(uint64_t id);             // nullptr if it has ended
  void remove(uint64_t id);

  TimePoint nextDeadline() const;              // TimePoint::max() if there is none
  uint64_t firstExpired(TimePoint now) const;  // 0 if there is none
  std::vector<uint64_t> all() const;           // oldest first

 private:
  uint64_t next_ = 1;
  std::map<uint64_t, Transfer> transfers_;
  std::set<std::pair<TimePoint, uint64_t>> deadlines_;
};

}  // namespace clary
