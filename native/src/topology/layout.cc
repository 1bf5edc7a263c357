#include "topology/layout.hpp"

#include <algorithm>

#include "common/types.hpp"

namespace clary {

std::string Layout::describe(int aRank) const {
  return "rank " + std::to_string(aRank) + " on " + hostNames[hostOf[aRank]];
}

int Layout::mostRanksOnAHost() const {
  size_t most = 0;
  for (const auto& ranks : ranksOf) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

Layout makeLayout(int rank, int size, const int* hostOfRank, const char* const* hostNames) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Failure(Code::kInvalid, -1,
                  "rank " + std::to_string(rank) + " of " + std::to_string(size) + ": expected 0 <= rank < size");
  }
  Layout layout;
  layout.rank = rank;
  layout.size = size;
  for (int r = 0; r < size; ++r) {
    const int host = hostOfRank[r];
    if (host < 0 || host > layout.hosts()) {
      throw Failure(Code::kInvalid, r,
                    "host_of_rank[" + std::to_string(r) + "] is " + std::to_string(host) +
                        ": hosts must be numbered in order of first appearance");
    }
    if (host == layout.hosts()) {
      layout.ranksOf.emplace_back();
      layout.hostNames.emplace_back(hostNames[host]);
    }
    layout.hostOf.push_back(host);
    layout.indexOf.push_back(static_cast<int>(layout.ranksOf[host].size()));
    layout.ranksOf[host].push_back(r);
  }
  layout.rails = size;
  for (const auto& ranks : layout.ranksOf) layout.rails = std::min(layout.rails, static_cast<int>(ranks.size()));
  return layout;
}

}  // namespace clary
