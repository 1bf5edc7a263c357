// Sockets that a forked child must not keep open.
//
// Peers learn of a process's death by the end of its streams. A child made by fork (a data loader's worker) would hold
// them open beyond the death of its parent, so they are closed in the child the moment it is made.
#pragma once

#include <vector>

namespace clary {

class ForkGuard {
 public:
  explicit ForkGuard(std::vector<int> descriptors);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // Whether this process is a child of the one that made the guard: descriptors are closed, threads are missing.
  bool isInChild() const;

 private:
  std::vector<int> descriptors_;
  int owner_;
};

}  // namespace clary
