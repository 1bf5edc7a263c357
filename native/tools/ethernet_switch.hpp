// An Ethernet switch over TAP devices that delays, slows down and loses frames: what netem does, in a process.
//
//   host a --TAP--> in flight (delay, loss) --> line of port b (rate, one frame after the other) --TAP--> host b
//
// A port is the link of one host. The one-way delay between two hosts is the larger of their links' delays, so is the
// loss. What a port receives leaves at the rate of its link; what its host sends is limited in the host (a token bucket
// on its interface). Addresses are given, nothing is learnt: unknown and group addresses go to every other port.
// Each port has one queue for frames that are under way to it, ordered by arrival, and one for those that wait for its
// line; a frame that would wait longer than kMaxBacklog is dropped, as a switch with a small buffer does.
// Source: Documentation/networking/tuntap.rst (frames begin with a virtio_net_hdr).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <queue>
#include <random>
#include <string>
#include <vector>

namespace clary::lab {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;
using MacAddress = std::array<uint8_t, 6>;

struct Link {
  std::string name;
  int tap;  // descriptor of a TAP device with virtio headers, non-blocking; not owned
  MacAddress mac;
  double bytesPerSecond;  // 0: no limit
  Duration delay;
  double loss;  // probability
};

// What happened to frames, by port. `received` are from the host of the port, all others on the way to it.
struct PortCounts {
  uint64_t receivedFrames = 0;
  uint64_t receivedBytes = 0;
  uint64_t deliveredFrames = 0;
  uint64_t deliveredBytes = 0;
  uint64_t lostFrames = 0;     // by the link's loss
  uint64_t cutFrames = 0;      // while one of the two links was down
  uint64_t droppedFrames = 0;  // no room: the backlog was too long, or the device refused them
  Duration worstLateness{0};   // of a delivery, against the time it was due: how busy the machine was
};

class EthernetSwitch {
 public:
  EthernetSwitch(std::vector<Link> links, uint64_t seed);

  // Take what the hosts have sent; `port` is an index of `links`.
  void receive(size_t port, TimePoint now);

  // Hand out what is due by `now`.
  void deliver(TimePoint now);

  // When `deliver` has something to do next; TimePoint::max() if nothing is under way.
  TimePoint nextDue() const;

  // False while so much is under way that senders should wait.
  bool hasRoom() const;

  // Cut the link of a host, or connect it again. False if there is no such host.
  bool setLink(const std::string& name, bool up);

  const std::vector<Link>& links() const { return links_; }
  const std::vector<PortCounts>& counts() const { return counts_; }

 private:
  struct Frame {
    TimePoint due;  // first its arrival at the port, then the end of its transmission
    uint64_t number;
    std::vector<uint8_t> bytes;
    bool operator>(const Frame& other) const { return due != other.due ? due > other.due : number > other.number; }
  };
  struct Port {
    std::vector<Frame> inFlight;  // a heap, earliest first
    std::deque<Frame> line;
    TimePoint busyUntil{};
    bool isUp = true;
  };

  void send(size_t from, size_t to, const uint8_t* bytes, size_t size, TimePoint now);
  void startTransmissions(size_t port, TimePoint now);
  void write(size_t port, const Frame& frame, TimePoint now);

  std::vector<Link> links_;
  std::vector<Port> ports_;
  std::vector<PortCounts> counts_;
  std::vector<uint8_t> buffer_;
  std::mt19937_64 random_;
  uint64_t numFrames_ = 0;
  size_t queuedBytes_ = 0;
};

}  // namespace clary::lab
