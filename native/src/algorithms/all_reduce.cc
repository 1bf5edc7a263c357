// All-reduce over any layout.
//
// On one host: all_reduce_within. Between hosts, segment by segment: the ranks of a host add a segment, one owner a
// shard; owners of the same shard on different hosts exchange it (shard_exchange); owners lay the sums into their
// outboxes and the others of the host copy them. As a pipeline, one step of the host a segment:
//
//   step s:   copy results of segment s-3 | take in results of s-2 | add what came of s-1 | add own shard of s and send
//             | lay out s+1
//
// so that the link is busy while the host adds. A single segment goes through without the lags.
//
// [Note: rails] Owners are the first `rails` ranks of every host, as many as the smallest host has; owner i of one host
// speaks with owner i of the others only.
#include <vector>

#include "algorithms/algorithms.hpp"
#include "algorithms/all_reduce_within.hpp"
#include "algorithms/shard_exchange.hpp"
#include "algorithms/split.hpp"

namespace clary {
namespace {

class BetweenHostsReduction {
 public:
  BetweenHostsReduction(Run& run, const Choice& choice);
  void go();

 private:
  Part shardOf(int segment, int owner) const;
  bool isOwner() const { return team_.index() < rails_; }
  bool isAlone() const { return team_.members() == 1; }
  std::byte* slotShard(int member, HostTeam::Buffer slot, int owner);
  void layOut(int segment);
  void addWithinHost(int segment);
  void takeResult(int segment);
  void copyResults(int segment);
  size_t stageOf(int segment) const { return static_cast<size_t>(segment) % stages_.size(); }

  Run& run_;
  HostTeam& team_;
  const Operation& operation_;
  const int rails_;
  const size_t elementSize_;
  const size_t grain_;
  const std::byte* input_;
  std::byte* output_;
  size_t perSegment_ = 0;
  size_t shardCapacity_ = 0;
  int segments_ = 0;
  const Divisors divisors_;
  std::unique_ptr<ShardExchange> exchange_;
  std::vector<Shard> stages_;  // segments under way
  HostTeam::Buffer slots_[2] = {};
  HostTeam::Buffer outboxes_[2] = {};
};

BetweenHostsReduction::BetweenHostsReduction(Run& run, const Choice& choice)
    : run_(run),
      team_(run.team()),
      operation_(run.operation()),
      rails_(choice.rails),
      elementSize_(operation_.elementSize()),
      grain_(kGrainBytes / elementSize_),
      input_(static_cast<const std::byte*>(operation_.input)),
      output_(static_cast<std::byte*>(operation_.output)),
      divisors_(
          divisorsOf(run, choice.between == BetweenHosts::kRing || choice.between == BetweenHosts::kHalvingDoubling)) {
  // All hosts must cut alike, so nothing here may depend on the own host's number of ranks.
  shardCapacity_ = static_cast<size_t>(choice.segmentBytes) / static_cast<size_t>(rails_) / kGrainBytes * grain_;
  perSegment_ = shardCapacity_ * static_cast<size_t>(rails_);
  segments_ = static_cast<int>((operation_.count + perSegment_ - 1) / perSegment_);
  if (isOwner()) {
    std::vector<int> peers;
    for (int host = 0; host < run.layout().hosts(); ++host) {
      peers.push_back(run.layout().ranksOf[host][team_.index()]);
    }
    exchange_ = makeShardExchange(choice.between, run, std::move(peers), divisors_.between);
  }
}

Part BetweenHostsReduction::shardOf(int segment, int owner) const {
  const size_t begin = static_cast<size_t>(segment) * perSegment_;
  Part part = partOf(std::min(perSegment_, operation_.count - begin), rails_, owner, grain_);
  part.begin += begin;
  return part;
}

std::byte* BetweenHostsReduction::slotShard(int member, HostTeam::Buffer slot, int owner) {
  return team_.buffer(member, slot) + static_cast<size_t>(owner) * shardCapacity_ * elementSize_;
}

void BetweenHostsReduction::layOut(int segment) {
  if (isAlone()) return;
  const HostTeam::Buffer slot = slots_[segment & 1] = run_.takeSlot();
  for (int owner = 0; owner < rails_; ++owner) {
    if (owner == team_.index()) continue;
    const Part part = shardOf(segment, owner);
    run_.offer(slotShard(team_.index(), slot, owner), input_ + part.begin * elementSize_, part.count * elementSize_);
  }
}

void BetweenHostsReduction::addWithinHost(int segment) {
  if (!isOwner()) return;
  const Part part = shardOf(segment, team_.index());
  const size_t number = stageOf(segment);
  Shard& shard = stages_[number];
  shard.count = part.count;
  shard.scratch = run_.room(2 * number).atLeast(exchange_->scratchElements(shardCapacity_) * elementSize_);
  shard.result = output_ + part.begin * elementSize_;
  if (isAlone() && divisors_.within == 1) {
    shard.partial = input_ + part.begin * elementSize_;
  } else {
    std::byte* partial = run_.room(2 * number + 1).atLeast(shardCapacity_ * elementSize_);
    std::vector<const void*> sources(team_.members());
    for (int member = 0; member < team_.members(); ++member) {
      sources[member] = member == team_.index() ? input_ + part.begin * elementSize_
                                                : slotShard(member, slots_[segment & 1], team_.index());
    }
    run_.reduce(partial, nullptr, sources.data(), team_.members(), part.count, divisors_.within);
    shard.partial = partial;
  }
  exchange_->begin(shard);
}

void BetweenHostsReduction::takeResult(int segment) {
  if (!isAlone()) outboxes_[segment & 1] = run_.takeOutbox();
  if (!isOwner()) return;
  Shard& shard = stages_[stageOf(segment)];
  exchange_->finish(shard);
  if (!isAlone()) {
    run_.offer(team_.buffer(team_.index(), outboxes_[segment & 1]), shard.result, shard.count * elementSize_);
  }
}

void BetweenHostsReduction::copyResults(int segment) {
  for (int turn = 1; turn <= team_.members(); ++turn) {
    const int owner = (team_.index() + turn) % team_.members();
    if (owner == team_.index() || owner >= rails_) continue;
    const Part part = shardOf(segment, owner);
    run_.take(output_ + part.begin * elementSize_, team_.buffer(owner, outboxes_[segment & 1]),
              part.count * elementSize_);
  }
}

void BetweenHostsReduction::go() {
  const bool isPipelined = segments_ > 1;
  const int advanceLag = isPipelined ? 1 : 0;
  const int resultLag = isPipelined ? 2 : 0;
  const int copyLag = resultLag + 1;
  stages_.resize(static_cast<size_t>(resultLag) + 1);
  if (segments_ > 0) layOut(0);
  run_.meet();
  if (segments_ == 0) return;
  const auto isSegment = [&](int segment) { return segment >= 0 && segment < segments_; };
  for (int step = 0; step < segments_ + copyLag; ++step) {
    if (isSegment(step - copyLag)) copyResults(step - copyLag);
    // The stage of segment `step` is the one that segment `step - resultLag - 1` has left.
    if (isSegment(step)) addWithinHost(step);
    if (isSegment(step - advanceLag) && isOwner()) exchange_->advance(stages_[stageOf(step - advanceLag)]);
    if (isSegment(step - resultLag)) takeResult(step - resultLag);
    if (isSegment(step + 1)) layOut(step + 1);
    const Step done = run_.publish();
    if (isSegment(step) && !isAlone()) team_.setFreeAt(slots_[step & 1], done);
    if (isSegment(step - copyLag) && !isAlone()) team_.setFreeAt(outboxes_[(step - copyLag) & 1], done);
    if (step + 1 < segments_ + copyLag) run_.awaitHost(done);
  }
}

}  // namespace

int finalDivisor(const Run& run) { return run.operation().op == ReduceOp::kAvg ? run.layout().size : 1; }

Divisors divisorsOf(const Run& run, bool roundsEachAddition) {
  const Layout& layout = run.layout();
  const int whole = finalDivisor(run);
  if (whole == 1) return {};
  if (layout.hosts() == 1) return {whole, 1};
  if (run.operation().dtype != Dtype::kFloat16) return {1, whole};
  if (roundsEachAddition) return {whole, 1};
  // Both are whole numbers: on equal hosts the ranks of one, and the hosts.
  int within = layout.mostRanksOnAHost();
  while (whole % within != 0) ++within;
  return {within, whole / within};
}

namespace {

Choice choiceOf(Run& run) {
  const Layout& layout = run.layout();
  const Shape shape{layout.mostRanksOnAHost(), layout.hosts(), layout.rails, run.team().slotBytes()};
  return chooseAllReduce(run.operation().bytes(layout.size), shape, run.machinery().link,
                         run.machinery().forcedAlgorithm);
}

}  // namespace

bool tryAllReduce(Run& run, std::optional<Offered>& offered) {
  const Layout& layout = run.layout();
  if (layout.size == 1) return true;
  return layout.hosts() == 1 && choiceOf(run).within == WithinHost::kOneShot && tryAllReduceOneShot(run, offered);
}

void allReduce(Run& run) {
  const Layout& layout = run.layout();
  const Operation& operation = run.operation();
  const Choice choice = choiceOf(run);
  if (layout.size == 1) {
    run.meet();
    const void* source = operation.input;
    if (operation.output != operation.input) run.reduce(operation.output, nullptr, &source, 1, operation.count, 1);
    return;
  }
  if (layout.hosts() > 1) {
    BetweenHostsReduction(run, choice).go();
  } else if (choice.within == WithinHost::kOneShot) {
    allReduceOneShot(run);
  } else {
    allReduceTwoPhase(run);
  }
}

}  // namespace clary
