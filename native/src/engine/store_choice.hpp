// How to write large pieces that other ranks read: through the cache or past it, learned by trying.
//
// Where ranks share a last-level cache, plain stores are as fast as any and readers find the data there. Where they do
// not, each plain store must take its line back from the reader's cache, and writing past the caches is more than twice
// as fast (8 GB/s against 3.4 between two cores of an EPYC; which case holds may change while a virtual machine runs).
// The bytes are the same either way, so this may be measured without touching determinism.
#pragma once

#include <algorithm>

#include "common/types.hpp"

namespace clary {

class StoreChoice {
 public:
  // Whether the next piece should go past the cache.
  bool isPastCache() {
    if (++pieces_ % kWindow == 0) {
      settle();
    }
    // The first pieces of a window try the other way.
    return pieces_ % kWindow < kTrials ? !prefersPast_ : prefersPast_;
  }

  void tell(bool wasPastCache, size_t bytes, Duration time) {
    const double rate = static_cast<double>(bytes) / std::max<double>(1, static_cast<double>(time.count()));
    double& best = wasPastCache ? bestPast_ : bestPlain_;
    best = std::max(best, rate);
  }

 private:
  // The best of a window: a piece that was interrupted says nothing.
  void settle() {
    if (bestPlain_ > 0 && bestPast_ > 0) prefersPast_ = bestPlain_ < kWorthOfSharedCache * bestPast_;
    bestPlain_ = bestPast_ = 0;
  }

  static constexpr unsigned kWindow = 64;
  static constexpr unsigned kTrials = 4;
  // What readers gain where the data stays in a cache that they share.
  static constexpr double kWorthOfSharedCache = 0.75;
  unsigned pieces_ = kTrials;
  bool prefersPast_ = true;
  double bestPlain_ = 0;
  double bestPast_ = 0;
};

}  // namespace clary
