// Which message a receive takes: receives that wait for messages, and messages that came before their receive.
//
// A receive and a message match when their tags are equal and the receive names the message's peer or any rank. Of
// equal candidates the one that came first is taken, so messages of one peer and tag are received in the order of
// sending. Pure bookkeeping: no sockets, no clocks, no memory of transfers.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>

#include "common/types.hpp"

namespace clary {

inline constexpr int kAnyRank = -1;

// A message without a receive.
struct Arrival {
  enum class Kind {
    kWhole,    // its bytes are in `payload`
    kRequest,  // a peer asks to send it; `send` is the id there
    kLocal,    // a send of this rank to itself; `send` is the transfer
  };
  Kind kind;
  uint64_t bytes;
  uint64_t send = 0;
  std::unique_ptr<std::byte[]> payload;
};

class Matching {
 public:
  void post(int peer, int64_t tag, uint64_t transfer);  // peer may be kAnyRank
  void withdraw(int peer, int64_t tag, uint64_t transfer);
  // The receive that a message takes, 0 for none.
  uint64_t takePosted(int peer, int64_t tag);

  void arrive(int peer, int64_t tag, Arrival arrival);
  // The message that a receive takes, and its peer.
  std::optional<std::pair<int, Arrival>> takeArrival(int peer, int64_t tag);
  // Requests of a peer that has gone can never be answered; whole messages stay.
  void dropRequests(int peer);

  void clear();

 private:
  // By tag first, so that the peers of one tag lie together.
  using Key = std::pair<int64_t, int>;
  struct Posted {
    uint64_t order;
    uint64_t transfer;
  };
  struct Arrived {
    uint64_t order;
    Arrival arrival;
  };

  uint64_t next_ = 1;
  std::map<Key, std::list<Posted>> posted_;
  std::map<Key, std::list<Arrived>> arrived_;
};

}  // namespace clary
