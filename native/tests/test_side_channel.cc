// Messages between ranks that behave. Those that do not: test_side_channel_faults.cc.
#include <random>
#include <thread>

#include "side_channel_fixtures.hpp"
#include "transport/exchange_limits.hpp"
#include "transport/frames.hpp"
#include "transport/side_channel.hpp"

namespace clary {
namespace {

using namespace test;

class SideChannels : public testing::TestWithParam<Wire> {};

TEST_P(SideChannels, MessagesOfEverySizeArriveWhicheverSideComesFirst) {
  Group group(GetParam(), 2);
  int64_t ticket = 0;
  for (bool receivesFirst : {true, false}) {
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{333}, size_t{kEagerBytes}, size_t{kEagerBytes} + 1,
                         size_t{kPartBytes}, size_t{kPartBytes} * 3 + 17, size_t{32} << 20}) {
      ++ticket;
      auto out = pattern(0, ticket, bytes);
      std::vector<uint8_t> in(bytes);
      auto receive = [&] { group.channel(1).receive(ticket, 0, 7, in.data(), bytes, later()); };
      if (receivesFirst) receive();
      group.channel(0).send(ticket, 1, 7, out.data(), bytes, later());
      if (!receivesFirst) {
        std::this_thread::sleep_for(5ms);
        receive();
      }
      End received = group.record(1).end(ticket);
      EXPECT_WELL(received);
      EXPECT_EQ(received.source, 0);
      EXPECT_WELL(group.record(0).end(ticket));
      EXPECT_TRUE(in == out) << bytes;
    }
  }
  EXPECT_EQ(group.record(0).timesEnded(3), 1u);
}

TEST_P(SideChannels, ASmallSendEndsBeforeItsReceiveAndALargeOneAfter) {
  Group group(GetParam(), 2);
  auto small = pattern(0, 1, 100);
  auto large = pattern(0, 2, size_t{kEagerBytes} + 1);
  group.channel(0).send(1, 1, 1, small.data(), small.size(), later());
  group.channel(0).send(2, 1, 2, large.data(), large.size(), later());
  EXPECT_WELL(group.record(0).end(1));
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(group.record(0).hasEnded(2));
  std::vector<uint8_t> in(large.size());
  group.channel(1).receive(2, 0, 2, in.data(), in.size(), later());
  EXPECT_WELL(group.record(0).end(2));
  EXPECT_WELL(group.record(1).end(2));
  EXPECT_EQ(in, large);
}

TEST_P(SideChannels, TagsMatchInAnyOrderAndEqualTagsInTheOrderOfSending) {
  Group group(GetParam(), 2);
  // Sizes on both sides of the limit of eager messages, so that both kinds must keep one order.
  constexpr int kMessages = 60;
  constexpr int kTags = 3;
  std::vector<std::vector<uint8_t>> out;
  std::vector<std::vector<uint8_t>> in;
  for (int i = 0; i < kMessages; ++i) {
    out.push_back(pattern(0, i, size_t{kEagerBytes} * static_cast<size_t>(i % 2) + static_cast<size_t>(i)));
    in.emplace_back(out.back().size());
    group.channel(0).send(i, 1, i % kTags - 1, out.back().data(), out.back().size(), later());
  }
  for (int tag = kTags - 1; tag >= 0; --tag) {
    for (int i = tag; i < kMessages; i += kTags) {
      auto& memory = in[static_cast<size_t>(i)];
      group.channel(1).receive(i, 0, tag - 1, memory.data(), memory.size(), later());
    }
  }
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_WELL(group.record(1).end(i));
    EXPECT_WELL(group.record(0).end(i));
  }
  EXPECT_EQ(in, out);
}

TEST_P(SideChannels, AReceiveFromAnyRankTakesWhatCameFirstAndSaysFromWhom) {
  Group group(GetParam(), 4);
  auto early = pattern(2, 0, 50);
  group.channel(2).send(1, 0, 9, early.data(), early.size(), later());
  EXPECT_WELL(group.record(2).end(1));
  std::this_thread::sleep_for(20ms);  // it lies there unexpected
  std::vector<uint8_t> in(50);
  group.channel(0).receive(1, -1, 9, in.data(), in.size(), later());
  EXPECT_EQ(group.record(0).end(1).source, 2);
  EXPECT_EQ(in, early);

  std::vector<std::vector<uint8_t>> all(3, std::vector<uint8_t>(100'000));
  for (int i = 0; i < 3; ++i) {
    auto& memory = all[static_cast<size_t>(i)];
    group.channel(0).receive(10 + i, -1, 9, memory.data(), memory.size(), later());
  }
  std::vector<std::vector<uint8_t>> out;
  for (int peer : {1, 2, 3}) out.push_back(pattern(peer, 5, 100'000));
  for (int peer : {3, 1, 2}) {
    auto& memory = out[static_cast<size_t>(peer - 1)];
    group.channel(peer).send(10, 0, 9, memory.data(), memory.size(), later());
  }
  std::vector<int> sources;
  for (int i = 0; i < 3; ++i) {
    End end = group.record(0).end(10 + i);
    EXPECT_WELL(end);
    sources.push_back(end.source);
    EXPECT_EQ(all[static_cast<size_t>(i)], pattern(end.source, 5, 100'000));
  }
  for (int peer : {1, 2, 3}) EXPECT_WELL(group.record(peer).end(10));
  std::sort(sources.begin(), sources.end());
  EXPECT_EQ(sources, (std::vector<int>{1, 2, 3}));
}

TEST_P(SideChannels, AReceiveThatNamesItsRankLeavesTheOthersMessages) {
  Group group(GetParam(), 3);
  auto one = pattern(1, 0, 10);
  auto two = pattern(2, 0, 10);
  std::vector<uint8_t> from_two(10);
  std::vector<uint8_t> from_any(10);
  group.channel(0).receive(1, 2, 4, from_two.data(), 10, later());
  group.channel(0).receive(2, -1, 4, from_any.data(), 10, later());
  group.channel(1).send(1, 0, 4, one.data(), 10, later());
  EXPECT_EQ(group.record(0).end(2).source, 1);
  group.channel(2).send(1, 0, 4, two.data(), 10, later());
  EXPECT_EQ(group.record(0).end(1).source, 2);
  for (int peer : {1, 2}) EXPECT_WELL(group.record(peer).end(1));
  EXPECT_EQ(from_two, two);
  EXPECT_EQ(from_any, one);
}

TEST_P(SideChannels, ManySmallMessagesAndFarMoreThanTheWindowArriveInOrder) {
  Group group(GetParam(), 2);
  // Six windows: most of it has to be asked for, or waits for credit.
  constexpr int kMessages = 2000;
  constexpr size_t kBytes = 13'000;
  static_assert(kMessages * kBytes > 6 * kEagerWindow);
  auto out = pattern(0, 3, kBytes + kMessages);
  std::vector<std::vector<uint8_t>> in(kMessages, std::vector<uint8_t>(kBytes));
  for (int i = 0; i < kMessages; ++i) group.channel(0).send(i, 1, 0, out.data() + i, kBytes, later());
  std::this_thread::sleep_for(30ms);
  for (int i = 0; i < kMessages; ++i) {
    group.channel(1).receive(i, 0, 0, in[static_cast<size_t>(i)].data(), kBytes, later());
  }
  ASSERT_TRUE(group.record(0).waitForEnds(kMessages));
  ASSERT_TRUE(group.record(1).waitForEnds(kMessages));
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_WELL(group.record(1).end(i));
    ASSERT_TRUE(std::equal(in[static_cast<size_t>(i)].begin(), in[static_cast<size_t>(i)].end(), out.begin() + i)) << i;
  }
}

TEST_P(SideChannels, AllRanksMaySendToAllBeforeAnyReceives) {
  constexpr int kSize = 4;
  constexpr int kEach = 40;
  Group group(GetParam(), kSize);
  auto bytesOf = [](int i) { return i % 4 == 0 ? size_t{200'000} : size_t{60'000}; };
  auto id = [](int peer, int i) { return int64_t{peer} * 1000 + i; };
  std::map<std::pair<int, int64_t>, std::vector<uint8_t>> out;
  std::map<std::pair<int, int64_t>, std::vector<uint8_t>> in;
  for (int rank = 0; rank < kSize; ++rank) {
    for (int peer = 0; peer < kSize; ++peer) {
      for (int i = 0; i < kEach; ++i) {
        auto& memory = out[{rank, id(peer, i)}] = pattern(rank, id(peer, i), bytesOf(i));
        group.channel(rank).send(id(peer, i), peer, i, memory.data(), memory.size(), later());
      }
    }
  }
  for (int rank = 0; rank < kSize; ++rank) {
    for (int peer = 0; peer < kSize; ++peer) {
      for (int i = kEach - 1; i >= 0; --i) {
        auto& memory = in[{rank, id(peer, i)}];
        memory.resize(bytesOf(i));
        group.channel(rank).receive(100'000 + id(peer, i), peer, i, memory.data(), memory.size(), later());
      }
    }
  }
  for (int rank = 0; rank < kSize; ++rank) {
    ASSERT_TRUE(group.record(rank).waitForEnds(2 * kSize * kEach));
    for (int peer = 0; peer < kSize; ++peer) {
      for (int i = 0; i < kEach; ++i) {
        EXPECT_WELL(group.record(rank).end(100'000 + id(peer, i)));
        EXPECT_TRUE((in[{rank, id(peer, i)}] == out[{peer, id(rank, i)}])) << rank << " from " << peer << " " << i;
      }
    }
  }
}

TEST_P(SideChannels, LargeMessagesCrossEachOther) {
  Group group(GetParam(), 2);
  size_t bytes = size_t{32} << 20;
  std::vector<std::vector<uint8_t>> out{pattern(0, 1, bytes), pattern(1, 1, bytes)};
  std::vector<std::vector<uint8_t>> in(2, std::vector<uint8_t>(bytes));
  for (int rank : {0, 1}) {
    auto own = static_cast<size_t>(rank);
    group.channel(rank).send(1, 1 - rank, 3, out[own].data(), bytes, later());
    group.channel(rank).receive(2, 1 - rank, 3, in[own].data(), bytes, later());
  }
  for (int rank : {0, 1}) {
    EXPECT_WELL(group.record(rank).end(1));
    EXPECT_WELL(group.record(rank).end(2));
  }
  EXPECT_TRUE(in[0] == out[1]);
  EXPECT_TRUE(in[1] == out[0]);
}

TEST_P(SideChannels, ASmallMessageDoesNotWaitForALargeOneBeforeIt) {
  auto ends = connectedPair(GetParam());
  Record record;
  auto channel = makeChannel(0, {-1, ends[0]}, record);
  RawPeer peer(ends[1]);
  // More than the kernel takes before the peer reads.
  std::vector<uint8_t> large(size_t{64} << 20);
  std::vector<uint8_t> small(8);
  channel->send(1, 1, 1, large.data(), large.size(), later());
  auto request = peer.read();
  ASSERT_TRUE(request && request->kind == FrameKind::kRequest && request->bytes == large.size());
  ASSERT_TRUE(peer.write({FrameKind::kClear, request->id, 1}));
  std::this_thread::sleep_for(30ms);  // the large one is under way
  channel->send(2, 1, 2, small.data(), small.size(), later());
  size_t before = 0;
  while (auto frame = peer.read()) {
    if (frame->kind == FrameKind::kEager) break;
    ASSERT_EQ(frame->kind, FrameKind::kData);
    before += frame->bytes;
  }
  EXPECT_LT(before, large.size());
  EXPECT_WELL(record.end(2));
  EXPECT_FALSE(record.hasEnded(1));
  while (before < large.size()) before += peer.read().value().bytes;
  EXPECT_WELL(record.end(1));
}

TEST_P(SideChannels, ThreadsOfOneRankMayUseItsChannelAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kEach = 200;
  Group group(GetParam(), 2);
  std::vector<std::thread> threads;
  std::vector<std::vector<uint8_t>> in(kThreads * kEach, std::vector<uint8_t>(64));
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&group, &in, t] {
      for (int i = 0; i < kEach; ++i) {
        int64_t id = t * kEach + i;
        auto out = pattern(0, id, 64);
        group.channel(1).receive(id, 0, t, in[static_cast<size_t>(id)].data(), 64, later());
        group.channel(0).send(id, 1, t, out.data(), 64, later());
        EXPECT_WELL(group.record(0).end(id));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (int id = 0; id < kThreads * kEach; ++id) {
    EXPECT_WELL(group.record(1).end(id));
    EXPECT_EQ(in[static_cast<size_t>(id)], pattern(0, id, 64)) << id;
  }
}

TEST_P(SideChannels, RandomTrafficArrivesWhereItBelongs) {
  constexpr int kSize = 3;
  constexpr int kMessages = 400;
  for (unsigned seed : {1u, 2u, 3u}) {
    Group group(GetParam(), kSize);
    std::mt19937 random(seed);
    struct Message {
      int from, to;
      int64_t tag;
      std::vector<uint8_t> out, in;
    };
    std::vector<Message> messages(kMessages);
    for (int i = 0; i < kMessages; ++i) {
      Message& message = messages[static_cast<size_t>(i)];
      message.from = static_cast<int>(random() % kSize);
      message.to = static_cast<int>(random() % kSize);
      message.tag = static_cast<int64_t>(random()) * (random() % 2 == 0 ? 1 : -1);
      message.out = pattern(message.from, i, random() % (random() % 3 == 0 ? 400'000 : 2'000));
      message.in.resize(message.out.size());
    }
    std::vector<int> order(2 * kMessages);  // even: the send, odd: the receive
    for (int i = 0; i < 2 * kMessages; ++i) order[static_cast<size_t>(i)] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (int i : order) {
      Message& message = messages[static_cast<size_t>(i / 2)];
      size_t bytes = message.out.size();
      if (i % 2 == 0) {
        group.channel(message.from).send(i, message.to, message.tag, message.out.data(), bytes, later());
      } else {
        group.channel(message.to).receive(i, message.from, message.tag, message.in.data(), bytes, later());
      }
    }
    for (int i = 0; i < kMessages; ++i) {
      Message& message = messages[static_cast<size_t>(i)];
      EXPECT_WELL(group.record(message.from).end(2 * i));
      EXPECT_WELL(group.record(message.to).end(2 * i + 1));
      EXPECT_TRUE(message.in == message.out) << "seed " << seed << " message " << i;
    }
  }
}

TEST_P(SideChannels, UnequalSizesEndBothSidesOfALargeMessageAndOfASmallOneTheReceive) {
  Group group(GetParam(), 2);
  auto out = pattern(0, 1, 100'000);
  std::vector<uint8_t> in(100'001, 0xEE);
  std::vector<uint8_t> untouched = in;
  int64_t ticket = 0;
  for (bool receivesFirst : {true, false}) {
    for (auto [sent, received] : {std::pair{100'000, 100'001}, std::pair{100'000, 10}, std::pair{11, 10}}) {
      ++ticket;
      auto post = [&, size = received] {
        group.channel(1).receive(ticket, 0, 5, in.data(), static_cast<uint64_t>(size), later());
      };
      if (receivesFirst) post();
      group.channel(0).send(ticket, 1, 5, out.data(), static_cast<uint64_t>(sent), later());
      if (!receivesFirst) {
        std::this_thread::sleep_for(5ms);
        post();
      }
      std::vector<std::string> both{"of " + std::to_string(sent) + " bytes",
                                    "of " + std::to_string(received) + " bytes", nameOf(0), nameOf(1), "tag 5"};
      expectFailure(group.record(1).end(ticket), Code::kInvalid, 0, both);
      if (sent > 1000) {
        expectFailure(group.record(0).end(ticket), Code::kInvalid, 1, both);
      } else {
        EXPECT_WELL(group.record(0).end(ticket));
      }
    }
  }
  EXPECT_EQ(in, untouched);
  // The group is as before.
  group.channel(1).receive(50, 0, 5, in.data(), 1000, later());
  group.channel(0).send(50, 1, 5, out.data(), 1000, later());
  EXPECT_WELL(group.record(0).end(50));
  EXPECT_WELL(group.record(1).end(50));
  EXPECT_TRUE(group.record(0).news().empty() && group.record(1).news().empty());
}

TEST_P(SideChannels, ATransferThatPassesItsDeadlineNamesPeerTagAndBytes) {
  Group group(GetParam(), 2);
  auto out = pattern(0, 1, 100'000);
  std::vector<uint8_t> in(77);
  TimePoint begun = Clock::now();
  group.channel(0).send(1, 1, 12, out.data(), out.size(), begun + 40ms);
  double late = std::chrono::duration<double>(Clock::now() - begun).count();
  group.channel(1).receive(2, 0, 13, in.data(), in.size(), begun + 50ms);
  group.channel(1).receive(3, -1, 14, in.data(), in.size(), begun + 60ms);
  End sent = group.record(0).end(1);
  expectFailure(sent, Code::kTimeout, 1, {"100000 bytes", nameOf(1), "tag 12", "limit of "});
  // The limit that is named counts from the call, which came a little after the test looked at the clock.
  double limit = secondsAfter(sent.failure->text, "limit of ");
  EXPECT_LT(limit, 0.0401);
  EXPECT_GE(limit, std::max(0.0, 0.0399 - late));
  EXPECT_GE(Clock::now() - begun, 40ms);
  expectFailure(group.record(1).end(2), Code::kTimeout, 0, {"77 bytes", nameOf(0), "tag 13"});
  expectFailure(group.record(1).end(3), Code::kTimeout, -1, {"any rank", "tag 14"});
  EXPECT_LT(Clock::now() - begun, 5s);
  // A receive that was given up takes no message any more.
  std::vector<uint8_t> next(77);
  group.channel(1).receive(4, 0, 13, next.data(), next.size(), later());
  group.channel(0).send(4, 1, 13, out.data(), next.size(), later());
  EXPECT_WELL(group.record(0).end(4));
  EXPECT_WELL(group.record(1).end(4));
  EXPECT_TRUE(std::equal(next.begin(), next.end(), out.begin()));
  EXPECT_EQ(in, std::vector<uint8_t>(77));
}

TEST_P(SideChannels, ATransferToOneselfWorksAndTimesOut) {
  Group group(GetParam(), 2);
  int64_t ticket = 0;
  for (size_t bytes : {size_t{0}, size_t{10}, size_t{500'000}}) {
    for (bool receivesFirst : {true, false}) {
      ticket += 2;
      auto out = pattern(0, ticket, bytes);
      std::vector<uint8_t> in(bytes);
      int peer = receivesFirst ? 0 : -1;
      if (receivesFirst) group.channel(0).receive(ticket, peer, 1, in.data(), bytes, later());
      group.channel(0).send(ticket + 1, 0, 1, out.data(), bytes, later());
      if (!receivesFirst) group.channel(0).receive(ticket, peer, 1, in.data(), bytes, later());
      EXPECT_EQ(group.record(0).end(ticket).source, 0);
      EXPECT_WELL(group.record(0).end(ticket));
      EXPECT_WELL(group.record(0).end(ticket + 1));
      EXPECT_EQ(in, out);
    }
  }
  std::vector<uint8_t> out(500'000);
  std::vector<uint8_t> in(20);
  group.channel(0).send(100, 0, 2, out.data(), out.size(), Clock::now() + 20ms);
  expectFailure(group.record(0).end(100), Code::kTimeout, 0, {"tag 2"});
  // The send is gone, so the receive takes the next one.
  group.channel(0).receive(101, 0, 2, in.data(), in.size(), later());
  group.channel(0).send(102, 0, 2, out.data(), in.size(), later());
  EXPECT_WELL(group.record(0).end(101));
  EXPECT_WELL(group.record(0).end(102));
  group.channel(0).send(103, 0, 2, out.data(), 70'000, later());
  group.channel(0).receive(104, 0, 2, in.data(), in.size(), later());
  expectFailure(group.record(0).end(103), Code::kInvalid, 0, {"70000 bytes", "20 bytes"});
  expectFailure(group.record(0).end(104), Code::kInvalid, 0, {"70000 bytes", "20 bytes"});
}

TEST_P(SideChannels, APeerThatIsAskedTellsWhatItDoesAndOneThatIsStoppedDoesNot) {
  auto stopped = connectedPair(GetParam());
  auto live = connectedPair(GetParam());
  Record own;
  Record other;
  auto asking = makeChannel(0, {-1, stopped[0], live[0]}, own);
  auto asked = makeChannel(2, {live[1], -1, -1}, other);
  RawPeer silent(stopped[1]);
  auto told = asking->ask(2, kPatience);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->sequence, 17u);
  EXPECT_EQ(told->waitsFor, 1);
  EXPECT_FALSE(asking->ask(1, 20ms));
  for (int nobody : {0, -1, 3}) EXPECT_FALSE(asking->ask(nobody, 10ms)) << nobody;
}

TEST_P(SideChannels, ARankThatDoesNotExistIsRefused) {
  Group group(GetParam(), 2);
  std::vector<uint8_t> memory(10);
  for (int peer : {2, -1, -7, 1'000'000}) {
    group.channel(0).send(peer, peer, 0, memory.data(), memory.size(), later());
    expectFailure(group.record(0).end(peer), Code::kInvalid, -1, {"0 to 1"});
  }
  group.channel(0).receive(50, 2, 0, memory.data(), memory.size(), later());
  expectFailure(group.record(0).end(50), Code::kInvalid, -1, {"0 to 1"});
}

INSTANTIATE_TEST_SUITE_P(OverSockets, SideChannels, testing::Values(Wire::kUnix, Wire::kTcp), wireName);

}  // namespace
}  // namespace clary
