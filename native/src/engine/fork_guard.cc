#include "engine/fork_guard.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

namespace clary {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::vector<int>*> guarded;
};

// Never destroyed: a fork may come while the process is ending.
Registry& registry() {
  static auto* const it = new Registry;
  return *it;
}

void beforeFork() { registry().mutex.lock(); }
void inParent() { registry().mutex.unlock(); }
void inChild() {
  for (const auto* descriptors : registry().guarded) {
    for (const int descriptor : *descriptors) close(descriptor);
  }
  registry().guarded.clear();
  registry().mutex.unlock();
}

}  // namespace

ForkGuard::ForkGuard(std::vector<int> descriptors) : descriptors_(std::move(descriptors)), owner_(getpid()) {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(beforeFork, inParent, inChild); });
  const std::lock_guard lock(registry().mutex);
  registry().guarded.push_back(&descriptors_);
}

ForkGuard::~ForkGuard() {
  const std::lock_guard lock(registry().mutex);
  auto& guarded = registry().guarded;
  guarded.erase(std::remove(guarded.begin(), guarded.end(), &descriptors_), guarded.end());
}

bool ForkGuard::isInChild() const { return getpid() != owner_; }

}  // namespace clary
