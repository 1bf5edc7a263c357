// Gather, scatter, all-to-all and barrier over any layout: chunks that go from one rank to one other.
//
// Between hosts every pair of ranks uses its own lane, from the caller's memory into the caller's memory. Within a host
// chunks pass through the senders' slots, segment by segment.
#include <vector>

#include "algorithms/algorithms.hpp"
#include "algorithms/split.hpp"

namespace clary {
namespace {

using Posted = std::vector<std::pair<int, LaneSet::Position>>;

void awaitAllSent(Run& run, const Posted& sent) {
  for (const auto& [peer, position] : sent) run.awaitSent(peer, position);
}

void awaitAllReceived(Run& run, const Posted& received) {
  for (const auto& [peer, position] : received) run.awaitReceived(peer, position);
}

}  // namespace

void gatherToRoot(Run& run) {
  const Operation& operation = run.operation();
  const Layout& layout = run.layout();
  HostTeam& team = run.team();
  const int root = operation.root;
  const bool isRoot = layout.rank == root;
  const size_t total = operation.count * operation.elementSize();
  run.meet();
  Posted sent;
  Posted received;
  if (isRoot) {
    for (int r = 0; r < layout.size; ++r) {
      if (layout.hostOf[r] != layout.host()) {
        received.emplace_back(r, run.lanes().postReceive(r, operation.outputChunk(r), total));
      }
    }
    if (operation.outputChunk(root) != operation.input) run.take(operation.outputChunk(root), operation.input, total);
  } else if (layout.hostOf[root] != layout.host()) {
    sent.emplace_back(root, run.lanes().postSend(root, operation.input, total));
  }
  if (layout.hostOf[root] == layout.host() && team.members() > 1) {
    const size_t perSegment = team.slotBytes();
    for (size_t begin = 0; begin < total; begin += perSegment) {
      const size_t bytes = std::min(perSegment, total - begin);
      const HostTeam::Buffer slot = run.takeSlot();
      if (!isRoot) {
        run.offer(team.buffer(team.index(), slot), static_cast<const std::byte*>(operation.input) + begin, bytes);
      }
      run.awaitHost(run.publish());
      for (int member = 0; isRoot && member < team.members(); ++member) {
        if (member == team.index()) continue;
        run.take(operation.outputChunk(layout.localRanks()[member]) + begin, team.buffer(member, slot), bytes);
      }
      team.setFreeAt(slot, team.step() + 1);
    }
  }
  run.publish();
  awaitAllReceived(run, received);
  awaitAllSent(run, sent);
}

void scatterFromRoot(Run& run) {
  const Operation& operation = run.operation();
  const Layout& layout = run.layout();
  HostTeam& team = run.team();
  const int root = operation.root;
  const bool isRoot = layout.rank == root;
  const size_t total = operation.count * operation.elementSize();
  auto* output = static_cast<std::byte*>(operation.output);
  run.meet();
  Posted sent;
  Posted received;
  if (isRoot) {
    for (int r = 0; r < layout.size; ++r) {
      if (layout.hostOf[r] != layout.host()) {
        sent.emplace_back(r, run.lanes().postSend(r, operation.inputChunk(r), total));
      }
    }
    if (operation.inputChunk(root) != output) run.take(output, operation.inputChunk(root), total);
  } else if (layout.hostOf[root] != layout.host()) {
    received.emplace_back(root, run.lanes().postReceive(root, output, total));
  }
  if (layout.hostOf[root] == layout.host() && team.members() > 1) {
    const size_t perSegment = team.slotBytes() / static_cast<uint64_t>(team.members()) / kGrainBytes * kGrainBytes;
    const int rootMember = layout.indexOf[root];
    for (size_t begin = 0; begin < total; begin += perSegment) {
      const size_t bytes = std::min(perSegment, total - begin);
      const HostTeam::Buffer slot = run.takeSlot();
      std::byte* places = team.buffer(rootMember, slot);
      for (int member = 0; isRoot && member < team.members(); ++member) {
        if (member == team.index()) continue;
        run.offer(places + static_cast<size_t>(member) * perSegment,
                  operation.inputChunk(layout.localRanks()[member]) + begin, bytes);
      }
      run.awaitHost(run.publish());
      if (!isRoot) run.take(output + begin, places + static_cast<size_t>(team.index()) * perSegment, bytes);
      team.setFreeAt(slot, team.step() + 1);
    }
  }
  run.publish();
  awaitAllReceived(run, received);
  awaitAllSent(run, sent);
}

void allToAll(Run& run) {
  const Operation& operation = run.operation();
  const Layout& layout = run.layout();
  HostTeam& team = run.team();
  const size_t elementSize = operation.elementSize();
  std::vector<const std::byte*> from(layout.size);
  std::vector<std::byte*> to(layout.size);
  std::vector<size_t> sendBytes(layout.size);
  std::vector<size_t> receiveBytes(layout.size);
  size_t sendOffset = 0;
  size_t receiveOffset = 0;
  for (int r = 0; r < layout.size; ++r) {
    sendBytes[r] = (operation.sendCounts != nullptr ? operation.sendCounts[r] : operation.count) * elementSize;
    receiveBytes[r] = (operation.receiveCounts != nullptr ? operation.receiveCounts[r] : operation.count) * elementSize;
    from[r] = operation.inputs != nullptr ? static_cast<const std::byte*>(operation.inputs[r])
                                          : static_cast<const std::byte*>(operation.input) + sendOffset;
    to[r] = operation.outputs != nullptr ? static_cast<std::byte*>(operation.outputs[r])
                                         : static_cast<std::byte*>(operation.output) + receiveOffset;
    sendOffset += sendBytes[r];
    receiveOffset += receiveBytes[r];
  }
  // How many segments the longest chunk within the host needs; all members must go through as many steps.
  size_t extent = 0;
  for (const int r : layout.localRanks()) extent = std::max(extent, sendBytes[r]);
  if (team.members() > 1) team.announcement(team.index(), operation.sequence).extent = extent;
  run.meet();
  Posted sent;
  Posted received;
  for (int turn = 1; turn < layout.size; ++turn) {
    const int source = (layout.rank + layout.size - turn) % layout.size;
    const int target = (layout.rank + turn) % layout.size;
    if (layout.hostOf[source] != layout.host()) {
      received.emplace_back(source, run.lanes().postReceive(source, to[source], receiveBytes[source]));
    }
    if (layout.hostOf[target] != layout.host()) {
      sent.emplace_back(target, run.lanes().postSend(target, from[target], sendBytes[target]));
    }
  }
  run.take(to[layout.rank], from[layout.rank], std::min(sendBytes[layout.rank], receiveBytes[layout.rank]));
  if (team.members() > 1) {
    for (int member = 0; member < team.members(); ++member) {
      extent = std::max(extent, static_cast<size_t>(team.announcement(member, operation.sequence).extent));
    }
    const size_t perSegment = team.slotBytes() / static_cast<uint64_t>(team.members()) / kGrainBytes * kGrainBytes;
    const auto bytesAt = [&](size_t total, size_t begin) {
      return begin < total ? std::min(perSegment, total - begin) : size_t{0};
    };
    for (size_t begin = 0; begin < extent; begin += perSegment) {
      const HostTeam::Buffer slot = run.takeSlot();
      for (int member = 0; member < team.members(); ++member) {
        const int r = layout.localRanks()[member];
        if (member == team.index()) continue;
        run.offer(team.buffer(team.index(), slot) + static_cast<size_t>(member) * perSegment, from[r] + begin,
                  bytesAt(sendBytes[r], begin));
      }
      run.awaitHost(run.publish());
      for (int member = 0; member < team.members(); ++member) {
        const int r = layout.localRanks()[member];
        if (member == team.index()) continue;
        run.take(to[r] + begin, team.buffer(member, slot) + static_cast<size_t>(team.index()) * perSegment,
                 bytesAt(receiveBytes[r], begin));
      }
      team.setFreeAt(slot, team.step() + 1);
    }
  }
  run.publish();
  awaitAllReceived(run, received);
  awaitAllSent(run, sent);
}

void barrier(Run& run) {
  const Layout& layout = run.layout();
  run.meet();
  if (layout.hosts() == 1) return;
  if (layout.isLeader()) {
    char token = 0;
    std::vector<char> tokens(layout.hosts());
    Posted sent;
    Posted received;
    for (int host = 0; host < layout.hosts(); ++host) {
      if (host == layout.host()) continue;
      const int peer = layout.leaderOf(host);
      received.emplace_back(peer, run.lanes().postReceive(peer, &tokens[host], 1));
      sent.emplace_back(peer, run.lanes().postSend(peer, &token, 1));
    }
    awaitAllReceived(run, received);
    awaitAllSent(run, sent);
  }
  run.awaitHost(run.publish());
}

}  // namespace clary
