// Processes that die or stop at a random moment of a random operation: the others end soon, with an error that names
// the culprit, and no sum that they saw before was wrong.
//
// Rounds: CLARY_KILL_ROUNDS (default 60), seed: CLARY_KILL_SEED (default: printed).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>

#include "gang.hpp"

namespace clary_tests {
namespace {

using std::chrono::steady_clock;

constexpr int kRight = 10;  // the group broke, and the culprit was named
constexpr int kWrongSum = 11;
constexpr int kWrongBlame = 12;
constexpr int kNoFailure = 13;  // went on to the end though a peer was gone
constexpr double kTimeoutSeconds = 5.0;
constexpr int kOperations = 200000;
// Far above what a busy machine needs, far below a hang.
constexpr double kSoonSeconds = 15;

long fromEnvironment(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtol(text, nullptr, 10);
}

// A rank's life: operations in an order that the seed fixes, each result checked.
int live(Gang& gang, int rank, int victim, unsigned seed) {
  clary_failure failure{};
  clary_communicator* group = gang.open(rank, &failure);
  if (group == nullptr) return kNoFailure;
  std::mt19937 random(seed);
  const int size = gang.size();
  std::vector<float> buffer;
  std::vector<float> gathered;
  for (int turn = 0; turn < kOperations; ++turn) {
    const size_t count = random() % 4 == 0 ? random() % 200000 : random() % 3000;
    buffer.assign(count, static_cast<float>(rank + turn % 7));
    int64_t result = 0;
    const int kind = static_cast<int>(random() % 3);
    if (kind == 0) {
      result = clary_all_reduce(group, buffer.data(), buffer.data(), count, CLARY_FLOAT32, CLARY_SUM,
                                static_cast<int>(random() % 2), 0, &failure);
    } else if (kind == 1) {
      gathered.assign(count * static_cast<size_t>(size), -1);
      result = clary_all_gather(group, buffer.data(), gathered.data(), nullptr, count, CLARY_FLOAT32, 0, 0, &failure);
    } else {
      result = clary_barrier(group, 0, 0, &failure);
    }
    if (result > 0) result = clary_wait(group, result, -1, nullptr, &failure);
    if (result < 0) {
      const bool isNamed = failure.culprit == victim &&
                           std::strstr(failure.text, ("rank " + std::to_string(victim) + " on ").c_str()) != nullptr;
      if (!isNamed) std::fprintf(stderr, "rank %d, victim %d: %s\n", rank, victim, failure.text);
      clary_destroy(group);
      return isNamed ? kRight : kWrongBlame;
    }
    if (kind == 0) {
      const auto expected = static_cast<float>(size * (size - 1) / 2 + size * (turn % 7));
      for (const float value : buffer) {
        if (value != expected) return kWrongSum;
      }
    } else if (kind == 1) {
      for (size_t i = 0; i < gathered.size(); ++i) {
        if (gathered[i] != static_cast<float>(static_cast<int>(i / count) + turn % 7)) return kWrongSum;
      }
    }
  }
  return kNoFailure;
}

void strike(const std::vector<int>& hostOf, int signalNumber, long rounds) {
  const auto base =
      static_cast<unsigned>(fromEnvironment("CLARY_KILL_SEED", static_cast<long>(std::random_device()() & 0x7fffffff)));
  std::printf("%ld rounds, CLARY_KILL_SEED=%u\n", rounds, base);
  for (long round = 0; round < rounds; ++round) {
    const unsigned seed = base + static_cast<unsigned>(round);
    std::mt19937 random(seed);
    std::vector<pid_t> children;
    const int size = static_cast<int>(hostOf.size());
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
    const auto pause = std::chrono::microseconds(2000 + random() % 60000);
    {
      GangOptions options;
      options.hostOf = hostOf;
      options.slotBytes = 65536;
      options.timeoutSeconds = kTimeoutSeconds;
      Gang gang(options);
      for (int rank = 0; rank < size; ++rank) {
        const pid_t child = fork();
        if (child == 0) {
          // Only own ends may stay open, or nobody would see the victim's streams end.
          gang.keepOnly(rank);
          _exit(live(gang, rank, victim, seed));
        }
        children.push_back(child);
      }
      gang.keepOnly(-1);
    }
    std::this_thread::sleep_for(pause);
    kill(children[static_cast<size_t>(victim)], signalNumber);
    const auto struck = steady_clock::now();
    std::vector<int> codes(children.size(), -1);
    size_t left = children.size() - 1;
    while (left > 0 && steady_clock::now() - struck < std::chrono::seconds(40)) {
      for (size_t i = 0; i < children.size(); ++i) {
        int status = 0;
        if (static_cast<int>(i) == victim || codes[i] >= 0 || waitpid(children[i], &status, WNOHANG) == 0) continue;
        codes[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        --left;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const double seconds = std::chrono::duration<double>(steady_clock::now() - struck).count();
    for (size_t i = 0; i < children.size(); ++i) {
      if (codes[i] < 0) {
        kill(children[i], SIGKILL);
        waitpid(children[i], nullptr, 0);
      }
      if (static_cast<int>(i) == victim) continue;
      EXPECT_EQ(kRight, codes[i]) << "rank " << i << ", seed " << seed;
    }
    EXPECT_LT(seconds, signalNumber == SIGKILL ? kSoonSeconds : kTimeoutSeconds + kSoonSeconds) << "seed " << seed;
  }
}

TEST(Kills, KilledProcessesOnOneHostEndTheOthersAtOnce) {
  strike({0, 0, 0}, SIGKILL, fromEnvironment("CLARY_KILL_ROUNDS", 60));
}
TEST(Kills, KilledProcessesOnTwoHostsEndTheOthersAtOnce) {
  strike({0, 0, 1, 1}, SIGKILL, fromEnvironment("CLARY_KILL_ROUNDS", 60));
}
TEST(Kills, KilledProcessesOnHostsOfTheirOwnEndTheOthersAtOnce) {
  strike({0, 1, 2}, SIGKILL, fromEnvironment("CLARY_KILL_ROUNDS", 60));
}
TEST(Kills, StoppedProcessesAreNamedWhenTheTimeIsUp) {
  strike({0, 0, 1, 1}, SIGSTOP, std::max(2L, fromEnvironment("CLARY_KILL_ROUNDS", 60) / 20));
}

}  // namespace
}  // namespace clary_tests
