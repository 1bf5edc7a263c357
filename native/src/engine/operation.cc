#include "engine/operation.hpp"

namespace clary {

uint64_t Operation::bytes(int ranks) const {
  const uint64_t one = count * elementSize();
  switch (kind) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll: {
      if (sendCounts == nullptr) return one * static_cast<uint64_t>(ranks);
      uint64_t elements = 0;
      for (int r = 0; r < ranks; ++r) elements += sendCounts[r];
      return elements * elementSize();
    }
    default:
      return one;
  }
}

const std::byte* Operation::inputChunk(int r) const {
  if (inputs != nullptr) return static_cast<const std::byte*>(inputs[r]);
  return static_cast<const std::byte*>(input) + static_cast<uint64_t>(r) * count * elementSize();
}

std::byte* Operation::outputChunk(int r) const {
  if (outputs != nullptr) return static_cast<std::byte*>(outputs[r]);
  return static_cast<std::byte*>(output) + static_cast<uint64_t>(r) * count * elementSize();
}

Announcement Operation::announcement() const {
  Announcement it;
  it.sequence = sequence;
  it.kind = static_cast<int32_t>(kind);
  it.dtype = static_cast<int32_t>(dtype);
  it.op = static_cast<int32_t>(op);
  it.root = root;
  // Chunks of all_to_all may differ from rank to rank, and may be given as one count or as many.
  it.count = kind == Collective::kAllToAll ? 0 : count;
  return it;
}

std::string describe(const Operation& operation) {
  Announcement it = operation.announcement();
  it.count = operation.count;
  return describe(it);
}

std::string describe(const Announcement& it) {
  const auto kind = static_cast<Collective>(it.kind);
  std::string text = std::string(collectiveName(kind)) + " #" + std::to_string(it.sequence);
  if (kind == Collective::kBarrier) return text;
  text += std::string(" (") + dtypeName(static_cast<Dtype>(it.dtype)) + " x " + std::to_string(it.count);
  if (kind == Collective::kAllReduce || kind == Collective::kReduce || kind == Collective::kReduceScatter) {
    text += std::string(", ") + reduceOpName(static_cast<ReduceOp>(it.op));
  }
  if (it.root >= 0) text += ", root " + std::to_string(it.root);
  return text + ")";
}

KeptOperation::KeptOperation(const Operation& original, int ranks) : operation(original) {
  if (original.inputs != nullptr) {
    inputs_.assign(original.inputs, original.inputs + ranks);
    operation.inputs = inputs_.data();
  }
  if (original.outputs != nullptr) {
    outputs_.assign(original.outputs, original.outputs + ranks);
    operation.outputs = outputs_.data();
  }
  if (original.sendCounts != nullptr) {
    sendCounts_.assign(original.sendCounts, original.sendCounts + ranks);
    operation.sendCounts = sendCounts_.data();
  }
  if (original.receiveCounts != nullptr) {
    receiveCounts_.assign(original.receiveCounts, original.receiveCounts + ranks);
    operation.receiveCounts = receiveCounts_.data();
  }
}

}  // namespace clary
