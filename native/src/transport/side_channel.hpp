// The second stream to every rank, on a thread of its own: send and receive, bad news, and who has gone.
//
// Frames on the stream: EAGER (small messages with their bytes), REQUEST and CLEAR (large ones are asked for first, so
// that nobody buffers them), REFUSE (there is a receive, but of another size), DATA, CREDIT (early small messages were
// taken, more may come), BAD_NEWS (code, culprit, text: the sender's group is poisoned), GOODBYE (the sender closed the
// group in order), ASK and TELL (what are you doing). exchange.hpp says how they work together. A stream that ends
// without GOODBYE means that the peer's process is lost. A frame that is no frame (unknown kind, length beyond its
// limit) breaks the connection and is bad news about that peer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/types.hpp"

namespace clary {

struct BadNews {
  Code code;
  int culprit;       // rank
  std::string text;  // a sentence that names the first cause
};

// What a rank is doing, as its side channel tells whoever asks.
struct Whereabouts {
  uint64_t sequence = 0;  // of the last collective that it has begun
  int waitsFor = -1;      // the rank that it waits for at this moment
};

class SideChannel {
 public:
  // Called from the channel's thread, which holds no lock then: callbacks may call send, receive and tellBadNews, but
  // not close, ask or the destructor, which wait for that thread. They throw nothing. News ends with the first bad news
  // and with close; ends of transfers are always told.
  struct Listener {
    // The first that went wrong, told once: a peer's BAD_NEWS, or PEER_LOST with culprit for a stream that ended.
    std::function<void(const BadNews&)> onBadNews;
    // A peer closed the group in order. Operations that still need it fail; others go on.
    std::function<void(int peer)> onGoodbye;
    // A point-to-point operation ended. `failure` is nullptr when it went well; `source` is the peer, -1 for a receive
    // from any that met none.
    std::function<void(int64_t ticket, int source, const BadNews* failure)> onTransferEnd;
    // A peer asks what this rank is doing. A process that is stopped does not answer.
    std::function<Whereabouts()> onAsk = nullptr;
  };

  // fds: one a rank, -1 for the own; made non-blocking, owned. The thread starts here.
  // describe(peer): "rank 3 on algo-2", for messages.
  SideChannel(int ownRank, std::vector<int> fds, Listener listener, std::function<std::string(int)> describe);
  ~SideChannel();  // without GOODBYE: for abandoned groups; ends the thread and closes the sockets
  SideChannel(const SideChannel&) = delete;
  SideChannel& operator=(const SideChannel&) = delete;

  // Point to point, also with itself. Each ends in exactly one onTransferEnd, and memory is the caller's again from
  // then on. Deadlines are the channel's to keep: a transfer that passes its own ends with TIMEOUT that names peer, tag
  // and bytes; its peer hears of that only by bad news. Messages with equal (peer, tag) match in the order of sending;
  // a receive with fewer bytes than its message, or more, ends both sides with INVALID naming both sizes, but for a
  // small message, whose send may have ended before there was a receive. peer -1 in `receive` takes the first matching
  // message of any peer. Once `close` has begun, the end may be told from the calling thread.
  void send(int64_t ticket, int peer, int64_t tag, const void* data, uint64_t bytes, TimePoint deadline);
  void receive(int64_t ticket, int peer, int64_t tag, void* data, uint64_t bytes, TimePoint deadline);

  // Tell all peers, best effort: the group is poisoned. Then fail all transfers. Never blocks for long.
  void tellBadNews(const BadNews& news);

  // Ask a peer what it is doing; nullopt if no answer comes within `limit`. One thread at a time.
  std::optional<Whereabouts> ask(int peer, Duration limit);

  // End all transfers with CLOSED, say GOODBYE to all, wait at most `limit` until it is in the hands of the peers'
  // kernels, end the thread, close the sockets. A second call does nothing.
  void close(Duration limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace clary
