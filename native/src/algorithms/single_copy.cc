// All ranks show where their memory lies, then take from each other's what they need. A rank returns when all have
// read: its memory is its caller's again.
//
// All-reduce: every rank owns a part of the buffer. It reads that part of all ranks block by block into the cache, adds
// them in rank order into its own result, and when all are ready, every rank reads the other parts from their owners.
#include "algorithms/single_copy.hpp"

#include <vector>

#include "algorithms/algorithms.hpp"
#include "algorithms/split.hpp"
#include "transport/peer_memory.hpp"

namespace clary {
namespace {

// Below these the system calls and one more phase cost more than a second copy (docs/numbers/smddp.md).
constexpr uint64_t kLeastGatheredBytes = 128u << 10;  // of a rank's chunk
constexpr uint64_t kLeastReducedBytes = 512u << 10;
// Of one rank; the blocks of all ranks should stay in the cache of one core.
constexpr size_t kReducedBlockBytes = 64u << 10;

// Whether all ranks of this operation read each other's memory; otherwise nothing has been done but phases.
bool begins(Run& run, uint64_t bytes, uint64_t least, const void* input, const void* output) {
  if (run.layout().hosts() > 1 || run.team().members() == 1 || !run.machinery().peers->isUsable()) return false;
  const bool isLarge = run.machinery().forcedAlgorithm.empty() && bytes >= least;
  if (bytes == 0 || !(isLarge || isForcedSingleCopy(run))) return false;
  PeerMemory& peers = *run.machinery().peers;
  const uint64_t sequence = run.operation().sequence;
  peers.show(sequence, input, output);
  run.meet();
  peers.tryAll(sequence, bytes);
  run.awaitHost(run.publish());
  return peers.agree(sequence);
}

}  // namespace

bool isForcedSingleCopy(const Run& run) { return run.machinery().forcedAlgorithm == "single-copy"; }

bool allGatherSingleCopy(Run& run) {
  const Operation& operation = run.operation();
  const HostTeam& team = run.team();
  const uint64_t bytes = operation.count * operation.elementSize();
  if (!begins(run, bytes, kLeastGatheredBytes, operation.input, nullptr)) return false;
  std::byte* own = operation.outputChunk(run.layout().rank);
  if (own != operation.input) run.take(own, operation.input, bytes);
  for (int turn = 1; turn < team.members(); ++turn) {
    const int member = (team.index() + turn) % team.members();
    const std::byte* source = run.machinery().peers->input(member, operation.sequence);
    run.takeFrom(member, operation.outputChunk(run.layout().localRanks()[member]), source, bytes);
  }
  run.awaitHost(run.publish());
  return true;
}

bool allReduceSingleCopy(Run& run) {
  const Operation& operation = run.operation();
  const int self = run.team().index();
  const int members = run.team().members();
  const size_t elementSize = operation.elementSize();
  const size_t grain = kGrainBytes / elementSize;
  const auto* input = static_cast<const std::byte*>(operation.input);
  auto* output = static_cast<std::byte*>(operation.output);
  if (!begins(run, operation.count * elementSize, kLeastReducedBytes, input, output)) return false;
  PeerMemory& peers = *run.machinery().peers;
  const size_t perBlock = kReducedBlockBytes / elementSize;
  std::byte* blocks = run.room(0).atLeast(static_cast<size_t>(members) * kReducedBlockBytes);
  std::vector<const void*> sources(members);
  const Part own = partOf(operation.count, members, self, grain);
  for (size_t done = 0; done < own.count; done += perBlock) {
    const size_t count = std::min(perBlock, own.count - done);
    const size_t offset = (own.begin + done) * elementSize;
    for (int member = 0; member < members; ++member) {
      sources[member] = input + offset;
      if (member == self) continue;
      std::byte* block = blocks + static_cast<size_t>(member) * kReducedBlockBytes;
      run.takeFrom(member, block, peers.input(member, operation.sequence) + offset, count * elementSize);
      sources[member] = block;
    }
    run.reduce(output + offset, nullptr, sources.data(), members, count, finalDivisor(run));
  }
  // From here on nobody reads inputs, which may be overwritten in place.
  run.awaitHost(run.publish());
  for (int turn = 1; turn < members; ++turn) {
    // Everyone starts behind itself, so that not all read the same owner at once.
    const int owner = (self + turn) % members;
    const Part part = partOf(operation.count, members, owner, grain);
    const size_t offset = part.begin * elementSize;
    run.takeFrom(owner, output + offset, peers.output(owner, operation.sequence) + offset, part.count * elementSize);
  }
  run.awaitHost(run.publish());
  return true;
}

}  // namespace clary
