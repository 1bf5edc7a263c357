// Where the ranks of a group lie: hosts, the ranks of each, and this rank's place among them.
#pragma once

#include <string>
#include <vector>

namespace clary {

struct Layout {
  int rank = 0;
  int size = 1;
  std::vector<int> hostOf;                // index of a rank's host
  std::vector<int> indexOf;               // a rank's index among the ranks of its host
  std::vector<std::vector<int>> ranksOf;  // ranks of a host, ascending
  std::vector<std::string> hostNames;
  int rails = 1;  // ranks that every host has: the smallest number of ranks on a host

  int host() const { return hostOf[rank]; }
  int index() const { return indexOf[rank]; }
  int hosts() const { return static_cast<int>(ranksOf.size()); }
  int mostRanksOnAHost() const;
  int localSize() const { return static_cast<int>(ranksOf[host()].size()); }
  const std::vector<int>& localRanks() const { return ranksOf[host()]; }
  int leaderOf(int aHost) const { return ranksOf[aHost][0]; }
  bool isLeader() const { return index() == 0; }
  // The rank of `aHost` that deals with what belongs to index `anIndex` of another host.
  int counterpart(int aHost, int anIndex) const {
    return ranksOf[aHost][anIndex % static_cast<int>(ranksOf[aHost].size())];
  }
  std::string describe(int aRank) const;  // "rank 3 on algo-2"
};

// Throws Failure(kInvalid) when the arrays do not describe a group.
Layout makeLayout(int rank, int size, const int* hostOfRank, const char* const* hostNames);

}  // namespace clary
