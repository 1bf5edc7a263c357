// The smallest slots that a group may have, and those that it may not.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "clary/collectives.h"
#include "gang.hpp"

namespace clary_tests {
namespace {

constexpr uint64_t kSmallestSlot = 4096;
constexpr int kMostRanks = 64;  // for which it has 64 bytes each

GangOptions optionsOf(std::vector<int> hostOf) {
  GangOptions options;
  options.hostOf = std::move(hostOf);
  options.slotBytes = kSmallestSlot;
  options.timeoutSeconds = 60;
  options.hasSides = false;  // thousands of descriptors
  return options;
}

// What rank 0 is told that opens the group.
std::string refusalOf(std::vector<int> hostOf) {
  Gang gang(optionsOf(std::move(hostOf)));
  clary_failure failure{};
  clary_communicator* group = gang.open(0, &failure);
  if (group != nullptr) {
    clary_destroy(group);
    return "";
  }
  EXPECT_EQ(CLARY_INVALID, failure.code);
  return failure.text;
}

TEST(SmallSlots, AreRefusedWithTheSizeThatWouldDo) {
  const std::string text = refusalOf(std::vector<int>(kMostRanks + 1, 0));
  for (const char* part : {"group 'test'", "65 ranks", "4096", "8192", "CLARY_COLLECTIVE_SLOT_BYTES"}) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in \"" << text << "\"";
  }
}

TEST(SmallSlots, AreTakenWhereTheyHoldAPieceForEveryRank) { EXPECT_EQ(refusalOf(std::vector<int>(kMostRanks, 0)), ""); }

TEST(SmallSlots, CarryEveryCollectiveOfAsManyRanksAsTheyMay) {
  Gang gang(optionsOf(std::vector<int>(kMostRanks, 0)));
  const auto size = static_cast<size_t>(gang.size());
  gang.run([&](int rank, clary_communicator* group) {
    clary_failure failure{};
    const size_t count = 20;  // doubles, more than the eight of a piece
    const double own = rank + 1;
    const double total = static_cast<double>(size * (size + 1)) / 2;
    const auto isGood = [&](int64_t result) { return testing::AssertionResult(result == 0) << failure.text; };
    std::vector<double> one(count, own);
    std::vector<double> output(count);
    std::vector<double> all(count * size, own);
    std::vector<double> gathered(count * size);
    std::vector<double> large(count * size * 2, own);
    ASSERT_TRUE(isGood(
        clary_all_reduce(group, large.data(), large.data(), large.size(), CLARY_FLOAT64, CLARY_SUM, 0, 0, &failure)));
    for (const double value : large) ASSERT_EQ(total, value);
    ASSERT_TRUE(isGood(clary_reduce_scatter(group, all.data(), nullptr, output.data(), count, CLARY_FLOAT64, CLARY_SUM,
                                            0, 0, &failure)));
    for (const double value : output) ASSERT_EQ(total, value);
    ASSERT_TRUE(
        isGood(clary_all_gather(group, one.data(), gathered.data(), nullptr, count, CLARY_FLOAT64, 0, 0, &failure)));
    for (size_t i = 0; i < gathered.size(); ++i) ASSERT_EQ(static_cast<double>(i / count + 1), gathered[i]);
    ASSERT_TRUE(isGood(
        clary_reduce(group, all.data(), gathered.data(), all.size(), CLARY_FLOAT64, CLARY_SUM, 3, 0, 0, &failure)));
    if (rank == 3) {
      for (const double value : gathered) ASSERT_EQ(total, value);
    }
    ASSERT_TRUE(isGood(clary_all_to_all(group, all.data(), nullptr, nullptr, gathered.data(), nullptr, nullptr, count,
                                        CLARY_FLOAT64, 0, 0, &failure)));
    for (size_t i = 0; i < gathered.size(); ++i) ASSERT_EQ(static_cast<double>(i / count + 1), gathered[i]);
    ASSERT_TRUE(
        isGood(clary_scatter(group, gathered.data(), nullptr, output.data(), count, CLARY_FLOAT64, 0, 0, 0, &failure)));
    for (const double value : output) ASSERT_EQ(own, value);
  });
}

TEST(SmallSlots, DoNotMatterToRanksThatAreAloneOnTheirHosts) {
  std::vector<int> hostOf(kMostRanks + 1);
  for (size_t i = 0; i < hostOf.size(); ++i) hostOf[i] = static_cast<int>(i);
  // No lanes: the group is opened and closed, nothing more.
  EXPECT_EQ(refusalOf(std::move(hostOf)), "");
}

}  // namespace
}  // namespace clary_tests
