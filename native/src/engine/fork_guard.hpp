// Sockets that a forked child must not keep open.
//
// Peers learn of a process's death by the end of its streams. A child made by fork (a data loader's worker) would hold
// them open beyond the death of its parent, so they are closed in the child the moment it is made.
//
// A socket may be closed before its guard ends (its peer has left), and its number may be another file's by then. So a
// guard knows its sockets by what they are, and a child closes no number that has become something else.
#pragma once

#include <sys/types.h>

#include <vector>

namespace clary {

class ForkGuard {
 public:
  explicit ForkGuard(const std::vector<int>& descriptors);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // Whether this process is a child of the one that made the guard: descriptors are closed, threads are missing.
  bool isInChild() const { return isInChild_; }

 private:
  struct Guarded {
    int descriptor;
    dev_t device;
    ino_t number;
  };
  static void closeInChild();

  std::vector<Guarded> guarded_;
  bool isInChild_ = false;  // set while a child has one thread only
};

}  // namespace clary
