// The words of the core: element types, reductions, operations and what can end them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "clary/collectives.h"

namespace clary {

enum class Dtype : int32_t {
  kFloat32 = CLARY_FLOAT32,
  kFloat64 = CLARY_FLOAT64,
  kFloat16 = CLARY_FLOAT16,
  kBfloat16 = CLARY_BFLOAT16,
  kInt8 = CLARY_INT8,
  kInt16 = CLARY_INT16,
  kInt32 = CLARY_INT32,
  kInt64 = CLARY_INT64,
  kUint8 = CLARY_UINT8,
  kBool = CLARY_BOOL,
};

enum class ReduceOp : int32_t {
  kSum = CLARY_SUM,
  kAvg = CLARY_AVG,
  kMin = CLARY_MIN,
  kMax = CLARY_MAX,
  kProduct = CLARY_PRODUCT,
  kBand = CLARY_BAND,
  kBor = CLARY_BOR,
  kBxor = CLARY_BXOR,
};

enum class Collective : int32_t {
  kAllReduce = CLARY_ALL_REDUCE,
  kAllGather = CLARY_ALL_GATHER,
  kReduceScatter = CLARY_REDUCE_SCATTER,
  kBroadcast = CLARY_BROADCAST,
  kReduce = CLARY_REDUCE,
  kAllToAll = CLARY_ALL_TO_ALL,
  kGather = CLARY_GATHER,
  kScatter = CLARY_SCATTER,
  kBarrier = CLARY_BARRIER,
  kSend = CLARY_SEND,
  kReceive = CLARY_RECEIVE,
};

enum class Code : int32_t {
  kOk = CLARY_OK,
  kInvalid = CLARY_INVALID,
  kTimeout = CLARY_TIMEOUT,
  kPeerLost = CLARY_PEER_LOST,
  kOrderMismatch = CLARY_ORDER_MISMATCH,
  kClosed = CLARY_CLOSED,
  kSystem = CLARY_SYSTEM,
};

size_t elementBytes(Dtype dtype);
const char* dtypeName(Dtype dtype);           // "float32"
const char* reduceOpName(ReduceOp op);        // "sum"
const char* collectiveName(Collective kind);  // "all_reduce"
bool isDefined(ReduceOp op, Dtype dtype);     // as clary_reduce_op says

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

// What ended an operation. `culprit` is the rank to blame, -1 if there is none. Copies pass between threads, so each
// has a text of its own: std::runtime_error shares its text, with a count that the thread sanitizer cannot see.
class Failure : public std::exception {
 public:
  Failure(Code why, int rank, std::string what) : code(why), culprit(rank), text(std::move(what)) {}
  const char* what() const noexcept override { return text.c_str(); }
  Code code;
  int culprit;
  std::string text;
};

}  // namespace clary
