#include "transport/matching.hpp"

#include <algorithm>
#include <limits>

namespace clary {

void Matching::post(int peer, int64_t tag, uint64_t transfer) { posted_[{tag, peer}].push_back({next_++, transfer}); }

void Matching::withdraw(int peer, int64_t tag, uint64_t transfer) {
  auto queue = posted_.find({tag, peer});
  if (queue == posted_.end()) return;
  auto same = [&](const Posted& posted) { return posted.transfer == transfer; };
  auto found = std::find_if(queue->second.begin(), queue->second.end(), same);
  if (found != queue->second.end()) queue->second.erase(found);
  if (queue->second.empty()) posted_.erase(queue);
}

uint64_t Matching::takePosted(int peer, int64_t tag) {
  auto best = posted_.find({tag, peer});
  auto any = posted_.find({tag, kAnyRank});
  if (best == posted_.end()) {
    best = any;
  } else if (any != posted_.end() && any->second.front().order < best->second.front().order) {
    best = any;
  }
  if (best == posted_.end()) return 0;
  uint64_t transfer = best->second.front().transfer;
  best->second.pop_front();
  if (best->second.empty()) posted_.erase(best);
  return transfer;
}

void Matching::arrive(int peer, int64_t tag, Arrival arrival) {
  arrived_[{tag, peer}].push_back({next_++, std::move(arrival)});
}

std::optional<std::pair<int, Arrival>> Matching::takeArrival(int peer, int64_t tag) {
  auto best = arrived_.end();
  if (peer != kAnyRank) {
    best = arrived_.find({tag, peer});
  } else {
    for (auto queue = arrived_.lower_bound({tag, std::numeric_limits<int>::min()});
         queue != arrived_.end() && queue->first.first == tag; ++queue) {
      if (best == arrived_.end() || queue->second.front().order < best->second.front().order) best = queue;
    }
  }
  if (best == arrived_.end()) return std::nullopt;
  std::pair<int, Arrival> taken{best->first.second, std::move(best->second.front().arrival)};
  best->second.pop_front();
  if (best->second.empty()) arrived_.erase(best);
  return taken;
}

void Matching::dropRequests(int peer) {
  for (auto queue = arrived_.begin(); queue != arrived_.end();) {
    if (queue->first.second == peer) {
      queue->second.remove_if([](const Arrived& arrived) { return arrived.arrival.kind == Arrival::Kind::kRequest; });
    }
    queue = queue->second.empty() ? arrived_.erase(queue) : std::next(queue);
  }
}

void Matching::clear() {
  posted_.clear();
  arrived_.clear();
}

}  // namespace clary
