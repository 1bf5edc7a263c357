// What the frames of the side channel mean: who sends what to whom, and what has gone wrong.
//
// A message of at most kEagerBytes goes at once (EAGER) and its send ends when the kernel has taken it. Where no
// receive waits for it, the receiver keeps a copy. What it keeps is bounded: each pair of ranks has a window of
// kEagerWindow bytes, which the sender spends and the receiver gives back (CREDIT) as receives take the messages. A
// longer message, and a small one when the window is spent, is asked for (REQUEST), and its bytes (DATA) go straight
// into the receiver's memory once a receive was posted (CLEAR, or REFUSE if sizes differ). No send ever waits for
// another, so all ranks may post sends to all before any posts a receive.
//
// A rank may send to itself: small messages are kept likewise, others are copied when both sides are there.
//
// After the first bad news, and once the group is closed, nothing is matched any more: what comes in is read and thrown
// away, what is asked for ends at once with the first cause.
//
// Used by the channel's thread alone (side_channel.cc), which moves the bytes. Callbacks come from inside its methods;
// they may post new orders to the thread, never call in here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/connection.hpp"
#include "transport/matching.hpp"
#include "transport/side_channel.hpp"
#include "transport/transfers.hpp"

namespace clary {

class Exchange : public Connection::Sink {
 public:
  using Describe = std::function<std::string(int)>;

  // connections: one a rank; the one of ownRank, and of ranks without a socket, is not open.
  // onTell: a peer has answered a question.
  using OnTell = std::function<void(int peer, const Whereabouts&)>;
  Exchange(int ownRank, std::vector<Connection> connections, SideChannel::Listener listener, Describe describe,
           OnTell onTell);

  // Begin a send or a receive: all but stage, moved and remote are set.
  void begin(const Transfer& transfer);
  void tellBadNews(const BadNews& news);
  // Send the question; the answer is for onTell.
  void ask(int peer);
  // End all transfers with CLOSED. With `goodbye` say so to the peers.
  void shut(bool goodbye);
  bool hasToldBadNews() const { return hasTold_; }

  // A stream has ended, or output to it has broken, or the peer sent what is no frame.
  void onStreamEnd(int peer);
  void onOutputBroken(int peer);
  void onBadFrame(int peer, const std::string& text);
  // This rank cannot go on, `text` says why.
  void onFailure(const std::string& text);

  TimePoint nextDeadline() const;
  void expire(TimePoint now);

  size_t size() const { return peers_.size(); }
  Connection& connection(int peer) { return at(peer).connection; }
  // Peers that got new output, and peers whose connection is finished, since the last call.
  std::vector<int> takeDirty() { return std::exchange(dirty_, {}); }
  std::vector<int> takeFinished() { return std::exchange(finished_, {}); }

  Connection::Landing place(int peer, const Frame& frame) override;
  void take(int peer, const Frame& frame, uint64_t transfer) override;
  void onWritten(int peer, const Frame& frame, uint64_t transfer) override;

 private:
  struct Peer {
    Connection connection;
    bool hasLeft = false;                      // it said GOODBYE
    TimePoint brokenUntil = TimePoint::max();  // output has broken; the stream should have ended by then
    // Sending to it: what is left of the window, and requests without an answer.
    uint64_t credit = 0;
    uint64_t unanswered = 0;
    // Receiving from it: cost of eager messages that credit was not given back for; the part of it that is due;
    // requests that wait for a receive.
    uint64_t held = 0;
    uint64_t due = 0;
    uint64_t requests = 0;
    uint64_t tells = 0;  // answers to its questions on their way out
    // A payload on its way that is for no receive: an early message, or the text of bad news.
    std::unique_ptr<std::byte[]> landing;
  };

  Peer& at(int peer) { return peers_[static_cast<size_t>(peer)]; }
  bool isReachable(int peer) const;
  bool haveAllLeft() const;

  void send(uint64_t id, Transfer& send);
  void sendToSelf(uint64_t id, Transfer& send);
  void receive(uint64_t id, Transfer& receive);
  bool meet(uint64_t id, int peer, Arrival& arrival);
  void arrive(int peer, int64_t tag, Arrival arrival);
  void sendPart(uint64_t id, const Transfer& send);
  void giveBack(int peer, uint64_t bytes);

  Connection::Landing placeEager(int peer, const Frame& frame);
  Connection::Landing placeData(int peer, const Frame& frame);
  void takeEager(int peer, const Frame& frame, uint64_t transfer);
  void takeData(const Frame& frame, uint64_t transfer);
  void takeRequest(int peer, const Frame& frame);
  void takeAnswer(int peer, const Frame& frame);
  void takeCredit(int peer, const Frame& frame);
  void takeBadNews(int peer, const Frame& frame);
  void takeGoodbye(int peer);
  void takeAsk(int peer);
  void takeTell(int peer, const Frame& frame);

  void push(int peer, const Frame& frame, const std::byte* payload = nullptr, uint64_t transfer = 0);
  void markDirty(int peer);
  void finish(int peer);
  void lose(int peer, const std::string& text);
  void hear(const BadNews& news);
  void silence(const BadNews& cause);
  void failAll();

  void succeed(uint64_t id);
  void fail(uint64_t id, const BadNews& cause);
  std::string words(const Transfer& transfer) const;
  BadNews unequal(int culprit, uint64_t sent, uint64_t received, int sender, int receiver, int64_t tag) const;
  BadNews timeout(const Transfer& transfer) const;
  BadNews departed(const Transfer& transfer) const;

  int ownRank_;
  SideChannel::Listener listener_;
  Describe describe_;
  OnTell onTell_;
  std::vector<Peer> peers_;
  TransferTable transfers_;
  Matching matching_;
  std::optional<BadNews> ended_;  // with what everything ends from now on
  bool hasTold_ = false;
  std::vector<int> dirty_;
  std::vector<int> finished_;
};

}  // namespace clary
