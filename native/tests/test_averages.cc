// Averages of 16-bit types: in range wherever the values are, and rounded as often as docs/smddp.md says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "clary/collectives.h"
#include "gang.hpp"

namespace clary_tests {
namespace {

struct Layout {
  const char* name;
  std::vector<int> hostOf;
  const char* algorithm;
};

const std::vector<Layout> kLayouts = {
    {"two_on_a_host", {0, 0}, ""},
    {"three_on_a_host", {0, 0, 0}, ""},
    {"two_on_a_host_oneshot", {0, 0}, "shm-oneshot"},
    {"three_hosts", {0, 1, 2}, ""},
    {"four_hosts_direct", {0, 1, 2, 3}, "direct"},
    {"four_hosts_halving", {0, 1, 2, 3}, "halving-doubling"},
    {"four_hosts_ring", {0, 1, 2, 3}, "ring"},
    {"two_by_four", {0, 0, 0, 0, 1, 1, 1, 1}, ""},
    {"two_by_three_direct", {0, 0, 0, 1, 1, 1}, "direct"},
    {"two_by_two_halving", {0, 0, 1, 1}, "halving-doubling"},
    {"two_by_two_ring", {0, 0, 1, 1}, "ring"},
    {"unequal", {0, 0, 0, 1}, ""},
    {"unequal_three", {0, 1, 1, 2, 2, 2}, ""},
    {"seven", {0, 0, 0, 0, 1, 1, 1}, ""},
};

constexpr size_t kCount = 5003;
constexpr uint16_t kUnwritten = 0xffff;
// Of float16: values whose sums, but not whose averages, are above its largest, 65504.
constexpr uint16_t kFortyThousand = 0x78e2;
constexpr uint16_t kSixtyThousand = 0x7b53;
constexpr int kMostSteps = 4;  // between neighbours of float16, for a rounding after each of four additions

void expectGood(int64_t result, const clary_failure& failure) { ASSERT_EQ(0, result) << failure.text; }

class Averages : public testing::TestWithParam<Layout> {
 protected:
  GangOptions options() const {
    GangOptions it;
    it.hostOf = GetParam().hostOf;
    it.algorithm = GetParam().algorithm;
    return it;
  }
};

void expectNear(uint16_t expected, const std::vector<uint16_t>& found, const char* what) {
  for (const uint16_t bits : found) {
    ASSERT_LE(std::abs(static_cast<int>(bits) - static_cast<int>(expected)), kMostSteps)
        << what << " gave " << std::hex << bits << " for the average of " << expected;
  }
}

TEST_P(Averages, OfLargeFloat16ValuesDoNotOverflow) {
  Gang gang(options());
  gang.run([&](int rank, clary_communicator* group) {
    for (const uint16_t value : {kFortyThousand, kSixtyThousand}) {
      for (const size_t count : {size_t{3}, kCount}) {
        clary_failure failure{};
        std::vector<uint16_t> buffer(count, value);
        std::vector<uint16_t> output(count, kUnwritten);
        expectGood(
            clary_all_reduce(group, buffer.data(), output.data(), count, CLARY_FLOAT16, CLARY_AVG, 0, 0, &failure),
            failure);
        expectNear(value, output, "all_reduce");
        for (int root = 0; root < gang.size(); ++root) {
          std::fill(output.begin(), output.end(), kUnwritten);
          expectGood(
              clary_reduce(group, buffer.data(), output.data(), count, CLARY_FLOAT16, CLARY_AVG, root, 0, 0, &failure),
              failure);
          if (rank == root) expectNear(value, output, "reduce");
        }
        std::fill(output.begin(), output.end(), kUnwritten);
        std::vector<uint16_t> all(count * static_cast<size_t>(gang.size()), value);
        expectGood(clary_reduce_scatter(group, all.data(), nullptr, output.data(), count, CLARY_FLOAT16, CLARY_AVG, 0,
                                        0, &failure),
                   failure);
        expectNear(value, output, "reduce_scatter");
      }
    }
  });
}

// One host rounds once, whichever collective it is: so all give the same bits.
TEST_P(Averages, HaveTheSameBitsFromEveryReductionOfOneHost) {
  Gang gang(options());
  if (gang.hosts() > 1) GTEST_SKIP() << "hosts round between them as well";
  gang.run([&](int rank, clary_communicator* group) {
    for (const int32_t dtype : {CLARY_FLOAT16, CLARY_BFLOAT16}) {
      clary_failure failure{};
      const auto size = static_cast<size_t>(gang.size());
      std::vector<uint16_t> input(kCount * size);
      // Numbers about 1, of many lengths.
      for (size_t i = 0; i < input.size(); ++i) {
        input[i] = static_cast<uint16_t>(0x3c00 + (i * 7919 + static_cast<size_t>(rank) * 104729) % 0x3ff);
      }
      std::vector<uint16_t> expected(input.size());
      expectGood(clary_all_reduce(group, input.data(), expected.data(), input.size(), dtype, CLARY_AVG, 0, 0, &failure),
                 failure);
      std::vector<uint16_t> output(input.size());
      for (int root = 0; root < gang.size(); ++root) {
        expectGood(
            clary_reduce(group, input.data(), output.data(), input.size(), dtype, CLARY_AVG, root, 0, 0, &failure),
            failure);
        if (rank != root) continue;
        ASSERT_EQ(expected, output) << "reduce of type " << dtype;
      }
      std::vector<uint16_t> part(kCount);
      expectGood(
          clary_reduce_scatter(group, input.data(), nullptr, part.data(), kCount, dtype, CLARY_AVG, 0, 0, &failure),
          failure);
      const auto begin = expected.begin() + static_cast<ptrdiff_t>(kCount) * rank;
      ASSERT_TRUE(std::equal(part.begin(), part.end(), begin)) << "reduce_scatter of type " << dtype;
    }
  });
}

TEST_P(Averages, HaveTheSameBitsOnEveryRank) {
  Gang gang(options());
  std::vector<std::vector<uint16_t>> results(static_cast<size_t>(gang.size()));
  gang.run([&](int rank, clary_communicator* group) {
    clary_failure failure{};
    std::vector<uint16_t> buffer(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      buffer[i] = static_cast<uint16_t>((i * 7919 + static_cast<size_t>(rank) * 104729) % 0x7c00);
    }
    expectGood(clary_all_reduce(group, buffer.data(), buffer.data(), kCount, CLARY_FLOAT16, CLARY_AVG, 0, 0, &failure),
               failure);
    results[static_cast<size_t>(rank)] = buffer;
  });
  for (const auto& result : results) ASSERT_EQ(results[0], result);
  for (const uint16_t bits : results[0]) ASSERT_LT(bits, 0x7c00) << "an average of numbers is none";
}

INSTANTIATE_TEST_SUITE_P(Layouts, Averages, testing::ValuesIn(kLayouts),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace clary_tests
