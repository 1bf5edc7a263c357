#include "engine/communicator.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "algorithms/algorithms.hpp"
#include "algorithms/split.hpp"

namespace clary {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// A caller that waits has nothing better to do; the executor runs beside the computation that it must not slow down.
constexpr Duration kPatienceOfCaller = microseconds(1000);
constexpr Duration kPatienceOfExecutor = microseconds(50);
// What a hand-over costs: the executor, the thread that ends futures and the caller wake one another. In that time
// ranks that compute alike have come.
constexpr Duration kPatienceOfTry = microseconds(100);
// What is larger is worth running beside the caller's computation.
constexpr uint64_t kMostTriedBytes = 64u << 10;
constexpr Duration kGoodbyeLimit = milliseconds(1000);
constexpr double kLongestTimeoutSeconds = 1e8;
constexpr uint64_t kSlotGrainBytes = 4096;

void closeAll(const int32_t* descriptors, int size) {
  for (int r = 0; descriptors != nullptr && r < size; ++r) {
    if (descriptors[r] >= 0) close(descriptors[r]);
  }
}

std::vector<int> openOnes(const clary_group& group) {
  std::vector<int> open;
  for (int r = 0; r < group.size; ++r) {
    if (group.lane_fds[r] >= 0) open.push_back(group.lane_fds[r]);
    if (group.side_fds[r] >= 0) open.push_back(group.side_fds[r]);
  }
  return open;
}

}  // namespace

Communicator::Communicator(const clary_group& group)
    : name_(group.name == nullptr ? "" : group.name), timeoutSeconds_(group.timeout_s) {
  // Until they have owners, descriptors are closed here when something throws.
  bool lanesOwned = false;
  bool sidesOwned = false;
  try {
    layout_ = makeLayout(group.rank, group.size, group.host_of_rank, group.host_names);
    if (!(timeoutSeconds_ > 0)) throw Failure(Code::kInvalid, -1, "timeout_s must be above 0");
    machinery_.forcedAlgorithm = group.algorithm == nullptr ? "" : group.algorithm;
    if (!isKnownAlgorithm(machinery_.forcedAlgorithm)) {
      throw Failure(Code::kInvalid, -1,
                    "algorithm '" + machinery_.forcedAlgorithm +
                        "' is not known: expected '', shm-oneshot, shm-twophase, single-copy, "
                        "oneshot, direct, ring or halving-doubling");
    }
    checkSlots(group.slot_bytes);
    team_ = std::make_unique<HostTeam>(layout_.index(), layout_.localSize(), group.segment_fd, group.segment_bytes,
                                       group.slot_bytes);
    peers_ = std::make_unique<PeerMemory>(*team_);
    wakeFd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wakeFd_ < 0) throw Failure(Code::kSystem, -1, std::string("eventfd: ") + std::strerror(errno));
    guard_ = std::make_unique<ForkGuard>(openOnes(group));
    if (layout_.hosts() > 1) {
      lanesOwned = true;
      lanes_ = std::make_unique<LaneSet>(std::vector<int>(group.lane_fds, group.lane_fds + group.size), wakeFd_);
    }
    hasLeft_ = std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(layout_.size));
    const auto hasLeft = [this](int peer) { return hasLeft_[peer].load(std::memory_order_acquire); };
    headers_ = std::make_unique<Headers>(layout_, lanes_.get(), hasLeft);
    machinery_.layout = &layout_;
    machinery_.team = team_.get();
    machinery_.peers = peers_.get();
    machinery_.lanes = lanes_.get();
    machinery_.headers = headers_.get();
    machinery_.link = LinkConstants{group.link_latency_s, group.link_bytes_per_s};
    machinery_.hasBadNews = &hasBadNews_;
    machinery_.raiseBadNews = [this] { raiseFirstCause(); };
    machinery_.hasLeft = hasLeft;
    machinery_.ask = [this](int peer, Duration limit) { return side_->ask(peer, limit); };
    machinery_.waitsFor = &waitsFor_;
    machinery_.bytesReduced = &bytesReduced_;
    SideChannel::Listener listener;
    listener.onBadNews = [this](const BadNews& news) { poison(news, news.code == Code::kPeerLost); };
    listener.onGoodbye = [this](int peer) {
      hasLeft_[peer].store(true, std::memory_order_release);
      team_->wakeAll();
    };
    listener.onTransferEnd = [this](int64_t ticket, int source, const BadNews* news) {
      if (news == nullptr) {
        tickets_.finish(ticket, source, nullptr);
        return;
      }
      const Failure failure(news->code, news->culprit, where(news->text));
      tickets_.finish(ticket, source, &failure);
      if (news->code != Code::kInvalid) poison(*news, true);
    };
    listener.onAsk = [this] { return Whereabouts{begun_.load(), waitsFor_.load()}; };
    sidesOwned = true;
    side_ = std::make_unique<SideChannel>(layout_.rank, std::vector<int>(group.side_fds, group.side_fds + group.size),
                                          std::move(listener), [this](int peer) { return layout_.describe(peer); });
    messenger_.store(side_.get());
    const std::lock_guard lock(newsMutex_);
    if (news_) side_->tellBadNews(*news_);
  } catch (...) {
    guard_.reset();
    if (!lanesOwned) closeAll(group.lane_fds, group.size);
    if (!sidesOwned) closeAll(group.side_fds, group.size);
    if (group.segment_fd >= 0) close(group.segment_fd);
    if (wakeFd_ >= 0) close(wakeFd_);
    throw;
  }
  // The mapping keeps the memory; nobody needs its descriptor any more.
  if (group.segment_fd >= 0) close(group.segment_fd);
}

Communicator::~Communicator() {
  {
    const std::lock_guard lock(queueMutex_);
    isStopping_ = true;
  }
  bool isInOrder = false;
  {
    const std::lock_guard lock(newsMutex_);
    isInOrder = !news_;
    if (isInOrder) news_ = BadNews{Code::kClosed, layout_.rank, "the group was closed by this rank"};
  }
  hasBadNews_.store(true, std::memory_order_release);
  wakeWaiters();
  queueChanged_.notify_all();
  if (executor_.joinable()) executor_.join();
  {
    std::unique_lock lock(queueMutex_);
    queueChanged_.wait(lock, [this] { return !isBusy_ && waiting_ == 0; });
  }
  messenger_.store(nullptr);
  // Who waits for a transfer may free its memory once told: its end is told by the channel, which touches it no more.
  side_->close(kGoodbyeLimit);
  tickets_.stop();
  side_.reset();
  if (lanes_ && isInOrder && !isCut_) lanes_->leave(kGoodbyeLimit);
  lanes_.reset();
  guard_.reset();
  close(wakeFd_);
}

// Algorithms cut a slot into a piece for every rank of the group, at most, and a piece takes a grain at least. Of what
// all ranks know equally, so that all of them refuse.
void Communicator::checkSlots(uint64_t slotBytes) const {
  const uint64_t least = static_cast<uint64_t>(layout_.size) * kGrainBytes;
  if (layout_.mostRanksOnAHost() == 1 || slotBytes >= least) return;
  const uint64_t enough = (least + kSlotGrainBytes - 1) / kSlotGrainBytes * kSlotGrainBytes;
  throw Failure(Code::kInvalid, -1,
                "group '" + name_ + "': slots have " + std::to_string(slotBytes) + " bytes, and " +
                    std::to_string(layout_.size) + " ranks need " + std::to_string(enough) +
                    "; set CLARY_COLLECTIVE_SLOT_BYTES to that or more on all ranks");
}

void Communicator::check(const Operation& operation) const {
  const auto refuse = [&](const std::string& why) {
    throw Failure(Code::kInvalid, -1,
                  std::string(collectiveName(operation.kind)) + " of group '" + name_ + "': " + why);
  };
  const int dtype = static_cast<int>(operation.dtype);
  if (dtype < CLARY_FLOAT32 || dtype > CLARY_BOOL) refuse("element type " + std::to_string(dtype) + " is not known");
  const bool isReduction = operation.kind == Collective::kAllReduce || operation.kind == Collective::kReduceScatter ||
                           operation.kind == Collective::kReduce;
  const int op = static_cast<int>(operation.op);
  if (isReduction && (op < CLARY_SUM || op > CLARY_BXOR)) refuse("reduction " + std::to_string(op) + " is not known");
  if (isReduction && !isDefined(operation.op, operation.dtype)) {
    refuse(std::string(reduceOpName(operation.op)) + " is not defined on " + dtypeName(operation.dtype));
  }
  const bool isRooted = operation.kind == Collective::kBroadcast || operation.kind == Collective::kReduce ||
                        operation.kind == Collective::kGather || operation.kind == Collective::kScatter;
  if (isRooted && (operation.root < 0 || operation.root >= layout_.size)) {
    refuse("root " + std::to_string(operation.root) + " is not in 0.." + std::to_string(layout_.size - 1));
  }
  if (operation.bytes(layout_.size) == 0) return;
  const bool isRoot = operation.root == layout_.rank;
  const bool needsInput = operation.kind != Collective::kBarrier && operation.kind != Collective::kBroadcast &&
                          (operation.kind != Collective::kScatter || isRoot);
  const bool needsOutput = operation.kind != Collective::kBarrier &&
                           ((operation.kind != Collective::kReduce && operation.kind != Collective::kGather) || isRoot);
  if (needsInput && operation.input == nullptr && operation.inputs == nullptr) refuse("the input is a null address");
  if (needsOutput && operation.output == nullptr && operation.outputs == nullptr)
    refuse("the output is a null address");
}

Duration Communicator::limitOf(double timeoutSeconds) const {
  const double seconds = timeoutSeconds > 0 ? timeoutSeconds : timeoutSeconds_;
  return duration_cast<Duration>(std::chrono::duration<double>(std::min(seconds, kLongestTimeoutSeconds)));
}

void Communicator::checkNotForked() const {
  if (!isForked()) return;
  throw Failure(Code::kClosed, -1,
                where("this process was forked from the one that opened the group, and has no part in it; open another "
                      "group here, or use this one where it was opened"));
}

int64_t Communicator::run(Operation& operation, bool isAsynchronous, double timeoutSeconds) {
  checkNotForked();
  check(operation);
  operation.limit = limitOf(timeoutSeconds);
  int64_t ticket = 0;
  bool isTried = false;
  {
    std::unique_lock lock(queueMutex_);
    if (isStopping_ || hasBadNews_.load(std::memory_order_acquire)) {
      try {
        raiseFirstCause();
      } catch (const Failure& cause) {
        throw Failure(cause.code, cause.culprit,
                      where(std::string(collectiveName(operation.kind)) +
                            " was not begun, the group is broken: " + cause.what()));
      }
    }
    const bool isFirst = !isBusy_ && queue_.empty();
    isTried = isAsynchronous && isFirst && mayBeTried(operation);
    const bool isQueued = (isAsynchronous || !isFirst) && !isTried;
    if (isQueued || isTried) startExecutor();  // first, because it may fail: a job that is queued is run
    operation.sequence = ++sequence_;
    const TimePoint now = Clock::now();
    operation.deadline = now + operation.limit;
    record_.begin(operation, now, !isAsynchronous);
    operations_.fetch_add(1, std::memory_order_relaxed);
    if (isQueued) {
      ticket = tickets_.open();
      queue_.push_back(std::make_unique<Job>(operation, layout_.size, ticket));
      if (!isAsynchronous) ++waiting_;
      queueChanged_.notify_all();
    } else {
      isBusy_ = true;
    }
  }
  if (isTried) return tryInCaller(operation);
  if (ticket == 0) {
    inCaller_.fetch_add(1, std::memory_order_relaxed);
    const auto release = [&](bool isGood) {
      const std::lock_guard lock(queueMutex_);
      record_.end(operation.sequence, isGood);
      isBusy_ = false;
      // Nobody else waits for a free communicator: waking the executor for nothing would double the cost of a call.
      // Under the lock, because the destructor ends when it finds nobody busy.
      if (isStopping_ || !queue_.empty()) queueChanged_.notify_all();
    };
    try {
      execute(operation, kPatienceOfCaller);
    } catch (...) {
      release(false);
      throw;
    }
    release(true);
    return 0;
  }
  if (isAsynchronous) return ticket;
  std::optional<Failure> failure;
  const Tickets::End end = tickets_.wait(ticket, std::nullopt, nullptr, &failure);
  {
    const std::lock_guard lock(queueMutex_);
    if (--waiting_ == 0 && isStopping_) queueChanged_.notify_all();
  }
  if (end == Tickets::End::kFailed) throw *failure;
  return 0;
}

bool Communicator::mayBeTried(const Operation& operation) const {
  return operation.kind == Collective::kAllReduce && layout_.hosts() == 1 &&
         operation.bytes(layout_.size) <= kMostTriedBytes;
}

// Called with `isBusy_` set, which is given back. A failure is what a wait for the ticket reports, as for operations
// that the executor runs.
int64_t Communicator::tryInCaller(Operation& operation) {
  std::optional<Failure> failure;
  bool hasEnded = false;
  try {
    Run run(operation, machinery_, kPatienceOfTry);
    if (tryAllReduce(run, operation.offered)) {
      execute(operation, kPatienceOfTry);
      hasEnded = true;
      inCaller_.fetch_add(1, std::memory_order_relaxed);
    }
  } catch (const Failure& caught) {
    failure.emplace(caught);
  } catch (const std::exception& error) {
    failure.emplace(Code::kSystem, layout_.rank, where(describe(operation) + ": " + error.what()));
    poison(BadNews{Code::kSystem, layout_.rank, failure->what()}, true);
  }
  int64_t ticket = 0;
  {
    const std::lock_guard lock(queueMutex_);
    isBusy_ = false;
    if (hasEnded || failure) record_.end(operation.sequence, hasEnded);
    if (!hasEnded) ticket = tickets_.open();
    if (!hasEnded && !failure) queue_.push_front(std::make_unique<Job>(operation, layout_.size, ticket));
    // All of it under the lock, because the destructor ends when it finds nobody busy.
    if (failure) tickets_.finish(ticket, 0, &*failure);
    if (isStopping_ || !queue_.empty()) queueChanged_.notify_all();
  }
  return ticket;
}

void Communicator::execute(const Operation& operation, Duration patience) {
  try {
    if (hasBadNews_.load(std::memory_order_acquire)) raiseFirstCause();
    begun_.store(operation.sequence, std::memory_order_relaxed);
    Run run(operation, machinery_, patience);
    try {
      switch (operation.kind) {
        case Collective::kAllReduce:
          return allReduce(run);
        case Collective::kAllGather:
          return allGather(run);
        case Collective::kReduceScatter:
          return reduceScatter(run);
        case Collective::kBroadcast:
          return broadcast(run);
        case Collective::kReduce:
          return reduceToRoot(run);
        case Collective::kAllToAll:
          return allToAll(run);
        case Collective::kGather:
          return gatherToRoot(run);
        case Collective::kScatter:
          return scatterFromRoot(run);
        case Collective::kBarrier:
          return barrier(run);
        default:
          throw Failure(Code::kInvalid, -1, "send and receive are no collectives");
      }
    } catch (const LaneBroken& broken) {
      run.failLane(broken);
    }
  } catch (const Failure& failure) {
    const std::string text =
        where(describe(operation) + ", " + std::to_string(operation.bytes(layout_.size)) + " bytes: " + failure.what());
    isCut_ = true;
    poison(BadNews{failure.code, failure.culprit, text}, true);
    throw Failure(failure.code, failure.culprit, text);
  } catch (const std::exception& error) {
    const std::string text = where(describe(operation) + ": " + error.what());
    isCut_ = true;
    poison(BadNews{Code::kSystem, layout_.rank, text}, true);
    throw Failure(Code::kSystem, layout_.rank, text);
  }
}

void Communicator::startExecutor() {
  if (executor_.joinable()) return;
  executor_ = std::thread([this] { runQueue(); });
  pthread_setname_np(executor_.native_handle(), "clary-executor");
}

void Communicator::runQueue() {
  for (;;) {
    std::unique_ptr<Job> job;
    {
      std::unique_lock lock(queueMutex_);
      queueChanged_.wait(lock, [this] { return !isBusy_ && (isStopping_ || !queue_.empty()); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
      isBusy_ = true;
    }
    // The limit counts from the moment of the call, and at the earliest from the end of what was queued before.
    job->kept.operation.deadline = Clock::now() + job->kept.operation.limit;
    std::optional<Failure> failure;
    try {
      execute(job->kept.operation, kPatienceOfExecutor);
    } catch (const Failure& caught) {
      failure.emplace(caught);
    }
    {
      const std::lock_guard lock(queueMutex_);
      record_.end(job->kept.operation.sequence, !failure);
      isBusy_ = false;
    }
    queueChanged_.notify_all();
    tickets_.finish(job->ticket, 0, failure ? &*failure : nullptr);
  }
}

int64_t Communicator::send(const void* data, uint64_t bytes, int peer, int64_t tag, double timeoutSeconds) {
  checkNotForked();
  if (peer < 0 || peer >= layout_.size) {
    throw Failure(Code::kInvalid, -1, "send of group '" + name_ + "': there is no rank " + std::to_string(peer));
  }
  if (hasBadNews_.load(std::memory_order_acquire)) raiseFirstCause();
  const int64_t ticket = tickets_.open();
  side_->send(ticket, peer, tag, data, bytes, Clock::now() + limitOf(timeoutSeconds));
  return ticket;
}

int64_t Communicator::receive(void* data, uint64_t bytes, int peer, int64_t tag, double timeoutSeconds) {
  checkNotForked();
  if (peer < -1 || peer >= layout_.size) {
    throw Failure(Code::kInvalid, -1, "receive of group '" + name_ + "': there is no rank " + std::to_string(peer));
  }
  if (hasBadNews_.load(std::memory_order_acquire)) raiseFirstCause();
  const int64_t ticket = tickets_.open();
  side_->receive(ticket, peer, tag, data, bytes, Clock::now() + limitOf(timeoutSeconds));
  return ticket;
}

void Communicator::abort(const std::string& reason) {
  poison(BadNews{Code::kClosed, layout_.rank, where("aborted: " + reason)}, true);
}

void Communicator::poison(const BadNews& news, bool isOwn) {
  {
    const std::lock_guard lock(newsMutex_);
    if (news_) return;
    news_ = news;
  }
  hasBadNews_.store(true, std::memory_order_release);
  wakeWaiters();
  SideChannel* messenger = messenger_.load();
  if (isOwn && messenger != nullptr) messenger->tellBadNews(news);
}

void Communicator::raiseFirstCause() const {
  const std::lock_guard lock(newsMutex_);
  if (!news_) throw Failure(Code::kClosed, layout_.rank, "the group is closed");
  throw Failure(news_->code, news_->culprit, news_->text);
}

void Communicator::wakeWaiters() {
  team_->wakeAll();
  const uint64_t one = 1;
  // A full counter is as readable as one more.
  static_cast<void>(write(wakeFd_, &one, sizeof(one)) == sizeof(one));
}

std::string Communicator::where(const std::string& what) const {
  return "group '" + name_ + "', " + layout_.describe(layout_.rank) + ": " + what;
}

std::string Communicator::explain(Collective kind, uint64_t bytes) const {
  if (kind != Collective::kAllReduce) return std::string(collectiveName(kind)) + ": one algorithm for every size";
  return explainAllReduce(bytes, Shape{layout_.mostRanksOnAHost(), layout_.hosts(), layout_.rails, team_->slotBytes()},
                          machinery_.link, machinery_.forcedAlgorithm);
}

std::vector<uint64_t> Communicator::counters() const {
  return {operations_.load(),
          bytesReduced_.load(),
          lanes_ ? lanes_->bytesSent() : 0,
          lanes_ ? lanes_->bytesReceived() : 0,
          team_->sleeps(),
          team_->wakes(),
          inCaller_.load(),
          peers_->bytesRead()};
}

}  // namespace clary
