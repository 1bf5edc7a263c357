// Equal parts of a buffer: one owner a part.
#pragma once

#include <algorithm>
#include <cstddef>

namespace clary {

struct Part {
  size_t begin = 0;  // elements
  size_t count = 0;
};

// Part `index` of `parts` of `count` elements. All but the last are equally long and end on a multiple of `grain`
// elements, so that owners do not share cache lines; late parts may be empty.
inline Part partOf(size_t count, int parts, int index, size_t grain) {
  const size_t each = (count + static_cast<size_t>(parts) - 1) / static_cast<size_t>(parts);
  const size_t rounded = (each + grain - 1) / grain * grain;
  const size_t begin = std::min(rounded * static_cast<size_t>(index), count);
  return Part{begin, std::min(rounded, count - begin)};
}

constexpr size_t kGrainBytes = 64;

}  // namespace clary
