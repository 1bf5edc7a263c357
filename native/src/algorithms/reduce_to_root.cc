// Reduce over any layout: the root ends with the sum, nobody else's memory is written.
//
// As all-reduce up to the owners' sums: ranks lay shards into their slots, owners add them within the host; owners on
// other hosts send theirs to the owner of the same index on the root's host, which adds the hosts' sums in the order of
// hosts and lays the result into its outbox, from where the root copies it.
#include <vector>

#include "algorithms/algorithms.hpp"
#include "algorithms/split.hpp"

namespace clary {
namespace {

class ReduceToRoot {
 public:
  explicit ReduceToRoot(Run& run);
  void go();

 private:
  struct Stage {
    std::vector<std::byte> own;
    std::vector<std::vector<std::byte>> incoming;  // by host
    std::vector<LaneSet::Position> received;
    LaneSet::Position sent = 0;
  };
  bool isOwner() const { return team_.index() < owners_; }
  bool isRootHost() const { return layout_.host() == layout_.hostOf[operation_.root]; }
  bool isRoot() const { return layout_.rank == operation_.root; }
  int ownerOn(int host) const { return layout_.ranksOf[host][team_.index()]; }
  Part shardOf(int segment, int owner) const {
    const size_t begin = static_cast<size_t>(segment) * perSegment_;
    Part part = partOf(std::min(perSegment_, operation_.count - begin), owners_, owner, kGrainBytes / elementSize_);
    part.begin += begin;
    return part;
  }
  std::byte* slotShard(int member, HostTeam::Buffer slot, int owner) {
    return team_.buffer(member, slot) + static_cast<size_t>(owner) * shardCapacity_ * elementSize_;
  }
  void layOut(int segment);
  void addWithinHost(int segment);
  void takeIn(int segment);
  void copyToRoot(int segment);

  Run& run_;
  HostTeam& team_;
  const Layout& layout_;
  const Operation& operation_;
  const size_t elementSize_;
  const int owners_;
  const std::byte* input_;
  size_t shardCapacity_;
  size_t perSegment_;
  int segments_;
  const Divisors divisors_;
  Stage stages_[2];
  HostTeam::Buffer slots_[2] = {};
  HostTeam::Buffer outboxes_[2] = {};
};

ReduceToRoot::ReduceToRoot(Run& run)
    : run_(run),
      team_(run.team()),
      layout_(run.layout()),
      operation_(run.operation()),
      elementSize_(operation_.elementSize()),
      owners_(layout_.rails),
      input_(static_cast<const std::byte*>(operation_.input)),
      divisors_(divisorsOf(run, false)) {
  const size_t most = team_.slotBytes() / static_cast<uint64_t>(std::max(owners_, 2));
  shardCapacity_ = most / kGrainBytes * kGrainBytes / elementSize_;
  perSegment_ = shardCapacity_ * static_cast<size_t>(owners_);
  segments_ = static_cast<int>((operation_.count + perSegment_ - 1) / perSegment_);
}

void ReduceToRoot::layOut(int segment) {
  if (team_.members() == 1) return;
  const HostTeam::Buffer slot = slots_[segment & 1] = run_.takeSlot();
  for (int owner = 0; owner < owners_; ++owner) {
    if (owner == team_.index()) continue;
    const Part part = shardOf(segment, owner);
    run_.offer(slotShard(team_.index(), slot, owner), input_ + part.begin * elementSize_, part.count * elementSize_);
  }
}

void ReduceToRoot::addWithinHost(int segment) {
  if (!isOwner()) return;
  const Part part = shardOf(segment, team_.index());
  const size_t bytes = part.count * elementSize_;
  Stage& stage = stages_[segment & 1];
  if (isRootHost()) {
    stage.incoming.resize(layout_.hosts());
    stage.received.assign(layout_.hosts(), 0);
    for (int host = 0; host < layout_.hosts(); ++host) {
      if (host == layout_.host()) continue;
      stage.incoming[host].resize(bytes);
      stage.received[host] = run_.lanes().postReceive(ownerOn(host), stage.incoming[host].data(), bytes);
    }
  }
  std::vector<const void*> sources(team_.members());
  for (int member = 0; member < team_.members(); ++member) {
    sources[member] = member == team_.index() ? input_ + part.begin * elementSize_
                                              : slotShard(member, slots_[segment & 1], team_.index());
  }
  stage.own.resize(bytes);
  run_.reduce(stage.own.data(), nullptr, sources.data(), team_.members(), part.count, divisors_.within);
  if (!isRootHost()) {
    stage.sent = run_.lanes().postSend(ownerOn(layout_.hostOf[operation_.root]), stage.own.data(), bytes);
  }
}

void ReduceToRoot::takeIn(int segment) {
  Stage& stage = stages_[segment & 1];
  if (!isRootHost()) {
    if (isOwner()) run_.awaitSent(ownerOn(layout_.hostOf[operation_.root]), stage.sent);
    return;
  }
  if (team_.members() > 1) outboxes_[segment & 1] = run_.takeOutbox();
  if (!isOwner()) return;
  const Part part = shardOf(segment, team_.index());
  std::vector<const void*> sources(layout_.hosts());
  for (int host = 0; host < layout_.hosts(); ++host) {
    sources[host] = host == layout_.host() ? stage.own.data() : stage.incoming[host].data();
    if (host != layout_.host()) run_.awaitReceived(ownerOn(host), stage.received[host]);
  }
  void* destination = isRoot() ? static_cast<std::byte*>(operation_.output) + part.begin * elementSize_
                               : team_.buffer(team_.index(), outboxes_[segment & 1]);
  run_.reduce(destination, nullptr, sources.data(), layout_.hosts(), part.count, divisors_.between);
}

void ReduceToRoot::copyToRoot(int segment) {
  if (!isRoot()) return;
  for (int owner = 0; owner < owners_; ++owner) {
    if (owner == team_.index()) continue;
    const Part part = shardOf(segment, owner);
    run_.take(static_cast<std::byte*>(operation_.output) + part.begin * elementSize_,
              team_.buffer(owner, outboxes_[segment & 1]), part.count * elementSize_);
  }
}

void ReduceToRoot::go() {
  const int lag = layout_.hosts() > 1 && segments_ > 1 ? 1 : 0;
  const int copyLag = lag + 1;
  if (segments_ > 0) layOut(0);
  run_.meet();
  const auto isSegment = [&](int segment) { return segment >= 0 && segment < segments_; };
  for (int step = 0; step < segments_ + copyLag && segments_ > 0; ++step) {
    if (isSegment(step - copyLag)) copyToRoot(step - copyLag);
    if (isSegment(step)) addWithinHost(step);
    if (isSegment(step - lag)) takeIn(step - lag);
    if (isSegment(step + 1)) layOut(step + 1);
    const Step done = run_.publish();
    if (team_.members() > 1) {
      if (isSegment(step)) team_.setFreeAt(slots_[step & 1], done);
      if (isSegment(step - copyLag) && isRootHost()) team_.setFreeAt(outboxes_[(step - copyLag) & 1], done);
    }
    if (step + 1 < segments_ + copyLag) run_.awaitHost(done);
  }
}

}  // namespace

void reduceToRoot(Run& run) { ReduceToRoot(run).go(); }

}  // namespace clary
