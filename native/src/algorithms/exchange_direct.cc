// Direct: the shard is cut into one part a host; every host sends part h to host h, which adds all copies of it in the
// order of hosts and sends the sum to all. SMDDP's layout: as many servers as hosts, each owner of an equal part.
//
// Two hops whatever the number of hosts, and 2 (M-1)/M of the shard's bytes in and out of every host, which no
// algorithm can go below.
#include "algorithms/shard_exchanges.hpp"
#include "algorithms/split.hpp"

namespace clary {

size_t DirectExchange::scratchElements(size_t count) const {
  return partOf(count, hosts(), 0, grain()).count * static_cast<size_t>(hosts());
}

void DirectExchange::begin(Shard& shard) {
  const Part own = partOf(shard.count, hosts(), self_, grain());
  shard.received.assign(peers_.size(), 0);
  shard.sent.assign(peers_.size(), 0);
  for (int host = 0; host < hosts(); ++host) {
    if (host == self_) continue;
    std::byte* place = shard.scratch + static_cast<size_t>(host) * own.count * elementSize_;
    shard.received[host] = run_.lanes().postReceive(peers_[host], place, own.count * elementSize_);
  }
  for (int turn = 1; turn < hosts(); ++turn) {
    const int host = (self_ + turn) % hosts();
    const Part part = partOf(shard.count, hosts(), host, grain());
    shard.sent[host] =
        run_.lanes().postSend(peers_[host], shard.partial + part.begin * elementSize_, part.count * elementSize_);
  }
}

void DirectExchange::advance(Shard& shard) {
  const Part own = partOf(shard.count, hosts(), self_, grain());
  std::byte* sum = shard.result + own.begin * elementSize_;
  std::vector<const void*> sources(peers_.size());
  for (int host = 0; host < hosts(); ++host) {
    if (host == self_) {
      sources[host] = shard.partial + own.begin * elementSize_;
      continue;
    }
    sources[host] = shard.scratch + static_cast<size_t>(host) * own.count * elementSize_;
    run_.awaitReceived(peers_[host], shard.received[host]);
  }
  run_.reduce(sum, nullptr, sources.data(), hosts(), own.count, divisor_);
  for (int turn = 1; turn < hosts(); ++turn) {
    const int host = (self_ + turn) % hosts();
    const Part part = partOf(shard.count, hosts(), host, grain());
    // Where result and partial are one, part `host` must have left before its sum is written over it; its owner sends
    // the sum only after it has all of the part, so what arrives here cannot overtake.
    run_.awaitSent(peers_[host], shard.sent[host]);
    shard.received[host] =
        run_.lanes().postReceive(peers_[host], shard.result + part.begin * elementSize_, part.count * elementSize_);
    shard.sent[host] = run_.lanes().postSend(peers_[host], sum, own.count * elementSize_);
  }
}

void DirectExchange::finish(Shard& shard) {
  for (int host = 0; host < hosts(); ++host) {
    if (host == self_) continue;
    run_.awaitReceived(peers_[host], shard.received[host]);
    run_.awaitSent(peers_[host], shard.sent[host]);
  }
}

}  // namespace clary
