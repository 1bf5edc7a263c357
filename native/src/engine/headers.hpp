// What the hosts' leaders tell each other about every operation, so that a different order is noticed between hosts.
//
// The first rank of each host posts a header to those of the other hosts when it begins an operation, ahead of any
// payload on the same lane. Nobody waits for headers; they are compared when they have come, at the latest before the
// payload behind them is used. A leader that has left gets none: it would answer by a reset, and what it has sent might
// be lost with that.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "engine/operation.hpp"
#include "topology/layout.hpp"
#include "transport/lanes.hpp"

namespace clary {

class Headers {
 public:
  // hasLeft: whether a peer has closed the group in order.
  Headers(const Layout& layout, LaneSet* lanes, std::function<bool(int peer)> hasLeft);

  // Post the header of `operation` to every other leader. Does nothing on ranks that lead no host.
  void begin(const Operation& operation);

  // Compare what has come. Throws Failure(kOrderMismatch).
  void verify();

 private:
  struct Exchange {
    Announcement own;
    Announcement received;
    LaneSet::Position sent;
    LaneSet::Position receivedAt;
    bool isVerified = false;
  };
  const Layout& layout_;
  LaneSet* lanes_;
  std::function<bool(int peer)> hasLeft_;
  std::vector<std::deque<Exchange>> byHost_;  // addresses of elements stay as they are while both ends move
};

}  // namespace clary
