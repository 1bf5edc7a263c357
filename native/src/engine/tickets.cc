#include "engine/tickets.hpp"

namespace clary {

int64_t Tickets::open() {
  const std::lock_guard lock(mutex_);
  entries_.emplace(++last_, Entry{});
  return last_;
}

void Tickets::finish(int64_t ticket, int source, const Failure* failure) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(ticket);
  if (found == entries_.end() || found->second.isDone) return;
  Entry& entry = found->second;
  entry.isDone = true;
  entry.source = source;
  if (failure != nullptr) entry.failure.emplace(*failure);
  if (entry.isWatched) {
    watched_.push_back(ticket);
    watchedFinished_.notify_one();
  }
  finished_.notify_all();
}

void Tickets::watch(int64_t ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(ticket);
  if (found == entries_.end() || found->second.isWatched) return;
  found->second.isWatched = true;
  if (!found->second.isDone) return;
  watched_.push_back(ticket);
  watchedFinished_.notify_one();
}

bool Tickets::isDone(int64_t ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(ticket);
  return found == entries_.end() || found->second.isDone;
}

Tickets::End Tickets::wait(int64_t ticket, std::optional<Duration> limit, int* source,
                           std::optional<Failure>* failure) {
  std::unique_lock lock(mutex_);
  const Visit visit(*this);
  const auto isDone = [&] {
    const auto found = entries_.find(ticket);
    return isStopped_ || found == entries_.end() || found->second.isDone;
  };
  if (!limit) {
    finished_.wait(lock, isDone);
  } else if (!finished_.wait_for(lock, *limit, isDone)) {
    return End::kNotYet;
  }
  const auto found = entries_.find(ticket);
  if (found == entries_.end()) return End::kGood;
  if (!found->second.isDone) {
    failure->emplace(Code::kClosed, -1, "the group was closed by this rank while an operation was waited for");
    return End::kFailed;
  }
  if (source != nullptr) *source = found->second.source;
  const bool isGood = !found->second.failure;
  if (!isGood) failure->emplace(*found->second.failure);
  entries_.erase(found);
  return isGood ? End::kGood : End::kFailed;
}

int64_t Tickets::nextWatched(Duration limit) {
  std::unique_lock lock(mutex_);
  const Visit visit(*this);
  watchedFinished_.wait_for(lock, limit, [&] { return isStopped_ || !watched_.empty(); });
  if (!watched_.empty()) {
    const int64_t ticket = watched_.front();
    watched_.pop_front();
    return ticket;
  }
  return isStopped_ ? -1 : 0;
}

void Tickets::stop() {
  std::unique_lock lock(mutex_);
  isStopped_ = true;
  watchedFinished_.notify_all();
  finished_.notify_all();
  allLeft_.wait(lock, [this] { return visitors_ == 0; });
}

}  // namespace clary
