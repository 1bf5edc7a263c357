// All ranks show where their memory lies, then take from each other's what they need. A rank returns when all have
// read: its memory is its caller's again.
#include "algorithms/single_copy.hpp"

#include "transport/peer_memory.hpp"

namespace clary {
namespace {

// Of a rank's chunk. Below it the system calls and one more phase cost more than a second copy (docs/numbers/smddp.md).
constexpr uint64_t kLeastGatheredBytes = 256u << 10;

// After the phase by which all have said which way they go: a rank that goes alone would take what nobody laid out.
void expectOneWay(Run& run) {
  const int member = run.machinery().peers->dissenter(run.operation().sequence);
  if (member < 0) return;
  const int peer = run.layout().localRanks()[member];
  const bool readsOthers = run.machinery().peers->isUsable();
  throw Failure(
      Code::kSystem, peer,
      run.layout().describe(peer) + " was to go the same way as this rank, which " +
          (readsOthers ? "reads the memory of the others" : "goes through shared memory") +
          ", and went another: what ranks say of their memory has changed between two looks. Something writes "
          "over memory that the ranks of this host share; look for native code that writes out of bounds");
}

// Whether all ranks of this operation read each other's memory; otherwise nothing has been done but phases, and this
// rank's own chunk.
bool begins(Run& run, uint64_t bytes) {
  if (run.layout().hosts() > 1 || run.team().members() == 1 || !run.machinery().peers->isUsable()) return false;
  const std::string& forced = run.machinery().forcedAlgorithm;
  const bool isLarge = forced.empty() && bytes >= kLeastGatheredBytes;
  if (bytes == 0 || !(isLarge || forced == "single-copy")) return false;
  PeerMemory& peers = *run.machinery().peers;
  const Operation& operation = run.operation();
  const uint64_t sequence = operation.sequence;
  // First, for memory that does not come, such as a file's on a server that hangs: it keeps its own rank, which the
  // others name when the time is up, and not the others in a system call without a limit.
  std::byte* own = operation.outputChunk(run.layout().rank);
  if (own != operation.input) run.take(own, operation.input, bytes);
  peers.show(sequence, operation.input);
  run.meet();
  peers.tryAll(sequence, bytes);
  run.awaitHost(run.publish());
  if (peers.agree(sequence)) return true;
  run.awaitHost(run.publish());
  expectOneWay(run);
  return false;
}

}  // namespace

bool allGatherSingleCopy(Run& run) {
  const Operation& operation = run.operation();
  const HostTeam& team = run.team();
  const uint64_t bytes = operation.count * operation.elementSize();
  if (!begins(run, bytes)) return false;
  for (int turn = 1; turn < team.members(); ++turn) {
    const int member = (team.index() + turn) % team.members();
    const std::byte* source = run.machinery().peers->input(member, operation.sequence);
    run.takeFrom(member, operation.outputChunk(run.layout().localRanks()[member]), source, bytes);
  }
  run.awaitHost(run.publish());
  expectOneWay(run);
  return true;
}

}  // namespace clary
