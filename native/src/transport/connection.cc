#include "transport/connection.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace clary {

namespace {

constexpr size_t kFramesPerCall = 16;
// Bounds of one turn, so that one busy peer does not keep the others waiting.
constexpr size_t kWrittenBytesPerTurn = size_t{1} << 20;
constexpr int kReadsPerTurn = 8;

}  // namespace

Connection::Connection(int peer, Descriptor socket, bool isTcp)
    : peer_(peer), socket_(std::move(socket)), isTcp_(isTcp), inbox_(new std::byte[kInboxBytes]) {}

void Connection::finish() {
  isFinished_ = true;
  outgoing_.clear();
  divertAll();
}

void Connection::enqueue(const Frame& frame, const std::byte* payload, uint64_t transfer) {
  if (isFinished_ || isBroken_) return;
  outgoing_.push_back({frame, encode(frame), payload, transfer, nullptr});
}

void Connection::enqueueText(Frame frame, std::string_view text) {
  frame.bytes = text.size();
  enqueue(frame);
  if (outgoing_.empty()) return;
  Outgoing& item = outgoing_.back();
  item.payload = reinterpret_cast<const std::byte*>(text.data());
  keepCopy(item);
}

void Connection::keepCopy(Outgoing& item) {
  // A frame may be given up twice: by its transfer, and then with all others. Its payload is its own since the first.
  if (item.owned != nullptr) return;
  auto bytes = static_cast<size_t>(item.frame.payloadBytes());
  item.owned = std::make_unique<std::byte[]>(bytes);
  if (bytes > 0) std::memcpy(item.owned.get(), item.payload, bytes);
  item.payload = item.owned.get();
  item.transfer = 0;
}

Connection::Output Connection::flush(Sink& sink) {
  size_t turn = 0;
  while (!outgoing_.empty()) {
    if (turn >= kWrittenBytesPerTurn) return Output::kMore;
    std::array<iovec, 2 * kFramesPerCall> parts;
    size_t count = 0;
    size_t offered = 0;
    size_t skip = written_;
    auto add = [&](const std::byte* data, size_t bytes) {
      size_t step = std::min(skip, bytes);
      skip -= step;
      if (bytes == step) return;
      // sendmsg only reads; its iovec knows no const.
      parts[count++] = {const_cast<std::byte*>(data) + step, bytes - step};
      offered += bytes - step;
    };
    for (size_t i = 0; i < outgoing_.size() && i < kFramesPerCall; ++i) {
      add(outgoing_[i].header.data(), kHeaderBytes);
      add(outgoing_[i].payload, static_cast<size_t>(outgoing_[i].frame.payloadBytes()));
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    ssize_t result = ::sendmsg(socket_.fd(), &message, MSG_NOSIGNAL);
    if (result < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Output::kBlocked;
      errorNumber_ = errno;
      isBroken_ = true;
      outgoing_.clear();
      return Output::kBroken;
    }
    turn += static_cast<size_t>(result);
    advance(static_cast<size_t>(result), sink);
    if (static_cast<size_t>(result) < offered) return Output::kBlocked;
  }
  return Output::kWritten;
}

void Connection::advance(size_t bytes, Sink& sink) {
  written_ += bytes;
  while (!outgoing_.empty()) {
    size_t whole = kHeaderBytes + static_cast<size_t>(outgoing_.front().frame.payloadBytes());
    if (written_ < whole) return;
    written_ -= whole;
    Frame frame = outgoing_.front().frame;
    uint64_t transfer = outgoing_.front().transfer;
    outgoing_.pop_front();
    if (transfer != 0) sink.onWritten(peer_, frame, transfer);
  }
}

Connection::Stream Connection::read(Sink& sink) {
  for (int turn = 0; turn < kReadsPerTurn && !isFinished_; ++turn) {
    // A payload goes straight to its place, and what follows it to the inbox. What is thrown away passes through the
    // inbox, which is empty then.
    std::array<iovec, 2> parts;
    size_t count = 0;
    bool discards = isInPayload_ && landing_.at == nullptr;
    if (isInPayload_ && !discards) parts[count++] = {landing_.at, static_cast<size_t>(payloadLeft_)};
    size_t room = kInboxBytes - inboxBytes_;
    if (discards) room = static_cast<size_t>(std::min<uint64_t>(room, payloadLeft_));
    parts[count++] = {inbox_.get() + inboxBytes_, room};
    size_t offered = parts[0].iov_len + (count > 1 ? parts[1].iov_len : 0);
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    ssize_t result = ::recvmsg(socket_.fd(), &message, 0);
    if (result < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Stream::kOpen;
      errorNumber_ = errno;
      return Stream::kEnded;
    }
    if (result == 0) {
      errorNumber_ = 0;
      return Stream::kEnded;
    }
    auto bytes = static_cast<size_t>(result);
    if (isInPayload_) {
      size_t landed = static_cast<size_t>(std::min<uint64_t>(bytes, payloadLeft_));
      payloadLeft_ -= landed;
      if (!discards) landing_.at += landed;
      inboxBytes_ = bytes - landed;
    } else {
      inboxBytes_ += bytes;
    }
    parse(sink);
    if (bytes < offered) return Stream::kOpen;
  }
  return Stream::kOpen;
}

void Connection::parse(Sink& sink) {
  size_t at = 0;
  while (!isFinished_) {
    if (!isInPayload_) {
      if (inboxBytes_ - at < kHeaderBytes) break;
      frame_ = decode(inbox_.get() + at);
      at += kHeaderBytes;
      isInPayload_ = true;
      payloadLeft_ = frame_.payloadBytes();
      landing_ = sink.place(peer_, frame_);
    }
    size_t step = static_cast<size_t>(std::min<uint64_t>(payloadLeft_, inboxBytes_ - at));
    if (landing_.at != nullptr && step > 0) {
      std::memcpy(landing_.at, inbox_.get() + at, step);
      landing_.at += step;
    }
    at += step;
    payloadLeft_ -= step;
    if (payloadLeft_ > 0) break;
    uint64_t transfer = landing_.transfer;
    isInPayload_ = false;
    landing_ = {};
    sink.take(peer_, frame_, transfer);
  }
  if (at > 0 && at < inboxBytes_) std::memmove(inbox_.get(), inbox_.get() + at, inboxBytes_ - at);
  inboxBytes_ -= at;
}

void Connection::release(uint64_t transfer) {
  for (size_t i = outgoing_.size(); i-- > 0;) {
    if (outgoing_[i].transfer != transfer) continue;
    if (i == 0 && written_ > 0) {
      keepCopy(outgoing_[0]);
    } else {
      outgoing_.erase(outgoing_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

void Connection::releaseAll() {
  size_t kept = written_ > 0 ? 1 : 0;
  outgoing_.erase(outgoing_.begin() + static_cast<ptrdiff_t>(std::min(kept, outgoing_.size())), outgoing_.end());
  if (!outgoing_.empty()) keepCopy(outgoing_.front());
}

void Connection::divert(uint64_t transfer) {
  if (landing_.transfer == transfer) landing_ = {};
}

void Connection::endOutput() { ::shutdown(socket_.fd(), SHUT_WR); }

bool Connection::isDelivered() const { return !isTcp_ || isAcknowledged(socket_.fd()); }

}  // namespace clary
