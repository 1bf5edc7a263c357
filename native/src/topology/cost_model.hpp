// Which algorithm a collective takes, as a pure function of what all ranks know equally.
//
// Every rank must choose alike, and every run must choose alike for its sums to have the same bits; so nothing here is
// measured at run time. Link constants are given (clary_group), constants of the host are below with their source.
#pragma once

#include <cstdint>
#include <string>

#include "common/types.hpp"

namespace clary {

enum class WithinHost { kOneShot, kTwoPhase };
enum class BetweenHosts { kNone, kOneShot, kDirect, kRing, kHalvingDoubling };

struct LinkConstants {
  double latencySeconds = 50e-6;
  double bytesPerSecond = 125e6;
};

struct Shape {
  int localRanks = 1;  // on the host with most ranks
  int hosts = 1;
  int rails = 1;
  uint64_t slotBytes = 1u << 20;
};

struct Choice {
  WithinHost within = WithinHost::kTwoPhase;
  BetweenHosts between = BetweenHosts::kNone;
  int rails = 1;              // ranks of a host that talk to other hosts
  uint64_t segmentBytes = 0;  // bytes of the whole buffer that are in flight as one
  double predictedSeconds = 0;
};

// `forced`: "" or the name of an algorithm, which is taken where it can be ("shm-oneshot", "shm-twophase", "oneshot",
// "direct", "ring", "halving-doubling").
Choice chooseAllReduce(uint64_t bytes, const Shape& shape, const LinkConstants& link, const std::string& forced);

const char* name(WithinHost algorithm);
const char* name(BetweenHosts algorithm);
bool isKnownAlgorithm(const std::string& name);
// One line: what was chosen, the predicted time, and what the others would have cost.
std::string explainAllReduce(uint64_t bytes, const Shape& shape, const LinkConstants& link, const std::string& forced);

}  // namespace clary
