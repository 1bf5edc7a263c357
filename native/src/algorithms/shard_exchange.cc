#include "algorithms/shard_exchange.hpp"

#include "algorithms/shard_exchanges.hpp"
#include "algorithms/split.hpp"

namespace clary {

ShardExchange::ShardExchange(Run& run, std::vector<int> peers, int divisor)
    : run_(run),
      peers_(std::move(peers)),
      self_(run.layout().host()),
      divisor_(divisor),
      elementSize_(run.operation().elementSize()) {}

size_t ShardExchange::grain() const { return kGrainBytes / elementSize_; }

std::unique_ptr<ShardExchange> makeShardExchange(BetweenHosts algorithm, Run& run, std::vector<int> peers,
                                                 int divisor) {
  switch (algorithm) {
    case BetweenHosts::kOneShot:
      return std::make_unique<OneShotExchange>(run, std::move(peers), divisor);
    case BetweenHosts::kRing:
      return std::make_unique<RingExchange>(run, std::move(peers), divisor);
    case BetweenHosts::kHalvingDoubling:
      return std::make_unique<HalvingDoublingExchange>(run, std::move(peers), divisor);
    default:
      return std::make_unique<DirectExchange>(run, std::move(peers), divisor);
  }
}

}  // namespace clary
