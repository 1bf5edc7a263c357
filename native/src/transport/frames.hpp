// The words of the side channel on the wire: one header of 32 bytes, little-endian, then the payload where there is
// one.
//
//   offset  bytes  what
//   0       4      magic "CLSC"
//   4       1      version
//   5       1      kind
//   6       2      zero
//   8       8      id
//   16      8      value
//   24      8      bytes
//
// A header that says anything else is no frame: streams cannot be brought back in step, so the connection is over.
#pragma once

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "common/types.hpp"

namespace clary {

enum class FrameKind : uint8_t {
  kEager = 1,    // a whole small message.         value: its tag. payload
  kRequest = 2,  // may I send a message?          id: of the send. value: its tag. bytes: of the message
  kClear = 3,    // yes, there is a receive.       id: of the send. value: id of the receive
  kRefuse = 4,   // no, the receive differs.       id: of the send. value: bytes of the receive
  kData = 5,     // next part of such a message.   id: of the receive. payload
  kCredit = 6,   // eager messages were received.  value: their cost (`eagerCost`)
  kBadNews = 7,  // the sender's group is poisoned. id: Code. value: culprit. payload: text
  kGoodbye = 8,  // the sender closed the group in order; nothing follows.
  kAsk = 9,      // what are you doing?
  kTell = 10,    // the answer.                    id: sequence number of its last operation. value: whom it waits for
};

// Limits of payloads. A message of at most kEagerBytes goes at once, a longer one when it is asked for, in parts of
// kPartBytes: small enough that other frames do not wait long behind one, large enough that headers cost nothing.
inline constexpr uint64_t kEagerBytes = uint64_t{64} << 10;
inline constexpr uint64_t kPartBytes = uint64_t{256} << 10;
inline constexpr uint64_t kTextBytes = 1024;

inline constexpr size_t kHeaderBytes = 32;
using Header = std::array<std::byte, kHeaderBytes>;

struct Frame {
  FrameKind kind;
  uint64_t id = 0;
  int64_t value = 0;
  uint64_t bytes = 0;

  uint64_t payloadBytes() const { return kind == FrameKind::kRequest ? 0 : bytes; }
};

// What a peer sent is no frame, or one that cannot come now. The text reads on after "rank 3 on algo-2 ".
class BadFrame : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

const char* frameName(FrameKind kind);  // "REQUEST"
Header encode(const Frame& frame);
Frame decode(const std::byte* header);  // kHeaderBytes of them; throws BadFrame

// At most kTextBytes of `text`, without control characters, and UTF-8: bytes that are not become '?'.
std::string presentable(std::string_view text);

}  // namespace clary
