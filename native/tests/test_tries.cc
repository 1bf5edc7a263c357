// Small asynchronous all_reduces are tried in their caller's thread; where others are late, the executor continues.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "clary/collectives.h"
#include "gang.hpp"

namespace clary_tests {
namespace {

constexpr int kInCaller = 6;  // place of the counter `operations_in_caller`
constexpr uint64_t kSum = 3;  // of 1 + 2, of two ranks

GangOptions ranks(int count, double timeoutSeconds = 30) {
  GangOptions options;
  options.hostOf.assign(static_cast<size_t>(count), 0);
  options.timeoutSeconds = timeoutSeconds;
  return options;
}

uint64_t operationsInCaller(clary_communicator* group) {
  uint64_t counters[kInCaller + 1] = {};
  clary_counters(group, counters, kInCaller + 1);
  return counters[kInCaller];
}

int64_t begin(clary_communicator* group, std::vector<int32_t>& buffer, clary_failure* failure, double timeout = 0) {
  return clary_all_reduce(group, buffer.data(), buffer.data(), buffer.size(), CLARY_INT32, CLARY_SUM, 1, timeout,
                          failure);
}

int64_t finish(clary_communicator* group, int64_t ticket, clary_failure* failure) {
  return ticket <= 0 ? ticket : clary_wait(group, ticket, -1, nullptr, failure);
}

TEST(Tries, ARankThatIsAloneNeverHandsOver) {
  Gang gang(ranks(1));
  gang.run([&](int, clary_communicator* group) {
    std::vector<int32_t> buffer(100, 1);
    clary_failure failure{};
    for (int turn = 0; turn < 10; ++turn) ASSERT_EQ(0, begin(group, buffer, &failure)) << failure.text;
    EXPECT_EQ(10u, operationsInCaller(group));
    EXPECT_EQ(std::vector<int32_t>(100, 1), buffer);
  });
}

TEST(Tries, AnOperationThatALateRankJoinsIsHandedOverAndRight) {
  Gang gang(ranks(2));
  std::atomic<int> numBegun{0};  // turns that the first rank to call has begun
  gang.run([&](int rank, clary_communicator* group) {
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<int32_t> buffer(700, rank + 1);
      clary_failure failure{};
      const bool isLate = rank == turn % 2;
      while (isLate && numBegun <= turn) std::this_thread::yield();
      const int64_t ticket = begin(group, buffer, &failure);
      if (!isLate) numBegun = turn + 1;  // before any assertion may end this rank
      ASSERT_GE(ticket, 0) << failure.text;
      if (!isLate) {
        EXPECT_GT(ticket, 0) << "the other rank had not called";
      }
      ASSERT_EQ(0, finish(group, ticket, &failure)) << failure.text;
      ASSERT_EQ(std::vector<int32_t>(700, kSum), buffer);
    }
  });
}

// An operation that was handed over precedes those that its caller, or another thread, asked for meanwhile.
TEST(Tries, OrderIsThatOfTheCallsWhateverIsHandedOver) {
  Gang gang(ranks(3));
  gang.run([&](int rank, clary_communicator* group) {
    uint32_t state = 77u + static_cast<uint32_t>(rank);
    for (int turn = 0; turn < 200; ++turn) {
      std::vector<std::vector<int32_t>> buffers;
      std::vector<int64_t> tickets;
      for (size_t each = 0; each < 5; ++each) buffers.emplace_back(each == 3 ? 5000 : 10 + each, rank + 1);
      state = state * 1664525u + 1013904223u;
      std::this_thread::sleep_for(std::chrono::microseconds((state >> 8) % 60));
      clary_failure failure{};
      for (size_t each = 0; each < buffers.size(); ++each) {
        auto& buffer = buffers[each];
        const int asynchronous = each != 4;
        tickets.push_back(clary_all_reduce(group, buffer.data(), buffer.data(), buffer.size(), CLARY_INT32, CLARY_SUM,
                                           asynchronous, 0, &failure));
        ASSERT_GE(tickets.back(), 0) << failure.text;
      }
      for (const int64_t ticket : tickets) ASSERT_EQ(0, finish(group, ticket, &failure)) << failure.text;
      for (const auto& buffer : buffers) ASSERT_EQ(std::vector<int32_t>(buffer.size(), 6), buffer);
    }
  });
}

TEST(Tries, ARankThatCallsAnotherOperationIsNamedByTheWait) {
  Gang gang(ranks(2));
  gang.run([&](int rank, clary_communicator* group) {
    std::vector<int32_t> buffer(rank == 0 ? 64 : 32, 1);
    clary_failure failure{};
    const int64_t ticket = begin(group, buffer, &failure);
    ASSERT_GT(ticket, 0) << "a failure is reported by the wait, as for operations that the executor runs";
    EXPECT_LT(finish(group, ticket, &failure), 0);
    EXPECT_NE(std::string::npos, std::string(failure.text).find("all_reduce #1")) << failure.text;
  });
}

TEST(Tries, AnAbsentRankIsNamedWhenTheTimeIsUp) {
  Gang gang(ranks(2, 1));
  gang.run([&](int rank, clary_communicator* group) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3000));
      return;
    }
    std::vector<int32_t> buffer(64, 1);
    clary_failure failure{};
    const int64_t ticket = begin(group, buffer, &failure);
    ASSERT_GT(ticket, 0);
    EXPECT_EQ(-CLARY_TIMEOUT, finish(group, ticket, &failure));
    EXPECT_NE(std::string::npos, std::string(failure.text).find("rank 1 on algo-1")) << failure.text;
  });
}

// What a rank posted before it left is valid; what it had only queued is not.
TEST(Tries, AGroupThatIsClosedMeanwhileEndsWhatWasHandedOver) {
  Gang gang(ranks(2));
  gang.run([&](int rank, clary_communicator* group) {
    std::vector<int32_t> first(64, rank + 1);
    std::vector<int32_t> second(64, rank + 1);
    clary_failure failure{};
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const int64_t one = begin(group, first, &failure);
    if (rank == 0) {
      EXPECT_GT(one, 0);
      EXPECT_GT(begin(group, second, &failure), 0);
      return;
    }
    EXPECT_EQ(0, finish(group, one, &failure)) << failure.text;
    EXPECT_EQ(std::vector<int32_t>(64, kSum), first);
    EXPECT_LT(finish(group, begin(group, second, &failure), &failure), 0);
    EXPECT_NE(std::string::npos, std::string(failure.text).find("rank 0")) << failure.text;
  });
}

}  // namespace
}  // namespace clary_tests
