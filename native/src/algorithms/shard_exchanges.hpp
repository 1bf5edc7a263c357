// The four ways to reduce a shard between hosts; each is explained at the head of its own file.
#pragma once

#include "algorithms/shard_exchange.hpp"

namespace clary {

class OneShotExchange : public ShardExchange {
 public:
  OneShotExchange(Run& run, std::vector<int> peers, int divisor) : ShardExchange(run, std::move(peers), divisor) {}
  size_t scratchElements(size_t count) const override;
  void begin(Shard& shard) override;
  void advance(Shard& shard) override;
  void finish(Shard& shard) override;
};

class DirectExchange : public ShardExchange {
 public:
  DirectExchange(Run& run, std::vector<int> peers, int divisor) : ShardExchange(run, std::move(peers), divisor) {}
  size_t scratchElements(size_t count) const override;
  void begin(Shard& shard) override;
  void advance(Shard& shard) override;
  void finish(Shard& shard) override;
};

class RingExchange : public ShardExchange {
 public:
  RingExchange(Run& run, std::vector<int> peers, int divisor) : ShardExchange(run, std::move(peers), divisor) {}
  size_t scratchElements(size_t count) const override;
  void begin(Shard& shard) override;
  void advance(Shard& shard) override;
  void finish(Shard& shard) override;
};

// The number of hosts must be a power of two.
class HalvingDoublingExchange : public ShardExchange {
 public:
  HalvingDoublingExchange(Run& run, std::vector<int> peers, int divisor)
      : ShardExchange(run, std::move(peers), divisor) {}
  size_t scratchElements(size_t count) const override;
  void begin(Shard& shard) override;
  void advance(Shard& shard) override;
  void finish(Shard& shard) override;
};

}  // namespace clary
