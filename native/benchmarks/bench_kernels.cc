// Speed of reduceInto and of copies beside memcpy, on one core: one JSON object a line.
//
//   bench_kernels [set ...]     the sets of instructions to measure; none means the one that is chosen by itself
//
// `output_gb_per_s` counts the bytes written to the destination alone, in 10^9 bytes a second, at the median of
// kRounds rounds. Sizes are of one buffer: 64 KiB lies in a core's cache, 1 MiB in a shared one, 32 MiB mostly in
// memory.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "reduce/kernels.hpp"

namespace clary {
namespace {

constexpr size_t kSizes[] = {64 << 10, 1 << 20, 32 << 20};
constexpr size_t kBytesPerRound = 128 << 20;  // of output: some 10 ms
constexpr int kRounds = 9;
constexpr int kMaxSources = 4;

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<void, FreeMemory>;

// Page aligned, as shared memory and large tensors are, and touched. Zeros: sums of them stay as fast as they are.
Buffer makeBuffer(size_t bytes) {
  constexpr size_t kPage = 4096;
  Buffer buffer(std::aligned_alloc(kPage, bytes));
  if (buffer == nullptr) {
    std::fprintf(stderr, "bench_kernels: no memory for a buffer of %zu bytes\n", bytes);
    std::exit(1);
  }
  std::memset(buffer.get(), 0, bytes);
  return buffer;
}

template <class Function>
double medianSeconds(size_t bytes, const Function& once) {
  const size_t repeats = std::max<size_t>(1, kBytesPerRound / bytes);
  std::vector<double> seconds;
  once();
  for (int round = 0; round < kRounds; ++round) {
    const TimePoint start = Clock::now();
    for (size_t i = 0; i < repeats; ++i) {
      once();
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(repeats));
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
}

void report(const std::string& what, size_t bytes, double seconds) {
  std::printf("{\"benchmark\": \"kernels\", %s, \"bytes\": %zu, \"seconds\": %.3e, \"output_gb_per_s\": %.2f}\n",
              what.c_str(), bytes, seconds, static_cast<double>(bytes) / seconds * 1e-9);
  std::fflush(stdout);
}

void measureReduce(Dtype dtype, int num_sources, const std::string& placement, int divisor, size_t bytes) {
  std::vector<Buffer> buffers;
  std::vector<const void*> sources;
  for (int s = 0; s < num_sources; ++s) {
    buffers.push_back(makeBuffer(bytes));
    sources.push_back(buffers.back().get());
  }
  const Buffer output = makeBuffer(bytes);
  void* destination = placement == "in_place" ? buffers[0].get() : output.get();
  const Placement written = placement == "past_cache" ? Placement::kPastCache : Placement::kCached;
  const double seconds = medianSeconds(bytes, [&] {
    reduceInto(destination, sources.data(), num_sources, bytes / elementBytes(dtype), dtype, ReduceOp::kSum, divisor,
               written);
  });
  report("\"call\": \"reduceInto\", \"set\": \"" + std::string(instructionSet()) + "\", \"dtype\": \"" +
             dtypeName(dtype) + "\", \"num_sources\": " + std::to_string(num_sources) + ", \"placement\": \"" +
             placement + "\", \"divisor\": " + std::to_string(divisor),
         bytes, seconds);
}

void measureCopies(size_t bytes) {
  const Buffer from = makeBuffer(bytes);
  const Buffer to = makeBuffer(bytes);
  const auto measure = [&](const std::string& name, auto copy) {
    report("\"call\": \"" + name + "\"", bytes, medianSeconds(bytes, [&] { copy(to.get(), from.get(), bytes); }));
  };
  measure("memcpy", std::memcpy);
  measure("copyBytes", copyBytes);
  measure("copyPastCache", copyPastCache);
}

void measureSet() {
  for (const size_t bytes : kSizes) {
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16}) {
      for (const int num_sources : {2, kMaxSources}) {
        measureReduce(dtype, num_sources, "separate", 1, bytes);
      }
    }
    measureReduce(Dtype::kFloat32, 2, "in_place", 1, bytes);
    measureReduce(Dtype::kFloat32, 2, "past_cache", 1, bytes);
    measureReduce(Dtype::kFloat32, 2, "separate", 2, bytes);
    measureReduce(Dtype::kFloat32, 2, "separate", 3, bytes);
  }
}

int measureAll(const std::vector<std::string>& sets) {
  for (const size_t bytes : kSizes) {
    measureCopies(bytes);
  }
  for (const std::string& set : sets) {
    if (!useInstructionSet(set.c_str())) {
      std::fprintf(stderr, "bench_kernels: this processor lacks the set \"%s\"; try avx512, avx2 or baseline\n",
                   set.c_str());
      return 1;
    }
    measureSet();
  }
  return 0;
}

}  // namespace
}  // namespace clary

int main(int argc, char** argv) {
  std::vector<std::string> sets(argv + 1, argv + argc);
  if (sets.empty()) {
    sets.push_back(clary::instructionSet());
  }
  return clary::measureAll(sets);
}
