// Collectives that read the memory of other processes, and those whose processes may not.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "clary/collectives.h"
#include "gang.hpp"

namespace clary_tests {
namespace {

constexpr int kRight = 0;
constexpr int kWrong = 1;
constexpr int kOtherWay = 2;  // right, by shared memory
constexpr uid_t kNobody = 65534;
constexpr size_t kPeerBytesRead = 7;  // number of the counter
constexpr size_t kCount = 300001;     // floats: more than any threshold, and of no round number

float valueOf(int rank, size_t i) { return static_cast<float>((rank + 1) * 100 + static_cast<int>(i % 97)); }

bool isRight(int64_t result, const clary_failure& failure) {
  if (result != 0) std::fprintf(stderr, "%s\n", failure.text);
  return result == 0;
}

// A rank's life in a process of its own; returns its exit code.
int live(Gang& gang, int rank, bool isReadable) {
  // Root may read every process, and a process that has changed its user is read by nobody else.
  if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) return kWrong;
  if (prctl(PR_SET_DUMPABLE, isReadable ? 1 : 0) != 0) return kWrong;
  clary_failure failure{};
  clary_communicator* group = gang.open(rank, &failure);
  if (group == nullptr) return kWrong;
  const int size = gang.size();
  for (int round = 0; round < 3; ++round) {
    std::vector<float> own(kCount), gathered(kCount * static_cast<size_t>(size), -1);
    for (size_t i = 0; i < kCount; ++i) own[i] = valueOf(rank, i);
    if (!isRight(clary_all_gather(group, own.data(), gathered.data(), nullptr, kCount, CLARY_FLOAT32, 0, 0, &failure),
                 failure)) {
      return kWrong;
    }
    std::memset(own.data(), 0, sizeof(float) * kCount);  // another rank must not read it any more
    for (size_t i = 0; i < gathered.size(); ++i) {
      if (gathered[i] != valueOf(static_cast<int>(i / kCount), i % kCount)) return kWrong;
    }
    for (size_t i = 0; i < kCount; ++i) own[i] = valueOf(rank, i);
    std::vector<float> sum(kCount, -1);
    float* target = round == 1 ? own.data() : sum.data();
    int64_t result =
        clary_all_reduce(group, own.data(), target, kCount, CLARY_FLOAT32, CLARY_SUM, round == 2, 0, &failure);
    if (result > 0) result = clary_wait(group, result, -1, nullptr, &failure);
    if (!isRight(result, failure)) return kWrong;
    for (size_t i = 0; i < kCount; ++i) {
      float expected = 0;
      for (int each = 0; each < size; ++each) expected += valueOf(each, i);
      if (target[i] != expected) return kWrong;
    }
  }
  uint64_t counters[kPeerBytesRead + 1] = {};
  clary_counters(group, counters, kPeerBytesRead + 1);
  clary_destroy(group);
  return counters[kPeerBytesRead] > 0 ? kRight : kOtherWay;
}

// The exit codes of all ranks.
std::vector<int> codesOf(const std::vector<bool>& isReadable, const std::string& algorithm = "") {
  std::vector<pid_t> children;
  {
    GangOptions options;
    options.hostOf.assign(isReadable.size(), 0);
    options.slotBytes = 65536;
    options.algorithm = algorithm;
    Gang gang(options);
    for (size_t rank = 0; rank < isReadable.size(); ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        gang.keepOnly(static_cast<int>(rank));
        _exit(live(gang, static_cast<int>(rank), isReadable[rank]));
      }
      children.push_back(child);
    }
    gang.keepOnly(-1);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return codes;
}

TEST(SingleCopy, ProcessesThatMayReadEachOtherDo) {
  EXPECT_EQ((std::vector<int>{kRight, kRight}), codesOf({true, true}));
  EXPECT_EQ((std::vector<int>{kRight, kRight, kRight}), codesOf({true, true, true}));
}

TEST(SingleCopy, OneProcessThatMayNotBeReadSendsAllTheOtherWay) {
  EXPECT_EQ((std::vector<int>{kOtherWay, kOtherWay}), codesOf({true, false}));
  EXPECT_EQ((std::vector<int>{kOtherWay, kOtherWay, kOtherWay}), codesOf({true, true, false}));
  EXPECT_EQ((std::vector<int>{kOtherWay, kOtherWay}), codesOf({false, false}, "single-copy"));
}

TEST(SingleCopy, AnotherAlgorithmThatIsAskedForReadsNoPeer) {
  EXPECT_EQ((std::vector<int>{kOtherWay, kOtherWay}), codesOf({true, true}, "shm-twophase"));
}

}  // namespace
}  // namespace clary_tests
