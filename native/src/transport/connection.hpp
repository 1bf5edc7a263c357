// One peer's stream of the side channel: a queue of frames going out, a parser of what comes in. It knows where frames
// begin and end; what they mean is its Sink's business (exchange.hpp). Used by the channel's thread alone, never
// blocks.
#pragma once

#include <deque>
#include <memory>

#include "transport/descriptor.hpp"
#include "transport/frames.hpp"

namespace clary {

// A frame that is no transfer's, whose sender wants to know all the same when it is written.
inline constexpr uint64_t kOwnFrame = ~uint64_t{0};

class Connection {
 public:
  // Where the payload of a frame goes: `at` nullptr reads it and throws it away. `transfer` (0 for none) is whose
  // memory it is, for `divert`.
  struct Landing {
    std::byte* at = nullptr;
    uint64_t transfer = 0;
  };
  // All three may call any method of a connection but `read` and `flush`.
  class Sink {
   public:
    virtual ~Sink() = default;
    // A header came; its payload, if any, comes next. Throws BadFrame.
    virtual Landing place(int peer, const Frame& frame) = 0;
    // The payload is there. `transfer` as `place` said, 0 if it was diverted since. Throws BadFrame.
    virtual void take(int peer, const Frame& frame, uint64_t transfer) = 0;
    // A frame of this transfer is wholly in the kernel's hands.
    virtual void onWritten(int peer, const Frame& frame, uint64_t transfer) = 0;
  };
  enum class Stream { kOpen, kEnded };                       // what `read` found
  enum class Output { kWritten, kBlocked, kMore, kBroken };  // kMore: others should have their turn

  Connection() = default;
  Connection(int peer, Descriptor socket, bool isTcp);

  int fd() const { return socket_.fd(); }
  bool isOpen() const { return socket_.isOpen(); }
  bool isFinished() const { return isFinished_; }
  // Nothing more is read or written; the owner of the poll set closes it when it is done with the descriptor.
  void finish();
  void close() { socket_.endAndClose(); }

  // Queue a frame. Payload lies in memory of `transfer`, which stays until onWritten or `release`.
  void enqueue(const Frame& frame, const std::byte* payload = nullptr, uint64_t transfer = 0);
  // Queue a frame whose payload is `text`.
  void enqueueText(Frame frame, std::string_view text);
  bool hasOutput() const { return !outgoing_.empty(); }
  bool isOutputBroken() const { return isBroken_; }

  // Write what the kernel takes, many frames in one call. Once broken, output is thrown away; what came in stays to be
  // read.
  Output flush(Sink& sink);
  // Read and hand over what has come, up to a bound. kEnded: at the end of stream or with an error.
  Stream read(Sink& sink);
  int errorNumber() const { return errorNumber_; }  // of the last failed call; 0 for a stream that just ended

  // A transfer's memory is no longer ours: drop its frames, of one that is half written keep a copy.
  void release(uint64_t transfer);
  void releaseAll();
  // The same for memory that a payload is landing in.
  void divert(uint64_t transfer);
  void divertAll() { landing_ = {}; }

  // No more will be written. Tells the peer so, once the queue is empty.
  void endOutput();
  // Whether all that was written is with the peer's kernel, where no reset can take it back. Unix sockets: at once.
  bool isDelivered() const;

 private:
  struct Outgoing {
    Frame frame;
    Header header;
    const std::byte* payload;
    uint64_t transfer;
    std::unique_ptr<std::byte[]> owned;  // where payload points if no transfer's memory holds it
  };

  static constexpr size_t kInboxBytes = 8192;

  void keepCopy(Outgoing& item);
  void advance(size_t bytes, Sink& sink);
  void parse(Sink& sink);

  int peer_ = -1;
  Descriptor socket_;
  bool isTcp_ = false;
  bool isFinished_ = false;
  bool isBroken_ = false;  // for writing
  int errorNumber_ = 0;

  std::deque<Outgoing> outgoing_;
  size_t written_ = 0;  // bytes of the first of outgoing_, header included

  // Bytes read and not parsed yet. Empty while a payload is under way.
  std::unique_ptr<std::byte[]> inbox_;
  size_t inboxBytes_ = 0;
  bool isInPayload_ = false;
  Frame frame_{};
  Landing landing_;
  uint64_t payloadLeft_ = 0;
};

}  // namespace clary
