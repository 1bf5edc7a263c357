// Ring: hosts pass parts of the shard to their successor, each adding its own, until every host holds one finished
// part; then the finished parts go round once more.
//
// Every host talks to two others only and receives one message at a time, at the price of 2 (M-1) hops. Part p is added
// in the order p+1, p+2, ..., p: fixed, but not the order of hosts.
#include "algorithms/shard_exchanges.hpp"
#include "algorithms/split.hpp"
#include "reduce/kernels.hpp"

namespace clary {

size_t RingExchange::scratchElements(size_t count) const { return partOf(count, hosts(), 0, grain()).count; }

void RingExchange::begin(Shard& shard) {
  if (shard.result != shard.partial) copyBytes(shard.result, shard.partial, shard.count * elementSize_);
}

void RingExchange::advance(Shard& shard) {
  const int num = hosts();
  const int next = peers_[(self_ + 1) % num];
  const int previous = peers_[(self_ + num - 1) % num];
  const auto place = [&](const Part& part) { return shard.result + part.begin * elementSize_; };
  for (int turn = 0; turn < num - 1; ++turn) {
    const Part leaving = partOf(shard.count, num, (self_ + num - 1 - turn) % num, grain());
    const Part coming = partOf(shard.count, num, (self_ + 2 * num - 2 - turn) % num, grain());
    const auto received = run_.lanes().postReceive(previous, shard.scratch, coming.count * elementSize_);
    const auto sent = run_.lanes().postSend(next, place(leaving), leaving.count * elementSize_);
    run_.awaitReceived(previous, received);
    run_.awaitSent(next, sent);
    const void* sources[2] = {shard.scratch, place(coming)};
    run_.reduce(place(coming), nullptr, sources, 2, coming.count, turn == num - 2 ? divisor_ : 1);
  }
  for (int turn = 0; turn < num - 1; ++turn) {
    const Part leaving = partOf(shard.count, num, (self_ + num - turn) % num, grain());
    const Part coming = partOf(shard.count, num, (self_ + num - 1 - turn) % num, grain());
    const auto received = run_.lanes().postReceive(previous, place(coming), coming.count * elementSize_);
    const auto sent = run_.lanes().postSend(next, place(leaving), leaving.count * elementSize_);
    run_.awaitReceived(previous, received);
    run_.awaitSent(next, sent);
  }
}

void RingExchange::finish(Shard&) {}

}  // namespace clary
