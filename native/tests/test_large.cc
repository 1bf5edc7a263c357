// Buffers above 2 GiB, where a 32-bit count would turn round: every byte is compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "clary/collectives.h"
#include "gang.hpp"

namespace clary_tests {
namespace {

constexpr size_t kCount = (size_t{1} << 31) + 12345;  // of one byte each
constexpr size_t kHalf = kCount / 2 + 7;
constexpr uint64_t kNeededKib = uint64_t{10} << 20;

uint8_t valueOf(int rank, size_t place) { return static_cast<uint8_t>(place * 31 + place / 4093 + rank * 97); }

uint64_t availableKib() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;) {
    uint64_t kib = 0;
    if (word == "MemAvailable:" && meminfo >> kib) return kib;
  }
  return 0;
}

void fill(std::vector<uint8_t>& buffer, int rank) {
  for (size_t place = 0; place < buffer.size(); ++place) buffer[place] = valueOf(rank, place);
}

class Large : public testing::TestWithParam<std::vector<int>> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers need several times the memory; the plain build runs this";
#endif
    if (availableKib() < kNeededKib) GTEST_SKIP() << "needs 10 GiB of memory, there are " << availableKib() << " KiB";
  }
  GangOptions options() const {
    GangOptions it;
    it.hostOf = GetParam();
    it.slotBytes = 1u << 20;
    it.timeoutSeconds = 120;
    return it;
  }
};

TEST_P(Large, AllReduceReachesEveryByte) {
  Gang(options()).run([&](int rank, clary_communicator* communicator) {
    std::vector<uint8_t> buffer(kCount);
    fill(buffer, rank);
    clary_failure failure{};
    ASSERT_EQ(
        0, clary_all_reduce(communicator, buffer.data(), buffer.data(), kCount, CLARY_UINT8, CLARY_MAX, 0, 0, &failure))
        << failure.text;
    size_t wrong = 0;
    for (size_t place = 0; place < kCount; ++place) {
      wrong += buffer[place] != std::max(valueOf(0, place), valueOf(1, place));
    }
    EXPECT_EQ(0u, wrong);
  });
}

TEST_P(Large, AllGatherReachesEveryByte) {
  Gang(options()).run([&](int rank, clary_communicator* communicator) {
    std::vector<uint8_t> own(kHalf), all(2 * kHalf);
    fill(own, rank);
    clary_failure failure{};
    ASSERT_EQ(0, clary_all_gather(communicator, own.data(), all.data(), nullptr, kHalf, CLARY_UINT8, 0, 0, &failure))
        << failure.text;
    size_t wrong = 0;
    for (size_t place = 0; place < kHalf; ++place) {
      wrong += (all[place] != valueOf(0, place)) + (all[kHalf + place] != valueOf(1, place));
    }
    EXPECT_EQ(0u, wrong);
  });
}

TEST_P(Large, BroadcastReachesEveryByte) {
  Gang(options()).run([&](int rank, clary_communicator* communicator) {
    std::vector<uint8_t> buffer(kCount);
    if (rank == 1) fill(buffer, rank);
    clary_failure failure{};
    ASSERT_EQ(0, clary_broadcast(communicator, buffer.data(), kCount, CLARY_UINT8, 1, 0, 0, &failure)) << failure.text;
    size_t wrong = 0;
    for (size_t place = 0; place < kCount; ++place) wrong += buffer[place] != valueOf(1, place);
    EXPECT_EQ(0u, wrong);
  });
}

TEST_P(Large, ReduceScatterReachesEveryByte) {
  Gang(options()).run([&](int rank, clary_communicator* communicator) {
    std::vector<uint8_t> all(2 * kHalf), own(kHalf);
    fill(all, rank);
    clary_failure failure{};
    ASSERT_EQ(0, clary_reduce_scatter(communicator, all.data(), nullptr, own.data(), kHalf, CLARY_UINT8, CLARY_MIN, 0,
                                      0, &failure))
        << failure.text;
    size_t wrong = 0;
    for (size_t place = 0; place < kHalf; ++place) {
      const size_t at = static_cast<size_t>(rank) * kHalf + place;
      wrong += own[place] != std::min(valueOf(0, at), valueOf(1, at));
    }
    EXPECT_EQ(0u, wrong);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Large, testing::Values(std::vector<int>{0, 0}, std::vector<int>{0, 1}),
                         [](const auto& layout) { return layout.param[1] == 0 ? "one_host" : "two_hosts"; });

}  // namespace
}  // namespace clary_tests
