// One collective as its caller asked for it.
#pragma once

#include <optional>
#include <vector>

#include "common/types.hpp"
#include "transport/host_team.hpp"

namespace clary {

// What a rank has published of an operation that it tried and did not finish: its input lies in this slot, for all that
// have reached this step.
struct Offered {
  HostTeam::Buffer slot;
  Step step;
};

struct Operation {
  Collective kind = Collective::kBarrier;
  Dtype dtype = Dtype::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  const void* input = nullptr;
  void* output = nullptr;
  const void* const* inputs = nullptr;  // one a rank, where chunks lie apart
  void* const* outputs = nullptr;
  const uint64_t* sendCounts = nullptr;  // all_to_all: elements to and from each rank; nullptr means `count`
  const uint64_t* receiveCounts = nullptr;
  uint64_t count = 0;  // elements: of the buffer, or of one rank's chunk where ranks have chunks
  Duration limit{};
  uint64_t sequence = 0;
  TimePoint deadline{};
  std::optional<Offered> offered;

  size_t elementSize() const { return elementBytes(dtype); }
  // Bytes of the whole operation as messages and the cost model count them.
  uint64_t bytes(int ranks) const;
  // Chunk of rank r where every chunk has `count` elements.
  const std::byte* inputChunk(int r) const;
  std::byte* outputChunk(int r) const;
  Announcement announcement() const;
};

// "all_reduce #17 (float32 x 1024, sum)"
std::string describe(const Operation& operation);
std::string describe(const Announcement& descriptor);

// An operation that outlives its call: the arrays that the caller passed are kept with it.
struct KeptOperation {
  explicit KeptOperation(const Operation& original, int ranks);
  Operation operation;

 private:
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::vector<uint64_t> sendCounts_;
  std::vector<uint64_t> receiveCounts_;
};

}  // namespace clary
