// All-gather of one host that reads the memory of other ranks instead of having them lay it out.
#pragma once

#include "engine/run.hpp"

namespace clary {

// Runs the operation and returns true, or returns false on all ranks alike, with nothing of it done: for chunks that
// are too small for it, unless algorithm "single-copy" was asked for, and for ranks that may not read each other.
bool allGatherSingleCopy(Run& run);

}  // namespace clary
