// A rank that says false things of its memory where ranks of a host read each other's: the others end with its name or
// take the way through shared memory, and never end well with data that they can know to be wrong.
//
// The last rank opens the group as all do, so that its side channel answers, and goes through the phases of an
// all_gather by hand. Before the others have tried to read it, a lie sends all the other way; after that it ends the
// operation.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "clary/collectives.h"
#include "engine/operation.hpp"
#include "gang.hpp"
#include "transport/peer_memory.hpp"

namespace clary_tests {
namespace {

using clary::HostTeam;
using clary::Operation;
using clary::PeerMemory;
using clary::Step;
using clary::Window;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Ends of an honest rank.
constexpr int kRight = 0;
constexpr int kWrong = 1;     // ended well, with wrong data
constexpr int kOtherWay = 2;  // right, by shared memory
constexpr int kLost = 10;     // an error that names the forger; of each kind its own
constexpr int kMismatch = 11;
constexpr int kTimeout = 12;
constexpr int kUnnamed = 20;  // an error that names somebody else
constexpr int kSkipped = 77;

constexpr int kForger = 2;  // of three ranks
constexpr uid_t kNobody = 65534;
constexpr uint64_t kSlotBytes = 65536;
constexpr uint64_t kSequence = 1;
constexpr size_t kCount = 4099;       // floats; fewer than a slot takes
constexpr size_t kPeerBytesRead = 7;  // number of the counter
constexpr double kTimeoutSeconds = 3;
constexpr seconds kSoon{20};  // far above what a busy machine with a sanitizer needs

float valueOf(int rank, size_t i) { return static_cast<float>((rank + 1) * 1000 + static_cast<int>(i % 97)); }

std::vector<float> chunkOf(int rank, size_t count) {
  std::vector<float> chunk(count);
  for (size_t i = 0; i < count; ++i) chunk[i] = valueOf(rank, i);
  return chunk;
}

// Root may read every process; ranks of jobs are not root.
bool becomeNobody() {
  if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) return false;
  return prctl(PR_SET_DUMPABLE, 1) == 0;
}

int endOf(const clary_failure& failure) {
  std::fprintf(stderr, "%s\n", failure.text);
  const bool isNamed = failure.culprit == kForger && std::strstr(failure.text, "rank 2 on algo-1") != nullptr;
  if (!isNamed) return kUnnamed;
  switch (failure.code) {
    case CLARY_PEER_LOST:
      return kLost;
    case CLARY_ORDER_MISMATCH:
      return kMismatch;
    case CLARY_TIMEOUT:
      return kTimeout;
    default:
      return kUnnamed;
  }
}

int liveHonestly(Gang& gang, int rank, size_t count) {
  clary_failure failure{};
  clary_communicator* group = becomeNobody() ? gang.open(rank, &failure) : nullptr;
  if (group == nullptr) return kUnnamed;
  const auto own = chunkOf(rank, count);
  std::vector<float> gathered(count * static_cast<size_t>(gang.size()), -1);
  if (clary_all_gather(group, own.data(), gathered.data(), nullptr, count, CLARY_FLOAT32, 0, 0, &failure) != 0) {
    clary_destroy(group);  // tells the others why before it ends
    return endOf(failure);
  }
  for (size_t i = 0; i < gathered.size(); ++i) {
    if (gathered[i] != valueOf(static_cast<int>(i / count), i % count)) return kWrong;
  }
  uint64_t counters[kPeerBytesRead + 1] = {};
  clary_counters(group, counters, kPeerBytesRead + 1);
  clary_destroy(group);
  return counters[kPeerBytesRead] > 0 ? kRight : kOtherWay;
}

// The phases of an all_gather, by hand.
class Forger {
 public:
  Forger(const Gang& gang, size_t count, const float* input)
      : team_(kForger, gang.size(), gang.segment(kForger), clary_segment_bytes(gang.size(), kSlotBytes), kSlotBytes),
        peers_(team_),
        count_(count) {
    peers_.show(kSequence, input);
    Operation operation;
    operation.kind = clary::Collective::kAllGather;
    operation.dtype = clary::Dtype::kFloat32;
    operation.count = count;
    operation.sequence = kSequence;
    announcement() = operation.announcement();
  }

  HostTeam& team() { return team_; }
  Window& window() { return team_.window(kForger, kSequence); }
  clary::Announcement& announcement() { return team_.announcement(kForger, kSequence); }
  pid_t pidOf(int member) { return static_cast<pid_t>(team_.window(member, kSequence).pid); }

  void publish() { team_.publish(); }
  // Look at the flags as all do, and say which way it goes then.
  void agree() { peers_.agree(kSequence); }
  // Until the others, or one of them, have come to a phase; false if they do not in time.
  bool await(Step step, std::vector<int> members = {0, 1}) {
    const auto deadline = steady_clock::now() + kSoon;
    for (const int member : members) {
      while (!clary::hasReached(team_.published(member), step)) {
        if (steady_clock::now() > deadline) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return true;
  }
  // As a rank that agrees to go through shared memory: one segment.
  bool goTheOtherWay(const float* input) {
    agree();
    publish();
    if (!await(team_.step())) return false;
    std::memcpy(team_.buffer(kForger, team_.nextSlot()), input, count_ * sizeof(float));
    publish();
    return await(team_.step());
  }

 private:
  HostTeam team_;
  PeerMemory peers_;
  size_t count_;
};

using Lie = std::function<void(Forger&)>;

struct Attack {
  size_t count = kCount;
  std::function<const float*(std::vector<float>&)> input = [](std::vector<float>& own) { return own.data(); };
  Lie beforeMeeting = [](Forger&) {};
  Lie beforeAgreeing = [](Forger&) {};  // all others have tried to read by then
  Lie afterAgreeing = [](Forger&) {};
  std::function<int(Gang&)> live;  // instead of all that
};

int liveByLies(Gang& gang, const Attack& attack) {
  if (attack.live) return attack.live(gang);
  clary_failure failure{};
  clary_communicator* group = becomeNobody() ? gang.open(kForger, &failure) : nullptr;
  if (group == nullptr) return kUnnamed;
  std::vector<float> own = chunkOf(kForger, attack.count);
  const float* input = attack.input(own);
  Forger forger(gang, attack.count, input);
  attack.beforeMeeting(forger);
  forger.publish();
  if (!forger.await(2)) return kUnnamed;
  attack.beforeAgreeing(forger);
  forger.publish();
  attack.afterAgreeing(forger);
  // Stay until the others have ended: a rank that has gone is another matter.
  if (!forger.await(5)) pause();
  forger.publish();
  pause();
  return 0;
}

// The ends of the two honest ranks; a third number if the forger could not do what it is to do.
std::vector<int> endsOf(const Attack& attack) {
  std::vector<pid_t> children;
  GangOptions options;
  options.hostOf = {0, 0, 0};
  options.slotBytes = kSlotBytes;
  options.algorithm = "single-copy";
  options.timeoutSeconds = kTimeoutSeconds;
  {
    Gang gang(options);
    for (int rank = 0; rank < gang.size(); ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        gang.keepOnly(rank);
        _exit(rank == kForger ? liveByLies(gang, attack) : liveHonestly(gang, rank, attack.count));
      }
      children.push_back(child);
    }
    gang.keepOnly(-1);
  }
  std::vector<int> ends;
  const auto deadline = steady_clock::now() + kSoon;
  for (int rank = 0; rank < kForger; ++rank) {
    int status = 0;
    while (waitpid(children[rank], &status, WNOHANG) == 0) {
      if (steady_clock::now() > deadline) kill(children[rank], SIGKILL);  // it hangs
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  kill(children[kForger], SIGKILL);
  int status = 0;
  waitpid(children[kForger], &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) ends.push_back(kSkipped);
  return ends;
}

// A lie that is there when the others try, from a rank that goes their way then.
std::vector<int> endsOfFirstLie(const Lie& lie) {
  Attack attack;
  attack.beforeMeeting = lie;
  attack.afterAgreeing = [](Forger& forger) { forger.goTheOtherWay(chunkOf(kForger, kCount).data()); };
  return endsOf(attack);
}

std::vector<int> endsOfLateLie(const Lie& lie) {
  Attack attack;
  attack.beforeAgreeing = lie;
  return endsOf(attack);
}

const std::vector<int> kBothRight = {kRight, kRight};
const std::vector<int> kBothGoTheOtherWay = {kOtherWay, kOtherWay};
const std::vector<int> kBothNameALostRank = {kLost, kLost};

struct NamedLie {
  const char* name;
  Lie tell;
};

const NamedLie kLies[] = {
    {"AddressThatIsNotMapped", [](Forger& forger) { forger.window().input = 4096; }},
    {"AddressOfTheKernel", [](Forger& forger) { forger.window().input = ~uint64_t{0} - 15; }},
    {"NullAddress", [](Forger& forger) { forger.window().input = 0; }},
    {"NumberOfTheParent", [](Forger& forger) { forger.window().pid = getppid(); }},
    {"NumberOfAnotherRank",
     [](Forger& forger) {
       forger.await(1, {0});
       forger.window().pid = forger.pidOf(0);
     }},
    {"NumberOfNoProcess", [](Forger& forger) { forger.window().pid = 0; }},
    {"NegativeNumber", [](Forger& forger) { forger.window().pid = -1; }},
    {"NumberTooLarge", [](Forger& forger) { forger.window().pid = int64_t{1} << 40; }},
    {"WrongCookie", [](Forger& forger) { forger.window().cookie ^= 1; }},
    {"NoCookie", [](Forger& forger) { forger.window().cookie = 0; }},
    {"CookieThatLiesElsewhere", [](Forger& forger) { forger.window().cookieAt += 1; }},
    {"CookieThatIsNotMapped", [](Forger& forger) { forger.window().cookieAt = 4096; }},
};

class ForgedWindows : public testing::TestWithParam<NamedLie> {};

TEST_P(ForgedWindows, ThatAreSeenWhenAllTrySendAllTheOtherWay) {
  EXPECT_EQ(kBothGoTheOtherWay, endsOfFirstLie(GetParam().tell));
}

TEST_P(ForgedWindows, ThatComeAfterThatEndTheOperationWithTheNameOfTheForger) {
  EXPECT_EQ(kBothNameALostRank, endsOfLateLie(GetParam().tell));
}

INSTANTIATE_TEST_SUITE_P(Lies, ForgedWindows, testing::ValuesIn(kLies),
                         [](const auto& lie) { return std::string(lie.param.name); });

TEST(ForgedWindow, NoneLeavesTheWaysAsTheyAre) {
  Attack none;
  none.afterAgreeing = [](Forger& forger) {
    forger.agree();
    forger.publish();
    forger.await(3);
  };
  EXPECT_EQ(kBothRight, endsOf(none));
}

TEST(ForgedWindow, OfMemoryThatIsTooShortEndsTheOperationWithTheNameOfTheForger) {
  Attack attack;
  attack.count = (9u << 20) / sizeof(float);  // several pieces
  attack.input = [](std::vector<float>& own) {
    const auto page = static_cast<size_t>(getpagesize());
    void* room = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memcpy(room, own.data(), page);
    mprotect(static_cast<std::byte*>(room) + page, page, PROT_NONE);
    return static_cast<const float*>(room);
  };
  EXPECT_EQ(kBothNameALostRank, endsOf(attack));
}

TEST(ForgedWindow, OfAProcessThatClosesItsMemoryEndsTheOperationWithTheNameOfTheForger) {
  EXPECT_EQ(kBothNameALostRank, endsOfLateLie([](Forger&) { prctl(PR_SET_DUMPABLE, 0); }));
}

TEST(ForgedWindow, OfAnotherLengthIsToldAsAnotherCall) {
  for (const uint64_t count : {uint64_t{0}, uint64_t{kCount + 1}, ~uint64_t{0}}) {
    Attack attack;
    attack.beforeMeeting = [count](Forger& forger) { forger.announcement().count = count; };
    EXPECT_EQ((std::vector<int>{kMismatch, kMismatch}), endsOf(attack)) << count;
  }
}

TEST(ForgedWindow, OfNoKnownCallIsToldAsAnotherCall) {
  Attack attack;
  attack.beforeMeeting = [](Forger& forger) {
    forger.announcement().kind = -77;
    forger.announcement().dtype = 1 << 30;
    forger.announcement().op = -1;
  };
  EXPECT_EQ((std::vector<int>{kMismatch, kMismatch}), endsOf(attack));
}

TEST(ForgedWindow, OfALengthThatChangesAfterAllHaveMetReadsNoMore) {
  Attack attack;
  attack.beforeAgreeing = [](Forger& forger) { forger.announcement().count = uint64_t{1} << 40; };
  attack.afterAgreeing = [](Forger& forger) {
    forger.agree();
    forger.publish();
    forger.await(3);
  };
  EXPECT_EQ(kBothRight, endsOf(attack));
}

TEST(ForgedWindow, OfARankThatDoesNotGoTheOtherWayIsNamedWhenTheTimeIsUp) {
  Attack attack;
  attack.beforeMeeting = [](Forger& forger) { forger.window().input = 4096; };
  EXPECT_EQ((std::vector<int>{kTimeout, kTimeout}), endsOf(attack));
}

TEST(ForgedWindow, WithAFlagThatChangesBetweenTwoLooksSendsNobodyAnotherWayUnseen) {
  Attack attack;
  attack.beforeAgreeing = [](Forger& forger) { kill(forger.pidOf(1), SIGSTOP); };
  attack.afterAgreeing = [](Forger& forger) {
    forger.await(3, {0});  // has looked, and read
    forger.window().isBlind = 1;
    kill(forger.pidOf(1), SIGCONT);
    forger.agree();
    forger.publish();
    forger.await(3);
  };
  EXPECT_EQ((std::vector<int>{kUnnamed, kUnnamed}), endsOf(attack));  // they name each other: who lied nobody can know
}

// As a file that is mapped from a server which has gone.
int liveOnMemoryThatNeverComes(Gang& gang, size_t count) {
  const auto faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{UFFD_API, 0, 0};
  if (faults < 0 || ioctl(faults, UFFDIO_API, &api) != 0) return kSkipped;
  const size_t bytes = count * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uffdio_register region{{reinterpret_cast<uintptr_t>(memory), bytes}, UFFDIO_REGISTER_MODE_MISSING, 0};
  if (ioctl(faults, UFFDIO_REGISTER, &region) != 0) return kSkipped;
  clary_failure failure{};
  clary_communicator* group = becomeNobody() ? gang.open(kForger, &failure) : nullptr;
  if (group == nullptr) return kUnnamed;
  std::vector<float> gathered(count * static_cast<size_t>(gang.size()), -1);
  clary_all_gather(group, static_cast<float*>(memory), gathered.data(), nullptr, count, CLARY_FLOAT32, 0, 0, &failure);
  return kUnnamed;
}

TEST(ForgedWindow, OfMemoryThatNeverComesHoldsUpItsOwnRankOnly) {
  Attack attack;
  attack.count = 65536;
  attack.live = [](Gang& gang) { return liveOnMemoryThatNeverComes(gang, 65536); };
  const auto ends = endsOf(attack);
  if (ends.size() > 2) GTEST_SKIP() << "userfaultfd is not to be had here";
  EXPECT_EQ((std::vector<int>{kTimeout, kTimeout}), ends);
}

}  // namespace
}  // namespace clary_tests
