// All-reduce of one shard among the hosts' owners of it: the part of an all-reduce that uses the network.
//
// Three calls, so that several shards can be under way at once: `begin` posts what can leave at once, `advance` does
// what needs the others' first message, `finish` waits for the result. Each may wait; none needs the ranks of the own
// host. The sum of a shard is added by the hosts in the order of the hosts, except by ring and halving-doubling, whose
// order is their own but fixed.
#pragma once

#include <memory>
#include <vector>

#include "engine/run.hpp"

namespace clary {

// One shard on its way. Memory belongs to the caller and stays until `finish` has returned.
struct Shard {
  const std::byte* partial = nullptr;  // this host's sum; may equal result
  std::byte* result = nullptr;
  std::byte* scratch = nullptr;             // scratchElements(...) elements
  size_t count = 0;                         // elements
  std::vector<LaneSet::Position> received;  // by host
  std::vector<LaneSet::Position> sent;
};

class ShardExchange {
 public:
  virtual ~ShardExchange() = default;
  virtual size_t scratchElements(size_t count) const = 0;
  virtual void begin(Shard& shard) = 0;
  virtual void advance(Shard& shard) = 0;
  virtual void finish(Shard& shard) = 0;

 protected:
  ShardExchange(Run& run, std::vector<int> peers, int divisor);
  int hosts() const { return static_cast<int>(peers_.size()); }
  size_t grain() const;

  Run& run_;
  std::vector<int> peers_;  // the owner of this shard on each host; own rank at `self_`
  int self_;
  int divisor_;
  size_t elementSize_;
};

std::unique_ptr<ShardExchange> makeShardExchange(BetweenHosts algorithm, Run& run, std::vector<int> peers, int divisor);

}  // namespace clary
