// What one rank may ask of another's memory on the side channel.
#pragma once

#include <cstdint>

namespace clary {

// Cost of eager messages of one peer that no receive has taken: 64 of the largest.
inline constexpr uint64_t kEagerWindow = uint64_t{4} << 20;
// Credit is given back in so many parts. What is held back of it is never missed: a sender that has none asks instead.
inline constexpr uint64_t kCreditsPerWindow = 4;
// Requests of one peer without a receive, about 100 bytes each.
inline constexpr uint64_t kMaxRequests = uint64_t{1} << 18;

// Answers to questions of one peer that the kernel has not taken.
inline constexpr uint64_t kMaxTells = 16;

// What an eager message costs of the window: its bytes, and what is kept beside them.
inline constexpr uint64_t kArrivalBytes = 64;
constexpr uint64_t eagerCost(uint64_t bytes) { return bytes + kArrivalBytes; }

}  // namespace clary
