// Connected sockets and recognizable bytes for tests of the transport.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/types.hpp"

namespace clary::test {

using namespace std::chrono_literals;

// No test waits longer for something that should happen.
inline constexpr auto kPatience = 20s;

enum class Wire { kUnix, kTcp };

inline std::array<int, 2> connectedPair(Wire wire) {
  std::array<int, 2> ends{-1, -1};
  auto must = [](int result, const char* what) {
    if (result < 0) throw std::runtime_error(what);
    return result;
  };
  if (wire == Wire::kUnix) {
    must(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), "socketpair");
    return ends;
  }
  int listener = must(::socket(AF_INET, SOCK_STREAM, 0), "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  must(::bind(listener, reinterpret_cast<sockaddr*>(&address), length), "bind");
  must(::listen(listener, 1), "listen");
  must(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), "getsockname");
  ends[0] = must(::socket(AF_INET, SOCK_STREAM, 0), "socket");
  must(::connect(ends[0], reinterpret_cast<sockaddr*>(&address), length), "connect");
  ends[1] = must(::accept(listener, nullptr, nullptr), "accept");
  ::close(listener);
  return ends;
}

// For every rank its descriptors to all: [rank][peer], -1 for itself.
inline std::vector<std::vector<int>> connectedMesh(Wire wire, int size) {
  auto count = static_cast<size_t>(size);
  std::vector<std::vector<int>> fds(count, std::vector<int>(count, -1));
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a + 1; b < count; ++b) {
      auto ends = connectedPair(wire);
      fds[a][b] = ends[0];
      fds[b][a] = ends[1];
    }
  }
  return fds;
}

// Bytes that no other (sender, number) has, and that differ from place to place.
inline std::vector<uint8_t> pattern(int sender, int64_t number, size_t bytes) {
  std::vector<uint8_t> data(bytes);
  uint64_t state = static_cast<uint64_t>(sender) * 1'000'003 + static_cast<uint64_t>(number) * 7919 + 1;
  for (uint8_t& byte : data) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<uint8_t>(state >> 56);
  }
  return data;
}

inline std::string wireName(const testing::TestParamInfo<Wire>& info) {
  return info.param == Wire::kUnix ? "Unix" : "Tcp";
}

}  // namespace clary::test
