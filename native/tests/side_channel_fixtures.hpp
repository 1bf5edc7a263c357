// Side channels of several ranks in one process, and a record of all that their listeners were told.
#pragma once

#include <sys/time.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "transport/frames.hpp"
#include "transport/side_channel.hpp"
#include "transport_fixtures.hpp"

namespace clary::test {

inline std::string nameOf(int rank) {
  return "rank " + std::to_string(rank) + " on algo-" + std::to_string(rank / 2 + 1);
}

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
            },
            [] { return Whereabouts{17, 1}; }};
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
    return changed_.wait_for(lock, kPatience,
                             [&] { return std::find(goodbyes_.begin(), goodbyes_.end(), peer) != goodbyes_.end(); });
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

// A peer that speaks in frames of the test's choice. Reads and writes block, for kPatience at most.
class RawPeer {
 public:
  explicit RawPeer(int fd) : fd_(fd) {
    timeval limit{std::chrono::seconds(kPatience).count(), 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  ~RawPeer() { close(); }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool writeBytes(const void* data, size_t bytes) {
    auto* at = static_cast<const std::byte*>(data);
    while (bytes > 0) {
      ssize_t written = ::send(fd_, at, bytes, MSG_NOSIGNAL);
      if (written <= 0) return false;
      at += written;
      bytes -= static_cast<size_t>(written);
    }
    return true;
  }
  bool write(const Frame& frame, const void* payload = nullptr) {
    Header header = encode(frame);
    return writeBytes(header.data(), header.size()) && writeBytes(payload, payload ? frame.payloadBytes() : 0);
  }
  // The next frame, its payload thrown away; nothing at the end of the stream.
  std::optional<Frame> read() {
    Header header;
    if (!readBytes(header.data(), header.size())) return std::nullopt;
    Frame frame = decode(header.data());
    payload_.resize(frame.payloadBytes());
    if (!readBytes(payload_.data(), payload_.size())) return std::nullopt;
    return frame;
  }
  // Of the last frame that was read.
  std::string text() const { return {reinterpret_cast<const char*>(payload_.data()), payload_.size()}; }

 private:
  bool readBytes(void* data, size_t bytes) {
    return bytes == 0 || ::recv(fd_, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }

  int fd_;
  std::vector<std::byte> payload_;
};

#define EXPECT_WELL(end_expression)                                         \
  do {                                                                      \
    auto end_value = (end_expression);                                      \
    EXPECT_FALSE(end_value.failure.has_value()) << end_value.failure->text; \
  } while (false)

inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

// The number of seconds that a text names after some words, or -1.
inline double secondsAfter(const std::string& text, const std::string& words) {
  size_t at = text.find(words);
  return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + words.size(), nullptr);
}

// That a transfer failed so.
inline void expectFailure(const End& end, Code code, int culprit, const std::vector<std::string>& parts) {
  ASSERT_TRUE(end.failure.has_value());
  EXPECT_EQ(end.failure->code, code) << end.failure->text;
  EXPECT_EQ(end.failure->culprit, culprit) << end.failure->text;
  for (const std::string& part : parts) EXPECT_TRUE(contains(end.failure->text, part));
}

}  // namespace clary::test
