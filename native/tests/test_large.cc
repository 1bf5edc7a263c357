// Buffers above 2 GiB, where a 32-bit count would turn round: every byte is compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "clary/collectives.h"
#include "gang.hpp"

namespace clary_tests {
namespace {

constexpr size_t kCount = (size_t{1} << 31) + 12345;  // of one byte each
constexpr size_t kHalf = kCount / 2 + 7;
constexpr uint64_t kNeededKib = uint64_t{10} << 20;

// Bytes repeat after a prime number of them: a part that arrived in another place differs, wherever a counter turns.
constexpr size_t kPeriod = 1'048'583;

uint8_t valueOf(int rank, size_t place) { return static_cast<uint8_t>(place * 31 + place / 4093 + rank * 97); }

template <typename Value>
std::vector<uint8_t> period(Value value) {
  std::vector<uint8_t> block(kPeriod);
  for (size_t place = 0; place < kPeriod; ++place) block[place] = value(place);
  return block;
}

std::vector<uint8_t> periodOf(int rank) {
  return period([rank](size_t place) { return valueOf(rank, place); });
}

// Calls `act` for each piece of a buffer within one period: its begin in the buffer, its begin in the period, its size.
template <typename Act>
void eachPiece(size_t size, size_t firstPlace, Act act) {
  for (size_t at = 0; at < size;) {
    const size_t phase = (firstPlace + at) % kPeriod;
    const size_t piece = std::min(kPeriod - phase, size - at);
    act(at, phase, piece);
    at += piece;
  }
}

uint64_t availableKib() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;) {
    uint64_t kib = 0;
    if (word == "MemAvailable:" && meminfo >> kib) return kib;
  }
  return 0;
}

void fill(uint8_t* buffer, size_t size, int rank) {
  const auto block = periodOf(rank);
  eachPiece(size, 0,
            [&](size_t at, size_t phase, size_t piece) { std::memcpy(buffer + at, block.data() + phase, piece); });
}

// Number of bytes that differ from a period, whose bytes begin at `firstPlace`.
size_t numWrong(const uint8_t* buffer, size_t size, const std::vector<uint8_t>& block, size_t firstPlace = 0) {
  size_t wrong = 0;
  eachPiece(size, firstPlace, [&](size_t at, size_t phase, size_t piece) {
    if (std::memcmp(buffer + at, block.data() + phase, piece) == 0) return;
    for (size_t place = 0; place < piece; ++place) wrong += buffer[at + place] != block[phase + place];
  });
  return wrong;
}

// Memory of the two ranks, for all tests: the kernel takes longer to give pages than ranks to use them.
struct Memory {
  std::vector<uint8_t> whole = std::vector<uint8_t>(2 * kHalf);  // at least kCount
  std::vector<uint8_t> half = std::vector<uint8_t>(kHalf);
};
static_assert(2 * kHalf >= kCount);

std::string whyNot() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return "sanitizers need several times the memory; the plain build runs this";
#endif
  if (availableKib() >= kNeededKib) return "";
  return "needs 10 GiB of memory, there are " + std::to_string(availableKib()) + " KiB";
}

class Large : public testing::TestWithParam<std::vector<int>> {
 protected:
  static void SetUpTestSuite() {
    why_ = whyNot();
    if (why_.empty()) memory_ = std::make_unique<std::array<Memory, 2>>();
  }
  static void TearDownTestSuite() { memory_.reset(); }

  void SetUp() override {
    if (memory_ == nullptr) GTEST_SKIP() << why_;
    // No test may find right bytes that an earlier one has left.
    for (Memory& memory : *memory_) {
      std::memset(memory.whole.data(), 0x5a, memory.whole.size());
      std::memset(memory.half.data(), 0x5a, memory.half.size());
    }
  }
  static uint8_t* whole(int rank) { return (*memory_)[static_cast<size_t>(rank)].whole.data(); }
  static uint8_t* half(int rank) { return (*memory_)[static_cast<size_t>(rank)].half.data(); }
  GangOptions options() const {
    GangOptions it;
    it.hostOf = GetParam();
    it.slotBytes = 1u << 20;
    it.timeoutSeconds = 120;
    return it;
  }

 private:
  static inline std::string why_;
  static inline std::unique_ptr<std::array<Memory, 2>> memory_;
};

TEST_P(Large, AllReduceReachesEveryByte) {
  Gang(options()).run([&](int rank, clary_communicator* communicator) {
    uint8_t* buffer = whole(rank);
    fill(buffer, kCount, rank);
    clary_failure failure{};
    ASSERT_EQ(0, clary_all_reduce(communicator, buffer, buffer, kCount, CLARY_UINT8, CLARY_MAX, 0, 0, &failure))
        << failure.text;
    const auto greater = period([](size_t place) { return std::max(valueOf(0, place), valueOf(1, place)); });
    EXPECT_EQ(0u, numWrong(buffer, kCount, greater));
  });
}

TEST_P(Large, AllGatherReachesEveryByte) {
  Gang(options()).run([&](int rank, clary_communicator* communicator) {
    uint8_t *own = half(rank), *all = whole(rank);
    fill(own, kHalf, rank);
    clary_failure failure{};
    ASSERT_EQ(0, clary_all_gather(communicator, own, all, nullptr, kHalf, CLARY_UINT8, 0, 0, &failure)) << failure.text;
    EXPECT_EQ(0u, numWrong(all, kHalf, periodOf(0)));
    EXPECT_EQ(0u, numWrong(all + kHalf, kHalf, periodOf(1)));
  });
}

TEST_P(Large, BroadcastReachesEveryByte) {
  Gang(options()).run([&](int rank, clary_communicator* communicator) {
    uint8_t* buffer = whole(rank);
    if (rank == 1) fill(buffer, kCount, rank);
    clary_failure failure{};
    ASSERT_EQ(0, clary_broadcast(communicator, buffer, kCount, CLARY_UINT8, 1, 0, 0, &failure)) << failure.text;
    EXPECT_EQ(0u, numWrong(buffer, kCount, periodOf(1)));
  });
}

TEST_P(Large, ReduceScatterReachesEveryByte) {
  Gang(options()).run([&](int rank, clary_communicator* communicator) {
    uint8_t *all = whole(rank), *own = half(rank);
    fill(all, 2 * kHalf, rank);
    clary_failure failure{};
    ASSERT_EQ(0, clary_reduce_scatter(communicator, all, nullptr, own, kHalf, CLARY_UINT8, CLARY_MIN, 0, 0, &failure))
        << failure.text;
    const auto lesser = period([](size_t place) { return std::min(valueOf(0, place), valueOf(1, place)); });
    EXPECT_EQ(0u, numWrong(own, kHalf, lesser, static_cast<size_t>(rank) * kHalf));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Large, testing::Values(std::vector<int>{0, 0}, std::vector<int>{0, 1}),
                         [](const auto& layout) { return layout.param[1] == 0 ? "one_host" : "two_hosts"; });

}  // namespace
}  // namespace clary_tests
