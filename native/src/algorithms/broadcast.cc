// Broadcast over any layout.
//
// Every host has one source: the root on its own host, elsewhere the rank that receives for the host. Small buffers go
// from the root to all hosts at once; large ones down a chain of hosts, each forwarding a segment when it has come, so
// that every link carries the buffer once. Within a host the source lays segments into its slot and the others copy.
#include <vector>

#include "algorithms/algorithms.hpp"
#include "algorithms/split.hpp"

namespace clary {
namespace {

// Up to here one hop to everyone beats a chain of them.
constexpr uint64_t kAtOnceBytes = 65536;

}  // namespace

void broadcast(Run& run) {
  const Operation& operation = run.operation();
  const Layout& layout = run.layout();
  HostTeam& team = run.team();
  const size_t total = operation.count * operation.elementSize();
  auto* buffer = static_cast<std::byte*>(operation.output);
  const size_t perSegment = team.slotBytes();
  const int segments = static_cast<int>((total + perSegment - 1) / perSegment);
  const auto bytesOf = [&](int segment) {
    return std::min(perSegment, total - static_cast<size_t>(segment) * perSegment);
  };
  const int hosts = layout.hosts();
  const int rootHost = layout.hostOf[operation.root];
  const auto sourceOf = [&](int host) {
    return host == rootHost ? operation.root : layout.counterpart(host, layout.indexOf[operation.root]);
  };
  const int source = sourceOf(layout.host());
  const bool isSource = source == layout.rank;
  const bool isAtOnce = hosts == 2 || total <= kAtOnceBytes;
  const int place = (layout.host() - rootHost + hosts) % hosts;  // in the chain
  std::vector<int> targets;
  if (isSource && isAtOnce && place == 0) {
    for (int turn = 1; turn < hosts; ++turn) targets.push_back(sourceOf((rootHost + turn) % hosts));
  } else if (isSource && !isAtOnce && place + 1 < hosts) {
    targets.push_back(sourceOf((layout.host() + 1) % hosts));
  }
  const int upstream = isAtOnce ? operation.root : sourceOf((layout.host() + hosts - 1) % hosts);

  run.meet();
  std::vector<LaneSet::Position> received;
  if (isSource && place > 0) {
    for (int segment = 0; segment < segments; ++segment) {
      received.push_back(
          run.lanes().postReceive(upstream, buffer + static_cast<size_t>(segment) * perSegment, bytesOf(segment)));
    }
  }
  std::vector<std::pair<int, LaneSet::Position>> sent;
  const bool isShared = team.members() > 1;
  for (int segment = 0; segment < segments; ++segment) {
    std::byte* piece = buffer + static_cast<size_t>(segment) * perSegment;
    HostTeam::Buffer slot = isShared ? run.takeSlot() : HostTeam::kSlot0;
    if (isSource) {
      if (place > 0) run.awaitReceived(upstream, received[segment]);
      for (const int target : targets) sent.emplace_back(target, run.lanes().postSend(target, piece, bytesOf(segment)));
      if (isShared) run.offer(team.buffer(team.index(), slot), piece, bytesOf(segment));
    }
    if (!isShared) continue;
    run.awaitHost(run.publish());
    if (!isSource) run.take(piece, team.buffer(layout.indexOf[source], slot), bytesOf(segment));
    team.setFreeAt(slot, team.step() + 1);
  }
  run.publish();
  for (const auto& [peer, position] : sent) run.awaitSent(peer, position);
}

}  // namespace clary
