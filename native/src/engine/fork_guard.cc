#include "engine/fork_guard.hpp"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>

namespace clary {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<ForkGuard*> guards;
};

// Never destroyed: a fork may come while the process is ending.
Registry& registry() {
  static auto* const it = new Registry;
  return *it;
}

void beforeFork() { registry().mutex.lock(); }
void inParent() { registry().mutex.unlock(); }

}  // namespace

void ForkGuard::closeInChild() {
  for (ForkGuard* guard : registry().guards) {
    for (const Guarded& each : guard->guarded_) {
      struct stat now{};
      const bool isOpen = fstat(each.descriptor, &now) == 0;
      if (isOpen && now.st_dev == each.device && now.st_ino == each.number) close(each.descriptor);
    }
    guard->isInChild_ = true;
  }
  registry().guards.clear();
  registry().mutex.unlock();
}

ForkGuard::ForkGuard(const std::vector<int>& descriptors) {
  for (const int descriptor : descriptors) {
    struct stat is{};
    if (fstat(descriptor, &is) == 0) guarded_.push_back({descriptor, is.st_dev, is.st_ino});
  }
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(beforeFork, inParent, closeInChild); });
  const std::lock_guard lock(registry().mutex);
  registry().guards.push_back(this);
}

ForkGuard::~ForkGuard() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().guards, this);
}

}  // namespace clary
