// Reduce-scatter over any layout: rank d ends with the sum of everyone's chunk d.
//
// Every host has one reducer for every chunk: its owner where the owner lives, else the rank of the same index (modulo
// the host's ranks). Ranks lay chunks into their slots for the reducers; reducers add them in rank order and send what
// belongs to other hosts to its owner, which adds the hosts' sums in the order of hosts. As a pipeline, one step a
// segment of the chunks:
//
//   step s:   take in what other hosts sent of segment s-1 | add segment s and send | lay out segment s+1
#include <utility>
#include <vector>

#include "algorithms/algorithms.hpp"
#include "algorithms/split.hpp"

namespace clary {
namespace {

class ReduceScatter {
 public:
  explicit ReduceScatter(Run& run);
  void go();

 private:
  struct Stage {
    std::byte* own = nullptr;          // this host's sum of the own chunk
    std::vector<std::byte*> incoming;  // by host
    std::vector<LaneSet::Position> sent;
    std::vector<LaneSet::Position> received;
  };
  // The member of this host that adds chunk d.
  int reducerOf(int d) const {
    return layout_.hostOf[d] == layout_.host() ? layout_.indexOf[d] : layout_.indexOf[d] % team_.members();
  }
  std::byte* place(int member, HostTeam::Buffer slot, int d) {
    return team_.buffer(member, slot) + static_cast<size_t>(d) * perSegment_ * elementSize_;
  }
  size_t countOf(int segment) const {
    return std::min(perSegment_, total_ - static_cast<size_t>(segment) * perSegment_);
  }
  const std::byte* input(int d, int segment) const {
    return operation_.inputChunk(d) + static_cast<size_t>(segment) * perSegment_ * elementSize_;
  }
  std::byte* output(int segment) const {
    return static_cast<std::byte*>(operation_.output) + static_cast<size_t>(segment) * perSegment_ * elementSize_;
  }
  void layOut(int segment);
  void addOne(void* destination, int d, int segment, int divisor);
  void addWithinHost(int segment);
  void takeIn(int segment);

  Run& run_;
  HostTeam& team_;
  const Layout& layout_;
  const Operation& operation_;
  const size_t elementSize_;
  const size_t total_;
  size_t perSegment_;
  int segments_;
  const Divisors divisors_;
  std::vector<int> foreign_;    // owners on other hosts whose chunks this rank adds
  std::vector<int> suppliers_;  // by host: the rank there that adds this rank's chunk
  Stage stages_[2];
  HostTeam::Buffer slots_[2] = {};
};

ReduceScatter::ReduceScatter(Run& run)
    : run_(run),
      team_(run.team()),
      layout_(run.layout()),
      operation_(run.operation()),
      elementSize_(operation_.elementSize()),
      total_(operation_.count),
      divisors_(divisorsOf(run, false)) {
  // Equal on all hosts: a slot takes one segment of every chunk.
  const size_t perChunk = team_.slotBytes() / static_cast<uint64_t>(layout_.size) / kGrainBytes * kGrainBytes;
  perSegment_ = std::max(perChunk, kGrainBytes) / elementSize_;
  segments_ = static_cast<int>((total_ + perSegment_ - 1) / perSegment_);
  for (int d = 0; d < layout_.size; ++d) {
    if (layout_.hostOf[d] != layout_.host() && reducerOf(d) == team_.index()) foreign_.push_back(d);
  }
  for (int host = 0; host < layout_.hosts(); ++host) {
    suppliers_.push_back(host == layout_.host() ? layout_.rank : layout_.counterpart(host, layout_.index()));
  }
}

void ReduceScatter::layOut(int segment) {
  if (team_.members() == 1) return;
  const HostTeam::Buffer slot = slots_[segment & 1] = run_.takeSlot();
  for (int d = 0; d < layout_.size; ++d) {
    if (reducerOf(d) == team_.index()) continue;
    run_.offer(place(team_.index(), slot, d), input(d, segment), countOf(segment) * elementSize_);
  }
}

void ReduceScatter::addOne(void* destination, int d, int segment, int divisor) {
  std::vector<const void*> sources(team_.members());
  for (int member = 0; member < team_.members(); ++member) {
    sources[member] =
        member == team_.index() ? static_cast<const void*>(input(d, segment)) : place(member, slots_[segment & 1], d);
  }
  run_.reduce(destination, nullptr, sources.data(), team_.members(), countOf(segment), divisor);
}

void ReduceScatter::addWithinHost(int segment) {
  if (layout_.hosts() == 1) {
    addOne(output(segment), layout_.rank, segment, divisors_.within);
    return;
  }
  Stage& stage = stages_[segment & 1];
  const size_t bytes = countOf(segment) * elementSize_;
  std::byte* next = run_.room(static_cast<size_t>(segment & 1))
                        .atLeast((1 + foreign_.size() + static_cast<size_t>(layout_.hosts())) * bytes);
  const auto takeRoom = [&next, bytes] { return std::exchange(next, next + bytes); };
  stage.incoming.assign(layout_.hosts(), nullptr);
  stage.received.assign(layout_.hosts(), 0);
  for (int host = 0; host < layout_.hosts(); ++host) {
    if (host == layout_.host()) continue;
    stage.incoming[host] = takeRoom();
    stage.received[host] = run_.lanes().postReceive(suppliers_[host], stage.incoming[host], bytes);
  }
  stage.sent.assign(foreign_.size(), 0);
  for (size_t i = 0; i < foreign_.size(); ++i) {
    const void* sum = input(foreign_[i], segment);
    if (team_.members() > 1 || divisors_.within != 1) {
      std::byte* place = takeRoom();
      addOne(place, foreign_[i], segment, divisors_.within);
      sum = place;
    }
    stage.sent[i] = run_.lanes().postSend(foreign_[i], sum, bytes);
  }
  stage.own = takeRoom();
  addOne(stage.own, layout_.rank, segment, divisors_.within);
}

void ReduceScatter::takeIn(int segment) {
  Stage& stage = stages_[segment & 1];
  std::vector<const void*> sources(layout_.hosts());
  for (int host = 0; host < layout_.hosts(); ++host) {
    sources[host] = host == layout_.host() ? stage.own : stage.incoming[host];
    if (host != layout_.host()) run_.awaitReceived(suppliers_[host], stage.received[host]);
  }
  for (size_t i = 0; i < foreign_.size(); ++i) run_.awaitSent(foreign_[i], stage.sent[i]);
  run_.reduce(output(segment), nullptr, sources.data(), layout_.hosts(), countOf(segment), divisors_.between);
}

void ReduceScatter::go() {
  const bool hasOthers = layout_.hosts() > 1;
  const int lag = hasOthers && segments_ > 1 ? 1 : 0;
  if (segments_ > 0) layOut(0);
  run_.meet();
  for (int step = 0; step < segments_ + lag; ++step) {
    if (step < segments_) addWithinHost(step);
    if (hasOthers && step >= lag) takeIn(step - lag);
    if (step + 1 < segments_) layOut(step + 1);
    const Step done = run_.publish();
    if (step < segments_ && team_.members() > 1) team_.setFreeAt(slots_[step & 1], done);
    if (step + 1 < segments_) run_.awaitHost(done);
  }
}

}  // namespace

void reduceScatter(Run& run) { ReduceScatter(run).go(); }

}  // namespace clary
