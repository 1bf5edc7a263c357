// Side channels of several ranks in one process, and a record of all that their listeners were told.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "transport/side_channel.hpp"
#include "transport_fixtures.hpp"

namespace clary::test {

inline std::string nameOf(int rank) { return "rank " + std::to_string(rank) + " on algo-" + std::to_string(rank / 2 + 1); }

struct End {
  int source;
  std::optional<BadNews> failure;
};

class Record {
 public:
  SideChannel::Listener listener() {
    return {[this](const BadNews& news) { note([&] { news_.push_back(news); }); },
            [this](int peer) { note([&] { goodbyes_.push_back(peer); }); },
            [this](int64_t ticket, int source, const BadNews* failure) {
              note([&] {
                ends_[ticket].push_back({source, failure == nullptr ? std::nullopt : std::make_optional(*failure)});
                ++count_;
              });
            }};
  }

  // Wait for the end of a transfer. A failed expectation and an empty End if it does not come.
  End end(int64_t ticket) {
    std::unique_lock lock(mutex_);
    bool came = changed_.wait_for(lock, kPatience, [&] { return ends_.count(ticket) > 0; });
    EXPECT_TRUE(came) << "transfer " << ticket << " did not end";
    return came ? ends_[ticket].front() : End{-2, std::nullopt};
  }
  bool waitForEnds(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return count_ >= count; });
  }
  BadNews firstNews() {
    std::unique_lock lock(mutex_);
    bool came = changed_.wait_for(lock, kPatience, [&] { return !news_.empty(); });
    EXPECT_TRUE(came) << "no bad news came";
    return came ? news_.front() : BadNews{Code::kOk, -2, ""};
  }
  bool waitForGoodbye(int peer) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] {
      return std::find(goodbyes_.begin(), goodbyes_.end(), peer) != goodbyes_.end();
    });
  }
  bool hasEnded(int64_t ticket) {
    std::lock_guard lock(mutex_);
    return ends_.count(ticket) > 0;
  }
  // How often a transfer was told to have ended: 1, or something is wrong.
  size_t timesEnded(int64_t ticket) {
    std::lock_guard lock(mutex_);
    return ends_.count(ticket) == 0 ? 0 : ends_[ticket].size();
  }
  std::vector<BadNews> news() {
    std::lock_guard lock(mutex_);
    return news_;
  }
  std::vector<int> goodbyes() {
    std::lock_guard lock(mutex_);
    return goodbyes_;
  }

 private:
  template <typename Change>
  void note(Change change) {
    {
      std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::vector<End>> ends_;
  size_t count_ = 0;
  std::vector<BadNews> news_;
  std::vector<int> goodbyes_;
};

inline std::unique_ptr<SideChannel> makeChannel(int rank, const std::vector<int>& fds, Record& record) {
  return std::make_unique<SideChannel>(rank, fds, record.listener(), nameOf);
}

// All ranks of a group. A rank whose channel is nullptr has ended.
struct Group {
  Group(Wire wire, int size) {
    auto fds = connectedMesh(wire, size);
    for (int rank = 0; rank < size; ++rank) {
      records.push_back(std::make_unique<Record>());
      channels.push_back(makeChannel(rank, fds[static_cast<size_t>(rank)], *records.back()));
    }
  }
  // Channels end before what they tell their news to.
  ~Group() { channels.clear(); }

  SideChannel& channel(int rank) { return *channels[static_cast<size_t>(rank)]; }
  Record& record(int rank) { return *records[static_cast<size_t>(rank)]; }
  void end(int rank) { channels[static_cast<size_t>(rank)].reset(); }

  std::vector<std::unique_ptr<Record>> records;
  std::vector<std::unique_ptr<SideChannel>> channels;
};

inline TimePoint later() { return Clock::now() + kPatience; }

#define EXPECT_WELL(end_expression)                                             \
  do {                                                                          \
    auto end_value = (end_expression);                                          \
    EXPECT_FALSE(end_value.failure.has_value()) << end_value.failure->text;     \
  } while (false)

inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

// That a transfer failed so.
inline void expectFailure(const End& end, Code code, int culprit, const std::vector<std::string>& parts) {
  ASSERT_TRUE(end.failure.has_value());
  EXPECT_EQ(end.failure->code, code) << end.failure->text;
  EXPECT_EQ(end.failure->culprit, culprit) << end.failure->text;
  for (const std::string& part : parts) EXPECT_TRUE(contains(end.failure->text, part));
}

}  // namespace clary::test
