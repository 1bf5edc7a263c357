// All ranks show where their memory lies, then take from each other's what they need. A rank returns when all have
// read: its memory is its caller's again.
#include "algorithms/single_copy.hpp"

#include "transport/peer_memory.hpp"

namespace clary {
namespace {

// Of a rank's chunk. Below it the system calls and one more phase cost more than a second copy (docs/numbers/smddp.md).
constexpr uint64_t kLeastGatheredBytes = 256u << 10;

// Whether all ranks of this operation read each other's memory; otherwise nothing has been done but phases.
bool begins(Run& run, uint64_t bytes) {
  if (run.layout().hosts() > 1 || run.team().members() == 1 || !run.machinery().peers->isUsable()) return false;
  const std::string& forced = run.machinery().forcedAlgorithm;
  const bool isLarge = forced.empty() && bytes >= kLeastGatheredBytes;
  if (bytes == 0 || !(isLarge || forced == "single-copy")) return false;
  PeerMemory& peers = *run.machinery().peers;
  const uint64_t sequence = run.operation().sequence;
  peers.show(sequence, run.operation().input);
  run.meet();
  peers.tryAll(sequence, bytes);
  run.awaitHost(run.publish());
  return peers.agree(sequence);
}

}  // namespace

bool allGatherSingleCopy(Run& run) {
  const Operation& operation = run.operation();
  const HostTeam& team = run.team();
  const uint64_t bytes = operation.count * operation.elementSize();
  if (!begins(run, bytes)) return false;
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

}  // namespace clary
