// The thread of the side channel: it sleeps until a socket, a deadline or an order wakes it, moves bytes, and tells the
// listener what has ended. What frames mean is in exchange.hpp. Nothing but the mailbox is shared with other threads.
#include "transport/side_channel.hpp"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <system_error>
#include <thread>
#include <variant>

#include "transport/exchange.hpp"

namespace clary {

namespace {

// How long an abandoned group may take to get its bad news out.
constexpr std::chrono::milliseconds kAbandonedGrace{200};
// Between looks at what the peers' kernels have acknowledged: nothing wakes us for that.
constexpr std::chrono::milliseconds kDeliveryLook{1};
constexpr size_t kEventsPerTurn = 64;
constexpr uint64_t kMailboxMark = ~uint64_t{0};

struct Finish {
  bool goodbye;
  Duration limit;
};
struct Question {
  int peer;
};
using Order = std::variant<Transfer, BadNews, Finish, Question>;

int milliseconds(TimePoint until) {
  if (until == TimePoint::max()) return -1;
  Duration left = until - Clock::now();
  if (left <= Duration::zero()) return 0;
  constexpr std::chrono::hours kLongest{1};  // far below what the argument of epoll_wait can hold
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(left, kLongest)).count());
}

Descriptor checked(int fd, const char* what) {
  if (fd < 0) {
    throw Failure(Code::kSystem, -1, std::string("the side channel got no ") + what + ": " + errorWords(errno));
  }
  return Descriptor(fd);
}

std::vector<Connection> adopt(int ownRank, const std::vector<int>& fds) {
  std::vector<Descriptor> sockets = takeOver(fds);
  std::vector<Connection> connections(fds.size());
  for (size_t i = 0; i < sockets.size(); ++i) {
    auto peer = static_cast<int>(i);
    if (peer == ownRank || !sockets[i].isOpen()) continue;
    bool isTcp = prepareStream(sockets[i].fd(), "side stream to rank " + std::to_string(peer));
    connections[i] = Connection(peer, std::move(sockets[i]), isTcp);
  }
  return connections;
}

}  // namespace

struct SideChannel::State {
  State(int ownRank, const std::vector<int>& fds, Listener given, std::function<std::string(int)> describe);

  // Of any thread.
  bool post(Order order);  // false: no thread will carry it out
  void begin(Transfer transfer);
  void finish(bool goodbye, Duration limit);
  std::optional<Whereabouts> ask(int peer, Duration limit);
  void answer(int peer, const Whereabouts& it);

  // Of the channel's thread.
  void run();
  void turn();
  void carryOut();
  void wait(TimePoint until);
  void serve(int peer, uint32_t events);
  void flush(int peer);
  void flushDirty();
  void closeFinished();
  void watch(int peer, bool output);
  void leave();
  bool isAllDelivered();

  Listener listener;
  Exchange exchange;
  Descriptor wake;
  Descriptor poll;

  std::mutex mutex;           // guards the two below
  std::vector<Order> orders;  // the mailbox
  bool isOpen = true;         // orders are still carried out

  std::vector<char> isBlocked;  // a peer: output waits for its socket
  std::vector<int> unfinished;  // peers whose turn to write was over before their output
  std::optional<Finish> ending;

  std::mutex asking;  // guards the two below
  std::condition_variable answered;
  std::optional<std::pair<int, Whereabouts>> lastAnswer;

  std::mutex joining;
  std::thread thread;
};

SideChannel::State::State(int ownRank, const std::vector<int>& fds, Listener given,
                          std::function<std::string(int)> describe)
    : listener(given),
      exchange(ownRank, adopt(ownRank, fds), std::move(given), std::move(describe),
               [this](int peer, const Whereabouts& it) { answer(peer, it); }),
      wake(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      poll(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll set")),
      isBlocked(fds.size()) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kMailboxMark;
  int result = ::epoll_ctl(poll.fd(), EPOLL_CTL_ADD, wake.fd(), &event);
  for (size_t i = 0; i < exchange.size() && result == 0; ++i) {
    Connection& connection = exchange.connection(static_cast<int>(i));
    if (!connection.isOpen()) continue;
    event.data.u64 = i;
    result = ::epoll_ctl(poll.fd(), EPOLL_CTL_ADD, connection.fd(), &event);
  }
  if (result != 0) throw Failure(Code::kSystem, -1, "the side channel cannot watch its sockets: " + errorWords(errno));
}

bool SideChannel::State::post(Order order) {
  bool isFirst = false;
  {
    std::lock_guard lock(mutex);
    if (!isOpen) return false;
    isFirst = orders.empty();
    orders.push_back(std::move(order));
  }
  // The thread takes all orders at once, so one mark is enough. It cannot fail: the counter never comes near its limit.
  if (isFirst) ::eventfd_write(wake.fd(), 1);
  return true;
}

void SideChannel::State::begin(Transfer transfer) {
  transfer.begun = Clock::now();
  if (post(transfer)) return;
  BadNews closed{Code::kClosed, -1, "the group was closed by this rank before this operation began"};
  listener.onTransferEnd(transfer.ticket, transfer.peer, &closed);
}

void SideChannel::State::finish(bool goodbye, Duration limit) {
  post(Finish{goodbye, limit});
  std::lock_guard lock(joining);
  if (thread.joinable()) thread.join();
}

std::optional<Whereabouts> SideChannel::State::ask(int peer, Duration limit) {
  {
    std::lock_guard lock(asking);
    lastAnswer.reset();
  }
  if (!post(Question{peer})) return std::nullopt;
  std::unique_lock lock(asking);
  answered.wait_for(lock, limit, [&] { return lastAnswer && lastAnswer->first == peer; });
  if (!lastAnswer || lastAnswer->first != peer) return std::nullopt;
  return lastAnswer->second;
}

void SideChannel::State::answer(int peer, const Whereabouts& it) {
  std::lock_guard lock(asking);
  lastAnswer.emplace(peer, it);
  answered.notify_all();
}

void SideChannel::State::run() {
  while (!ending) {
    try {
      turn();
    } catch (const std::exception& e) {
      // Memory has run out, most likely: a stream may be out of step, so the group is over.
      exchange.onFailure(e.what());
    }
  }
  leave();
}

void SideChannel::State::turn() {
  carryOut();
  flushDirty();
  closeFinished();
  if (ending) return;
  wait(unfinished.empty() ? exchange.nextDeadline() : TimePoint{});
  exchange.expire(Clock::now());
}

void SideChannel::State::carryOut() {
  std::vector<Order> taken;
  {
    std::lock_guard lock(mutex);
    taken.swap(orders);
  }
  for (Order& order : taken) {
    if (auto* transfer = std::get_if<Transfer>(&order)) {
      exchange.begin(*transfer);
    } else if (auto* news = std::get_if<BadNews>(&order)) {
      exchange.tellBadNews(*news);
    } else if (auto* question = std::get_if<Question>(&order)) {
      exchange.ask(question->peer);
    } else if (!ending) {
      ending = std::get<Finish>(order);
    }
  }
}

void SideChannel::State::wait(TimePoint until) {
  std::array<epoll_event, kEventsPerTurn> events;
  int count = ::epoll_wait(poll.fd(), events.data(), static_cast<int>(events.size()), milliseconds(until));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.u64 == kMailboxMark) {
      eventfd_t ignored;
      ::eventfd_read(wake.fd(), &ignored);
    } else {
      serve(static_cast<int>(event.data.u64), event.events);
    }
  }
}

void SideChannel::State::serve(int peer, uint32_t events) {
  Connection& connection = exchange.connection(peer);
  if (connection.isFinished()) return;
  try {
    bool hasInput = (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
    if (hasInput && connection.read(exchange) == Connection::Stream::kEnded) exchange.onStreamEnd(peer);
  } catch (const BadFrame& e) {
    exchange.onBadFrame(peer, e.what());
  }
  if ((events & EPOLLOUT) != 0) flush(peer);
}

void SideChannel::State::flush(int peer) {
  Connection& connection = exchange.connection(peer);
  if (!connection.isOpen() || connection.isFinished()) return;
  Connection::Output output = connection.flush(exchange);
  if (output == Connection::Output::kMore) unfinished.push_back(peer);
  if (output == Connection::Output::kBroken) exchange.onOutputBroken(peer);
  watch(peer, output == Connection::Output::kBlocked);
}

void SideChannel::State::flushDirty() {
  for (int peer : std::exchange(unfinished, {})) flush(peer);
  for (int peer : exchange.takeDirty()) {
    if (isBlocked[static_cast<size_t>(peer)] == 0) flush(peer);
  }
}

void SideChannel::State::watch(int peer, bool output) {
  char& blocked = isBlocked[static_cast<size_t>(peer)];
  if ((blocked != 0) == output) return;
  blocked = output ? 1 : 0;
  epoll_event event{};
  event.events = output ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(peer);
  ::epoll_ctl(poll.fd(), EPOLL_CTL_MOD, exchange.connection(peer).fd(), &event);
}

void SideChannel::State::closeFinished() {
  for (int peer : exchange.takeFinished()) {
    Connection& connection = exchange.connection(peer);
    if (!connection.isOpen()) continue;
    // By hand: a copy of the descriptor in a forked child would keep it in the set.
    ::epoll_ctl(poll.fd(), EPOLL_CTL_DEL, connection.fd(), nullptr);
    connection.close();
  }
}

// The end of the thread: transfers end, goodbye is said, and a moment is given to the last words.
void SideChannel::State::leave() {
  TimePoint limit = Clock::now() + ending->limit;
  if (!ending->goodbye && exchange.hasToldBadNews()) limit = Clock::now() + kAbandonedGrace;
  try {
    exchange.shut(ending->goodbye);
    flushDirty();
    // Reading goes on, and what comes is thrown away: a socket that is closed with unread bytes resets the connection,
    // and a reset may overtake the goodbye.
    while (!isAllDelivered() && Clock::now() < limit) {
      wait(std::min(limit, Clock::now() + kDeliveryLook));
      carryOut();
      flushDirty();
      closeFinished();
    }
  } catch (const std::exception&) {
    // No memory for last words. Peers will find the sockets closed.
  }
  std::vector<Order> late;
  {
    std::lock_guard lock(mutex);
    isOpen = false;
    late.swap(orders);
  }
  for (Order& order : late) {
    if (auto* transfer = std::get_if<Transfer>(&order)) exchange.begin(*transfer);
  }
  for (size_t i = 0; i < exchange.size(); ++i) exchange.connection(static_cast<int>(i)).close();
}

bool SideChannel::State::isAllDelivered() {
  bool isAll = true;
  for (size_t i = 0; i < exchange.size(); ++i) {
    Connection& connection = exchange.connection(static_cast<int>(i));
    if (!connection.isOpen() || connection.isFinished() || connection.isOutputBroken()) continue;
    if (!connection.hasOutput()) connection.endOutput();
    isAll = isAll && !connection.hasOutput() && connection.isDelivered();
  }
  return isAll;
}

SideChannel::SideChannel(int ownRank, std::vector<int> fds, Listener listener, std::function<std::string(int)> describe)
    : state_(std::make_unique<State>(ownRank, fds, std::move(listener), std::move(describe))) {
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    state_->thread = std::thread([state = state_.get()] { state->run(); });
  } catch (const std::system_error& e) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Failure(Code::kSystem, -1, std::string("the side channel got no thread: ") + e.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(state_->thread.native_handle(), "clary-side");
}

SideChannel::~SideChannel() { state_->finish(false, Duration::zero()); }

void SideChannel::send(int64_t ticket, int peer, int64_t tag, const void* data, uint64_t bytes, TimePoint deadline) {
  // Only read from.
  auto* memory = static_cast<std::byte*>(const_cast<void*>(data));
  state_->begin({Transfer::Kind::kSend, ticket, peer, tag, memory, bytes, deadline});
}

void SideChannel::receive(int64_t ticket, int peer, int64_t tag, void* data, uint64_t bytes, TimePoint deadline) {
  auto* memory = static_cast<std::byte*>(data);
  state_->begin({Transfer::Kind::kReceive, ticket, peer, tag, memory, bytes, deadline});
}

std::optional<Whereabouts> SideChannel::ask(int peer, Duration limit) { return state_->ask(peer, limit); }

void SideChannel::tellBadNews(const BadNews& news) { state_->post(news); }

void SideChannel::close(Duration limit) { state_->finish(true, limit); }

}  // namespace clary
