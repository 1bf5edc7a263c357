#include "topology/cost_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

namespace clary {
namespace {

// Fitted by benchmarks/collectives/fit_cost_model.py to what `select` measured on two cores of a Zen 3
// (docs/numbers/smddp.md): of what is about equally good, constants by which four ranks of a host take two phases from
// 58 KiB on. Only the order of costs matters.
constexpr double kHostBytesPerSecond = 7e9;     // one rank copying its own buffer or reading another rank's
constexpr double kStepSecondsPerRank = 3.2e-6;  // all ranks of a host reaching one step
constexpr double kMessageSeconds = 3.3e-6;      // beside the time of its hop
constexpr uint64_t kLoneSegments = 8;           // what a buffer is cut into where no slot limits it
constexpr uint64_t kLeastLoneSegment = 128u << 10;
constexpr uint64_t kMostLoneSegment = 1u << 20;
constexpr uint64_t kSegmentGrain = 4096;
constexpr uint64_t kOneRailBytes = 16384;  // below this more rails are only more messages

bool isPowerOfTwo(int value) { return value > 0 && (value & (value - 1)) == 0; }

double secondsWithin(WithinHost algorithm, double bytes, int ranks, double slotBytes) {
  if (ranks == 1) return 0;
  const double step = kStepSecondsPerRank * ranks;
  const double others = static_cast<double>(ranks - 1) / ranks;
  // A rank adds its own buffer from its cache, at no cost: two ranks read as much in one step as in two phases.
  if (algorithm == WithinHost::kOneShot) return step + bytes * ranks / kHostBytesPerSecond;
  const double segments = std::max(1.0, std::ceil(bytes * others / slotBytes));
  return (segments + 1) * step + bytes * (2 * others + 1) / kHostBytesPerSecond;
}

double secondsBetween(BetweenHosts algorithm, double bytes, int hosts, const LinkConstants& link) {
  const double others = hosts - 1;
  const double wire = bytes / link.bytesPerSecond;
  const double adding = bytes / kHostBytesPerSecond;
  const double hop = link.latencySeconds + kMessageSeconds;
  switch (algorithm) {
    case BetweenHosts::kNone:
      return 0;
    case BetweenHosts::kOneShot:  // every host adds all of it
      return link.latencySeconds + others * (kMessageSeconds + wire) + hosts * adding;
    case BetweenHosts::kDirect:
      return 2 * (link.latencySeconds + others * kMessageSeconds) + 2 * others / hosts * wire + adding;
    case BetweenHosts::kRing:
      return 2 * others * hop + 2 * others / hosts * wire + adding;
    case BetweenHosts::kHalvingDoubling:
      return 2 * std::log2(hosts) * hop + 2 * others / hosts * wire + adding;
  }
  return 0;
}

// Segments of an all-reduce between hosts. With slots, what one slot takes, or half of it where one rail's sum has to
// pass an outbox of that size. Ranks that are alone on their hosts have no slots: there a segment is long enough for
// two of them to fill the link's round trip, and short enough for adding to hide behind receiving.
uint64_t segmentBetween(uint64_t bytes, const Shape& shape, const LinkConstants& link, int rails) {
  if (shape.localRanks > 1) return rails > 1 ? shape.slotBytes : shape.slotBytes / 2;
  const auto filling = static_cast<uint64_t>(2 * link.latencySeconds * link.bytesPerSecond);
  const uint64_t wanted = std::clamp(bytes / kLoneSegments, kLeastLoneSegment, kMostLoneSegment);
  // Never longer than the buffer: working memory is taken for whole segments.
  const uint64_t segment = std::min(std::max(wanted, filling), std::max<uint64_t>(bytes, 1));
  return (segment + kSegmentGrain - 1) / kSegmentGrain * kSegmentGrain;
}

bool isPossible(BetweenHosts algorithm, int hosts) {
  return algorithm != BetweenHosts::kHalvingDoubling || isPowerOfTwo(hosts);
}

// In order of preference where costs are equal: fewer hops first.
constexpr std::array<BetweenHosts, 4> kBetween = {BetweenHosts::kOneShot, BetweenHosts::kDirect,
                                                  BetweenHosts::kHalvingDoubling, BetweenHosts::kRing};

}  // namespace

const char* name(WithinHost algorithm) { return algorithm == WithinHost::kOneShot ? "shm-oneshot" : "shm-twophase"; }

const char* name(BetweenHosts algorithm) {
  switch (algorithm) {
    case BetweenHosts::kNone:
      return "none";
    case BetweenHosts::kOneShot:
      return "oneshot";
    case BetweenHosts::kDirect:
      return "direct";
    case BetweenHosts::kRing:
      return "ring";
    case BetweenHosts::kHalvingDoubling:
      return "halving-doubling";
  }
  return "?";
}

bool isKnownAlgorithm(const std::string& wanted) {
  if (wanted.empty() || wanted == name(WithinHost::kOneShot) || wanted == name(WithinHost::kTwoPhase)) return true;
  if (wanted == "single-copy") return true;
  return std::any_of(kBetween.begin(), kBetween.end(), [&](BetweenHosts one) { return wanted == name(one); });
}

Choice chooseAllReduce(uint64_t bytes, const Shape& shape, const LinkConstants& link, const std::string& forced) {
  Choice choice;
  const double size = static_cast<double>(bytes);
  if (shape.hosts == 1) {
    const bool fits = bytes <= shape.slotBytes;
    const double oneShot =
        secondsWithin(WithinHost::kOneShot, size, shape.localRanks, static_cast<double>(shape.slotBytes));
    const double twoPhase =
        secondsWithin(WithinHost::kTwoPhase, size, shape.localRanks, static_cast<double>(shape.slotBytes));
    choice.within = fits && oneShot <= twoPhase ? WithinHost::kOneShot : WithinHost::kTwoPhase;
    if (fits && forced == name(WithinHost::kOneShot)) choice.within = WithinHost::kOneShot;
    if (forced == name(WithinHost::kTwoPhase)) choice.within = WithinHost::kTwoPhase;
    choice.predictedSeconds = choice.within == WithinHost::kOneShot ? oneShot : twoPhase;
    choice.segmentBytes = bytes;
    return choice;
  }
  choice.rails = bytes <= kOneRailBytes ? 1 : shape.rails;
  double best = std::numeric_limits<double>::infinity();
  for (const BetweenHosts one : kBetween) {
    if (!isPossible(one, shape.hosts)) continue;
    const double seconds = secondsBetween(one, size, shape.hosts, link);
    if (seconds < best || forced == name(one)) {
      best = seconds;
      choice.between = one;
      if (forced == name(one)) break;
    }
  }
  choice.predictedSeconds =
      best + secondsWithin(WithinHost::kTwoPhase, size, shape.localRanks, static_cast<double>(shape.slotBytes));
  choice.segmentBytes = segmentBetween(bytes, shape, link, choice.rails);
  return choice;
}

std::string explainAllReduce(uint64_t bytes, const Shape& shape, const LinkConstants& link, const std::string& forced) {
  const Choice choice = chooseAllReduce(bytes, shape, link, forced);
  char text[256];
  const char* chosen = shape.hosts == 1 ? name(choice.within) : name(choice.between);
  std::snprintf(text, sizeof(text), "%s rails=%d segment=%llu predicted=%.1fus%s;", chosen, choice.rails,
                static_cast<unsigned long long>(choice.segmentBytes), choice.predictedSeconds * 1e6,
                forced.empty() ? "" : " (asked for)");
  std::string line = text;
  const double size = static_cast<double>(bytes);
  if (shape.hosts == 1) {
    for (const WithinHost one : {WithinHost::kOneShot, WithinHost::kTwoPhase}) {
      const double seconds = secondsWithin(one, size, shape.localRanks, static_cast<double>(shape.slotBytes));
      std::snprintf(text, sizeof(text), " %s %.1fus", name(one), seconds * 1e6);
      line += text;
    }
    return line;
  }
  for (const BetweenHosts one : kBetween) {
    if (!isPossible(one, shape.hosts)) continue;
    std::snprintf(text, sizeof(text), " %s %.1fus", name(one), secondsBetween(one, size, shape.hosts, link) * 1e6);
    line += text;
  }
  return line;
}

}  // namespace clary
