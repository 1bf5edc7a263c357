#pragma once

#include "engine/run.hpp"

namespace clary {

void allReduceOneShot(Run& run);  // the buffer fits a slot
void allReduceTwoPhase(Run& run);

}  // namespace clary
