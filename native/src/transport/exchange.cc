// Orders of this rank, and how they end. What peers send is in exchange_frames.cc.
#include "transport/exchange.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "transport/exchange_limits.hpp"

namespace clary {

namespace {

// How long a stream whose output has broken may take to end. The kernel ends both within a moment; a peer that closed
// only its reading side is no peer of ours.
constexpr std::chrono::seconds kBrokenGrace{1};

std::string bytesWords(uint64_t bytes) { return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes"); }

void copyMessage(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

Exchange::Exchange(int ownRank, std::vector<Connection> connections, SideChannel::Listener listener, Describe describe,
                   OnTell onTell)
    : ownRank_(ownRank),
      listener_(std::move(listener)),
      describe_(std::move(describe)),
      onTell_(std::move(onTell)),
      peers_(connections.size()) {
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    peers_[peer].connection = std::move(connections[peer]);
    peers_[peer].credit = kEagerWindow;
  }
}

bool Exchange::isReachable(int peer) const {
  if (peer == ownRank_) return true;
  if (peer < 0 || static_cast<size_t>(peer) >= peers_.size()) return false;
  const Peer& other = peers_[static_cast<size_t>(peer)];
  return other.connection.isOpen() || other.hasLeft;
}

bool Exchange::haveAllLeft() const {
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (static_cast<int>(peer) != ownRank_ && !peers_[peer].hasLeft) return false;
  }
  return peers_.size() > 1;
}

void Exchange::ask(int peer) {
  bool canAnswer = peer != ownRank_ && isReachable(peer) && !at(peer).hasLeft;
  if (!ended_ && canAnswer) push(peer, {FrameKind::kAsk});
}

void Exchange::begin(const Transfer& transfer) {
  uint64_t id = transfers_.add(transfer);
  Transfer& added = *transfers_.find(id);
  bool isSend = added.kind == Transfer::Kind::kSend;
  bool namesAny = !isSend && added.peer == kAnyRank;
  if (ended_) {
    fail(id, *ended_);
  } else if (!namesAny && !isReachable(added.peer)) {
    fail(id, {Code::kInvalid, -1,
              words(added) + ": no such rank is connected; ranks are 0 to " + std::to_string(peers_.size() - 1)});
  } else if (isSend) {
    send(id, added);
  } else {
    receive(id, added);
  }
}

void Exchange::send(uint64_t id, Transfer& send) {
  if (send.peer == ownRank_) return sendToSelf(id, send);
  Peer& peer = at(send.peer);
  if (peer.hasLeft) return fail(id, departed(send));
  if (send.bytes <= kEagerBytes && peer.credit >= eagerCost(send.bytes)) {
    peer.credit -= eagerCost(send.bytes);
    send.stage = Transfer::Stage::kMoving;
    push(send.peer, {FrameKind::kEager, 0, send.tag, send.bytes}, send.data, id);
  } else if (peer.unanswered < kMaxRequests) {
    ++peer.unanswered;
    push(send.peer, {FrameKind::kRequest, id, send.tag, send.bytes});
  } else {
    fail(id, {Code::kInvalid, send.peer,
              words(send) + ": " + std::to_string(kMaxRequests) +
                  " sends to that rank wait for a receive already; wait for some of them first"});
  }
}

void Exchange::sendToSelf(uint64_t id, Transfer& send) {
  Peer& self = at(ownRank_);
  Arrival arrival{Arrival::Kind::kLocal, send.bytes, id, nullptr};
  int64_t tag = send.tag;
  if (send.bytes <= kEagerBytes && self.credit >= eagerCost(send.bytes)) {
    self.credit -= eagerCost(send.bytes);
    arrival.kind = Arrival::Kind::kWhole;
    arrival.payload = std::make_unique<std::byte[]>(static_cast<size_t>(send.bytes));
    copyMessage(arrival.payload.get(), send.data, send.bytes);
    succeed(id);
  }
  arrive(ownRank_, tag, std::move(arrival));
}

void Exchange::receive(uint64_t id, Transfer& receive) {
  while (auto taken = matching_.takeArrival(receive.peer, receive.tag)) {
    if (meet(id, taken->first, taken->second)) return;
  }
  bool hasLeft = receive.peer == kAnyRank ? haveAllLeft() : at(receive.peer).hasLeft;
  if (hasLeft) return fail(id, departed(receive));
  matching_.post(receive.peer, receive.tag, id);
}

// A message came, or is asked for: give it to the receive that waits for it, or keep it.
void Exchange::arrive(int peer, int64_t tag, Arrival arrival) {
  uint64_t id = matching_.takePosted(peer, tag);
  if (id == 0) {
    matching_.arrive(peer, tag, std::move(arrival));
  } else {
    meet(id, peer, arrival);
  }
}

// Bring a receive and a message together. False if the message is there no more: a send to itself that has ended.
bool Exchange::meet(uint64_t id, int peer, Arrival& arrival) {
  Transfer& receive = *transfers_.find(id);
  Transfer* local = arrival.kind == Arrival::Kind::kLocal ? transfers_.find(arrival.send) : nullptr;
  if (arrival.kind == Arrival::Kind::kLocal && local == nullptr) return false;
  receive.peer = peer;
  bool isEqual = arrival.bytes == receive.bytes;
  BadNews failure{};
  if (!isEqual) failure = unequal(peer, arrival.bytes, receive.bytes, peer, ownRank_, receive.tag);
  switch (arrival.kind) {
    case Arrival::Kind::kWhole:
      giveBack(peer, arrival.bytes);
      if (isEqual) copyMessage(receive.data, arrival.payload.get(), arrival.bytes);
      break;
    case Arrival::Kind::kRequest:
      --at(peer).requests;
      if (isEqual) {
        receive.stage = Transfer::Stage::kMoving;
        push(peer, {FrameKind::kClear, arrival.send, static_cast<int64_t>(id)});
        return true;
      }
      push(peer, {FrameKind::kRefuse, arrival.send, static_cast<int64_t>(receive.bytes)});
      break;
    case Arrival::Kind::kLocal:
      if (isEqual) {
        copyMessage(receive.data, local->data, arrival.bytes);
        succeed(arrival.send);
      } else {
        fail(arrival.send, failure);
      }
      break;
  }
  isEqual ? succeed(id) : fail(id, failure);
  return true;
}

void Exchange::sendPart(uint64_t id, const Transfer& send) {
  uint64_t bytes = std::min(kPartBytes, send.bytes - send.moved);
  push(send.peer, {FrameKind::kData, send.remote, 0, bytes}, send.data + send.moved, id);
}

void Exchange::onWritten(int peer, const Frame& frame, uint64_t transfer) {
  if (frame.kind == FrameKind::kTell) {
    --at(peer).tells;
    return;
  }
  Transfer* send = transfers_.find(transfer);
  if (send == nullptr) return;
  send->moved += frame.bytes;
  send->moved < send->bytes ? sendPart(transfer, *send) : succeed(transfer);
}

// A receive has taken an eager message: its place in the window is free again.
void Exchange::giveBack(int peer, uint64_t bytes) {
  Peer& from = at(peer);
  if (peer == ownRank_) {
    from.credit += eagerCost(bytes);
    return;
  }
  from.due += eagerCost(bytes);
  if (from.due < kEagerWindow / kCreditsPerWindow) return;
  push(peer, {FrameKind::kCredit, 0, static_cast<int64_t>(from.due)});
  from.held -= from.due;
  from.due = 0;
}

void Exchange::tellBadNews(const BadNews& news) {
  if (std::exchange(hasTold_, true)) return;
  if (!ended_) silence(news);
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i].connection.isOpen()) continue;
    auto peer = static_cast<int>(i);
    Frame frame{FrameKind::kBadNews, static_cast<uint64_t>(news.code), news.culprit};
    at(peer).connection.enqueueText(frame, presentable(news.text));
    markDirty(peer);
  }
  failAll();
}

void Exchange::shut(bool goodbye) {
  if (!ended_) silence({Code::kClosed, -1, "the group was closed by this rank, " + describe_(ownRank_)});
  failAll();
  if (!goodbye) return;
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer].connection.isOpen()) push(static_cast<int>(peer), {FrameKind::kGoodbye});
  }
}

void Exchange::onStreamEnd(int peer) {
  int error = at(peer).connection.errorNumber();
  lose(peer, error == 0 ? "was lost: its connection ended without a goodbye, so its process has ended or gave up"
                        : "was lost: its connection broke: " + errorWords(error));
}

void Exchange::onOutputBroken(int peer) {
  // What the peer said before it went is still to be read: perhaps a goodbye.
  at(peer).brokenUntil = std::min(at(peer).brokenUntil, Clock::now() + kBrokenGrace);
}

void Exchange::onBadFrame(int peer, const std::string& text) {
  lose(peer, text + "; the connection was given up. Do all ranks run the same version?");
}

void Exchange::onFailure(const std::string& text) {
  hear({Code::kSystem, ownRank_, describe_(ownRank_) + " could not go on with its side channel: " + text});
}

TimePoint Exchange::nextDeadline() const {
  TimePoint next = transfers_.nextDeadline();
  for (const Peer& peer : peers_) next = std::min(next, peer.brokenUntil);
  return next;
}

void Exchange::expire(TimePoint now) {
  while (uint64_t id = transfers_.firstExpired(now)) fail(id, timeout(*transfers_.find(id)));
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer].brokenUntil <= now) onStreamEnd(static_cast<int>(peer));
  }
}

void Exchange::push(int peer, const Frame& frame, const std::byte* payload, uint64_t transfer) {
  at(peer).connection.enqueue(frame, payload, transfer);
  markDirty(peer);
}

void Exchange::markDirty(int peer) {
  if (dirty_.empty() || dirty_.back() != peer) dirty_.push_back(peer);
}

void Exchange::finish(int peer) {
  at(peer).connection.finish();
  at(peer).brokenUntil = TimePoint::max();
  at(peer).landing.reset();
  finished_.push_back(peer);
}

void Exchange::lose(int peer, const std::string& text) {
  finish(peer);
  hear({Code::kPeerLost, peer, describe_(peer) + " " + text});
}

// The first bad news that comes from outside.
void Exchange::hear(const BadNews& news) {
  if (ended_) return;
  silence(news);
  listener_.onBadNews(news);
  failAll();
}

// From now on everything ends with `cause`. No memory of a transfer is touched after this.
void Exchange::silence(const BadNews& cause) {
  ended_ = cause;
  matching_.clear();
  for (Peer& peer : peers_) {
    peer.connection.releaseAll();
    peer.connection.divertAll();
    peer.landing.reset();
  }
}

void Exchange::failAll() {
  for (uint64_t id : transfers_.all()) fail(id, *ended_);
}

void Exchange::succeed(uint64_t id) {
  Transfer ended = *transfers_.find(id);
  transfers_.remove(id);
  listener_.onTransferEnd(ended.ticket, ended.peer, nullptr);
}

void Exchange::fail(uint64_t id, const BadNews& cause) {
  Transfer ended = *transfers_.find(id);
  transfers_.remove(id);
  if (ended.stage == Transfer::Stage::kWaiting) {
    if (ended.kind == Transfer::Kind::kReceive) matching_.withdraw(ended.peer, ended.tag, id);
  } else {
    Connection& connection = at(ended.peer).connection;
    ended.kind == Transfer::Kind::kSend ? connection.release(id) : connection.divert(id);
  }
  listener_.onTransferEnd(ended.ticket, ended.peer, &cause);
}

std::string Exchange::words(const Transfer& transfer) const {
  bool isSend = transfer.kind == Transfer::Kind::kSend;
  std::string peer = transfer.peer == kAnyRank ? "any rank" : describe_(transfer.peer);
  return (isSend ? "send of " : "receive of ") + bytesWords(transfer.bytes) + (isSend ? " to " : " from ") + peer +
         " with tag " + std::to_string(transfer.tag);
}

BadNews Exchange::unequal(int culprit, uint64_t sent, uint64_t received, int sender, int receiver, int64_t tag) const {
  return {Code::kInvalid, culprit,
          "a message of " + bytesWords(sent) + " from " + describe_(sender) + " with tag " + std::to_string(tag) +
              " met a receive of " + bytesWords(received) + " on " + describe_(receiver) +
              "; name the same size on both sides"};
}

BadNews Exchange::timeout(const Transfer& transfer) const {
  double limit = std::chrono::duration<double>(transfer.deadline - transfer.begun).count();
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", std::max(0.0, limit));
  std::string text = words(transfer) + " passed its limit of " + seconds + " s: ";
  if (transfer.stage == Transfer::Stage::kMoving) {
    text += std::to_string(transfer.moved) + " of its bytes had moved";
  } else if (transfer.kind == Transfer::Kind::kSend) {
    text += "no receive for it was posted there";
  } else {
    text += "no message for it came";
  }
  return {Code::kTimeout, transfer.peer, text};
}

BadNews Exchange::departed(const Transfer& transfer) const {
  std::string who = transfer.peer == kAnyRank ? "every other rank" : "that rank";
  return {Code::kPeerLost, transfer.peer, words(transfer) + " cannot be done: " + who + " has closed the group"};
}

}  // namespace clary
