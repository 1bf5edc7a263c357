// Copies whose destination this processor will not read soon.
#pragma once

#include <cstddef>

namespace clary {

// As memcpy, but the destination is written past the caches and not read into them first. Slow to be read again by this
// processor, fast to be read by another. Small copies are plain ones.
void copyPastCache(void* destination, const void* source, size_t bytes);

}  // namespace clary
