#include <sys/eventfd.h>

#include <functional>
#include <thread>

#include "transport/lanes.hpp"
#include "transport_fixtures.hpp"

namespace clary {
namespace {

using namespace test;

// Drive a set until `done`; false if patience ends first.
bool driveUntil(LaneSet& lanes, const std::function<bool()>& done) {
  TimePoint limit = Clock::now() + kPatience;
  while (!done()) {
    if (Clock::now() > limit) return false;
    lanes.progress(100ms);
  }
  return true;
}

class Lanes : public testing::TestWithParam<Wire> {
 protected:
  // Lanes of ranks 0 and 1.
  Lanes() {
    auto fds = connectedMesh(GetParam(), 2);
    first = std::make_unique<LaneSet>(fds[0], -1);
    second = std::make_unique<LaneSet>(fds[1], -1);
  }
  std::unique_ptr<LaneSet> first;
  std::unique_ptr<LaneSet> second;
};

TEST_P(Lanes, MessagesOfEverySizeArriveBothWaysAtOnce) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{3}, size_t{4095}, size_t{65537}, size_t{8} << 20}) {
    auto exchange = [bytes](LaneSet& lanes, int own, int peer) {
      auto out = pattern(own, 5, bytes);
      std::vector<uint8_t> in(bytes);
      auto sent = lanes.postSend(peer, out.data(), bytes);
      auto received = lanes.postReceive(peer, in.data(), bytes);
      EXPECT_TRUE(driveUntil(lanes, [&] { return lanes.isSent(peer, sent) && lanes.isReceived(peer, received); }));
      EXPECT_EQ(in, pattern(peer, 5, bytes)) << bytes;
      EXPECT_FALSE(lanes.hasPending());
    };
    std::thread other([&] { exchange(*second, 1, 0); });
    exchange(*first, 0, 1);
    other.join();
  }
}

TEST_P(Lanes, PostingNeverBlocksHoweverMuchIsPosted) {
  // One thread drives both ends, so anything that blocked would block for ever.
  size_t bytes = size_t{8} << 20;
  auto out_first = pattern(0, 1, bytes);
  auto out_second = pattern(1, 1, bytes);
  std::vector<uint8_t> in_first(bytes);
  std::vector<uint8_t> in_second(bytes);
  auto sent_first = first->postSend(1, out_first.data(), bytes);
  auto sent_second = second->postSend(0, out_second.data(), bytes);
  EXPECT_FALSE(first->isSent(1, sent_first));
  EXPECT_EQ(first->pendingPeers(), std::vector<int>{1});
  auto received_first = first->postReceive(1, in_first.data(), bytes);
  auto received_second = second->postReceive(0, in_second.data(), bytes);
  TimePoint limit = Clock::now() + kPatience;
  while (first->hasPending() || second->hasPending()) {
    ASSERT_LT(Clock::now(), limit);
    first->progress(0ms);
    second->progress(0ms);
  }
  EXPECT_TRUE(first->isSent(1, sent_first) && first->isReceived(1, received_first));
  EXPECT_TRUE(second->isSent(0, sent_second) && second->isReceived(0, received_second));
  EXPECT_EQ(in_first, out_second);
  EXPECT_EQ(in_second, out_first);
}

TEST_P(Lanes, ManyPiecesArriveInTheOrderOfPostingWhateverTheirBorders) {
  constexpr int kPieces = 2000;
  std::vector<std::vector<uint8_t>> pieces;
  std::vector<uint8_t> whole;
  for (int i = 0; i < kPieces; ++i) {
    pieces.push_back(pattern(0, i, static_cast<size_t>(i * i % 977)));
    whole.insert(whole.end(), pieces.back().begin(), pieces.back().end());
  }
  std::thread sender([&] {
    LaneSet::Position last = 0;
    for (const auto& piece : pieces) last = first->postSend(1, piece.data(), piece.size());
    EXPECT_TRUE(driveUntil(*first, [&] { return first->isSent(1, last); }));
  });
  std::vector<uint8_t> in(whole.size());
  LaneSet::Position last = 0;
  for (size_t at = 0, step = 1; at < in.size(); at += step, step = step % 1500 + 7) {
    last = second->postReceive(0, in.data() + at, std::min(step, in.size() - at));
  }
  EXPECT_TRUE(driveUntil(*second, [&] { return second->isReceived(0, last); }));
  sender.join();
  EXPECT_EQ(in, whole);
  EXPECT_EQ(first->bytesSent(), whole.size());
  EXPECT_EQ(second->bytesReceived(), whole.size());
}

TEST_P(Lanes, APositionIsReachedWhenAllPostedBeforeItHasMoved) {
  std::vector<uint8_t> in(4);
  auto before = second->postReceive(0, nullptr, 0);
  auto one = second->postReceive(0, in.data(), 1);
  auto three = second->postReceive(0, in.data() + 1, 3);
  auto nothing = second->postReceive(0, nullptr, 0);
  EXPECT_TRUE(second->isReceived(0, before));
  EXPECT_FALSE(second->isReceived(0, one));
  std::vector<uint8_t> out{11, 22, 33, 44};
  first->postSend(1, out.data(), 2);
  EXPECT_TRUE(driveUntil(*second, [&] { return second->isReceived(0, one); }));
  EXPECT_FALSE(second->isReceived(0, three));
  EXPECT_FALSE(second->isReceived(0, nothing));
  first->postSend(1, out.data() + 2, 2);
  EXPECT_TRUE(driveUntil(*second, [&] { return second->isReceived(0, nothing); }));
  EXPECT_TRUE(second->isReceived(0, three));
  EXPECT_EQ(in, out);
}

TEST_P(Lanes, WhatCameBeforeTheEndOfAStreamIsReceived) {
  auto out = pattern(0, 9, 1000);
  auto sent = first->postSend(1, out.data(), out.size());
  ASSERT_TRUE(driveUntil(*first, [&] { return first->isSent(1, sent); }));
  first.reset();
  std::vector<uint8_t> in(out.size());
  auto received = second->postReceive(0, in.data(), in.size());
  EXPECT_TRUE(driveUntil(*second, [&] { return second->isReceived(0, received); }));
  EXPECT_EQ(in, out);
}

TEST_P(Lanes, TheEndOfAStreamIsNoNewsWhileNothingIsPosted) {
  first.reset();
  EXPECT_FALSE(second->progress(20ms));
  EXPECT_FALSE(second->hasPending());
}

TEST_P(Lanes, AClosedPeerBreaksAReceiveForGoodAndIsNamed) {
  std::vector<uint8_t> in(100);
  second->postReceive(0, in.data(), in.size());
  first.reset();
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      second->progress(10s);
      FAIL() << "the lane did not break";
    } catch (const LaneBroken& broken) {
      EXPECT_EQ(broken.peer, 0);
      EXPECT_NE(std::string(broken.what()).find("rank 0"), std::string::npos) << broken.what();
      EXPECT_NE(std::string(broken.what()).find("100 to be received"), std::string::npos) << broken.what();
    }
  }
}

TEST_P(Lanes, AClosedPeerBreaksASendWithTheWordsOfTheSystem) {
  std::vector<uint8_t> out(size_t{64} << 20);
  second->postSend(0, out.data(), out.size());
  ASSERT_TRUE(second->hasPending());
  first.reset();
  TimePoint limit = Clock::now() + kPatience;
  try {
    while (Clock::now() < limit) {
      second->progress(1s);
      second->checkSends(0);
    }
    FAIL() << "the lane did not break";
  } catch (const LaneBroken& broken) {
    EXPECT_EQ(broken.peer, 0);
    EXPECT_NE(std::string(broken.what()).find("errno"), std::string::npos) << broken.what();
  }
}

TEST_P(Lanes, ASendThatCannotLeaveKeepsNothingFromBeingReceived) {
  auto out = pattern(0, 9, 1000);
  auto left = first->postSend(1, out.data(), out.size());
  ASSERT_TRUE(driveUntil(*first, [&] { return first->isSent(1, left); }));
  first->leave(kPatience);
  first.reset();
  std::vector<uint8_t> header(40);
  LaneSet::Position sent = 0;
  for (int i = 0; i < 10; ++i) {
    sent = second->postSend(0, header.data(), header.size());
    std::this_thread::sleep_for(1ms);
  }
  std::vector<uint8_t> in(out.size());
  auto received = second->postReceive(0, in.data(), in.size());
  EXPECT_TRUE(driveUntil(*second, [&] { return second->isReceived(0, received); }));
  EXPECT_EQ(in, out);
  EXPECT_FALSE(second->hasPending()) << "a socket that takes nothing more would be asked for ever";
  EXPECT_FALSE(second->isSent(0, sent));
  EXPECT_THROW(second->checkSends(0), LaneBroken);
}

TEST_P(Lanes, LeavingWaitsUntilWhatWasSentHasArrivedAlthoughMoreComes) {
  // More than a socket holds, so that some of it is still here when the set is left.
  constexpr size_t kBytes = size_t{8} << 20;
  auto out = pattern(0, 3, kBytes);
  auto sent = first->postSend(1, out.data(), out.size());
  ASSERT_FALSE(first->isSent(1, sent));
  std::vector<uint8_t> header(40);
  std::vector<uint8_t> in(kBytes);
  std::thread other([&] {
    std::this_thread::sleep_for(50ms);
    second->postSend(0, header.data(), header.size());
    auto received = second->postReceive(0, in.data(), in.size());
    EXPECT_TRUE(driveUntil(*second, [&] { return second->isReceived(0, received); }));
  });
  first->leave(kPatience);
  EXPECT_TRUE(first->isSent(1, sent));
  first.reset();
  other.join();
  EXPECT_EQ(in, out);
}

TEST_P(Lanes, LeavingEndsAtItsLimit) {
  std::vector<uint8_t> out(size_t{64} << 20);
  first->postSend(1, out.data(), out.size());
  TimePoint begun = Clock::now();
  first->leave(50ms);
  EXPECT_GE(Clock::now() - begun, 49ms);
  EXPECT_LT(Clock::now() - begun, 10s);
}

TEST_P(Lanes, APeerThatHasLeftIsNotWaitedFor) {
  second->leave(kPatience);
  second.reset();
  // The kernel takes this, and nobody at the other end ever will.
  std::vector<uint8_t> header(40);
  first->postSend(1, header.data(), header.size());
  const TimePoint begun = Clock::now();
  first->leave(kPatience);
  EXPECT_LT(Clock::now() - begun, kPatience / 2);
}

TEST_P(Lanes, APostToABrokenLaneDoesNotThrowButProgressDoes) {
  first.reset();
  std::vector<uint8_t> memory(10);
  // A first send may find room in the kernel although nobody will read it.
  EXPECT_NO_THROW(for (int i = 0; i < 10; ++i) second->postSend(0, memory.data(), memory.size()));
  EXPECT_NO_THROW(second->postReceive(0, memory.data(), memory.size()));
  EXPECT_THROW(second->progress(10s), LaneBroken);
}

TEST_P(Lanes, AWaitEndsAtItsLimit) {
  std::vector<uint8_t> in(1);
  second->postReceive(0, in.data(), in.size());
  TimePoint begun = Clock::now();
  EXPECT_FALSE(second->progress(30ms));
  EXPECT_GE(Clock::now() - begun, 29ms);
  EXPECT_LT(Clock::now() - begun, 10s);
  EXPECT_EQ(second->pendingPeers(), std::vector<int>{0});
}

INSTANTIATE_TEST_SUITE_P(OverSockets, Lanes, testing::Values(Wire::kUnix, Wire::kTcp), wireName);

TEST(LanesOfMany, AWakeEndsAWaitAndStaysToBeSeen) {
  int wake = ::eventfd(0, EFD_NONBLOCK);
  auto fds = connectedMesh(Wire::kUnix, 2);
  LaneSet lanes(fds[0], wake);
  LaneSet other(fds[1], -1);
  std::vector<uint8_t> in(1);
  lanes.postReceive(1, in.data(), in.size());
  TimePoint begun = Clock::now();
  std::thread waker([&] {
    std::this_thread::sleep_for(20ms);
    ::eventfd_write(wake, 1);
  });
  EXPECT_FALSE(lanes.progress(kPatience));
  EXPECT_FALSE(lanes.progress(kPatience));
  EXPECT_LT(Clock::now() - begun, kPatience / 2);
  waker.join();
  eventfd_t value = 0;
  EXPECT_EQ(::eventfd_read(wake, &value), 0);
  EXPECT_EQ(value, 1u);
  ::close(wake);
}

TEST(LanesOfMany, FiveRanksExchangeAllToAllAndNothingIsMixedUp) {
  constexpr int kSize = 5;
  constexpr size_t kBytes = 300'001;
  auto fds = connectedMesh(Wire::kTcp, kSize);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([rank, own = fds[static_cast<size_t>(rank)]] {
      LaneSet lanes(own, -1);
      std::vector<std::vector<uint8_t>> out(kSize);
      std::vector<std::vector<uint8_t>> in(kSize, std::vector<uint8_t>(kBytes));
      for (int peer = 0; peer < kSize; ++peer) {
        if (peer == rank) continue;
        out[static_cast<size_t>(peer)] = pattern(rank, peer, kBytes);
        lanes.postReceive(peer, in[static_cast<size_t>(peer)].data(), kBytes);
        lanes.postSend(peer, out[static_cast<size_t>(peer)].data(), kBytes);
      }
      EXPECT_TRUE(driveUntil(lanes, [&] { return !lanes.hasPending(); }));
      for (int peer = 0; peer < kSize; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(in[static_cast<size_t>(peer)], pattern(peer, rank, kBytes)) << "from " << peer << " on " << rank;
      }
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST(LanesOfMany, PendingPeersAreThoseThatOwe) {
  auto fds = connectedMesh(Wire::kUnix, 4);
  LaneSet lanes(fds[0], -1);
  LaneSet one(fds[1], -1);
  LaneSet two(fds[2], -1);
  LaneSet three(fds[3], -1);
  std::vector<uint8_t> in(3);
  for (int peer : {3, 1, 2}) lanes.postReceive(peer, in.data() + peer - 1, 1);
  EXPECT_EQ(lanes.pendingPeers(), (std::vector<int>{1, 2, 3}));
  uint8_t value = 77;
  two.postSend(0, &value, 1);
  EXPECT_TRUE(lanes.progress(kPatience));
  EXPECT_EQ(lanes.pendingPeers(), (std::vector<int>{1, 3}));
  EXPECT_EQ(in, (std::vector<uint8_t>{0, 77, 0}));
}

TEST(LanesOfMany, ADescriptorThatIsNoneIsRefusedAndTheOthersAreClosed) {
  auto ends = connectedPair(Wire::kUnix);
  constexpr int kNoDescriptor = 1 << 20;
  try {
    LaneSet lanes({-1, ends[0], kNoDescriptor}, -1);
    FAIL() << "it was accepted";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code, Code::kSystem);
    EXPECT_NE(std::string(failure.what()).find("rank 2"), std::string::npos) << failure.what();
  }
  char byte;
  EXPECT_EQ(::read(ends[1], &byte, 1), 0);
  ::close(ends[1]);
}

}  // namespace
}  // namespace clary
