// How bytes move: `post` queues a piece and, where nothing waits before it, tries the socket at once. What is left is
// listed in pending_. `progress` asks the kernel by one poll which of the listed sockets can go on, and moves those:
// never a system call on a socket that has nothing to do. Pieces that lie one after the other go in one system call.
#include "transport/lanes.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <ctime>
#include <thread>

namespace clary {

namespace {

constexpr size_t kPiecesPerCall = 16;
// Between looks at what the peers' kernels have acknowledged: nothing wakes us for that.
constexpr std::chrono::milliseconds kDeliveryLook{1};
constexpr size_t kDiscardBytes = 65536;
// What one direction of a lane moves in one call of `progress` at most, give or take a piece.
constexpr size_t kBytesPerTurn = size_t{4} << 20;
// Moved pieces are cut off a queue when there are at least so many and they are half of it.
constexpr size_t kMovedPiecesKept = 64;

timespec asTimespec(Duration limit) {
  auto ns = std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count());
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  return {.tv_sec = ns / kNsPerSecond, .tv_nsec = ns % kNsPerSecond};
}

}  // namespace

void LaneSet::Flow::add(std::byte* data, size_t bytes) {
  pieces.push_back({data, bytes});
  posted += bytes;
}

void LaneSet::Flow::advance(size_t bytes) {
  moved += bytes;
  while (bytes > 0) {
    Piece& piece = pieces[first];
    size_t step = std::min(bytes, piece.bytes);
    piece.data += step;
    piece.bytes -= step;
    bytes -= step;
    if (piece.bytes == 0) ++first;
  }
  if (first == pieces.size()) {
    pieces.clear();
    first = 0;
  } else if (first >= kMovedPiecesKept && first * 2 >= pieces.size()) {
    pieces.erase(pieces.begin(), pieces.begin() + static_cast<ptrdiff_t>(first));
    first = 0;
  }
}

LaneSet::LaneSet(std::vector<int> fds, int wakeFd) : lanes_(fds.size()), wakeFd_(wakeFd) {
  std::vector<Descriptor> sockets = takeOver(fds);
  for (size_t peer = 0; peer < sockets.size(); ++peer) {
    if (!sockets[peer].isOpen()) continue;
    lanes_[peer].isTcp = prepareStream(sockets[peer].fd(), "lane to rank " + std::to_string(peer));
    lanes_[peer].socket = std::move(sockets[peer]);
  }
}

LaneSet::~LaneSet() {
  for (Lane& lane : lanes_) lane.socket.endAndClose();
}

LaneSet::Position LaneSet::postSend(int peer, const void* data, size_t bytes) {
  // Only read from: `move` hands it to sendmsg, whose iovec knows no const.
  return post(peer, &Lane::out, static_cast<std::byte*>(const_cast<void*>(data)), bytes);
}

LaneSet::Position LaneSet::postReceive(int peer, void* data, size_t bytes) {
  return post(peer, &Lane::in, static_cast<std::byte*>(data), bytes);
}

LaneSet::Position LaneSet::post(int peer, Flow Lane::* direction, std::byte* data, size_t bytes) {
  Lane& lane = lanes_.at(static_cast<size_t>(peer));
  assert(lane.socket.isOpen() && "a post names a peer that has no lane");
  Flow& flow = lane.*direction;
  if (bytes == 0) return flow.posted;
  bool waits = flow.isPending();
  flow.add(data, bytes);
  if (!waits && flow.broken.empty()) move(peer, direction);
  if (flow.isPending() && !lane.isListed) {
    lane.isListed = true;
    pending_.push_back(peer);
  }
  return flow.posted;
}

// Move one direction of a lane as far as it goes. Returns whether anything moved. An error is noted, not thrown: it
// belongs to `progress`, and the kernel tells it only once.
bool LaneSet::move(int peer, Flow Lane::* direction) {
  Lane& lane = lanes_[static_cast<size_t>(peer)];
  Flow& flow = lane.*direction;
  bool sends = direction == &Lane::out;
  size_t turn = 0;
  while (flow.isPending() && turn < kBytesPerTurn) {
    std::array<iovec, kPiecesPerCall> parts;
    size_t count = 0;
    size_t offered = 0;
    for (size_t i = flow.first; i < flow.pieces.size() && count < parts.size(); ++i) {
      parts[count++] = {flow.pieces[i].data, flow.pieces[i].bytes};
      offered += flow.pieces[i].bytes;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    ssize_t result =
        sends ? ::sendmsg(lane.socket.fd(), &message, MSG_NOSIGNAL) : ::recvmsg(lane.socket.fd(), &message, 0);
    if (result < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) noteBroken(peer, direction, errorWords(errno));
      break;
    }
    if (result == 0) {
      noteBroken(peer, direction, "its end of the stream was closed");
      break;
    }
    auto bytes = static_cast<size_t>(result);
    flow.advance(bytes);
    turn += bytes;
    if (bytes < offered) break;  // the kernel has no more, or no more room: trying again would only say so
  }
  auto& total = sends ? bytesSent_ : bytesReceived_;
  total.store(total.load(std::memory_order_relaxed) + turn, std::memory_order_relaxed);
  return turn > 0;
}

void LaneSet::noteBroken(int peer, Flow Lane::* direction, const std::string& text) {
  Lane& lane = lanes_[static_cast<size_t>(peer)];
  std::string& broken = (lane.*direction).broken;
  if (!broken.empty()) return;
  broken = "the lane to rank " + std::to_string(peer) + " broke: " + text + "; " +
           std::to_string(lane.out.posted - lane.out.moved) + " bytes were still to be sent and " +
           std::to_string(lane.in.posted - lane.in.moved) + " to be received";
  if (direction == &Lane::in && brokenPeer_ < 0) brokenPeer_ = peer;
}

void LaneSet::throwIfBroken() const {
  if (brokenPeer_ >= 0) throw LaneBroken(brokenPeer_, lanes_[static_cast<size_t>(brokenPeer_)].in.broken);
}

void LaneSet::checkSends(int peer) const {
  const Flow& out = lanes_.at(static_cast<size_t>(peer)).out;
  if (!out.broken.empty()) throw LaneBroken(peer, out.broken);
}

bool LaneSet::progress(Duration limit) {
  throwIfBroken();
  // The wake first, then one entry a pending peer, in the order of pending_. poll skips negative descriptors.
  polled_.clear();
  polled_.push_back({wakeFd_, POLLIN, 0});
  for (int peer : pending_) {
    const Lane& lane = lanes_[static_cast<size_t>(peer)];
    short events = static_cast<short>((lane.in.isPending() ? POLLIN : 0) | (lane.out.isPending() ? POLLOUT : 0));
    polled_.push_back({lane.socket.fd(), events, 0});
  }
  timespec wait = asTimespec(limit);
  int ready = ::ppoll(polled_.data(), polled_.size(), &wait, nullptr);
  if (ready < 0 && errno != EINTR) {
    throw Failure(Code::kSystem, -1, "poll of " + std::to_string(pending_.size()) + " lanes: " + errorWords(errno));
  }
  if (ready <= 0) return false;

  bool moved = false;
  for (size_t i = 0; i < pending_.size(); ++i) {
    short events = polled_[i + 1].revents;
    if (events == 0) continue;
    // Errors and hang-ups come unasked; the system call that is pending then says what they are.
    bool failed = (events & (POLLERR | POLLHUP | POLLNVAL)) != 0;
    Lane& lane = lanes_[static_cast<size_t>(pending_[i])];
    if (lane.in.isPending() && (failed || (events & POLLIN) != 0)) moved |= move(pending_[i], &Lane::in);
    if (lane.out.isPending() && (failed || (events & POLLOUT) != 0)) moved |= move(pending_[i], &Lane::out);
  }
  unlistIdle();
  throwIfBroken();
  return moved;
}

void LaneSet::unlistIdle() {
  std::erase_if(pending_, [this](int peer) {
    Lane& lane = lanes_[static_cast<size_t>(peer)];
    lane.isListed = lane.out.isPending() || lane.in.isPending();
    return !lane.isListed;
  });
}

void LaneSet::leave(Duration limit) {
  const TimePoint until = Clock::now() + limit;
  for (;;) {
    for (size_t peer = 0; peer < lanes_.size(); ++peer) {
      Lane& lane = lanes_[peer];
      if (!lane.socket.isOpen()) continue;
      if (lane.out.isPending()) move(static_cast<int>(peer), &Lane::out);
      discardInput(lane);
    }
    if (isAllSent() || Clock::now() >= until) return;
    std::this_thread::sleep_for(kDeliveryLook);
  }
}

void LaneSet::discardInput(Lane& lane) {
  std::array<std::byte, kDiscardBytes> unwanted;
  // A peer may send faster than we read.
  for (size_t turn = 0; turn < kBytesPerTurn && !lane.hasEnded;) {
    const ssize_t result = ::recv(lane.socket.fd(), unwanted.data(), unwanted.size(), 0);
    if (result < 0 && errno == EINTR) continue;
    if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    lane.hasEnded = result <= 0;
    turn += lane.hasEnded ? 0 : static_cast<size_t>(result);
  }
}

bool LaneSet::isAllSent() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    if (!lane.socket.isOpen() || !lane.out.broken.empty() || lane.hasEnded) return true;
    return !lane.out.isPending() && (!lane.isTcp || isAcknowledged(lane.socket.fd()));
  });
}

bool LaneSet::isSent(int peer, Position position) const {
  return lanes_.at(static_cast<size_t>(peer)).out.moved >= position;
}

bool LaneSet::isReceived(int peer, Position position) const {
  return lanes_.at(static_cast<size_t>(peer)).in.moved >= position;
}

bool LaneSet::hasPending() const { return !pending_.empty(); }

std::vector<int> LaneSet::pendingPeers() const {
  std::vector<int> peers = pending_;
  std::sort(peers.begin(), peers.end());
  return peers;
}

}  // namespace clary
