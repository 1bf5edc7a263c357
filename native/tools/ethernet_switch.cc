#include "ethernet_switch.hpp"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace clary::lab {

namespace {

constexpr size_t kVirtioHeaderBytes = 10;  // struct virtio_net_hdr
constexpr size_t kMaxFrameBytes = 70'000;  // a TCP segment of 64 KiB with its headers
constexpr int kFramesPerTurn = 16;         // of one port, before the others and what is due have their turn
constexpr size_t kMaxQueuedBytes = 256u << 20;
constexpr Duration kMaxBacklog = std::chrono::milliseconds(50);

}  // namespace

EthernetSwitch::EthernetSwitch(std::vector<Link> links, uint64_t seed)
    : links_(std::move(links)), ports_(links_.size()), counts_(links_.size()), buffer_(kMaxFrameBytes), random_(seed) {}

void EthernetSwitch::receive(size_t port, TimePoint now) {
  for (int turn = 0; turn < kFramesPerTurn; ++turn) {
    const ssize_t size = ::read(links_[port].tap, buffer_.data(), buffer_.size());
    if (size < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == EIO) return;  // EIO: the host has set its interface down
      throw std::system_error(errno, std::generic_category(), "read of the TAP device of " + links_[port].name);
    }
    const size_t bytes = static_cast<size_t>(size);
    if (bytes < kVirtioHeaderBytes + sizeof(MacAddress)) continue;
    counts_[port].receivedFrames += 1;
    counts_[port].receivedBytes += bytes - kVirtioHeaderBytes;
    MacAddress target;
    std::memcpy(target.data(), buffer_.data() + kVirtioHeaderBytes, target.size());
    const auto known = std::find_if(links_.begin(), links_.end(), [&](const Link& link) { return link.mac == target; });
    if (known != links_.end()) {
      send(port, static_cast<size_t>(known - links_.begin()), buffer_.data(), bytes, now);
      continue;
    }
    for (size_t other = 0; other < ports_.size(); ++other) {
      if (other != port) send(port, other, buffer_.data(), bytes, now);
    }
  }
}

void EthernetSwitch::deliver(TimePoint now) {
  for (size_t port = 0; port < ports_.size(); ++port) {
    startTransmissions(port, now);
    auto& line = ports_[port].line;
    while (!line.empty() && line.front().due <= now) {
      write(port, line.front(), now);
      queuedBytes_ -= line.front().bytes.size();
      line.pop_front();
    }
  }
}

TimePoint EthernetSwitch::nextDue() const {
  TimePoint next = TimePoint::max();
  for (const Port& port : ports_) {
    if (!port.inFlight.empty()) next = std::min(next, port.inFlight.front().due);
    if (!port.line.empty()) next = std::min(next, port.line.front().due);
  }
  return next;
}

bool EthernetSwitch::hasRoom() const { return queuedBytes_ < kMaxQueuedBytes; }

bool EthernetSwitch::setLink(const std::string& name, bool up) {
  for (size_t port = 0; port < ports_.size(); ++port) {
    if (links_[port].name == name) {
      ports_[port].isUp = up;
      return true;
    }
  }
  return false;
}

void EthernetSwitch::send(size_t from, size_t to, const uint8_t* bytes, size_t size, TimePoint now) {
  if (!ports_[from].isUp || !ports_[to].isUp) {
    counts_[to].cutFrames += 1;
    return;
  }
  const double loss = std::max(links_[from].loss, links_[to].loss);
  if (loss > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < loss) {
    counts_[to].lostFrames += 1;
    return;
  }
  const Duration delay = std::max(links_[from].delay, links_[to].delay);
  auto& inFlight = ports_[to].inFlight;
  inFlight.push_back(Frame{now + delay, numFrames_++, std::vector<uint8_t>(bytes, bytes + size)});
  std::push_heap(inFlight.begin(), inFlight.end(), std::greater<>());
  queuedBytes_ += size;
}

void EthernetSwitch::startTransmissions(size_t port, TimePoint now) {
  Port& to = ports_[port];
  while (!to.inFlight.empty() && to.inFlight.front().due <= now) {
    std::pop_heap(to.inFlight.begin(), to.inFlight.end(), std::greater<>());
    Frame frame = std::move(to.inFlight.back());
    to.inFlight.pop_back();
    // From the time it arrived, not from now: a switch that wakes late must not make the line slower.
    const TimePoint start = std::max(frame.due, to.busyUntil);
    if (start - frame.due > kMaxBacklog) {
      counts_[port].droppedFrames += 1;
      queuedBytes_ -= frame.bytes.size();
      continue;
    }
    frame.due = start;
    if (links_[port].bytesPerSecond > 0) {
      const double seconds = static_cast<double>(frame.bytes.size() - kVirtioHeaderBytes) / links_[port].bytesPerSecond;
      frame.due += std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
      to.busyUntil = frame.due;
    }
    to.line.push_back(std::move(frame));
  }
}

void EthernetSwitch::write(size_t port, const Frame& frame, TimePoint now) {
  PortCounts& counts = counts_[port];
  if (!ports_[port].isUp) {
    counts.cutFrames += 1;
    return;
  }
  counts.worstLateness = std::max(counts.worstLateness, now - frame.due);
  if (::write(links_[port].tap, frame.bytes.data(), frame.bytes.size()) < 0) {
    // The interface is down, there is no room, or the kernel takes the frame for malformed: a wire would lose it, too.
    if (errno != EIO && errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM && errno != EINVAL) {
      throw std::system_error(errno, std::generic_category(), "write to the TAP device of " + links_[port].name);
    }
    counts.droppedFrames += 1;
    return;
  }
  counts.deliveredFrames += 1;
  counts.deliveredBytes += frame.bytes.size() - kVirtioHeaderBytes;
}

}  // namespace clary::lab
