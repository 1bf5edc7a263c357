// Operations are written where another process can read them: numbers, what they were, whether they have ended.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "gang.hpp"

namespace clary_tests {
namespace {

constexpr int kRows = 8;

struct Row {
  int64_t number, startedNs, finishedNs, count;
  int32_t peer;
  uint8_t operation, dtype, state, unused;
  int64_t again;
};
static_assert(sizeof(Row) == 48);

enum State : uint8_t { kEntered = 0, kUnderWay = 1, kFinished = 3, kFailed = 4 };

struct Rows {
  alignas(8) Row all[kRows]{};
  // As a reader in another process sees it.
  Row at(int64_t number) const {
    Row row;
    std::memcpy(&row, &all[number % kRows], sizeof(row));
    return row;
  }
};

Gang pair(double timeoutSeconds = 30) {
  GangOptions options;
  options.hostOf = {0, 0};
  options.timeoutSeconds = timeoutSeconds;
  return Gang(options);
}

TEST(CallRecord, OperationsAreWrittenWithWhatTheyAreAndTheirEnds) {
  Gang gang = pair();
  std::vector<Rows> rows(2);
  gang.run([&](int rank, clary_communicator* communicator) {
    clary_record(communicator, rows[rank].all, kRows);
    clary_failure failure{};
    float values[3] = {1, 2, 3};
    for (int step = 0; step < 20; ++step) {
      ASSERT_EQ(0, clary_all_reduce(communicator, values, values, 3, CLARY_FLOAT32, CLARY_SUM, 0, 0, &failure));
    }
    ASSERT_EQ(0, clary_barrier(communicator, 0, 0, &failure));
  });
  for (const Rows& one : rows) {
    const Row reduced = one.at(20);
    EXPECT_EQ(20, reduced.number);
    EXPECT_EQ(20, reduced.again);
    EXPECT_EQ(3, reduced.count);
    EXPECT_EQ(CLARY_ALL_REDUCE + 1, reduced.operation);
    EXPECT_EQ(CLARY_FLOAT32 + 1, reduced.dtype);
    EXPECT_EQ(kFinished, reduced.state);
    EXPECT_GT(reduced.startedNs, 0);
    EXPECT_GE(reduced.finishedNs, reduced.startedNs);
    const Row barrier = one.at(21);
    EXPECT_EQ(21, barrier.number);
    EXPECT_EQ(CLARY_BARRIER + 1, barrier.operation);
    EXPECT_EQ(0, barrier.dtype);
    EXPECT_EQ(14, one.at(14).number) << "the ring keeps the last ones";
  }
}

TEST(CallRecord, WhoWaitsIsSeenWhileItWaits) {
  Gang gang = pair();
  std::vector<Rows> rows(2);
  std::atomic<bool> isSeen{false};
  gang.run([&](int rank, clary_communicator* communicator) {
    clary_record(communicator, rows[rank].all, kRows);
    clary_failure failure{};
    if (rank == 1) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      Row& row = rows[0].all[1];
      // The number at the end comes last.
      while (std::atomic_ref(row.again).load(std::memory_order_acquire) != 1 &&
             std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      isSeen = std::atomic_ref(row.number).load() == 1 && std::atomic_ref(row.operation).load() == CLARY_BARRIER + 1 &&
               std::atomic_ref(row.finishedNs).load() == 0 && std::atomic_ref(row.state).load() == kEntered;
    }
    ASSERT_EQ(0, clary_barrier(communicator, 0, 0, &failure));
  });
  EXPECT_TRUE(isSeen);
  EXPECT_EQ(kFinished, rows[0].at(1).state);
}

TEST(CallRecord, AsynchronousOperationsAreUnderWayUntilTheExecutorHasRunThem) {
  Gang gang = pair();
  std::vector<Rows> rows(2);
  gang.run([&](int rank, clary_communicator* communicator) {
    clary_record(communicator, rows[rank].all, kRows);
    clary_failure failure{};
    int64_t value = rank;
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const int64_t ticket = clary_all_reduce(communicator, &value, &value, 1, CLARY_INT64, CLARY_SUM, 1, 0, &failure);
    if (rank == 0) {
      ASSERT_GT(ticket, 0);
      EXPECT_EQ(kUnderWay, rows[rank].at(1).state);
    }
    ASSERT_GE(ticket, 0);
    if (ticket > 0) {
      ASSERT_EQ(0, clary_wait(communicator, ticket, -1, nullptr, &failure));
    }
    EXPECT_EQ(1, value);
    EXPECT_EQ(kFinished, rows[rank].at(1).state);
  });
}

TEST(CallRecord, WhatFailsIsSeenToHaveFailed) {
  Gang gang = pair(0.3);
  std::vector<Rows> rows(2);
  std::atomic<bool> hasFailed{false};
  gang.run([&](int rank, clary_communicator* communicator) {
    clary_record(communicator, rows[rank].all, kRows);
    clary_failure failure{};
    if (rank == 0) {
      EXPECT_GT(0, clary_barrier(communicator, 0, 0, &failure));
      hasFailed = true;
    }
    while (!hasFailed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_EQ(kFailed, rows[0].at(1).state);
  EXPECT_EQ(0, rows[1].at(1).number) << "it has entered none";
}

TEST(CallRecord, NothingIsWrittenWhereNobodyWantsIt) {
  Gang gang = pair();
  gang.run([&](int, clary_communicator* communicator) {
    clary_record(communicator, nullptr, kRows);
    clary_failure failure{};
    ASSERT_EQ(0, clary_barrier(communicator, 0, 0, &failure));
  });
}

}  // namespace
}  // namespace clary_tests
