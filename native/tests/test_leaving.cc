// Ranks that leave the group as soon as an operation has ended for them, while others have not begun it.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "clary/collectives.h"
#include "gang.hpp"

namespace clary_tests {
namespace {

using clary::test::Wire;
using std::chrono::milliseconds;

struct Case {
  const char* name;
  std::vector<int> hostOf;
  Wire wire;
};

const std::vector<Case> kCases = {
    {"three_hosts_unix", {0, 1, 2}, Wire::kUnix},
    {"three_hosts_tcp", {0, 1, 2}, Wire::kTcp},
    {"two_by_two_unix", {0, 0, 1, 1}, Wire::kUnix},
    {"two_by_two_tcp", {0, 0, 1, 1}, Wire::kTcp},
};
// Far longer than the others take.
constexpr milliseconds kLate{100};
// Longer than a rank that leaves waits for its peers' kernels, and more than a receiver's kernel takes, but not more
// than the sender's does.
constexpr milliseconds kVeryLate{1500};
constexpr size_t kMoreThanItsKernelTakes = 375000;

class Leaving : public testing::TestWithParam<Case> {
 protected:
  // Runs `act` on every rank, on `late` after a while.
  void runWithOneLate(int late, milliseconds delay, const std::function<void(int rank, clary_communicator*)>& act) {
    GangOptions options;
    options.hostOf = GetParam().hostOf;
    options.wire = GetParam().wire;
    Gang gang(options);
    gang.run([&](int rank, clary_communicator* group) {
      if (rank == late) std::this_thread::sleep_for(delay);
      act(rank, group);
    });
  }
  int size() const { return static_cast<int>(GetParam().hostOf.size()); }
};

TEST_P(Leaving, ABroadcastReachesWhoComesWhenAllOthersHaveGone) {
  for (const size_t count : {size_t{10}, size_t{30000}}) {
    for (int late = 0; late < size(); ++late) {
      const int root = (late + 1) % size();
      runWithOneLate(late, kLate, [&](int rank, clary_communicator* group) {
        std::vector<float> buffer(count, rank == root ? 7.0f : 0.0f);
        clary_failure failure{};
        EXPECT_EQ(0, clary_broadcast(group, buffer.data(), count, CLARY_FLOAT32, root, 0, 0, &failure)) << failure.text;
        EXPECT_EQ(std::vector<float>(count, 7), buffer) << "rank " << rank << ", late " << late;
      });
    }
  }
}

TEST_P(Leaving, AScatterReachesWhoComesWhenAllOthersHaveGone) {
  constexpr size_t kCount = 1000;
  for (int late = 0; late < size(); ++late) {
    const int root = (late + 1) % size();
    runWithOneLate(late, kLate, [&](int rank, clary_communicator* group) {
      std::vector<float> all;
      for (int r = 0; rank == root && r < size(); ++r) all.insert(all.end(), kCount, static_cast<float>(r));
      std::vector<float> piece(kCount, -1);
      clary_failure failure{};
      EXPECT_EQ(0, clary_scatter(group, rank == root ? all.data() : nullptr, nullptr, piece.data(), kCount,
                                 CLARY_FLOAT32, root, 0, 0, &failure))
          << failure.text;
      EXPECT_EQ(std::vector<float>(kCount, static_cast<float>(rank)), piece) << "late " << late;
    });
  }
}

TEST_P(Leaving, ARootThatComesLastStillHasWhatAllOthersGave) {
  constexpr size_t kCount = 1000;
  for (int root = 0; root < size(); ++root) {
    runWithOneLate(root, kLate, [&](int rank, clary_communicator* group) {
      std::vector<float> input(kCount, static_cast<float>(rank + 1));
      std::vector<float> sum(kCount, -1);
      clary_failure failure{};
      EXPECT_EQ(0, clary_reduce(group, input.data(), rank == root ? sum.data() : nullptr, kCount, CLARY_FLOAT32,
                                CLARY_SUM, root, 0, 0, &failure))
          << failure.text;
      if (rank == root) {
        EXPECT_EQ(std::vector<float>(kCount, static_cast<float>(size() * (size() + 1) / 2)), sum);
      }
    });
  }
}

TEST_P(Leaving, MoreThanItsKernelTakesArrivesAtOneWhoComesVeryLate) {
  const int late = size() - 1;
  runWithOneLate(late, kVeryLate, [&](int rank, clary_communicator* group) {
    std::vector<float> buffer(kMoreThanItsKernelTakes, rank == 0 ? 7.0f : 0.0f);
    clary_failure failure{};
    EXPECT_EQ(0, clary_broadcast(group, buffer.data(), buffer.size(), CLARY_FLOAT32, 0, 0, 0, &failure))
        << failure.text;
    EXPECT_EQ(std::vector<float>(kMoreThanItsKernelTakes, 7), buffer);
  });
}

TEST_P(Leaving, WhoGoesOnAloneIsToldWhoHasLeft) {
  const int late = size() - 1;
  runWithOneLate(late, kLate, [&](int rank, clary_communicator* group) {
    std::vector<float> buffer(10, rank == 0 ? 7.0f : 0.0f);
    clary_failure failure{};
    EXPECT_EQ(0, clary_broadcast(group, buffer.data(), buffer.size(), CLARY_FLOAT32, 0, 0, 0, &failure))
        << failure.text;
    if (rank != late) return;
    EXPECT_EQ(-CLARY_PEER_LOST, clary_barrier(group, 0, 0, &failure));
    EXPECT_NE(std::string::npos, std::string(failure.text).find("barrier #2")) << failure.text;
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Leaving, testing::ValuesIn(kCases),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace clary_tests
