// Processes that are forked from one that has a group open, as loaders of data are: they keep nothing open, harm
// nothing, and are told that they have no part in it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "clary/collectives.h"
#include "gang.hpp"

namespace clary_tests {
namespace {

using clary::test::kPatience;
using std::chrono::steady_clock;

constexpr int kRight = 0;
constexpr int kWrong = 1;

// What `act` returns in a process that is forked here; 1000 and more for a signal, -1 for one that does not end.
int inChild(const std::function<int()>& act) {
  const pid_t child = fork();
  if (child == 0) _exit(act());
  int status = 0;
  for (const auto until = steady_clock::now() + kPatience; steady_clock::now() < until;) {
    if (waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return -1;
}

struct Case {
  const char* name;
  std::vector<int> hostOf;
  bool isAsynchronous;  // an executor, asleep, is there when the fork comes
};

class Forks : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    GangOptions options;
    options.hostOf = GetParam().hostOf;
    gang_ = std::make_unique<Gang>(options);
    clary_failure failure{};
    for (int rank = 0; rank < gang_->size(); ++rank) {
      groups_.push_back(gang_->open(rank, &failure));
      ASSERT_NE(nullptr, groups_.back()) << failure.text;
    }
    addOnAllRanks();
  }
  void TearDown() override {
    for (auto* group : groups_) clary_destroy(group);
  }
  void addOnAllRanks() {
    std::vector<std::thread> threads;
    for (auto* group : groups_) threads.emplace_back([group] { EXPECT_EQ(CLARY_OK, add(group)); });
    for (auto& thread : threads) thread.join();
  }
  // The code of an all_reduce on one rank.
  static int add(clary_communicator* group) {
    float value = 1;
    clary_failure failure{};
    const int64_t ticket = clary_all_reduce(group, &value, &value, 1, CLARY_FLOAT32, CLARY_SUM,
                                            GetParam().isAsynchronous ? 1 : 0, 10, &failure);
    if (ticket <= 0) return static_cast<int>(-ticket);
    return static_cast<int>(-clary_wait(group, ticket, -1, nullptr, &failure));
  }
  void leave(int rank) {
    clary_destroy(groups_[rank]);
    groups_.erase(groups_.begin() + rank);
  }
  std::unique_ptr<Gang> gang_;
  std::vector<clary_communicator*> groups_;
};

TEST_P(Forks, AChildThatDestroysItsCopyEndsWellAndCostsItsParentNothing) {
  EXPECT_EQ(kRight, inChild([&] {
              for (auto* group : groups_) clary_destroy(group);
              return kRight;
            }));
  EXPECT_EQ(kRight, inChild([&] {
              for (auto* group : groups_) clary_abort(group, "a child has no say");
              return kRight;
            }));
  addOnAllRanks();
}

TEST_P(Forks, WhatAChildLaysWhereSharedMemoryWasIsItsOwn) {
  EXPECT_EQ(kRight, inChild([&] {
              constexpr size_t kBytes = size_t{64} << 10;
              std::vector<unsigned char*> places;
              for (int i = 0; i < 200; ++i) {
                void* place = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                places.push_back(static_cast<unsigned char*>(place));
                std::fill_n(places.back(), kBytes, static_cast<unsigned char>(7));
              }
              for (auto* group : groups_) clary_destroy(group);
              const auto isWhole = [](const unsigned char* place) {
                return std::all_of(place, place + kBytes, [](unsigned char byte) { return byte == 7; });
              };
              return std::all_of(places.begin(), places.end(), isWhole) ? kRight : kWrong;
            }));
}

TEST_P(Forks, AChildIsToldThatItHasNoPartInTheGroup) {
  EXPECT_EQ(kRight, inChild([&] {
              float value = 1;
              clary_failure failure{};
              clary_communicator* group = groups_[0];
              const std::vector<int64_t> results = {
                  clary_all_reduce(group, &value, &value, 1, CLARY_FLOAT32, CLARY_SUM, 0, 1, &failure),
                  clary_barrier(group, 1, 1, &failure),
                  clary_send(group, &value, sizeof value, 1, 0, 1, &failure),
                  clary_receive(group, &value, sizeof value, 1, 0, 1, &failure),
                  clary_wait(group, 1, 1, nullptr, &failure),
              };
              clary_watch(group, 1);
              const bool isRefused =
                  std::all_of(results.begin(), results.end(), [](int64_t result) { return result == -CLARY_CLOSED; });
              const bool isNamed = std::string(failure.text).find("was forked") != std::string::npos;
              const bool isOver = clary_is_done(group, 1) == 1 && clary_next_watched(group, 1) == -1;
              return isRefused && isNamed && isOver ? kRight : kWrong;
            }));
  addOnAllRanks();
}

TEST_P(Forks, AFileThatWasOpenedWhereAPeersSocketWasStaysOpenInAChild) {
  const int socket = gang_->sideStream(0, 1);
  leave(1);
  const auto isOpen = [](int descriptor) { return fcntl(descriptor, F_GETFD) >= 0; };
  for (const auto until = steady_clock::now() + kPatience; isOpen(socket) && steady_clock::now() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_FALSE(isOpen(socket)) << "rank 0 did not hear that its peer has left";
  const int file = open("/dev/null", O_WRONLY | O_CLOEXEC);
  ASSERT_TRUE(file == socket || dup2(file, socket) == socket);
  EXPECT_EQ(kRight, inChild([&] { return isOpen(socket) ? kRight : kWrong; }));
  close(socket);
  if (file != socket) close(file);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Forks,
                         testing::Values(Case{"one_host", {0, 0}, false}, Case{"one_host_executor", {0, 0}, true},
                                         Case{"two_hosts", {0, 1}, false}, Case{"two_hosts_executor", {0, 1}, true}),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(ForksOfAParentThatDies, PeersHearOfTheDeathAlthoughAChildLivesOn) {
  GangOptions options;
  options.hostOf = {0, 1};
  options.timeoutSeconds = 60;
  Gang gang(options);
  int hold[2];
  ASSERT_EQ(0, pipe(hold));
  const pid_t parent = fork();
  if (parent == 0) {
    gang.keepOnly(1);
    close(hold[1]);
    clary_failure failure{};
    if (gang.open(1, &failure) == nullptr) _exit(kWrong);
    if (fork() == 0) {
      char byte = 0;
      _exit(read(hold[0], &byte, 1) == 0 ? kRight : kWrong);  // lives until the test has seen what it wants
    }
    _exit(kRight);
  }
  gang.keepOnly(0);
  close(hold[0]);
  clary_failure failure{};
  clary_communicator* group = gang.open(0, &failure);
  ASSERT_NE(nullptr, group) << failure.text;
  EXPECT_EQ(-CLARY_PEER_LOST, clary_barrier(group, 0, 0, &failure)) << failure.text;
  clary_destroy(group);
  close(hold[1]);
  int status = 0;
  EXPECT_EQ(parent, waitpid(parent, &status, 0));
  EXPECT_EQ(0, status);
}

}  // namespace
}  // namespace clary_tests
