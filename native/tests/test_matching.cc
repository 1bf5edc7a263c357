#include <gtest/gtest.h>

#include "transport/matching.hpp"

namespace clary {
namespace {

Arrival request(uint64_t send) { return {Arrival::Kind::kRequest, 10, send, nullptr}; }

// The id of the message that a receive takes, and its peer; {-2, 0} for none.
std::pair<int, uint64_t> taken(Matching& matching, int peer, int64_t tag) {
  auto found = matching.takeArrival(peer, tag);
  return found ? std::pair{found->first, found->second.send} : std::pair{-2, uint64_t{0}};
}

constexpr std::pair<int, uint64_t> kNothing{-2, 0};

TEST(Matching, TakesMessagesOfOnePeerAndTagInTheirOrder) {
  Matching matching;
  for (uint64_t send : {1, 2, 3}) matching.arrive(4, send == 2 ? 8 : 7, request(send));
  EXPECT_EQ(taken(matching, 4, 7), (std::pair{4, uint64_t{1}}));
  EXPECT_EQ(taken(matching, 4, 7), (std::pair{4, uint64_t{3}}));
  EXPECT_EQ(taken(matching, 4, 7), kNothing);
  EXPECT_EQ(taken(matching, 5, 8), kNothing);
  EXPECT_EQ(taken(matching, 4, 8), (std::pair{4, uint64_t{2}}));
}

TEST(Matching, GivesAReceiveFromAnyRankWhatCameFirst) {
  Matching matching;
  matching.arrive(9, 7, request(1));
  matching.arrive(2, 7, request(2));
  matching.arrive(0, 6, request(3));
  matching.arrive(0, INT64_MAX, request(4));
  matching.arrive(0, INT64_MIN, request(5));
  EXPECT_EQ(taken(matching, kAnyRank, 7), (std::pair{9, uint64_t{1}}));
  EXPECT_EQ(taken(matching, kAnyRank, 7), (std::pair{2, uint64_t{2}}));
  EXPECT_EQ(taken(matching, kAnyRank, 7), kNothing);
  EXPECT_EQ(taken(matching, kAnyRank, INT64_MIN), (std::pair{0, uint64_t{5}}));
  EXPECT_EQ(taken(matching, kAnyRank, INT64_MAX), (std::pair{0, uint64_t{4}}));
}

TEST(Matching, GivesAMessageToTheReceiveThatWasPostedFirst) {
  Matching matching;
  matching.post(3, 7, 1);
  matching.post(kAnyRank, 7, 2);
  matching.post(3, 7, 3);
  EXPECT_EQ(matching.takePosted(3, 8), 0u);
  EXPECT_EQ(matching.takePosted(5, 7), 2u);
  EXPECT_EQ(matching.takePosted(5, 7), 0u);
  EXPECT_EQ(matching.takePosted(3, 7), 1u);
  matching.post(kAnyRank, 7, 4);
  EXPECT_EQ(matching.takePosted(3, 7), 3u);
  EXPECT_EQ(matching.takePosted(3, 7), 4u);
  EXPECT_EQ(matching.takePosted(3, 7), 0u);
}

TEST(Matching, ForgetsAReceiveThatWasWithdrawn) {
  Matching matching;
  for (uint64_t transfer : {1, 2, 3}) matching.post(3, 7, transfer);
  matching.withdraw(3, 7, 2);
  matching.withdraw(3, 7, 99);
  matching.withdraw(4, 7, 1);
  EXPECT_EQ(matching.takePosted(3, 7), 1u);
  EXPECT_EQ(matching.takePosted(3, 7), 3u);
  EXPECT_EQ(matching.takePosted(3, 7), 0u);
}

TEST(Matching, DropsTheRequestsOfAPeerThatLeftAndKeepsItsWholeMessages) {
  Matching matching;
  matching.arrive(3, 7, request(1));
  matching.arrive(3, 7, {Arrival::Kind::kWhole, 10, 2, std::make_unique<std::byte[]>(10)});
  matching.arrive(4, 7, request(3));
  matching.arrive(3, 8, request(4));
  matching.dropRequests(3);
  EXPECT_EQ(taken(matching, 3, 7), (std::pair{3, uint64_t{2}}));
  EXPECT_EQ(taken(matching, 3, 7), kNothing);
  EXPECT_EQ(taken(matching, 3, 8), kNothing);
  EXPECT_EQ(taken(matching, 4, 7), (std::pair{4, uint64_t{3}}));
}

}  // namespace
}  // namespace clary
