// Ranks as threads of one process, connected as bootstrap would connect processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "clary/collectives.h"
#include "transport_fixtures.hpp"

namespace clary_tests {

struct GangOptions {
  std::vector<int> hostOf;  // layout: a host index a rank
  uint64_t slotBytes = 8192;
  double timeoutSeconds = 30;
  std::string algorithm;
  clary::test::Wire wire = clary::test::Wire::kUnix;
  bool hasSides = true;  // streams of the side channel; without them nobody hears bad news
};

// Everything a rank needs to open its communicator; descriptors pass to clary_create.
class Gang {
 public:
  explicit Gang(GangOptions options) : options_(std::move(options)) {
    const int size = this->size();
    for (const int host : options_.hostOf) hosts_ = std::max(hosts_, host + 1);
    for (int host = 0; host < hosts_; ++host) names_.push_back("algo-" + std::to_string(host + 1));
    lanes_.assign(size, std::vector<int32_t>(size, -1));
    sides_.assign(size, std::vector<int32_t>(size, -1));
    for (int a = 0; a < size; ++a) {
      for (int b = a + 1; b < size; ++b) {
        if (options_.hasSides) connect(sides_, a, b);
        if (options_.hostOf[a] != options_.hostOf[b]) connect(lanes_, a, b);
      }
    }
    for (int host = 0; host < hosts_; ++host) {
      const int ranks = ranksOn(host);
      const int fd = memfd_create("clary-test", MFD_CLOEXEC);
      EXPECT_EQ(0, ftruncate(fd, static_cast<off_t>(clary_segment_bytes(ranks, options_.slotBytes))));
      segments_.push_back(fd);
    }
  }
  ~Gang() {
    for (const int fd : segments_) close(fd);
  }

  int size() const { return static_cast<int>(options_.hostOf.size()); }
  int hosts() const { return hosts_; }
  // The descriptor of a rank's side stream to a peer, as long as the rank has not closed it.
  int sideStream(int rank, int peer) const { return sides_[rank][peer]; }
  // The shared memory of a rank's host, as long as the gang lives.
  int segment(int rank) const { return segments_[options_.hostOf[rank]]; }

  clary_communicator* open(int rank, clary_failure* failure) {
    std::vector<const char*> names;
    for (const auto& name : names_) names.push_back(name.c_str());
    clary_group group{};
    group.abi_version = CLARY_ABI_VERSION;
    group.rank = rank;
    group.size = size();
    group.name = "test";
    group.host_of_rank = options_.hostOf.data();
    group.host_names = names.data();
    const int host = options_.hostOf[rank];
    group.segment_fd = ranksOn(host) > 1 ? dup(segments_[host]) : -1;
    group.segment_bytes = clary_segment_bytes(ranksOn(host), options_.slotBytes);
    group.slot_bytes = options_.slotBytes;
    group.lane_fds = lanes_[rank].data();
    group.side_fds = sides_[rank].data();
    group.timeout_s = options_.timeoutSeconds;
    group.link_latency_s = 50e-6;
    group.link_bytes_per_s = 125e6;
    group.algorithm = options_.algorithm.c_str();
    return clary_create(&group, failure);
  }

  // After a fork: close what belongs to the other ranks; -1 closes everything.
  void keepOnly(int rank) {
    for (int other = 0; other < size(); ++other) {
      for (int peer = 0; other != rank && peer < size(); ++peer) {
        if (lanes_[other][peer] >= 0) close(lanes_[other][peer]);
        if (sides_[other][peer] >= 0) close(sides_[other][peer]);
      }
    }
  }

  // Runs `act` for every rank in a thread of its own, which destroys its communicator as soon as `act` returns.
  void run(const std::function<void(int rank, clary_communicator*)>& act) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([this, rank, &act] {
        clary_failure failure{};
        clary_communicator* communicator = open(rank, &failure);
        ASSERT_NE(nullptr, communicator) << failure.text;
        act(rank, communicator);
        clary_destroy(communicator);
      });
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  int ranksOn(int host) const {
    int num = 0;
    for (const int each : options_.hostOf) num += each == host;
    return num;
  }
  void connect(std::vector<std::vector<int32_t>>& table, int a, int b) const {
    const auto pair = clary::test::connectedPair(options_.wire);
    table[a][b] = pair[0];
    table[b][a] = pair[1];
  }

  GangOptions options_;
  int hosts_ = 0;
  std::vector<std::string> names_;
  std::vector<std::vector<int32_t>> lanes_;
  std::vector<std::vector<int32_t>> sides_;
  std::vector<int> segments_;
};

}  // namespace clary_tests
