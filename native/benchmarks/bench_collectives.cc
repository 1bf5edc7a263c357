// Collectives among processes of one machine, without any framework: what the core itself costs.
//   bench_collectives RANKS [HOSTS] [COLLECTIVE] [ALGORITHM]
// One JSON line a size: median and quartiles of the slowest rank, in microseconds, and bytes moved against memcpy.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "clary/collectives.h"

namespace {

constexpr int kMostSamples = 400;

// Times of all ranks, in memory that they share.
struct Board {
  std::atomic<int> arrived[64];
  double microseconds[64][kMostSamples];
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int samplesOf(size_t bytes) { return bytes <= 65536 ? 400 : bytes <= (4u << 20) ? 100 : 25; }

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int hosts = argc > 2 ? std::atoi(argv[2]) : 1;
  const std::string collective = argc > 3 ? argv[3] : "all_reduce";
  const char* algorithm = argc > 4 ? argv[4] : "";
  const size_t most = 128u << 20;
  std::vector<int32_t> hostOf(ranks);
  std::vector<std::string> names;
  std::vector<const char*> namePointers;
  for (int r = 0; r < ranks; ++r) hostOf[r] = r * hosts / ranks;
  for (int h = 0; h < hosts; ++h) names.push_back("algo-" + std::to_string(h + 1));
  for (auto& name : names) namePointers.push_back(name.c_str());
  std::vector<std::vector<int32_t>> lanes(ranks, std::vector<int32_t>(ranks, -1));
  auto sides = lanes;
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 1;
      sides[a][b] = pair[0];
      sides[b][a] = pair[1];
      if (hostOf[a] == hostOf[b]) continue;
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 1;
      lanes[a][b] = pair[0];
      lanes[b][a] = pair[1];
    }
  }
  const int perHost = ranks / hosts;
  const char* slotText = std::getenv("SLOT");
  const uint64_t slot = slotText == nullptr ? (1u << 20) : std::strtoull(slotText, nullptr, 10);
  std::vector<int> segments;
  for (int h = 0; h < hosts; ++h) {
    segments.push_back(memfd_create("bench", 0));
    if (ftruncate(segments.back(), static_cast<off_t>(clary_segment_bytes(perHost, slot))) != 0) return 1;
  }
  auto* board =
      static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    for (int other = 0; other < ranks; ++other) {
      for (int peer = 0; other != rank && peer < ranks; ++peer) {
        if (lanes[other][peer] >= 0) close(lanes[other][peer]);
        if (sides[other][peer] >= 0) close(sides[other][peer]);
      }
    }
    clary_group group{};
    group.abi_version = CLARY_ABI_VERSION;
    group.rank = rank;
    group.size = ranks;
    group.name = "bench";
    group.host_of_rank = hostOf.data();
    group.host_names = namePointers.data();
    group.segment_fd = perHost > 1 ? segments[hostOf[rank]] : -1;
    group.segment_bytes = clary_segment_bytes(perHost, slot);
    group.slot_bytes = slot;
    group.lane_fds = lanes[rank].data();
    group.side_fds = sides[rank].data();
    group.timeout_s = 30;
    group.link_latency_s = 50e-6;
    group.link_bytes_per_s = 1e9;
    group.algorithm = algorithm;
    clary_failure failure{};
    clary_communicator* it = clary_create(&group, &failure);
    if (it == nullptr) {
      std::fprintf(stderr, "%s\n", failure.text);
      _exit(1);
    }
    std::vector<float> input(most / 4, 1.0f);
    std::vector<float> output(most / 4, 0.0f);
    for (size_t bytes = 4; bytes <= most; bytes *= 4) {
      const uint64_t count = bytes / 4;
      const auto act = [&] {
        if (collective == "all_reduce") {
          // In place, as torch does; halved so that thousands of rounds do not overflow.
          clary_all_reduce(it, output.data(), output.data(), count, CLARY_FLOAT32, CLARY_AVG, 0, 0, &failure);
        } else if (collective == "all_gather") {
          clary_all_gather(it, input.data(), output.data(), nullptr, count / ranks, CLARY_FLOAT32, 0, 0, &failure);
        } else {
          clary_reduce_scatter(it, input.data(), nullptr, output.data(), count / ranks, CLARY_FLOAT32, CLARY_SUM, 0, 0,
                               &failure);
        }
      };
      for (int i = 0; i < 3; ++i) act();
      const int samples = samplesOf(bytes);
      for (int i = 0; i < samples; ++i) {
        clary_barrier(it, 0, 0, &failure);
        const double began = now();
        act();
        board->microseconds[rank][i] = (now() - began) * 1e6;
      }
      clary_barrier(it, 0, 0, &failure);
      if (rank == 0) {
        std::vector<double> slowest;
        for (int i = 0; i < samples; ++i) {
          double worst = 0;
          for (int r = 0; r < ranks; ++r) worst = std::max(worst, board->microseconds[r][i]);
          slowest.push_back(worst);
        }
        std::sort(slowest.begin(), slowest.end());
        const double began = now();
        for (int i = 0; i < 5; ++i) std::memcpy(output.data(), input.data(), bytes);
        const double copy = (now() - began) / 5 * 1e6;
        std::printf(
            "{\"collective\": \"%s\", \"ranks\": %d, \"hosts\": %d, \"bytes\": %zu, \"median_us\": %.1f, "
            "\"quartiles_us\": [%.1f, %.1f], \"memcpy_us\": %.1f}\n",
            collective.c_str(), ranks, hosts, bytes, slowest[samples / 2], slowest[samples / 4],
            slowest[samples * 3 / 4], copy);
        std::fflush(stdout);
      }
      clary_barrier(it, 0, 0, &failure);
    }
    clary_destroy(it);
    _exit(0);
  }
  int worst = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    wait(&status);
    worst |= status;
  }
  return worst == 0 ? 0 : 1;
}
