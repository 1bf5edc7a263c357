// Every collective on every kind of layout, against sums computed the plain way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "clary/collectives.h"
#include "gang.hpp"

namespace clary_tests {
namespace {

struct Case {
  const char* name;
  std::vector<int> hostOf;
  const char* algorithm;
};

// Ranks alone, together, in equal and unequal hosts, and with hosts' ranks interleaved.
const std::vector<Case> kCases = {
    {"one", {0}, ""},
    {"two_on_a_host", {0, 0}, ""},
    {"three_on_a_host", {0, 0, 0}, ""},
    {"five_on_a_host", {0, 0, 0, 0, 0}, ""},
    {"two_hosts", {0, 1}, ""},
    {"three_hosts", {0, 1, 2}, ""},
    {"two_by_two", {0, 0, 1, 1}, ""},
    {"interleaved", {0, 1, 0, 1}, ""},
    {"unequal", {0, 0, 0, 1}, ""},
    {"unequal_three", {0, 1, 1, 2, 2, 2}, ""},
    {"two_by_two_oneshot", {0, 0, 1, 1}, "oneshot"},
    {"two_by_two_ring", {0, 0, 1, 1}, "ring"},
    {"three_hosts_ring", {0, 1, 2}, "ring"},
    {"four_hosts_direct", {0, 1, 2, 3}, "direct"},
    {"four_hosts_halving", {0, 1, 2, 3}, "halving-doubling"},
    {"two_on_a_host_oneshot", {0, 0}, "shm-oneshot"},
    {"two_on_a_host_twophase", {0, 0}, "shm-twophase"},
    {"two_on_a_host_single_copy", {0, 0}, "single-copy"},
    {"three_on_a_host_single_copy", {0, 0, 0}, "single-copy"},
    {"two_by_two_single_copy", {0, 0, 1, 1}, "single-copy"},
};

// Sizes in elements: none, one, odd, around a slot (2048 floats), several segments, many.
const std::vector<size_t> kCounts = {0, 1, 3, 127, 2047, 2048, 2049, 10007, 70001};

// A value that tells rank and place apart, small enough for exact float sums.
float valueOf(int rank, size_t i) { return static_cast<float>((rank + 1) * 1000 + static_cast<int>(i % 977)); }

std::vector<float> bufferOf(int rank, size_t count) {
  std::vector<float> buffer(count);
  for (size_t i = 0; i < count; ++i) buffer[i] = valueOf(rank, i);
  return buffer;
}

void expectGood(int64_t result, const clary_failure& failure) { ASSERT_EQ(0, result) << failure.text; }

class Collectives : public testing::TestWithParam<Case> {
 protected:
  GangOptions options() const {
    GangOptions it;
    it.hostOf = GetParam().hostOf;
    it.algorithm = GetParam().algorithm;
    return it;
  }
};

TEST_P(Collectives, AllReduceSumsOutOfPlaceAndInPlace) {
  Gang gang(options());
  gang.run([&](int rank, clary_communicator* group) {
    for (const size_t count : kCounts) {
      const auto input = bufferOf(rank, count);
      std::vector<float> output(count, -1);
      std::vector<float> expected(count, 0);
      for (int r = 0; r < gang.size(); ++r) {
        for (size_t i = 0; i < count; ++i) expected[i] += valueOf(r, i);
      }
      clary_failure failure{};
      expectGood(clary_all_reduce(group, input.data(), output.data(), count, CLARY_FLOAT32, CLARY_SUM, 0, 0, &failure),
                 failure);
      ASSERT_EQ(expected, output) << count;
      ASSERT_EQ(bufferOf(rank, count), input) << "the input was written";
      auto same = input;
      expectGood(clary_all_reduce(group, same.data(), same.data(), count, CLARY_FLOAT32, CLARY_SUM, 0, 0, &failure),
                 failure);
      ASSERT_EQ(expected, same) << count;
      auto averaged = input;
      expectGood(
          clary_all_reduce(group, averaged.data(), averaged.data(), count, CLARY_FLOAT32, CLARY_AVG, 0, 0, &failure),
          failure);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(expected[i] / static_cast<float>(gang.size()), averaged[i]);
    }
  });
}

TEST_P(Collectives, AllReduceTakesEveryTypeAndOperation) {
  Gang gang(options());
  gang.run([&](int rank, clary_communicator* group) {
    clary_failure failure{};
    std::vector<int64_t> longs(5000);
    std::vector<uint8_t> bits(5000);
    for (size_t i = 0; i < longs.size(); ++i) {
      longs[i] = static_cast<int64_t>(i) * 3 - 7000 + rank;
      bits[i] = static_cast<uint8_t>((i * 37 + static_cast<size_t>(rank) * 11) & 0xff);
    }
    auto most = longs;
    expectGood(clary_all_reduce(group, most.data(), most.data(), most.size(), CLARY_INT64, CLARY_MAX, 0, 0, &failure),
               failure);
    auto least = longs;
    expectGood(
        clary_all_reduce(group, least.data(), least.data(), least.size(), CLARY_INT64, CLARY_MIN, 0, 0, &failure),
        failure);
    auto both = bits;
    expectGood(clary_all_reduce(group, both.data(), both.data(), both.size(), CLARY_UINT8, CLARY_BAND, 0, 0, &failure),
               failure);
    for (size_t i = 0; i < longs.size(); ++i) {
      ASSERT_EQ(longs[i] - rank + gang.size() - 1, most[i]);
      ASSERT_EQ(longs[i] - rank, least[i]);
      uint8_t expected = 0xff;
      for (int r = 0; r < gang.size(); ++r) {
        expected &= static_cast<uint8_t>((i * 37 + static_cast<size_t>(r) * 11) & 0xff);
      }
      ASSERT_EQ(expected, both[i]);
    }
  });
}

TEST_P(Collectives, AllGatherCollectsInRankOrder) {
  Gang gang(options());
  gang.run([&](int rank, clary_communicator* group) {
    for (const size_t count : kCounts) {
      const size_t size = static_cast<size_t>(gang.size());
      std::vector<float> expected;
      for (int r = 0; r < gang.size(); ++r) {
        const auto chunk = bufferOf(r, count);
        expected.insert(expected.end(), chunk.begin(), chunk.end());
      }
      const auto input = bufferOf(rank, count);
      std::vector<float> output(count * size, -1);
      clary_failure failure{};
      expectGood(clary_all_gather(group, input.data(), output.data(), nullptr, count, CLARY_FLOAT32, 0, 0, &failure),
                 failure);
      ASSERT_EQ(expected, output) << count;
      // Chunks that lie apart, the own one in place.
      std::vector<std::vector<float>> chunks(size, std::vector<float>(count, -1));
      chunks[static_cast<size_t>(rank)] = input;
      std::vector<void*> places;
      for (auto& chunk : chunks) places.push_back(chunk.data());
      expectGood(clary_all_gather(group, places[static_cast<size_t>(rank)], nullptr, places.data(), count,
                                  CLARY_FLOAT32, 0, 0, &failure),
                 failure);
      for (int r = 0; r < gang.size(); ++r) ASSERT_EQ(bufferOf(r, count), chunks[static_cast<size_t>(r)]);
    }
  });
}

TEST_P(Collectives, ReduceScatterLeavesEachItsChunk) {
  Gang gang(options());
  gang.run([&](int rank, clary_communicator* group) {
    for (const size_t count : kCounts) {
      const size_t size = static_cast<size_t>(gang.size());
      const auto input = bufferOf(rank, count * size);
      std::vector<float> expected(count, 0);
      for (int r = 0; r < gang.size(); ++r) {
        for (size_t i = 0; i < count; ++i) expected[i] += valueOf(r, static_cast<size_t>(rank) * count + i);
      }
      std::vector<float> output(count, -1);
      clary_failure failure{};
      expectGood(clary_reduce_scatter(group, input.data(), nullptr, output.data(), count, CLARY_FLOAT32, CLARY_SUM, 0,
                                      0, &failure),
                 failure);
      ASSERT_EQ(expected, output) << count;
      auto same = input;
      float* place = same.data() + static_cast<size_t>(rank) * count;
      expectGood(
          clary_reduce_scatter(group, same.data(), nullptr, place, count, CLARY_FLOAT32, CLARY_SUM, 0, 0, &failure),
          failure);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), place)) << count;
    }
  });
}

TEST_P(Collectives, RootedOperationsWorkForEveryRoot) {
  Gang gang(options());
  gang.run([&](int rank, clary_communicator* group) {
    const size_t size = static_cast<size_t>(gang.size());
    for (int root = 0; root < gang.size(); ++root) {
      for (const size_t count : kCounts) {
        clary_failure failure{};
        auto buffer = bufferOf(rank, count);
        expectGood(clary_broadcast(group, buffer.data(), count, CLARY_FLOAT32, root, 0, 0, &failure), failure);
        ASSERT_EQ(bufferOf(root, count), buffer) << "broadcast " << count;

        const auto input = bufferOf(rank, count);
        std::vector<float> sum(count, -1);
        expectGood(clary_reduce(group, input.data(), rank == root ? sum.data() : nullptr, count, CLARY_FLOAT32,
                                CLARY_SUM, root, 0, 0, &failure),
                   failure);
        std::vector<float> collected(count * size, -1);
        expectGood(clary_gather(group, input.data(), rank == root ? collected.data() : nullptr, nullptr, count,
                                CLARY_FLOAT32, root, 0, 0, &failure),
                   failure);
        if (rank == root) {
          for (size_t i = 0; i < count; ++i) {
            float expected = 0;
            for (int r = 0; r < gang.size(); ++r) expected += valueOf(r, i);
            ASSERT_EQ(expected, sum[i]) << "reduce";
          }
          for (size_t r = 0; r < size; ++r) {
            const auto chunk = bufferOf(static_cast<int>(r), count);
            ASSERT_TRUE(std::equal(chunk.begin(), chunk.end(), collected.data() + r * count)) << "gather";
          }
        }
        const auto all = bufferOf(root, count * size);
        std::vector<float> piece(count, -1);
        expectGood(clary_scatter(group, rank == root ? all.data() : nullptr, nullptr, piece.data(), count,
                                 CLARY_FLOAT32, root, 0, 0, &failure),
                   failure);
        ASSERT_TRUE(std::equal(piece.begin(), piece.end(), all.data() + static_cast<size_t>(rank) * count))
            << "scatter";
      }
    }
  });
}

TEST_P(Collectives, AllToAllTakesChunksOfAnyLength) {
  Gang gang(options());
  gang.run([&](int rank, clary_communicator* group) {
    const int size = gang.size();
    const auto countOf = [&](int from, int to) { return static_cast<uint64_t>((from * 131 + to * 17) % 5) * 1201; };
    std::vector<uint64_t> sending;
    std::vector<uint64_t> receiving;
    std::vector<float> input;
    std::vector<float> expected;
    for (int r = 0; r < size; ++r) {
      sending.push_back(countOf(rank, r));
      receiving.push_back(countOf(r, rank));
      for (uint64_t i = 0; i < countOf(rank, r); ++i) input.push_back(valueOf(rank, i) + static_cast<float>(r));
      for (uint64_t i = 0; i < countOf(r, rank); ++i) expected.push_back(valueOf(r, i) + static_cast<float>(rank));
    }
    std::vector<float> output(expected.size(), -1);
    clary_failure failure{};
    expectGood(clary_all_to_all(group, input.data(), nullptr, sending.data(), output.data(), nullptr, receiving.data(),
                                0, CLARY_FLOAT32, 0, 0, &failure),
               failure);
    ASSERT_EQ(expected, output);
    std::vector<float> equal(static_cast<size_t>(size) * 3001);
    for (size_t i = 0; i < equal.size(); ++i) equal[i] = valueOf(rank, i);
    std::vector<float> swapped(equal.size(), -1);
    expectGood(clary_all_to_all(group, equal.data(), nullptr, nullptr, swapped.data(), nullptr, nullptr, 3001,
                                CLARY_FLOAT32, 0, 0, &failure),
               failure);
    for (int r = 0; r < size; ++r) {
      for (size_t i = 0; i < 3001; ++i) {
        ASSERT_EQ(valueOf(r, static_cast<size_t>(rank) * 3001 + i), swapped[static_cast<size_t>(r) * 3001 + i]);
      }
    }
  });
}

// Slots and outboxes are used in turn by operations of all kinds: any order must work.
TEST_P(Collectives, AnySequenceOfOperationsIsRight) {
  Gang gang(options());
  gang.run([&](int rank, clary_communicator* group) {
    uint32_t state = 12345;  // equal on all ranks: the sequence is the same for all
    const auto next = [&state](uint32_t below) {
      state = state * 1664525u + 1013904223u;
      return (state >> 8) % below;
    };
    std::vector<int64_t> tickets;
    std::vector<std::vector<int32_t>> kept(300);
    for (size_t turn = 0; turn < kept.size(); ++turn) {
      clary_failure failure{};
      const size_t count = next(3) == 0 ? next(20000) : next(700);
      const int root = static_cast<int>(next(static_cast<uint32_t>(gang.size())));
      const int asynchronous = static_cast<int>(next(2));
      auto& buffer = kept[turn];
      int64_t result = 0;
      switch (next(5)) {
        case 0:
          buffer.assign(count, rank + 1);
          result = clary_all_reduce(group, buffer.data(), buffer.data(), count, CLARY_INT32, CLARY_SUM, asynchronous, 0,
                                    &failure);
          break;
        case 1:
          buffer.assign(count, rank == root ? gang.size() * (gang.size() + 1) / 2 : -1);
          result = clary_broadcast(group, buffer.data(), count, CLARY_INT32, root, asynchronous, 0, &failure);
          break;
        case 2:
          result = clary_barrier(group, asynchronous, 0, &failure);
          break;
        case 3: {
          std::vector<int32_t> all(count * static_cast<size_t>(gang.size()), rank + 1);
          buffer.assign(count, 0);
          result = clary_reduce_scatter(group, all.data(), nullptr, buffer.data(), count, CLARY_INT32, CLARY_SUM, 0, 0,
                                        &failure);
          break;
        }
        default: {
          std::vector<int32_t> mine(count, gang.size() * (gang.size() + 1) / 2);
          buffer.assign(count * static_cast<size_t>(gang.size()), 0);
          result = clary_all_gather(group, mine.data(), buffer.data(), nullptr, count, CLARY_INT32, 0, 0, &failure);
        }
      }
      ASSERT_GE(result, 0) << failure.text;
      if (result > 0) tickets.push_back(result);
    }
    for (const int64_t ticket : tickets) {
      clary_failure failure{};
      ASSERT_EQ(0, clary_wait(group, ticket, -1, nullptr, &failure)) << failure.text;
    }
    for (const auto& buffer : kept) {
      for (const int32_t value : buffer) ASSERT_EQ(gang.size() * (gang.size() + 1) / 2, value);
    }
  });
}

TEST_P(Collectives, EveryRankEndsWithTheSameBitsInEveryRun) {
  std::vector<float> first;
  for (int attempt = 0; attempt < 2; ++attempt) {
    Gang gang(options());
    std::vector<std::vector<float>> results(static_cast<size_t>(gang.size()));
    gang.run([&](int rank, clary_communicator* group) {
      std::vector<float> buffer(30011);
      for (size_t i = 0; i < buffer.size(); ++i) {
        // Sums of these depend on the order in which they are added.
        buffer[i] = std::ldexp(1.0f + static_cast<float>(i % 1021) / 3.0f, (rank * 7 + static_cast<int>(i)) % 30);
      }
      clary_failure failure{};
      expectGood(clary_all_reduce(group, buffer.data(), buffer.data(), buffer.size(), CLARY_FLOAT32, CLARY_SUM, 0, 0,
                                  &failure),
                 failure);
      results[static_cast<size_t>(rank)] = buffer;
    });
    if (first.empty()) first = results[0];
    for (const auto& result : results) {
      ASSERT_EQ(0, std::memcmp(first.data(), result.data(), first.size() * sizeof(float)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Collectives, testing::ValuesIn(kCases),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace clary_tests
