// All-gather over any layout: every rank ends with everyone's chunk.
//
// Between hosts every rank sends its chunk once to each other host, to the rank of the same index there (modulo that
// host's ranks), straight from the caller's memory into the caller's memory. Within a host, segment by segment, every
// rank lays its own chunk and the chunks that came to it into its slot, and copies what lies in the others' slots.
#include <vector>

#include "algorithms/algorithms.hpp"
#include "algorithms/single_copy.hpp"
#include "algorithms/split.hpp"

namespace clary {
namespace {

class AllGather {
 public:
  explicit AllGather(Run& run);
  void go();

 private:
  // Ranks whose chunks `member` of this host lays out: itself, then those that send to it.
  std::vector<int> carriedBy(int member) const;
  size_t countOf(int segment) const {
    return std::min(perSegment_, total_ - static_cast<size_t>(segment) * perSegment_);
  }
  size_t offsetOf(int segment) const { return static_cast<size_t>(segment) * perSegment_ * elementSize_; }
  void post();
  void layOut(int segment);
  void copyFromOthers(int segment);

  Run& run_;
  HostTeam& team_;
  const Layout& layout_;
  const Operation& operation_;
  const size_t elementSize_;
  const size_t total_;
  size_t perSegment_;
  int segments_;
  std::vector<std::vector<int>> carried_;  // by member of this host
  std::vector<std::pair<int, LaneSet::Position>> sent_;
  std::vector<std::vector<LaneSet::Position>> received_;  // by carried rank, by segment
  HostTeam::Buffer slots_[2] = {};
};

AllGather::AllGather(Run& run)
    : run_(run),
      team_(run.team()),
      layout_(run.layout()),
      operation_(run.operation()),
      elementSize_(operation_.elementSize()),
      total_(operation_.count) {
  size_t most = 1;
  for (int member = 0; member < team_.members(); ++member) {
    carried_.push_back(carriedBy(member));
    most = std::max(most, carried_.back().size());
  }
  const size_t perChunk = team_.slotBytes() / most / kGrainBytes * kGrainBytes;
  perSegment_ = std::max(perChunk, kGrainBytes) / elementSize_;
  segments_ = static_cast<int>((total_ + perSegment_ - 1) / perSegment_);
}

std::vector<int> AllGather::carriedBy(int member) const {
  std::vector<int> ranks = {layout_.localRanks()[member]};
  for (int r = 0; r < layout_.size; ++r) {
    if (layout_.hostOf[r] != layout_.host() && layout_.indexOf[r] % team_.members() == member) ranks.push_back(r);
  }
  return ranks;
}

void AllGather::post() {
  const auto& carried = carried_[team_.index()];
  received_.resize(carried.size());
  for (size_t i = 1; i < carried.size(); ++i) {
    for (int segment = 0; segment < segments_; ++segment) {
      received_[i].push_back(run_.lanes().postReceive(
          carried[i], operation_.outputChunk(carried[i]) + offsetOf(segment), countOf(segment) * elementSize_));
    }
  }
  for (int turn = 1; turn < layout_.hosts(); ++turn) {
    const int peer = layout_.counterpart((layout_.host() + turn) % layout_.hosts(), layout_.index());
    sent_.emplace_back(peer, run_.lanes().postSend(peer, operation_.input, total_ * elementSize_));
  }
}

void AllGather::layOut(int segment) {
  const auto& carried = carried_[team_.index()];
  const size_t bytes = countOf(segment) * elementSize_;
  const bool isShared = team_.members() > 1;
  const HostTeam::Buffer slot = isShared ? (slots_[segment & 1] = run_.takeSlot()) : HostTeam::kSlot0;
  for (size_t i = 0; i < carried.size(); ++i) {
    const std::byte* chunk = i == 0 ? static_cast<const std::byte*>(operation_.input)
                                    : static_cast<const std::byte*>(operation_.outputChunk(carried[i]));
    if (i > 0) run_.awaitReceived(carried[i], received_[i][segment]);
    if (isShared) {
      run_.offer(team_.buffer(team_.index(), slot) + i * perSegment_ * elementSize_, chunk + offsetOf(segment), bytes);
    }
  }
}

void AllGather::copyFromOthers(int segment) {
  const size_t bytes = countOf(segment) * elementSize_;
  for (int turn = 1; turn < team_.members(); ++turn) {
    const int member = (team_.index() + turn) % team_.members();
    const std::byte* slot = team_.buffer(member, slots_[segment & 1]);
    for (size_t i = 0; i < carried_[member].size(); ++i) {
      run_.take(operation_.outputChunk(carried_[member][i]) + offsetOf(segment), slot + i * perSegment_ * elementSize_,
                bytes);
    }
  }
}

void AllGather::go() {
  const bool hasOthers = layout_.hosts() > 1;
  // With other hosts the first segment lies in its slot only after messages have come, which must follow the header.
  if (segments_ > 0 && !hasOthers) layOut(0);
  run_.meet();
  if (segments_ > 0 && hasOthers) {
    post();
    layOut(0);
    run_.awaitHost(run_.publish());
  }
  std::byte* own = operation_.outputChunk(layout_.rank);
  if (own != operation_.input) run_.take(own, operation_.input, total_ * elementSize_);
  for (int step = 0; step < segments_; ++step) {
    if (step + 1 < segments_) layOut(step + 1);
    copyFromOthers(step);
    const Step done = run_.publish();
    if (team_.members() > 1) team_.setFreeAt(slots_[step & 1], done);
    if (step + 1 < segments_) run_.awaitHost(done);
  }
  for (const auto& [peer, position] : sent_) run_.awaitSent(peer, position);
}

}  // namespace

void allGather(Run& run) {
  if (!allGatherSingleCopy(run)) AllGather(run).go();
}

}  // namespace clary
