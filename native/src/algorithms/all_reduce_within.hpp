#pragma once

#include "engine/run.hpp"

namespace clary {

void allReduceOneShot(Run& run);  // the buffer fits a slot
// Post the input, and return whether all others have offered theirs before this run's patience ended. allReduceOneShot
// continues from `offered`. Without a free slot nothing is offered.
bool tryAllReduceOneShot(Run& run, std::optional<Offered>& offered);
void allReduceTwoPhase(Run& run);

}  // namespace clary
