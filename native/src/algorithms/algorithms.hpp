// The collectives. Each file explains its algorithm at its head; all work on any layout of ranks over hosts.
//
// Every function here is called by all ranks of the group for the same operation, runs to the end or throws Failure,
// and leaves nothing behind but advanced steps.
#pragma once

#include "engine/run.hpp"

namespace clary {

void allReduce(Run& run);
// Whether allReduce would end without a long wait, because the ranks share a host and all have come. What this rank has
// offered meanwhile, if anything, is in `offered`; allReduce continues from there, in this thread or in another.
bool tryAllReduce(Run& run, std::optional<Offered>& offered);
void reduceScatter(Run& run);
void reduceToRoot(Run& run);
void allGather(Run& run);
void broadcast(Run& run);
void gatherToRoot(Run& run);
void scatterFromRoot(Run& run);
void allToAll(Run& run);
void barrier(Run& run);

// Of all ranks, for AVG; 1 for other reductions.
int finalDivisor(const Run& run);

// What sums are divided by in two stages: within a host, and between hosts the sum of what the hosts have.
struct Divisors {
  int within = 1;
  int between = 1;
};
// Their product is finalDivisor. On one host the first does it all, so that sums are rounded once. Between hosts the
// second does it all, except on float16, whose range a host's sum leaves easily: there the first is large enough for no
// host's part to be larger than the largest value. `roundsEachAddition`: whether sums between hosts are rounded on
// their way, as by ring and halving-doubling. Equal on all ranks.
Divisors divisorsOf(const Run& run, bool roundsEachAddition);

}  // namespace clary
