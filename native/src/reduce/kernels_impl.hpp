// The kernels themselves: operations on lanes and the loop over memory, for the instruction set of the including file.
//
// The loop takes kGroup vectors of the first source into registers, combines them with the same vectors of the other
// sources one source after the other, and writes them: one pass over memory for any number of sources, and, as a group
// is read from all sources before it is written, the destination may be one of them. Parts of a vector, at the end and
// before the first aligned address, run through the same code by way of a padded copy, so every element meets the same
// instructions.
//
// Equal bits on every instruction set: lanes are added, multiplied and divided by IEEE 754 instructions and never
// fused; minimum and maximum are made of comparisons; and every NaN is written as kNan, because which of two NaNs an
// addition hands on depends on the order of operands that the compiler happens to choose.
#pragma once

#include "reduce/kernel_set.hpp"
#include "reduce/vector_formats.hpp"

namespace clary {
namespace {

constexpr int kGroup = 4;  // vectors in flight: enough to cover latencies, few enough to stay in registers

struct Sum {
  template <class Format, class Lanes>
  static Lanes combine(Lanes a, Lanes b) {
    return a + b;
  }
};

struct Product {
  template <class Format, class Lanes>
  static Lanes combine(Lanes a, Lanes b) {
    return a * b;
  }
};

// On floating types the minimum and maximum of IEEE 754-2019: NaN wins, and -0 is less than +0. Equal numbers have
// equal bits except for zeros, so "or" of the bits is the lesser of equals and "and" the greater.
struct Min {
  template <class Format, class Lanes>
  static Lanes combine(Lanes a, Lanes b) {
    if constexpr (Format::kIsFloating) {
      using Bits = typename Format::Bits;
      const Bits either = reinterpret_cast<Bits>(a) | reinterpret_cast<Bits>(b);
      const Lanes least = (b < a) | (b != b) ? b : a;
      return a == b ? reinterpret_cast<Lanes>(either) : least;
    } else {
      return b < a ? b : a;
    }
  }
};

struct Max {
  template <class Format, class Lanes>
  static Lanes combine(Lanes a, Lanes b) {
    if constexpr (Format::kIsFloating) {
      using Bits = typename Format::Bits;
      const Bits both = reinterpret_cast<Bits>(a) & reinterpret_cast<Bits>(b);
      const Lanes greatest = (b > a) | (b != b) ? b : a;
      return a == b ? reinterpret_cast<Lanes>(both) : greatest;
    } else {
      return b > a ? b : a;
    }
  }
};

struct And {
  template <class Format, class Lanes>
  static Lanes combine(Lanes a, Lanes b) {
    return a & b;
  }
};

struct Or {
  template <class Format, class Lanes>
  static Lanes combine(Lanes a, Lanes b) {
    return a | b;
  }
};

struct Xor {
  template <class Format, class Lanes>
  static Lanes combine(Lanes a, Lanes b) {
    return a ^ b;
  }
};

// What happens between the last source and packing: nothing, except on floating types.
template <class Format, bool kIsFloating = Format::kIsFloating>
class Finish {
 public:
  explicit Finish(int) {}
  template <int kNumLanes>
  void apply(typename Format::Lanes (&)[kNumLanes]) const {}
};

// The division, if there is one, and the one NaN.
template <class Format>
class Finish<Format, true> {
 public:
  using Scalar = typename Format::Scalar;
  using Lanes = typename Format::Lanes;
  using Bits = typename Format::Bits;

  explicit Finish(int divisor) : divisor_(divisor), is_power_of_two_((divisor & (divisor - 1)) == 0) {
    const Scalar number = static_cast<Scalar>(divisor);
    operand_ = Lanes{} + (is_power_of_two_ ? Scalar{1} / number : number);
  }

  // The reciprocal of a power of two is exact: multiplying by it gives the bits of the division in less time.
  template <int kNumLanes>
  void apply(Lanes (&lanes)[kNumLanes]) const {
    if (divisor_ != 1) {
#pragma GCC unroll 8
      for (int i = 0; i < kNumLanes; ++i) {
        lanes[i] = is_power_of_two_ ? lanes[i] * operand_ : lanes[i] / operand_;
      }
    }
    const Lanes nan = reinterpret_cast<Lanes>(Bits{} + Format::kNan);
#pragma GCC unroll 8
    for (int i = 0; i < kNumLanes; ++i) {
      lanes[i] = lanes[i] == lanes[i] ? lanes[i] : nan;
    }
  }

 private:
  int divisor_;
  bool is_power_of_two_;
  Lanes operand_;
};

// Where results go. Streaming wants `to` aligned at the vectors that are written.
struct Output {
  char* to;
  bool streams;

  template <int kVectors>
  void put(size_t at, const Packed (&vectors)[kVectors]) const {
    if (streams) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        stream(to + at + v * kVectorBytes, vectors[v]);
      }
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        storeAs(to + at + v * kVectorBytes, vectors[v]);
      }
    }
  }
};

// Reduce `kVectors` vectors that lie `at` bytes into every source and the destination. Always inline: as a call of its
// own, which GCC makes of the simplest kinds, copies take a sixth longer.
template <class Format, class Op, int kVectors>
[[gnu::always_inline]] inline void reduceVectors(const void* const* sources, int num_sources, const Output& destination,
                                                 size_t at, const Finish<Format>& finish) {
  using Lanes = typename Format::Lanes;
  constexpr int kParts = Format::kParts;
  Lanes result[kVectors * kParts];
  const char* first = static_cast<const char*>(sources[0]) + at;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    Format::load(first + v * kVectorBytes, result + v * kParts);
  }
  for (int s = 1; s < num_sources; ++s) {
    const char* source = static_cast<const char*>(sources[s]) + at;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Lanes more[kParts];
      Format::load(source + v * kVectorBytes, more);
#pragma GCC unroll 2
      for (int p = 0; p < kParts; ++p) {
        result[v * kParts + p] = Op::template combine<Format>(result[v * kParts + p], more[p]);
      }
    }
  }
  finish.apply(result);
  Packed packed[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    packed[v] = Format::pack(result + v * kParts);
  }
  destination.put(at, packed);
}

// The same for `bytes` < kVectorBytes. Not inline: it is called once or twice a reduction and would double the code.
template <class Format, class Op>
[[gnu::noinline]] void reducePart(const Reduction& reduction, size_t at, size_t bytes, const Finish<Format>& finish) {
  using Lanes = typename Format::Lanes;
  constexpr int kParts = Format::kParts;
  char padded[kVectorBytes] = {};
  Lanes result[kParts];
  __builtin_memcpy(padded, static_cast<const char*>(reduction.sources[0]) + at, bytes);
  Format::load(padded, result);
  for (int s = 1; s < reduction.num_sources; ++s) {
    Lanes more[kParts];
    __builtin_memcpy(padded, static_cast<const char*>(reduction.sources[s]) + at, bytes);
    Format::load(padded, more);
    for (int p = 0; p < kParts; ++p) {
      result[p] = Op::template combine<Format>(result[p], more[p]);
    }
  }
  finish.apply(result);
  storeAs(padded, Format::pack(result));
  __builtin_memcpy(static_cast<char*>(reduction.destination) + at, padded, bytes);
}

// Bytes from `memory` to the next address where a vector is aligned.
inline size_t bytesToAligned(const void* memory) { return -reinterpret_cast<uintptr_t>(memory) % kVectorBytes; }

template <class Format, class Op>
void reduce(const Reduction& reduction) {
  const Finish<Format> finish(reduction.divisor);
  const size_t bytes = reduction.count * Format::kElementBytes;
  const size_t head = bytesToAligned(reduction.destination);
  const bool streams = kCanStream && reduction.is_past_cache && head < bytes && head % Format::kElementBytes == 0;
  const Output destination{static_cast<char*>(reduction.destination), streams};
  const void* const* sources = reduction.sources;
  const int num_sources = reduction.num_sources;
  size_t at = 0;
  if (streams && head > 0) {
    reducePart<Format, Op>(reduction, at, head, finish);
    at = head;
  }
  for (; bytes - at >= kGroup * kVectorBytes; at += kGroup * kVectorBytes) {
    reduceVectors<Format, Op, kGroup>(sources, num_sources, destination, at, finish);
  }
  for (; bytes - at >= kVectorBytes; at += kVectorBytes) {
    reduceVectors<Format, Op, 1>(sources, num_sources, destination, at, finish);
  }
  if (at < bytes) {
    reducePart<Format, Op>(reduction, at, bytes - at, finish);
  }
  if (streams) {
    fenceStreams();
  }
}

template <class Format>
constexpr void fillFloating(Kernel* row) {
  row[CLARY_SUM] = row[CLARY_AVG] = reduce<Format, Sum>;
  row[CLARY_MIN] = reduce<Format, Min>;
  row[CLARY_MAX] = reduce<Format, Max>;
  row[CLARY_PRODUCT] = reduce<Format, Product>;
}

template <class T, class Unsigned>
constexpr void fillInteger(Kernel* row) {
  row[CLARY_SUM] = reduce<IntegerFormat<Unsigned>, Sum>;
  row[CLARY_MIN] = reduce<IntegerFormat<T>, Min>;
  row[CLARY_MAX] = reduce<IntegerFormat<T>, Max>;
  row[CLARY_PRODUCT] = reduce<IntegerFormat<Unsigned>, Product>;
  row[CLARY_BAND] = reduce<IntegerFormat<Unsigned>, And>;
  row[CLARY_BOR] = reduce<IntegerFormat<Unsigned>, Or>;
  row[CLARY_BXOR] = reduce<IntegerFormat<Unsigned>, Xor>;
}

constexpr KernelSet kernelSet(const char* name) {
  KernelSet set{name, {}};
  fillFloating<Float32Format>(set.kernels[CLARY_FLOAT32]);
  fillFloating<Float64Format>(set.kernels[CLARY_FLOAT64]);
  fillFloating<Float16Format>(set.kernels[CLARY_FLOAT16]);
  fillFloating<Bfloat16Format>(set.kernels[CLARY_BFLOAT16]);
  fillInteger<int8_t, uint8_t>(set.kernels[CLARY_INT8]);
  fillInteger<int16_t, uint16_t>(set.kernels[CLARY_INT16]);
  fillInteger<int32_t, uint32_t>(set.kernels[CLARY_INT32]);
  fillInteger<int64_t, uint64_t>(set.kernels[CLARY_INT64]);
  fillInteger<uint8_t, uint8_t>(set.kernels[CLARY_UINT8]);
  Kernel* row = set.kernels[CLARY_BOOL];
  row[CLARY_SUM] = row[CLARY_MAX] = row[CLARY_BOR] = reduce<BoolFormat, Or>;
  row[CLARY_PRODUCT] = row[CLARY_MIN] = row[CLARY_BAND] = reduce<BoolFormat, And>;
  row[CLARY_BXOR] = reduce<BoolFormat, Xor>;
  return set;
}

}  // namespace
}  // namespace clary
