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

}  // namespace clary
