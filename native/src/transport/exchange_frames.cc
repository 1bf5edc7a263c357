// What peers send: where payloads go, and what each frame does. A peer may send anything; a frame that breaks the
// protocol is a BadFrame, and nothing that a peer says is used as an address, an index or a length unchecked.
//
// Two things look like violations and are none: an answer to a send that has ended here meanwhile, and data for a
// receive that has. Both are thrown away.
#include <string>

#include "transport/exchange.hpp"
#include "transport/exchange_limits.hpp"

namespace clary {

Connection::Landing Exchange::place(int peer, const Frame& frame) {
  if (ended_) return {};
  switch (frame.kind) {
    case FrameKind::kEager:
      return placeEager(peer, frame);
    case FrameKind::kData:
      return placeData(peer, frame);
    case FrameKind::kBadNews:
      at(peer).landing = std::make_unique<std::byte[]>(static_cast<size_t>(frame.bytes));
      return {at(peer).landing.get(), 0};
    default:
      return {};
  }
}

void Exchange::take(int peer, const Frame& frame, uint64_t transfer) {
  if (frame.kind == FrameKind::kGoodbye) return takeGoodbye(peer);
  if (ended_) return;
  switch (frame.kind) {
    case FrameKind::kEager:
      return takeEager(peer, frame, transfer);
    case FrameKind::kData:
      return takeData(frame, transfer);
    case FrameKind::kRequest:
      return takeRequest(peer, frame);
    case FrameKind::kClear:
    case FrameKind::kRefuse:
      return takeAnswer(peer, frame);
    case FrameKind::kCredit:
      return takeCredit(peer, frame);
    case FrameKind::kBadNews:
      return takeBadNews(peer, frame);
    case FrameKind::kAsk:
      return takeAsk(peer);
    case FrameKind::kTell:
      return takeTell(peer, frame);
    case FrameKind::kGoodbye:
      return;
  }
}

Connection::Landing Exchange::placeEager(int peer, const Frame& frame) {
  Peer& from = at(peer);
  from.held += eagerCost(frame.bytes);
  if (from.held > kEagerWindow) {
    throw BadFrame("sent more small messages than its window of " + std::to_string(kEagerWindow) + " bytes allows");
  }
  uint64_t id = matching_.takePosted(peer, frame.value);
  if (id == 0) {
    from.landing = std::make_unique<std::byte[]>(static_cast<size_t>(frame.bytes));
    return {from.landing.get(), 0};
  }
  Transfer& receive = *transfers_.find(id);
  receive.peer = peer;
  if (receive.bytes != frame.bytes) {
    fail(id, unequal(peer, frame.bytes, receive.bytes, peer, ownRank_, receive.tag));
    return {};
  }
  receive.stage = Transfer::Stage::kMoving;
  return {receive.data, id};
}

void Exchange::takeEager(int peer, const Frame& frame, uint64_t transfer) {
  if (transfer != 0) {
    giveBack(peer, frame.bytes);
    succeed(transfer);
  } else if (at(peer).landing != nullptr) {
    // Its receive may have come while it landed.
    arrive(peer, frame.value, {Arrival::Kind::kWhole, frame.bytes, 0, std::move(at(peer).landing)});
  } else {
    giveBack(peer, frame.bytes);
  }
}

Connection::Landing Exchange::placeData(int peer, const Frame& frame) {
  Transfer* receive = transfers_.find(frame.id);
  if (receive == nullptr) return {};
  bool isMoving = receive->kind == Transfer::Kind::kReceive && receive->stage == Transfer::Stage::kMoving;
  bool isDue = isMoving && receive->peer == peer;
  bool fits = isDue && frame.bytes <= receive->bytes - receive->moved && (frame.bytes > 0 || receive->bytes == 0);
  if (!fits) throw BadFrame("sent a part of " + std::to_string(frame.bytes) + " bytes that it was not asked for");
  return {receive->data + receive->moved, frame.id};
}

void Exchange::takeData(const Frame& frame, uint64_t transfer) {
  Transfer* receive = transfers_.find(transfer);
  if (receive == nullptr) return;
  receive->moved += frame.bytes;
  if (receive->moved == receive->bytes) succeed(transfer);
}

void Exchange::takeRequest(int peer, const Frame& frame) {
  if (++at(peer).requests > kMaxRequests) {
    throw BadFrame("asked to send more than " + std::to_string(kMaxRequests) + " messages that no receive waits for");
  }
  arrive(peer, frame.value, {Arrival::Kind::kRequest, frame.bytes, frame.id, nullptr});
}

void Exchange::takeAnswer(int peer, const Frame& frame) {
  Peer& from = at(peer);
  if (from.unanswered == 0) throw BadFrame("answered a request that was not made");
  --from.unanswered;
  Transfer* send = transfers_.find(frame.id);
  if (send == nullptr) return;
  bool isAsked = send->kind == Transfer::Kind::kSend && send->stage == Transfer::Stage::kWaiting && send->peer == peer;
  if (!isAsked) throw BadFrame("answered a request that was not made to it");
  if (frame.kind == FrameKind::kRefuse) {
    fail(frame.id, unequal(peer, send->bytes, static_cast<uint64_t>(frame.value), ownRank_, peer, send->tag));
    return;
  }
  send->stage = Transfer::Stage::kMoving;
  send->remote = static_cast<uint64_t>(frame.value);
  sendPart(frame.id, *send);
}

void Exchange::takeCredit(int peer, const Frame& frame) {
  Peer& from = at(peer);
  auto spent = static_cast<int64_t>(kEagerWindow - from.credit);
  if (frame.value <= 0 || frame.value > spent) {
    throw BadFrame("gave back " + std::to_string(frame.value) + " bytes of a window of which " + std::to_string(spent) +
                   " were spent");
  }
  from.credit += static_cast<uint64_t>(frame.value);
}

void Exchange::takeBadNews(int peer, const Frame& frame) {
  auto landing = std::move(at(peer).landing);
  bool isCode = frame.id >= static_cast<uint64_t>(Code::kTimeout) && frame.id <= static_cast<uint64_t>(Code::kSystem);
  bool isRank = frame.value >= -1 && frame.value < static_cast<int64_t>(peers_.size());
  if (!isCode || !isRank) {
    throw BadFrame("sent bad news of an unknown kind (code " + std::to_string(frame.id) + ", culprit " +
                   std::to_string(frame.value) + ")");
  }
  std::string_view text(reinterpret_cast<const char*>(landing.get()), static_cast<size_t>(frame.bytes));
  hear({static_cast<Code>(frame.id), static_cast<int>(frame.value), presentable(text)});
}

void Exchange::takeGoodbye(int peer) {
  at(peer).hasLeft = true;
  finish(peer);
  if (ended_) return;
  matching_.dropRequests(peer);
  listener_.onGoodbye(peer);
  bool haveAll = haveAllLeft();
  for (uint64_t id : transfers_.all()) {
    const Transfer& transfer = *transfers_.find(id);
    if (transfer.peer == peer || (haveAll && transfer.peer == kAnyRank)) fail(id, departed(transfer));
  }
}

void Exchange::takeAsk(int peer) {
  // Who asks and asks and reads no answer gets no more of them: they would lie in our memory.
  if (!listener_.onAsk || at(peer).tells >= kMaxTells) return;
  ++at(peer).tells;
  const Whereabouts it = listener_.onAsk();
  push(peer, {FrameKind::kTell, it.sequence, it.waitsFor}, nullptr, kOwnFrame);
}

void Exchange::takeTell(int peer, const Frame& frame) {
  if (frame.value < -1 || frame.value >= static_cast<int64_t>(peers_.size())) {
    throw BadFrame("said that it waits for rank " + std::to_string(frame.value) + ", which there is not");
  }
  onTell_(peer, {frame.id, static_cast<int>(frame.value)});
}

}  // namespace clary
