// Recursive halving and doubling (Rabenseifner): in log2(M) turns each host swaps half of what it holds with a partner
// and adds, until it owns one part; in log2(M) turns back the finished parts are swapped and grow again.
//
// 2 log2(M) messages a host instead of 2 (M-1), the fewest bytes possible. Hosts must be a power of two. Partners
// differ in one bit of their numbers; the lower host's bytes come first in every sum, so both ends of the tree agree.
#include "algorithms/shard_exchanges.hpp"
#include "algorithms/split.hpp"
#include "reduce/kernels.hpp"

namespace clary {
namespace {

// Parts `first` .. `first + parts` as one range.
Part rangeOf(size_t count, int hosts, int first, int parts, size_t grain) {
  const Part front = partOf(count, hosts, first, grain);
  const Part back = partOf(count, hosts, first + parts - 1, grain);
  return Part{front.begin, back.begin + back.count - front.begin};
}

}  // namespace

size_t HalvingDoublingExchange::scratchElements(size_t count) const {
  return rangeOf(count, hosts(), 0, hosts() / 2, grain()).count;
}

void HalvingDoublingExchange::begin(Shard& shard) {
  if (shard.result != shard.partial) copyBytes(shard.result, shard.partial, shard.count * elementSize_);
}

void HalvingDoublingExchange::advance(Shard& shard) {
  const int num = hosts();
  const auto place = [&](const Part& part) { return shard.result + part.begin * elementSize_; };
  int first = 0;
  for (int half = num / 2; half >= 1; half /= 2) {
    const int partner = self_ ^ half;
    const bool isLower = self_ < partner;
    const int kept = isLower ? first : first + half;
    const int given = isLower ? first + half : first;
    const Part keep = rangeOf(shard.count, num, kept, half, grain());
    const Part give = rangeOf(shard.count, num, given, half, grain());
    const auto received = run_.lanes().postReceive(peers_[partner], shard.scratch, keep.count * elementSize_);
    const auto sent = run_.lanes().postSend(peers_[partner], place(give), give.count * elementSize_);
    run_.awaitReceived(peers_[partner], received);
    run_.awaitSent(peers_[partner], sent);
    const void* lowerFirst[2] = {place(keep), shard.scratch};
    const void* upperLast[2] = {shard.scratch, place(keep)};
    run_.reduce(place(keep), nullptr, isLower ? lowerFirst : upperLast, 2, keep.count, half == 1 ? divisor_ : 1);
    first = kept;
  }
  for (int half = 1; half < num; half *= 2) {
    const int partner = self_ ^ half;
    const bool isLower = self_ < partner;
    const Part own = rangeOf(shard.count, num, first, half, grain());
    const Part other = rangeOf(shard.count, num, isLower ? first + half : first - half, half, grain());
    const auto received = run_.lanes().postReceive(peers_[partner], place(other), other.count * elementSize_);
    const auto sent = run_.lanes().postSend(peers_[partner], place(own), own.count * elementSize_);
    run_.awaitReceived(peers_[partner], received);
    run_.awaitSent(peers_[partner], sent);
    first = isLower ? first : first - half;
  }
}

void HalvingDoublingExchange::finish(Shard&) {}

}  // namespace clary
