// What goes wrong is told to everyone, names who is to blame, and ends every call.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "clary/collectives.h"
#include "gang.hpp"

namespace clary_tests {
namespace {

using std::chrono::steady_clock;

// Far below the timeouts that would pass instead, and far above what a busy machine with a sanitizer needs.
constexpr double kSoonSeconds = 15;
constexpr double kAtOnceSeconds = 2;
// Of the others; the absent rank stays longer.
constexpr double kShortTimeoutSeconds = 1;

GangOptions layout(std::vector<int> hostOf, double timeoutSeconds = 30) {
  GangOptions options;
  options.hostOf = std::move(hostOf);
  options.timeoutSeconds = timeoutSeconds;
  return options;
}

double secondsSince(steady_clock::time_point began) {
  return std::chrono::duration<double>(steady_clock::now() - began).count();
}

int64_t sum(clary_communicator* group, std::vector<float>& buffer, clary_failure* failure, int asynchronous = 0,
            double timeout = 0) {
  return clary_all_reduce(group, buffer.data(), buffer.data(), buffer.size(), CLARY_FLOAT32, CLARY_SUM, asynchronous,
                          timeout, failure);
}

class Failures : public testing::TestWithParam<std::vector<int>> {};

TEST_P(Failures, ARankThatNeverComesIsNamedByAllWhenTheTimeIsUp) {
  Gang gang(layout(GetParam(), kShortTimeoutSeconds));
  const int absent = gang.size() - 1;
  gang.run([&](int rank, clary_communicator* group) {
    if (rank == absent) {
      std::this_thread::sleep_for(std::chrono::milliseconds(4000));
      return;
    }
    std::vector<float> buffer(1000, 1);
    clary_failure failure{};
    const auto began = steady_clock::now();
    EXPECT_EQ(-CLARY_TIMEOUT, sum(group, buffer, &failure));
    EXPECT_LT(secondsSince(began), kSoonSeconds);
    const std::string text = failure.text;
    EXPECT_NE(std::string::npos, text.find("all_reduce #1")) << text;
    EXPECT_NE(std::string::npos, text.find("4000 bytes")) << text;
    EXPECT_NE(std::string::npos, text.find("group 'test'")) << text;
    EXPECT_NE(std::string::npos, text.find("rank " + std::to_string(absent) + " on algo-")) << text;
    // The group stays broken, and later calls say why at once.
    const auto again = steady_clock::now();
    EXPECT_EQ(-CLARY_TIMEOUT, sum(group, buffer, &failure));
    EXPECT_LT(secondsSince(again), kAtOnceSeconds);
    EXPECT_NE(std::string::npos, std::string(failure.text).find("not begun")) << failure.text;
  });
}

TEST_P(Failures, PendingCallsEndWhenAPeerLeaves) {
  Gang gang(layout(GetParam()));
  const int leaver = gang.size() - 1;
  std::atomic<int> failed{0};
  const auto began = steady_clock::now();
  gang.run([&](int rank, clary_communicator* group) {
    std::vector<float> buffer(100000, 1);
    clary_failure failure{};
    ASSERT_EQ(0, sum(group, buffer, &failure)) << failure.text;
    if (rank == leaver) return;  // destroys its communicator: leaves in order
    EXPECT_EQ(-CLARY_PEER_LOST, sum(group, buffer, &failure)) << failure.text;
    EXPECT_NE(std::string::npos, std::string(failure.text).find("rank " + std::to_string(leaver))) << failure.text;
    ++failed;
  });
  EXPECT_EQ(gang.size() - 1, failed.load());
  EXPECT_LT(secondsSince(began), kSoonSeconds);
}

TEST_P(Failures, DifferentCollectivesAreToldApart) {
  Gang gang(layout(GetParam()));
  const int odd = gang.size() - 1;
  gang.run([&](int rank, clary_communicator* group) {
    std::vector<float> buffer(1000, 1);
    clary_failure failure{};
    const auto began = steady_clock::now();
    const int64_t result =
        rank == odd ? clary_broadcast(group, buffer.data(), buffer.size(), CLARY_FLOAT32, odd, 0, 0, &failure)
                    : sum(group, buffer, &failure);
    int64_t code = result;
    // A root has nobody to wait for; it learns of the mismatch with its next call at the latest.
    if (code == 0) code = sum(group, buffer, &failure);
    EXPECT_EQ(-CLARY_ORDER_MISMATCH, code) << rank << ": " << failure.text;
    EXPECT_LT(secondsSince(began), kSoonSeconds);
    const std::string text = failure.text;
    EXPECT_NE(std::string::npos, text.find("all_reduce #1")) << text;
    EXPECT_NE(std::string::npos, text.find("broadcast #1")) << text;
  });
}

TEST_P(Failures, DifferentSizesAreToldApart) {
  Gang gang(layout(GetParam()));
  gang.run([&](int rank, clary_communicator* group) {
    std::vector<float> buffer(rank == 0 ? 1000 : 1001, 1);
    clary_failure failure{};
    EXPECT_EQ(-CLARY_ORDER_MISMATCH, sum(group, buffer, &failure)) << failure.text;
  });
}

TEST_P(Failures, AnAbortReachesEveryRank) {
  Gang gang(layout(GetParam()));
  gang.run([&](int rank, clary_communicator* group) {
    clary_failure failure{};
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      clary_abort(group, "enough");
    }
    std::vector<float> buffer(1000, 1);
    EXPECT_EQ(-CLARY_CLOSED, sum(group, buffer, &failure)) << failure.text;
    EXPECT_NE(std::string::npos, std::string(failure.text).find("enough")) << failure.text;
  });
}

TEST_P(Failures, QueuedCallsAllEndWithTheFirstCause) {
  Gang gang(layout(GetParam(), kShortTimeoutSeconds));
  const int absent = 0;
  gang.run([&](int rank, clary_communicator* group) {
    if (rank == absent) {
      std::this_thread::sleep_for(std::chrono::milliseconds(4000));
      return;
    }
    std::vector<std::vector<float>> buffers(5, std::vector<float>(500, 1));
    std::vector<int64_t> tickets;
    clary_failure failure{};
    for (auto& buffer : buffers) tickets.push_back(sum(group, buffer, &failure, 1));
    const auto began = steady_clock::now();
    for (const int64_t ticket : tickets) {
      ASSERT_GT(ticket, 0);
      EXPECT_EQ(-CLARY_TIMEOUT, clary_wait(group, ticket, -1, nullptr, &failure)) << failure.text;
      EXPECT_NE(std::string::npos, std::string(failure.text).find("rank 0 on algo-1")) << failure.text;
    }
    EXPECT_LT(secondsSince(began), kSoonSeconds);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Failures,
                         testing::Values(std::vector<int>{0, 0}, std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1},
                                         std::vector<int>{0, 1, 2}),
                         [](const auto& each) {
                           std::string name = "hosts";
                           for (const int host : each.param) name += "_" + std::to_string(host);
                           return name;
                         });

TEST_P(Failures, CallsOfOtherThreadsEndWhenTheirOwnRankLeaves) {
  Gang gang(layout(GetParam()));
  clary_failure failure{};
  std::vector<clary_communicator*> groups;
  for (int rank = 0; rank < gang.size(); ++rank) groups.push_back(gang.open(rank, &failure));
  // One call runs in its thread, the others are queued behind it and wait. Nobody else comes.
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      std::vector<float> buffer(1000, 1);
      clary_failure own{};
      EXPECT_EQ(-CLARY_CLOSED, sum(groups[0], buffer, &own)) << own.text;
    });
  }
  uint64_t begun = 0;
  for (const auto began = steady_clock::now(); begun < 3 && secondsSince(began) < kSoonSeconds;) {
    clary_counters(groups[0], &begun, 1);
  }
  EXPECT_EQ(3, begun);
  clary_destroy(groups[0]);
  for (auto& caller : callers) caller.join();
  for (size_t rank = 1; rank < groups.size(); ++rank) clary_destroy(groups[rank]);
}

TEST(Leaving, MemoryOfAReceiveIsItsCallersOnceItsEndIsTold) {
  constexpr size_t kBytes = size_t{256} << 20;
  for (int round = 0; round < 5; ++round) {
    Gang gang(layout({0, 0}));
    clary_failure failure{};
    std::vector<clary_communicator*> groups;
    for (int rank = 0; rank < gang.size(); ++rank) groups.push_back(gang.open(rank, &failure));
    const std::unique_ptr<uint8_t[]> out(new uint8_t[kBytes]);
    ASSERT_LT(0, clary_send(groups[1], out.get(), kBytes, 0, 0, 0, &failure)) << failure.text;
    std::unique_ptr<uint8_t[]> in(new uint8_t[kBytes]);
    const int64_t ticket = clary_receive(groups[0], in.get(), kBytes, 1, 0, 0, &failure);
    ASSERT_LT(0, ticket) << failure.text;
    std::atomic<bool> waits{false};
    std::thread receiver([&] {
      clary_failure own{};
      waits = true;
      EXPECT_EQ(-CLARY_CLOSED, clary_wait(groups[0], ticket, -1, nullptr, &own)) << own.text;
      in.reset();  // whoever still writes it is caught by the address sanitizer
    });
    while (!waits) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(2 + round));
    clary_destroy(groups[0]);
    receiver.join();
    clary_destroy(groups[1]);
  }
}

TEST(Arguments, AreRefusedWithoutHarm) {
  Gang gang(layout({0, 0}));
  gang.run([&](int rank, clary_communicator* group) {
    std::vector<float> buffer(10, 1);
    clary_failure failure{};
    EXPECT_EQ(-CLARY_INVALID, clary_all_reduce(group, buffer.data(), buffer.data(), 10, 99, CLARY_SUM, 0, 0, &failure));
    EXPECT_EQ(-CLARY_INVALID,
              clary_all_reduce(group, buffer.data(), buffer.data(), 10, CLARY_INT32, CLARY_AVG, 0, 0, &failure));
    EXPECT_NE(std::string::npos, std::string(failure.text).find("avg is not defined on int32")) << failure.text;
    EXPECT_EQ(-CLARY_INVALID,
              clary_all_reduce(group, buffer.data(), buffer.data(), 10, CLARY_FLOAT32, CLARY_BAND, 0, 0, &failure));
    EXPECT_EQ(-CLARY_INVALID,
              clary_all_reduce(group, nullptr, buffer.data(), 10, CLARY_FLOAT32, CLARY_SUM, 0, 0, &failure));
    EXPECT_EQ(-CLARY_INVALID, clary_broadcast(group, buffer.data(), 10, CLARY_FLOAT32, 2, 0, 0, &failure));
    EXPECT_EQ(-CLARY_INVALID, clary_send(group, buffer.data(), 40, 5, 0, 0, &failure));
    EXPECT_EQ(0, sum(group, buffer, &failure)) << failure.text;
    EXPECT_EQ(2, buffer[0]);
    static_cast<void>(rank);
  });
}

TEST(Arguments, AGroupThatIsNoneIsRefusedAndItsDescriptorsAreClosed) {
  int pair[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
  const int32_t hosts[2] = {0, 5};
  const char* names[1] = {"algo-1"};
  const int32_t lanes[2] = {-1, -1};
  const int32_t sides[2] = {-1, pair[0]};
  clary_group group{};
  group.abi_version = CLARY_ABI_VERSION;
  group.size = 2;
  group.name = "test";
  group.host_of_rank = hosts;
  group.host_names = names;
  group.segment_fd = -1;
  group.slot_bytes = 8192;
  group.lane_fds = lanes;
  group.side_fds = sides;
  group.timeout_s = 1;
  clary_failure failure{};
  EXPECT_EQ(nullptr, clary_create(&group, &failure));
  EXPECT_EQ(CLARY_INVALID, failure.code);
  char byte = 0;
  EXPECT_EQ(0, read(pair[1], &byte, 1)) << "the other end is still open";
  close(pair[1]);
}

}  // namespace
}  // namespace clary_tests
