// All-reduce among the ranks of one host.
//
// One-shot, for small buffers: every rank lays its buffer into its slot; when all have, every rank adds all of them in
// rank order. One step of synchronisation, n buffers read by everyone.
//
// Two-phase, for large ones: the buffer is cut into segments, a segment into one shard a rank. Every rank lays the
// shards that others own into its slot; the owner adds its shard of all ranks, its own straight from the user's memory,
// into the user's memory and its outbox at once; the others copy it from there. As a pipeline, one step a segment:
//
//   step s:   copy what others reduced of segment s-1 | reduce own shard of segment s | lay out segment s+1
//
// Reading in step s is finished when step s+1 is published, so two slots and two halves of the outbox suffice.
#include "algorithms/all_reduce_within.hpp"

#include <vector>

#include "algorithms/algorithms.hpp"
#include "algorithms/split.hpp"

namespace clary {

namespace {

Offered post(Run& run) {
  const Operation& operation = run.operation();
  HostTeam& team = run.team();
  const HostTeam::Buffer slot = run.takeSlot();
  run.offer(team.buffer(team.index(), slot), operation.input, operation.count * operation.elementSize());
  return Offered{slot, run.announce()};
}

}  // namespace

bool tryAllReduceOneShot(Run& run, std::optional<Offered>& offered) {
  if (!run.team().isNextSlotFree()) return false;
  offered = post(run);
  return run.hasMet(offered->step);
}

void allReduceOneShot(Run& run) {
  const Operation& operation = run.operation();
  HostTeam& team = run.team();
  const auto [slot, step] = operation.offered ? *operation.offered : post(run);
  run.comeTogether(step);
  std::vector<const void*> sources(team.members());
  for (int member = 0; member < team.members(); ++member) {
    sources[member] = member == team.index() ? operation.input : team.buffer(member, slot);
  }
  run.reduce(operation.output, nullptr, sources.data(), team.members(), operation.count, finalDivisor(run));
  team.setFreeAt(slot, run.publish());
}

namespace {

// Geometry of the pipeline: elements of a segment, and where shards lie in a slot.
struct Segments {
  Segments(const Operation& operation, const HostTeam& team)
      : elementSize(operation.elementSize()), members(team.members()), total(operation.count) {
    grain = kGrainBytes / elementSize;
    // A shard must fit a half of the outbox, and all shards a slot.
    const size_t shardBytes = std::min(team.slotBytes() / static_cast<uint64_t>(members), team.outboxBytes());
    shardElements = shardBytes / kGrainBytes * kGrainBytes / elementSize;
    const size_t most = shardElements * static_cast<size_t>(members);
    num = static_cast<int>((total + most - 1) / most);
    // Equal segments rather than full ones and a rest.
    const size_t each = num == 0 ? 0 : (total + static_cast<size_t>(num) - 1) / static_cast<size_t>(num);
    perSegment = std::min(most, (each + grain * static_cast<size_t>(members) - 1) /
                                    (grain * static_cast<size_t>(members)) * (grain * static_cast<size_t>(members)));
    num = perSegment == 0 ? 0 : static_cast<int>((total + perSegment - 1) / perSegment);
  }
  size_t begin(int segment) const { return static_cast<size_t>(segment) * perSegment; }
  Part shard(int segment, int owner) const {
    const size_t count = std::min(perSegment, total - begin(segment));
    Part part = partOf(count, members, owner, grain);
    part.begin += begin(segment);
    return part;
  }
  size_t elementSize;
  int members;
  size_t total;
  size_t grain;
  size_t shardElements;
  size_t perSegment;
  int num;
};

}  // namespace

void allReduceTwoPhase(Run& run) {
  const Operation& operation = run.operation();
  HostTeam& team = run.team();
  const int self = team.index();
  const int members = team.members();
  const Segments segments(operation, team);
  const auto* input = static_cast<const std::byte*>(operation.input);
  auto* output = static_cast<std::byte*>(operation.output);
  const size_t elementSize = segments.elementSize;
  const int divisor = finalDivisor(run);
  const auto slotShard = [&](int member, HostTeam::Buffer slot, int owner) {
    return team.buffer(member, slot) + static_cast<size_t>(owner) * segments.shardElements * elementSize;
  };
  HostTeam::Buffer slots[2] = {};
  HostTeam::Buffer outboxes[2] = {};
  const auto layOut = [&](int segment) {
    slots[segment & 1] = run.takeSlot();
    for (int owner = 0; owner < members; ++owner) {
      if (owner == self) continue;
      const Part part = segments.shard(segment, owner);
      run.offer(slotShard(self, slots[segment & 1], owner), input + part.begin * elementSize, part.count * elementSize);
    }
  };
  std::vector<const void*> sources(members);
  if (segments.num > 0) layOut(0);
  run.meet();
  for (int step = 0; step <= segments.num && segments.num > 0; ++step) {
    if (step > 0) {
      for (int turn = 1; turn < members; ++turn) {
        // Everyone starts behind itself, so that not all read the same outbox at once.
        const int owner = (self + turn) % members;
        const Part part = segments.shard(step - 1, owner);
        run.take(output + part.begin * elementSize, team.buffer(owner, outboxes[(step - 1) & 1]),
                 part.count * elementSize);
      }
    }
    if (step < segments.num) {
      outboxes[step & 1] = run.takeOutbox();
      const Part part = segments.shard(step, self);
      for (int member = 0; member < members; ++member) {
        sources[member] = member == self ? input + part.begin * elementSize : slotShard(member, slots[step & 1], self);
      }
      run.reduce(output + part.begin * elementSize, team.buffer(self, outboxes[step & 1]), sources.data(), members,
                 part.count, divisor);
    }
    if (step + 1 < segments.num) layOut(step + 1);
    const Step done = run.publish();
    if (step < segments.num) {
      team.setFreeAt(slots[step & 1], done);
      run.awaitHost(done);
    }
    if (step > 0) team.setFreeAt(outboxes[(step - 1) & 1], done);
  }
}

}  // namespace clary
