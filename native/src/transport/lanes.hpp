// Byte streams between this rank and ranks on other hosts, for collectives.
//
// One LaneSet a communicator, used by one thread at a time (the executor of operations). Posting never blocks and never
// fails; bytes move in `progress`, and as far as they can at once when posted. Streams carry no framing of their own:
// algorithms know how many bytes come next. Sockets are non-blocking and owned by the set.
//
// The two directions of a lane break apart: a peer that has left the group in order takes nothing more, while what it
// sent before is still to be read. So a send that cannot leave is an error for who waits for it, and for nobody else.
#pragma once

#include <poll.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/types.hpp"
#include "transport/descriptor.hpp"

namespace clary {

// A peer's connection ended or broke. The executor turns it into a Failure that names the first cause.
class LaneBroken : public std::runtime_error {
 public:
  LaneBroken(int whose, const std::string& text) : std::runtime_error(text), peer(whose) {}
  int peer;
};

class LaneSet {
 public:
  // A position in one direction of one lane: what was posted up to here.
  using Position = uint64_t;

  // fds: one a rank, -1 for none; sets them non-blocking, TCP_NODELAY where they are TCP. wakeFd: an eventfd whose
  // readability ends waits in `progress` early (bad news has come); not owned, never read, -1 for none. Throws
  // Failure(SYSTEM); all descriptors are closed then.
  LaneSet(std::vector<int> fds, int wakeFd);
  ~LaneSet();
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  // Memory must stay as it is (send) or untouched (receive) until the position is reached. Zero bytes are allowed.
  // Sends to one peer leave in the order of posting, and arrive in that order.
  Position postSend(int peer, const void* data, size_t bytes);
  Position postReceive(int peer, void* data, size_t bytes);

  bool isSent(int peer, Position position) const;
  bool isReceived(int peer, Position position) const;
  bool hasPending() const;  // anything posted and not moved, in either direction

  // Throws LaneBroken when nothing more can be sent to this peer: what is posted will never be reached.
  void checkSends(int peer) const;

  // Move what can be moved; if nothing could, wait at most `limit` for a pending socket or for wakeFd, then move again.
  // Returns whether anything moved. A call moves a bounded number of bytes a lane, so that who also serves memory comes
  // back to it in time. Throws LaneBroken when a stream that something is to come from has ended, and again in each
  // later call.
  bool progress(Duration limit);

  // Before the sockets are closed in order: send what is posted, throw away what comes, and wait at most `limit` until
  // the peers' kernels have what was sent. Without this a peer that comes late to an operation that has ended here
  // loses what it was sent: a socket that is closed with unread bytes resets the connection, and so does one that gets
  // bytes after it was closed. A peer whose own stream has ended has left already, and is not waited for.
  void leave(Duration limit);

  // Peers that something is posted to or from and not moved yet, for messages about a timeout.
  std::vector<int> pendingPeers() const;

  // Since creation, all lanes together. From any thread.
  uint64_t bytesSent() const { return bytesSent_.load(std::memory_order_relaxed); }
  uint64_t bytesReceived() const { return bytesReceived_.load(std::memory_order_relaxed); }

 private:
  // Memory posted and not moved yet.
  struct Piece {
    std::byte* data;
    size_t bytes;
  };
  // One direction of a lane: pieces from `first` on, oldest first. Positions count bytes since creation.
  struct Flow {
    std::vector<Piece> pieces;
    size_t first = 0;
    Position posted = 0;
    Position moved = 0;
    std::string broken;  // why nothing moves any more; empty while all is well
    bool isPending() const { return moved != posted && broken.empty(); }
    void add(std::byte* data, size_t bytes);
    void advance(size_t bytes);
  };
  struct Lane {
    Descriptor socket;
    bool isTcp = false;
    Flow out;
    Flow in;
    bool isListed = false;  // in pending_
    bool hasEnded = false;  // found by `leave`: nobody reads at the other end
  };

  Position post(int peer, Flow Lane::* direction, std::byte* data, size_t bytes);
  bool move(int peer, Flow Lane::* direction);
  void noteBroken(int peer, Flow Lane::* direction, const std::string& text);
  void throwIfBroken() const;
  void unlistIdle();
  static void discardInput(Lane& lane);
  bool isAllSent() const;

  std::vector<Lane> lanes_;
  int wakeFd_;
  std::vector<int> pending_;  // peers whose lane has something posted and not moved
  std::vector<pollfd> polled_;
  int brokenPeer_ = -1;  // the first whose stream to us has ended too early
  std::atomic<uint64_t> bytesSent_{0};
  std::atomic<uint64_t> bytesReceived_{0};
};

}  // namespace clary
