#include "engine/headers.hpp"

namespace clary {

Headers::Headers(const Layout& layout, LaneSet* lanes, std::function<bool(int peer)> hasLeft)
    : layout_(layout), lanes_(lanes), hasLeft_(std::move(hasLeft)), byHost_(layout.hosts()) {}

void Headers::begin(const Operation& operation) {
  if (lanes_ == nullptr || !layout_.isLeader()) return;
  verify();
  for (int host = 0; host < layout_.hosts(); ++host) {
    if (host == layout_.host()) continue;
    const int peer = layout_.leaderOf(host);
    Exchange& exchange = byHost_[host].emplace_back();
    exchange.own = operation.announcement();
    exchange.sent = lanes_->postSend(peer, &exchange.own, hasLeft_(peer) ? 0 : sizeof(Announcement));
    exchange.receivedAt = lanes_->postReceive(peer, &exchange.received, sizeof(Announcement));
  }
}

void Headers::verify() {
  if (lanes_ == nullptr || !layout_.isLeader()) return;
  for (int host = 0; host < layout_.hosts(); ++host) {
    auto& exchanges = byHost_[host];
    const int peer = host == layout_.host() ? -1 : layout_.leaderOf(host);
    for (Exchange& exchange : exchanges) {
      if (exchange.isVerified) continue;
      if (!lanes_->isReceived(peer, exchange.receivedAt)) break;
      if (!exchange.own.matches(exchange.received)) {
        throw Failure(Code::kOrderMismatch, peer,
                      layout_.describe(layout_.rank) + " called " + describe(exchange.own) + " while " +
                          layout_.describe(peer) + " called " + describe(exchange.received) +
                          "; every rank must call the same collectives in the same order");
      }
      exchange.isVerified = true;
    }
    while (!exchanges.empty() && exchanges.front().isVerified && lanes_->isSent(peer, exchanges.front().sent)) {
      exchanges.pop_front();
    }
  }
}

}  // namespace clary
