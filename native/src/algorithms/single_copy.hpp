// Collectives of one host that read the memory of other ranks instead of having them lay it out.
#pragma once

#include "engine/run.hpp"

namespace clary {

// Whether the group was opened with algorithm "single-copy": then small operations take it, too.
// Each of the others runs the operation and returns true, or returns false on all ranks alike, with nothing of it done:
// operations that are too small for it, and ranks that may not read each other. Other collectives must not be under
// way.
bool isForcedSingleCopy(const Run& run);
bool allGatherSingleCopy(Run& run);
bool allReduceSingleCopy(Run& run);

}  // namespace clary
