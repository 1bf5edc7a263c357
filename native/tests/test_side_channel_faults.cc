// Peers that die, leave, lie, or send what is no frame; and groups that end while messages are under way.
#include <dirent.h>

#include <functional>
#include <random>
#include <thread>

#include "side_channel_fixtures.hpp"
#include "transport/exchange_limits.hpp"

namespace clary {
namespace {

using namespace test;

constexpr auto kCloseLimit = 5s;

class SideChannelFaults : public testing::TestWithParam<Wire> {
 protected:
  // Rank 0, whose only peer is ours to play.
  void playPeer() {
    auto ends = connectedPair(GetParam());
    channel = makeChannel(0, {-1, ends[0]}, record);
    player = std::make_unique<RawPeer>(ends[1]);
  }
  Record record;
  std::unique_ptr<SideChannel> channel;
  std::unique_ptr<RawPeer> player;
};

TEST_P(SideChannelFaults, AStreamThatEndsWithoutGoodbyeIsALostPeerAndEndsEveryTransfer) {
  Group group(GetParam(), 3);
  std::vector<uint8_t> memory(100'000);
  group.channel(0).receive(1, 1, 0, memory.data(), memory.size(), later());
  group.channel(0).send(2, 2, 0, memory.data(), memory.size(), later());
  group.channel(0).receive(3, -1, 0, memory.data(), memory.size(), later());
  group.end(1);
  BadNews news = group.record(0).firstNews();
  EXPECT_EQ(news.code, Code::kPeerLost);
  EXPECT_EQ(news.culprit, 1);
  EXPECT_TRUE(contains(news.text, nameOf(1)));
  for (int64_t ticket : {1, 2, 3}) expectFailure(group.record(0).end(ticket), Code::kPeerLost, 1, {news.text});
  // And everything later, with the first cause.
  group.channel(0).send(4, 2, 0, memory.data(), 1, later());
  group.channel(0).receive(5, 2, 0, memory.data(), 1, later());
  for (int64_t ticket : {4, 5}) expectFailure(group.record(0).end(ticket), Code::kPeerLost, 1, {news.text});
  EXPECT_EQ(group.record(2).firstNews().culprit, 1);
}

TEST_P(SideChannelFaults, APeerThatDiesInTheMiddleOfAMessageIsLost) {
  playPeer();
  std::vector<uint8_t> in(500'000);
  channel->receive(1, 1, 3, in.data(), in.size(), later());
  player->write({FrameKind::kRequest, 11, 3, in.size()});
  auto clear = player->read();
  ASSERT_TRUE(clear && clear->kind == FrameKind::kClear && clear->id == 11);
  std::vector<std::byte> part(1000);
  Header header = encode({FrameKind::kData, static_cast<uint64_t>(clear->value), 0, 2000});
  player->writeBytes(header.data(), header.size());
  player->writeBytes(part.data(), part.size());
  player->close();
  expectFailure(record.end(1), Code::kPeerLost, 1, {nameOf(1)});
}

TEST_P(SideChannelFaults, AGoodbyeFailsWhatNeedsThatPeerAndNothingElse) {
  Group group(GetParam(), 3);
  auto early = pattern(1, 1, 10);
  std::vector<uint8_t> in(100'000);
  std::vector<uint8_t> small(10);
  std::vector<uint8_t> other(10);
  group.channel(1).send(1, 0, 7, early.data(), early.size(), later());
  EXPECT_WELL(group.record(1).end(1));
  group.channel(0).receive(1, 1, 8, in.data(), in.size(), later());
  group.channel(0).send(2, 1, 8, in.data(), in.size(), later());
  group.channel(0).receive(3, -1, 9, other.data(), other.size(), later());
  group.channel(1).close(kCloseLimit);
  ASSERT_TRUE(group.record(0).waitForGoodbye(1));
  ASSERT_TRUE(group.record(2).waitForGoodbye(1));
  expectFailure(group.record(0).end(1), Code::kPeerLost, 1, {nameOf(1), "tag 8", "closed the group"});
  expectFailure(group.record(0).end(2), Code::kPeerLost, 1, {nameOf(1), "tag 8", "closed the group"});
  group.channel(0).send(4, 1, 8, in.data(), 1, later());
  expectFailure(group.record(0).end(4), Code::kPeerLost, 1, {"closed the group"});
  // What it sent before it left is still there.
  group.channel(0).receive(5, 1, 7, small.data(), small.size(), later());
  EXPECT_WELL(group.record(0).end(5));
  EXPECT_EQ(small, early);
  // Another rank goes on, until it leaves too.
  group.channel(2).send(1, 0, 9, early.data(), early.size(), later());
  EXPECT_EQ(group.record(0).end(3).source, 2);
  EXPECT_WELL(group.record(2).end(1));
  EXPECT_EQ(other, early);
  group.channel(0).receive(6, -1, 9, other.data(), other.size(), later());
  group.channel(2).close(kCloseLimit);
  expectFailure(group.record(0).end(6), Code::kPeerLost, -1, {"every other rank has closed the group"});
  EXPECT_TRUE(group.record(0).news().empty());
  EXPECT_EQ(group.record(0).goodbyes(), (std::vector<int>{1, 2}));
}

TEST_P(SideChannelFaults, APeerThatLeavesInOrderWhileOthersSendToItIsNoBadNews) {
  for (int round = 0; round < 20; ++round) {
    Group group(GetParam(), 2);
    std::vector<uint8_t> out(300'000);
    std::vector<uint8_t> in(out.size());
    for (int64_t ticket = 0; ticket < 50; ++ticket) {
      group.channel(0).send(ticket, 1, ticket, out.data(), ticket % 5 == 0 ? out.size() : 30'000, later());
      if (ticket % 5 == 0) group.channel(1).receive(ticket, 0, ticket, in.data(), in.size(), later());
    }
    if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    group.channel(1).close(kCloseLimit);
    ASSERT_TRUE(group.record(0).waitForGoodbye(1));
    ASSERT_TRUE(group.record(0).waitForEnds(50));
    EXPECT_TRUE(group.record(0).news().empty()) << group.record(0).news().front().text;
    EXPECT_TRUE(group.record(1).news().empty()) << group.record(1).news().front().text;
    for (int64_t ticket = 0; ticket < 50; ++ticket) EXPECT_EQ(group.record(0).timesEnded(ticket), 1u);
  }
}

TEST_P(SideChannelFaults, RanksThatCloseAtTheSameTimeAreNoNewsToEachOther) {
  constexpr int kSize = 4;
  for (int round = 0; round < 10; ++round) {
    Group group(GetParam(), kSize);
    std::vector<std::vector<uint8_t>> memory(kSize, std::vector<uint8_t>(100'000));
    std::vector<std::thread> ranks;
    TimePoint begun = Clock::now();
    for (int rank = 0; rank < kSize; ++rank) {
      ranks.emplace_back([&group, &memory, rank] {
        auto& own = memory[static_cast<size_t>(rank)];
        for (int peer = 0; peer < kSize; ++peer) {
          group.channel(rank).send(peer, peer, rank, own.data(), 50'000, later());
          group.channel(rank).receive(10 + peer, peer, peer, own.data() + 50'000, 50'000, later());
        }
        group.channel(rank).close(kCloseLimit);
      });
    }
    for (auto& rank : ranks) rank.join();
    EXPECT_LT(Clock::now() - begun, kCloseLimit);
    for (int rank = 0; rank < kSize; ++rank) {
      EXPECT_TRUE(group.record(rank).news().empty()) << group.record(rank).news().front().text;
      for (int peer = 0; peer < kSize; ++peer) {
        EXPECT_EQ(group.record(rank).timesEnded(peer), 1u);
        EXPECT_EQ(group.record(rank).timesEnded(10 + peer), 1u);
      }
    }
  }
}

TEST_P(SideChannelFaults, BadNewsReachesEveryPeerOnceAndEndsEverything) {
  Group group(GetParam(), 4);
  std::vector<uint8_t> memory(100'000);
  for (int rank = 0; rank < 4; ++rank) {
    group.channel(rank).receive(1, (rank + 1) % 4, 0, memory.data(), memory.size(), later());
    group.channel(rank).receive(2, -1, 1, memory.data(), memory.size(), later());
  }
  BadNews news{Code::kTimeout, 3, "all_reduce number 17 waited 5 s for rank 3; the host h\xC3\xA9lios may be down"};
  group.channel(1).tellBadNews(news);
  group.channel(1).tellBadNews({Code::kSystem, 0, "a second cause"});
  for (int rank = 0; rank < 4; ++rank) {
    for (int64_t ticket : {1, 2}) expectFailure(group.record(rank).end(ticket), Code::kTimeout, 3, {news.text});
    if (rank == 1) continue;
    BadNews heard = group.record(rank).firstNews();
    EXPECT_EQ(heard.code, news.code);
    EXPECT_EQ(heard.culprit, news.culprit);
    EXPECT_EQ(heard.text, news.text);
    // Each tells on, as an engine would: no echo comes of it.
    group.channel(rank).tellBadNews(heard);
  }
  group.end(3);
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(group.record(1).news().empty());
  for (int rank : {0, 2}) EXPECT_EQ(group.record(rank).news().size(), 1u);
}

TEST_P(SideChannelFaults, BadNewsGetsOutAlthoughTheGroupIsAbandonedAtOnceAndMessagesAreUnderWay) {
  for (int round = 0; round < 20; ++round) {
    Group group(GetParam(), 2);
    std::vector<uint8_t> out(size_t{2} << 20);
    std::vector<uint8_t> in(out.size());
    group.channel(1).receive(1, 0, 0, in.data(), in.size(), later());
    group.channel(0).send(1, 1, 0, out.data(), out.size(), later());
    std::this_thread::sleep_for(std::chrono::microseconds(50 * round));
    BadNews news{Code::kOrderMismatch, 1, "ranks called different collectives"};
    group.channel(0).tellBadNews(news);
    group.end(0);
    BadNews heard = group.record(1).firstNews();
    EXPECT_EQ(heard.code, news.code) << heard.text;
    EXPECT_EQ(heard.text, news.text);
    EXPECT_EQ(group.record(0).timesEnded(1), 1u);
    group.record(1).end(1);
  }
}

TEST_P(SideChannelFaults, ALongTextOfBadNewsIsCutAndControlCharactersAreTakenOut) {
  playPeer();
  std::string text = "line\none\x01 " + std::string(3000, 'x');
  channel->tellBadNews({Code::kClosed, -1, text});
  auto frame = player->read();
  ASSERT_TRUE(frame && frame->kind == FrameKind::kBadNews);
  EXPECT_EQ(frame->bytes, kTextBytes);
  EXPECT_EQ(player->text().substr(0, 10), "line one  ");
}

TEST_P(SideChannelFaults, ASendWhoseDeadlinePassesMidwayLeavesItsMemoryAloneAndTheStreamInStep) {
  playPeer();
  // The peer reads nothing, so the kernel takes only part of it.
  auto large = std::make_unique<std::vector<uint8_t>>(size_t{64} << 20, uint8_t{0xAA});
  channel->send(1, 1, 1, large->data(), large->size(), Clock::now() + 200ms);
  auto request = player->read();
  ASSERT_TRUE(request);
  player->write({FrameKind::kClear, request->id, 5});
  expectFailure(record.end(1), Code::kTimeout, 1, {"of its bytes had moved"});
  large.reset();  // whoever still reads it is caught by the address sanitizer
  std::vector<uint8_t> small(8);
  channel->send(2, 1, 2, small.data(), small.size(), later());
  while (true) {
    auto frame = player->read();
    ASSERT_TRUE(frame) << "the stream is out of step";
    if (frame->kind == FrameKind::kEager) break;
    ASSERT_EQ(frame->kind, FrameKind::kData);
  }
  EXPECT_WELL(record.end(2));
}

TEST_P(SideChannelFaults, ASendThatIsGivenUpMidwayLeavesWholeAlsoWhenTheGroupBreaksThen) {
  playPeer();
  auto large = std::make_unique<std::vector<uint8_t>>(size_t{64} << 20, uint8_t{0xAA});
  channel->send(1, 1, 1, large->data(), large->size(), Clock::now() + 200ms);
  auto request = player->read();
  ASSERT_TRUE(request);
  player->write({FrameKind::kClear, request->id, 5});
  expectFailure(record.end(1), Code::kTimeout, 1, {"of its bytes had moved"});
  large.reset();
  // An engine says so to all peers; what is half written is then kept a second time.
  channel->tellBadNews({Code::kTimeout, 1, "the send took too long"});
  size_t wrong = 0;
  while (true) {
    auto frame = player->read();
    ASSERT_TRUE(frame) << "the stream is out of step";
    if (frame->kind == FrameKind::kBadNews) break;
    ASSERT_EQ(frame->kind, FrameKind::kData);
    for (const char byte : player->text()) wrong += static_cast<uint8_t>(byte) != 0xAA;
  }
  EXPECT_EQ(wrong, 0u) << "bytes of the send are not its own";
  EXPECT_EQ(player->text(), "the send took too long");
}

TEST_P(SideChannelFaults, AReceiveWhoseDeadlinePassesMidwayGetsNoMoreBytes) {
  playPeer();
  auto in = std::make_unique<std::vector<uint8_t>>(3000);
  channel->receive(1, 1, 1, in->data(), in->size(), Clock::now() + 100ms);
  player->write({FrameKind::kRequest, 9, 1, in->size()});
  auto clear = player->read();
  ASSERT_TRUE(clear && clear->kind == FrameKind::kClear);
  std::vector<std::byte> part(1000);
  Frame data{FrameKind::kData, static_cast<uint64_t>(clear->value), 0, 1500};
  Header header = encode(data);
  player->writeBytes(header.data(), header.size());
  player->writeBytes(part.data(), part.size());
  expectFailure(record.end(1), Code::kTimeout, 1, {nameOf(1), "tag 1"});
  in.reset();
  player->writeBytes(part.data(), 500);
  std::vector<std::byte> rest(1500);
  player->write(data, rest.data());
  // The stream is in step: the next message arrives.
  std::vector<uint8_t> next(4);
  std::vector<uint8_t> sent{1, 2, 3, 4};
  channel->receive(2, 1, 2, next.data(), next.size(), later());
  player->write({FrameKind::kEager, 0, 2, 4}, sent.data());
  EXPECT_WELL(record.end(2));
  EXPECT_EQ(next, sent);
  EXPECT_TRUE(record.news().empty());
}

TEST_P(SideChannelFaults, EveryBreachOfTheProtocolIsBadNewsAboutThatPeer) {
  using Step = std::function<void(RawPeer&)>;
  std::vector<std::byte> payload(kPartBytes);
  auto frame = [&](Frame f) { return [&payload, f](RawPeer& p) { p.write(f, payload.data()); }; };
  std::vector<std::pair<std::string, Step>> breaches{
      {"no frame", [](RawPeer& p) { p.writeBytes(std::string(32, 'G').data(), 32); }},
      {"payload of 65537 bytes", frame({FrameKind::kEager, 0, 0, kEagerBytes + 1})},
      {"payload of 262145 bytes",
       [](RawPeer& p) {
         Header header = encode({FrameKind::kData, 1, 0, kPartBytes + 1});
         p.writeBytes(header.data(), header.size());
       }},
      {"payload of 18446744073709551615 bytes",
       [](RawPeer& p) {
         Header header = encode({FrameKind::kBadNews, 2, 0, ~uint64_t{0}});
         p.writeBytes(header.data(), header.size());
       }},
      {"payload of 1 bytes", frame({FrameKind::kGoodbye, 0, 0, 1})},
      {"not asked for", frame({FrameKind::kData, 1, 0, 10})},  // transfer 1 is a receive that has no message yet
      {"was not made", frame({FrameKind::kClear, 2, 0})},
      {"gave back", frame({FrameKind::kCredit, 0, 85})},  // 84 were spent
      {"gave back", frame({FrameKind::kCredit, 0, -5})},
      {"unknown kind", frame({FrameKind::kBadNews, 0, 0, 5})},
      {"unknown kind", frame({FrameKind::kBadNews, 7, 0, 5})},
      {"unknown kind", frame({FrameKind::kBadNews, 2, 99, 5})},
      {"window",
       [&payload](RawPeer& p) {
         for (int i = 0; i < 65; ++i) p.write({FrameKind::kEager, 0, 77, kEagerBytes}, payload.data());
       }},
  };
  for (const auto& [words, breach] : breaches) {
    auto ends = connectedPair(GetParam());
    Record told;
    auto target = makeChannel(0, {-1, ends[0]}, told);
    RawPeer adversary(ends[1]);
    std::vector<uint8_t> in(20);
    target->receive(1, 1, 0, in.data(), in.size(), later());
    target->send(2, 1, 0, in.data(), in.size(), later());
    told.end(2);
    breach(adversary);
    BadNews news = told.firstNews();
    EXPECT_EQ(news.code, Code::kPeerLost);
    EXPECT_EQ(news.culprit, 1);
    for (const std::string& part : {nameOf(1), words}) EXPECT_TRUE(contains(news.text, part));
    expectFailure(told.end(1), Code::kPeerLost, 1, {words});
  }
}

TEST_P(SideChannelFaults, AClearForAnotherPeersSendIsABreach) {
  auto first = connectedPair(GetParam());
  auto second = connectedPair(GetParam());
  channel = makeChannel(0, {-1, first[0], second[0]}, record);
  RawPeer one(first[1]);
  RawPeer two(second[1]);
  std::vector<uint8_t> out(100'000);
  channel->send(1, 1, 0, out.data(), out.size(), later());
  channel->send(2, 2, 0, out.data(), out.size(), later());
  auto request = one.read();
  ASSERT_TRUE(request && two.read());
  two.write({FrameKind::kClear, request->id, 1});
  BadNews news = record.firstNews();
  EXPECT_EQ(news.culprit, 2);
  EXPECT_TRUE(contains(news.text, "not made to it"));
  for (int64_t ticket : {1, 2}) expectFailure(record.end(ticket), Code::kPeerLost, 2, {});
}

TEST_P(SideChannelFaults, RandomBytesAndRandomFramesNeverDoWorseThanBadNews) {
  std::vector<std::byte> payload(kPartBytes);
  for (unsigned seed = 1; seed <= 150; ++seed) {
    std::mt19937 random(seed);
    for (auto& byte : payload) byte = static_cast<std::byte>(random());
    auto hostile = connectedPair(GetParam());
    auto healthy = connectedPair(GetParam());
    Record own;
    Record other;
    auto target = makeChannel(0, {-1, hostile[0], healthy[0]}, own);
    auto friendly = makeChannel(2, {healthy[1], -1, -1}, other);
    auto adversary = std::make_unique<RawPeer>(hostile[1]);
    // Receives lie between guards; all bytes outside them must stay.
    constexpr size_t kGuard = 64;
    constexpr int kTransfers = 12;
    std::vector<std::vector<uint8_t>> memory;
    for (int64_t ticket = 0; ticket < kTransfers; ++ticket) {
      size_t bytes = random() % 2 == 0 ? random() % 300 : kEagerBytes + random() % 300'000;
      memory.emplace_back(bytes + 2 * kGuard, uint8_t{0x5A});
      auto* at = memory.back().data() + kGuard;
      TimePoint deadline = random() % 4 == 0 ? Clock::now() + 2ms : later();
      int peer = static_cast<int>(random() % 3);
      auto tag = static_cast<int64_t>(random() % 3);
      if (random() % 2 == 0) {
        target->receive(ticket, peer == 0 ? -1 : peer, tag, at, bytes, deadline);
      } else {
        target->send(ticket, peer, tag, at, bytes, deadline);
      }
    }
    for (int i = 0; i < 30; ++i) {
      Frame frame{static_cast<FrameKind>(1 + random() % 10), random() % 16, static_cast<int64_t>(random() % 5),
                  random() % 3 == 0 ? random() % kPartBytes : random() % 300};
      if (frame.kind != FrameKind::kRequest && frame.kind != FrameKind::kEager && frame.kind != FrameKind::kData &&
          frame.kind != FrameKind::kBadNews) {
        frame.bytes = 0;
      }
      bool isLast = frame.kind == FrameKind::kBadNews || frame.kind == FrameKind::kGoodbye;
      if (isLast && random() % 4 != 0) frame.kind = FrameKind::kRequest;
      Header header = encode(frame);
      if (random() % 20 == 0) header[random() % kHeaderBytes] ^= static_cast<std::byte>(1 + random() % 255);
      if (!adversary->writeBytes(header.data(), header.size())) break;
      if (!adversary->writeBytes(payload.data(), static_cast<size_t>(frame.payloadBytes() % kPartBytes))) break;
    }
    if (random() % 2 == 0) adversary->writeBytes(payload.data(), random() % 1000);
    if (random() % 2 == 0) adversary.reset();
    if (random() % 2 == 0) std::this_thread::sleep_for(2ms);
    if (random() % 2 == 0) {
      target->close(50ms);
    } else {
      target.reset();
    }
    for (int64_t ticket = 0; ticket < kTransfers; ++ticket) {
      EXPECT_EQ(own.timesEnded(ticket), 1u) << "seed " << seed << " transfer " << ticket;
      const auto& guarded = memory[static_cast<size_t>(ticket)];
      EXPECT_TRUE(std::all_of(guarded.begin(), guarded.begin() + kGuard, [](uint8_t b) { return b == 0x5A; }) &&
                  std::all_of(guarded.end() - kGuard, guarded.end(), [](uint8_t b) { return b == 0x5A; }))
          << "seed " << seed << " transfer " << ticket;
    }
    EXPECT_LE(own.news().size(), 1u);
    friendly.reset();
  }
}

TEST_P(SideChannelFaults, APeerThatAsksAndReadsNoAnswerFillsNoMemory) {
  playPeer();
  constexpr size_t kAsks = 400'000;
  std::vector<std::byte> asks;
  Header ask = encode({FrameKind::kAsk});
  for (size_t i = 0; i < kAsks; ++i) asks.insert(asks.end(), ask.begin(), ask.end());
  ASSERT_TRUE(player->writeBytes(asks.data(), asks.size()));
  channel->send(1, 1, 0, asks.data(), 1, later());
  size_t answers = 0;
  while (auto frame = player->read()) {
    if (frame->kind == FrameKind::kEager) break;
    ASSERT_EQ(frame->kind, FrameKind::kTell);
    ++answers;
  }
  EXPECT_GT(answers, 0u);
  EXPECT_LT(answers, kAsks);
  EXPECT_WELL(record.end(1));
}

TEST_P(SideChannelFaults, CloseEndsPendingTransfersWithClosedAndLaterOnesToo) {
  playPeer();
  std::vector<uint8_t> memory(size_t{8} << 20);
  channel->receive(1, 1, 0, memory.data(), 100, later());
  channel->receive(2, -1, 0, memory.data(), 100, later());
  channel->send(3, 1, 0, memory.data(), memory.size(), later());
  auto request = player->read();
  ASSERT_TRUE(request);
  channel->close(kCloseLimit);
  for (int64_t ticket : {1, 2, 3}) expectFailure(record.end(ticket), Code::kClosed, -1, {"closed", nameOf(0)});
  channel->send(4, 1, 0, memory.data(), 1, later());
  channel->receive(5, 1, 0, memory.data(), 1, later());
  for (int64_t ticket : {4, 5}) expectFailure(record.end(ticket), Code::kClosed, -1, {"closed"});
  auto goodbye = player->read();
  EXPECT_TRUE(goodbye && goodbye->kind == FrameKind::kGoodbye);
  EXPECT_FALSE(player->read());
  channel->close(kCloseLimit);  // once more does nothing
  channel->tellBadNews({Code::kTimeout, 1, "too late"});
}

TEST_P(SideChannelFaults, CloseEndsAtItsLimitAlthoughAPeerReadsNothing) {
  playPeer();
  std::vector<uint8_t> large(size_t{64} << 20);
  channel->send(1, 1, 1, large.data(), large.size(), later());
  auto request = player->read();
  ASSERT_TRUE(request);
  player->write({FrameKind::kClear, request->id, 5});
  std::this_thread::sleep_for(50ms);  // the kernel is full
  TimePoint begun = Clock::now();
  channel->close(100ms);
  EXPECT_LT(Clock::now() - begun, 3s);
  expectFailure(record.end(1), Code::kClosed, -1, {"closed"});
}

TEST_P(SideChannelFaults, ThreadsMayPostWhileAnotherCloses) {
  for (int round = 0; round < 20; ++round) {
    Group group(GetParam(), 2);
    constexpr int kEach = 100;
    std::vector<uint8_t> memory(1000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&group, &memory, t] {
        for (int64_t i = 0; i < kEach; ++i) group.channel(0).send(t * kEach + i, 1, i, memory.data(), 1000, later());
      });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20 * round));
    group.channel(0).close(kCloseLimit);
    for (auto& thread : threads) thread.join();
    for (int64_t ticket = 0; ticket < 2 * kEach; ++ticket) EXPECT_EQ(group.record(0).timesEnded(ticket), 1u);
  }
}

TEST_P(SideChannelFaults, AListenerMayPostFromItsCallbacks) {
  // As an engine does: a timeout is told to all peers from inside onTransferEnd.
  auto ends = connectedPair(GetParam());
  Record second;
  auto other = makeChannel(1, {ends[1], -1}, second);
  SideChannel* target = nullptr;
  SideChannel::Listener listener = record.listener();
  listener.onTransferEnd = [&, inner = listener.onTransferEnd](int64_t ticket, int source, const BadNews* failure) {
    if (ticket == 1) target->tellBadNews(*failure);
    inner(ticket, source, failure);
  };
  channel = std::make_unique<SideChannel>(0, std::vector<int>{-1, ends[0]}, listener, nameOf);
  target = channel.get();
  std::vector<uint8_t> memory(10);
  channel->receive(2, 1, 5, memory.data(), memory.size(), later());
  channel->receive(1, 1, 4, memory.data(), memory.size(), Clock::now() + 20ms);
  BadNews heard = second.firstNews();
  EXPECT_EQ(heard.code, Code::kTimeout);
  EXPECT_EQ(heard.culprit, 1);
  expectFailure(record.end(2), Code::kTimeout, 1, {"tag 4"});
}

TEST_P(SideChannelFaults, NoDescriptorAndNoThreadIsLeftBehind) {
  auto count = [](const char* folder) {
    DIR* directory = ::opendir(folder);
    int entries = 0;
    while (::readdir(directory) != nullptr) ++entries;
    ::closedir(directory);
    return entries;
  };
  int fds = count("/proc/self/fd");
  int threads = count("/proc/self/task");
  {
    Group group(GetParam(), 3);
    group.channel(0).close(kCloseLimit);
    group.end(1);
  }
  EXPECT_EQ(count("/proc/self/fd"), fds);
  // The kernel takes a thread off its list a moment after whoever joins it has been woken.
  auto deadline = Clock::now() + 5s;
  while (count("/proc/self/task") > threads && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_LE(count("/proc/self/task"), threads);
  auto ends = connectedPair(GetParam());
  constexpr int kNoDescriptor = 1 << 20;
  EXPECT_THROW(makeChannel(0, {-1, ends[0], kNoDescriptor}, record), Failure);
  ::close(ends[1]);
  EXPECT_EQ(count("/proc/self/fd"), fds);
}

INSTANTIATE_TEST_SUITE_P(OverSockets, SideChannelFaults, testing::Values(Wire::kUnix, Wire::kTcp), wireName);

}  // namespace
}  // namespace clary
