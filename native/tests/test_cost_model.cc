// The choice of algorithms, as the pure function that it is.
#include <gtest/gtest.h>

#include "topology/cost_model.hpp"

namespace clary {
namespace {

constexpr LinkConstants kLan{50e-6, 125e6};
constexpr LinkConstants kLongLink{5e-3, 125e6};

Shape shape(int localRanks, int hosts) { return Shape{localRanks, hosts, localRanks, 1u << 20}; }

TEST(CostModel, SmallBuffersOnAHostGoInOneStepAndLargeOnesInTwoPhases) {
  EXPECT_EQ(WithinHost::kOneShot, chooseAllReduce(64, shape(2, 1), kLan, "").within);
  EXPECT_EQ(WithinHost::kOneShot, chooseAllReduce(1u << 20, shape(2, 1), kLan, "").within);
  EXPECT_EQ(WithinHost::kTwoPhase, chooseAllReduce(32u << 20, shape(2, 1), kLan, "").within);
  // More ranks read more in one-shot.
  EXPECT_EQ(WithinHost::kTwoPhase, chooseAllReduce(1u << 20, shape(8, 1), kLan, "").within);
}

TEST(CostModel, LongLinksTakeOneHopForSmallBuffersAndTwoForLargeOnes) {
  EXPECT_EQ(BetweenHosts::kOneShot, chooseAllReduce(4096, shape(1, 8), kLongLink, "").between);
  EXPECT_EQ(BetweenHosts::kDirect, chooseAllReduce(64u << 20, shape(1, 8), kLongLink, "").between);
}

TEST(CostModel, SmallBuffersUseOneRail) {
  EXPECT_EQ(1, chooseAllReduce(64, shape(4, 2), kLan, "").rails);
  EXPECT_EQ(4, chooseAllReduce(1u << 20, shape(4, 2), kLan, "").rails);
}

TEST(CostModel, SegmentsOfLoneRanksFillTheLinkAndAreNoLongerThanTheBuffer) {
  EXPECT_EQ(4096u, chooseAllReduce(4, shape(1, 8), kLongLink, "").segmentBytes);
  EXPECT_EQ(1u << 20, chooseAllReduce(64u << 20, shape(1, 2), kLan, "").segmentBytes);
  EXPECT_LE(1250000u, chooseAllReduce(64u << 20, shape(1, 8), kLongLink, "").segmentBytes);
}

TEST(CostModel, WhatIsAskedForIsTakenWhereItCanBe) {
  EXPECT_EQ(BetweenHosts::kRing, chooseAllReduce(1u << 20, shape(1, 3), kLan, "ring").between);
  EXPECT_EQ(BetweenHosts::kHalvingDoubling, chooseAllReduce(1u << 20, shape(1, 4), kLan, "halving-doubling").between);
  // Three hosts cannot halve.
  EXPECT_NE(BetweenHosts::kHalvingDoubling, chooseAllReduce(1u << 20, shape(1, 3), kLan, "halving-doubling").between);
  // A buffer beyond a slot cannot go in one step.
  EXPECT_EQ(WithinHost::kTwoPhase, chooseAllReduce(2u << 20, shape(2, 1), kLan, "shm-oneshot").within);
}

TEST(CostModel, PredictionsGrowWithTheBuffer) {
  for (const int hosts : {1, 2, 3, 8}) {
    double last = 0;
    for (uint64_t bytes = 4; bytes <= (128u << 20); bytes *= 2) {
      const double seconds = chooseAllReduce(bytes, shape(2, hosts), kLan, "").predictedSeconds;
      EXPECT_GE(seconds, last) << bytes;
      last = seconds;
    }
  }
}

TEST(CostModel, ExplainsItsChoiceAndWhatTheOthersWouldCost) {
  const std::string text = explainAllReduce(4096, shape(1, 8), kLongLink, "");
  EXPECT_EQ(0u, text.find("oneshot rails=1")) << text;
  EXPECT_NE(std::string::npos, text.find("direct")) << text;
  EXPECT_NE(std::string::npos, text.find("ring")) << text;
}

TEST(CostModel, KnowsItsNames) {
  for (const char* known : {"", "shm-oneshot", "shm-twophase", "oneshot", "direct", "ring", "halving-doubling"}) {
    EXPECT_TRUE(isKnownAlgorithm(known)) << known;
  }
  EXPECT_FALSE(isKnownAlgorithm("fastest"));
}

}  // namespace
}  // namespace clary
