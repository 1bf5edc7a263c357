// One-shot: every host sends its whole shard to every other, and each adds all of them in the order of hosts.
//
// One hop, (M-1) times the bytes of the shard in and out of every host: for small shards and long links.
#include "algorithms/shard_exchanges.hpp"

namespace clary {

size_t OneShotExchange::scratchElements(size_t count) const { return count * static_cast<size_t>(hosts()); }

void OneShotExchange::begin(Shard& shard) {
  const size_t bytes = shard.count * elementSize_;
  shard.received.assign(peers_.size(), 0);
  shard.sent.assign(peers_.size(), 0);
  for (int host = 0; host < hosts(); ++host) {
    if (host == self_) continue;
    shard.received[host] =
        run_.lanes().postReceive(peers_[host], shard.scratch + static_cast<size_t>(host) * bytes, bytes);
  }
  for (int turn = 1; turn < hosts(); ++turn) {
    const int host = (self_ + turn) % hosts();
    shard.sent[host] = run_.lanes().postSend(peers_[host], shard.partial, bytes);
  }
}

void OneShotExchange::advance(Shard& shard) {
  const size_t bytes = shard.count * elementSize_;
  std::vector<const void*> sources(peers_.size());
  for (int host = 0; host < hosts(); ++host) {
    sources[host] = host == self_ ? shard.partial : shard.scratch + static_cast<size_t>(host) * bytes;
    if (host != self_) run_.awaitReceived(peers_[host], shard.received[host]);
  }
  // The result may lie where the partial sum lies, which must have left first.
  for (int host = 0; host < hosts(); ++host) {
    if (host != self_) run_.awaitSent(peers_[host], shard.sent[host]);
  }
  run_.reduce(shard.result, nullptr, sources.data(), hosts(), shard.count, divisor_);
}

void OneShotExchange::finish(Shard&) {}

}  // namespace clary
