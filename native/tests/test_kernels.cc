// Reductions against sums made one element at a time, on every set of instructions this processor has.
#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "reduce/kernels.hpp"

namespace clary {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8,
                             Dtype::kInt16,   Dtype::kInt32,   Dtype::kInt64,   Dtype::kUint8,    Dtype::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kSum,     ReduceOp::kAvg,  ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct, ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor};
constexpr const char* kSets[] = {"baseline", "avx2", "avx512"};

bool isFloating(Dtype dtype) { return isDefined(ReduceOp::kAvg, dtype); }

// The oracle: one element at a time, in the plainest words.

template <class T>
T elementAt(const Bytes& bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void setElement(Bytes* bytes, size_t index, T value) {
  std::memcpy(bytes->data() + index * sizeof(T), &value, sizeof(T));
}

template <class T>
T combineFloating(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    return a + b;
  }
  if (op == ReduceOp::kProduct) {
    return a * b;
  }
  if (std::isnan(a) || std::isnan(b)) {
    return std::numeric_limits<T>::quiet_NaN();
  }
  const bool a_is_less = a < b || (a == b && std::signbit(a));
  return a_is_less == (op == ReduceOp::kMin) ? a : b;
}

template <class T>
T combineInteger(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    case ReduceOp::kProduct:
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kBand:
      return static_cast<T>(a & b);
    case ReduceOp::kBor:
      return static_cast<T>(a | b);
    default:
      return static_cast<T>(a ^ b);
  }
}

bool combineBool(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return a || b;
    case ReduceOp::kBxor:
      return a != b;
    default:
      return a && b;
  }
}

// A 16 bit float with `mantissa` explicit bits of mantissa and exponents from `lowest`; the sum of widths is 16.
struct Format16 {
  int mantissa;
  int lowest;
  uint16_t infinity;
  uint16_t nan;
};
constexpr Format16 kHalf{10, -14, 0x7c00, 0x7e00};
constexpr Format16 kBrain{7, -126, 0x7f80, 0x7fc0};

float decode(const Format16& format, uint16_t bits) {
  const int magnitude = bits & 0x7fff;
  const int one = 1 << format.mantissa;
  const int exponent = magnitude >> format.mantissa;
  const int fraction = magnitude & (one - 1);
  double value = exponent == 0 ? std::ldexp(fraction, format.lowest - format.mantissa)
                               : std::ldexp(one + fraction, exponent - 1 + format.lowest - format.mantissa);
  if (magnitude >= format.infinity) {
    value = magnitude == format.infinity ? std::numeric_limits<double>::infinity()
                                         : std::numeric_limits<double>::quiet_NaN();
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

uint16_t encode(const Format16& format, float value) {
  if (std::isnan(value)) {
    return format.nan;
  }
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(value));
  int bits = 0;
  if (std::isinf(value)) {
    bits = format.infinity;
  } else if (magnitude > 0) {
    const int exponent = std::max(std::ilogb(magnitude), format.lowest);
    const int units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, format.mantissa - exponent)));
    bits = std::min<int>(((exponent - format.lowest) << format.mantissa) + units, format.infinity);
  }
  return static_cast<uint16_t>(sign | bits);
}

struct Inputs {
  std::vector<Bytes> sources;
  size_t count = 0;
};

template <class Stored, class Value, class Decode, class Encode, class Combine>
Bytes foldEach(const Inputs& inputs, const Decode& decodeOne, const Encode& encodeOne, const Combine& combine) {
  Bytes result(inputs.count * sizeof(Stored));
  for (size_t i = 0; i < inputs.count; ++i) {
    Value value = decodeOne(elementAt<Stored>(inputs.sources[0], i));
    for (size_t s = 1; s < inputs.sources.size(); ++s) {
      value = combine(value, decodeOne(elementAt<Stored>(inputs.sources[s], i)));
    }
    setElement<Stored>(&result, i, encodeOne(value));
  }
  return result;
}

template <class T>
Bytes foldIntegers(const Inputs& inputs, ReduceOp op) {
  const auto same = [](T value) { return value; };
  return foldEach<T, T>(inputs, same, same, [op](T a, T b) { return combineInteger<T>(op, a, b); });
}

template <class T>
Bytes foldFloating(const Inputs& inputs, ReduceOp op, int divisor) {
  const auto same = [](T value) { return value; };
  const auto finish = [divisor](T value) {
    const T quotient = value / static_cast<T>(divisor);
    return std::isnan(quotient) ? std::numeric_limits<T>::quiet_NaN() : quotient;
  };
  return foldEach<T, T>(inputs, same, finish, [op](T a, T b) { return combineFloating<T>(op, a, b); });
}

Bytes foldFormat16(const Inputs& inputs, ReduceOp op, int divisor, const Format16& format) {
  const auto widen = [&format](uint16_t bits) { return decode(format, bits); };
  const auto narrow = [&format, divisor](float value) { return encode(format, value / static_cast<float>(divisor)); };
  return foldEach<uint16_t, float>(inputs, widen, narrow,
                                   [op](float a, float b) { return combineFloating<float>(op, a, b); });
}

Bytes expectedResult(const Inputs& inputs, Dtype dtype, ReduceOp op, int divisor) {
  if (inputs.sources.size() == 1 && divisor == 1 && dtype != Dtype::kBool) {
    return inputs.sources[0];
  }
  switch (dtype) {
    case Dtype::kFloat32:
      return foldFloating<float>(inputs, op, divisor);
    case Dtype::kFloat64:
      return foldFloating<double>(inputs, op, divisor);
    case Dtype::kFloat16:
      return foldFormat16(inputs, op, divisor, kHalf);
    case Dtype::kBfloat16:
      return foldFormat16(inputs, op, divisor, kBrain);
    case Dtype::kInt8:
      return foldIntegers<int8_t>(inputs, op);
    case Dtype::kInt16:
      return foldIntegers<int16_t>(inputs, op);
    case Dtype::kInt32:
      return foldIntegers<int32_t>(inputs, op);
    case Dtype::kInt64:
      return foldIntegers<int64_t>(inputs, op);
    case Dtype::kUint8:
      return foldIntegers<uint8_t>(inputs, op);
    case Dtype::kBool:
      break;
  }
  return foldEach<uint8_t, bool>(
      inputs, [](uint8_t byte) { return byte != 0; }, [](bool value) { return static_cast<uint8_t>(value); },
      [op](bool a, bool b) { return combineBool(op, a, b); });
}

// Inputs.

// Bits of all kinds: NaN with payloads, infinities, subnormals, zeros of both signs, and numbers near each other.
template <class T, class Unsigned>
void fillFloating(std::mt19937_64* random, Bytes* bytes, size_t count) {
  using Limits = std::numeric_limits<T>;
  const T special[] = {T{0},          -T{0},         Limits::infinity(),   -Limits::infinity(), Limits::quiet_NaN(),
                       Limits::max(), Limits::min(), Limits::denorm_min(), -Limits::max(),      T{1}};
  std::uniform_real_distribution<double> near(-8, 8);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = (*random)();
    if (bits % 8 == 0) {
      setElement<T>(bytes, i, special[(bits >> 8) % std::size(special)]);
    } else if (bits % 8 == 1) {
      setElement<Unsigned>(bytes, i, static_cast<Unsigned>((*random)()));
    } else {
      setElement<T>(bytes, i, static_cast<T>(near(*random)));
    }
  }
}

Bytes randomElements(std::mt19937_64* random, Dtype dtype, size_t count) {
  Bytes bytes(count * elementBytes(dtype));
  if (dtype == Dtype::kFloat32) {
    fillFloating<float, uint32_t>(random, &bytes, count);
  } else if (dtype == Dtype::kFloat64) {
    fillFloating<double, uint64_t>(random, &bytes, count);
  } else {
    std::generate(bytes.begin(), bytes.end(), [random] { return static_cast<uint8_t>((*random)()); });
  }
  if (dtype == Dtype::kBool) {
    std::for_each(bytes.begin(), bytes.end(), [](uint8_t& byte) { byte = byte % 2 == 0 ? 0 : byte; });
  }
  return bytes;
}

// How buffers lie, and the run that is compared with the oracle.

// Memory at a chosen distance from an aligned address, with guards on both sides.
class GuardedBuffer {
 public:
  GuardedBuffer(const Bytes& content, size_t offset) : size_(content.size()), memory_(size_ + 4 * kGuard, kMark) {
    const size_t to_aligned = -reinterpret_cast<uintptr_t>(memory_.data()) % kGuard;
    start_ = to_aligned + kGuard + offset % kGuard;
    std::copy(content.begin(), content.end(), memory_.begin() + static_cast<ptrdiff_t>(start_));
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  GuardedBuffer(GuardedBuffer&&) = default;

  uint8_t* data() { return memory_.data() + start_; }
  Bytes content() { return Bytes(data(), data() + size_); }
  bool areGuardsIntact() const {
    const auto isMark = [](uint8_t byte) { return byte == kMark; };
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<ptrdiff_t>(start_), isMark) &&
           std::all_of(memory_.begin() + static_cast<ptrdiff_t>(start_ + size_), memory_.end(), isMark);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kMark = 0xa5;
  size_t size_;
  Bytes memory_;
  size_t start_ = 0;
};

enum class Place { kSeparate, kFirstSource, kLastSource };

struct Layout {
  Place place;
  Placement placement;
  size_t offset;  // in bytes, of the destination; the sources lie at others
  size_t spread;  // what the offsets differ by
  int divisor;    // on floating types
};

constexpr Layout kLayouts[] = {
    {Place::kSeparate, Placement::kCached, 0, 0, 1},    {Place::kFirstSource, Placement::kPastCache, 0, 0, 4},
    {Place::kSeparate, Placement::kPastCache, 1, 1, 3}, {Place::kFirstSource, Placement::kCached, 4, 8, 1},
    {Place::kLastSource, Placement::kCached, 3, 5, 7},  {Place::kSeparate, Placement::kPastCache, 8, 0, 2},
};

// The first element that differs, in words; empty if none does.
std::string difference(const Bytes& expected, const Bytes& got, size_t element_bytes) {
  const auto where = std::mismatch(expected.begin(), expected.end(), got.begin(), got.end());
  if (where.first == expected.end() && where.second == got.end()) {
    return "";
  }
  const size_t index = static_cast<size_t>(where.first - expected.begin()) / element_bytes;
  std::ostringstream text;
  text << "element " << index << ", bytes in order: expected";
  for (const Bytes* side : {&expected, &got}) {
    text << (side == &got ? ", got" : "");
    for (size_t i = index * element_bytes; i < std::min(side->size(), (index + 1) * element_bytes); ++i) {
      text << " " << static_cast<int>((*side)[i]);
    }
  }
  return text.str();
}

void expectReduction(const Inputs& inputs, const Bytes& expected, Dtype dtype, ReduceOp op, const Layout& layout) {
  const int divisor = isFloating(dtype) ? layout.divisor : 1;
  const size_t num_sources = inputs.sources.size();
  SCOPED_TRACE(testing::Message() << dtypeName(dtype) << " " << reduceOpName(op) << ", " << num_sources
                                  << " sources, count " << inputs.count << ", offset " << layout.offset << ", divisor "
                                  << divisor << ", place " << static_cast<int>(layout.place) << ", placement "
                                  << static_cast<int>(layout.placement));
  std::vector<GuardedBuffer> sources;
  std::vector<const void*> addresses;
  const size_t in_place = layout.place == Place::kFirstSource ? 0 : num_sources - 1;
  for (size_t s = 0; s < num_sources; ++s) {
    sources.emplace_back(inputs.sources[s], layout.offset + s * layout.spread);
    addresses.push_back(sources.back().data());
  }
  GuardedBuffer separate(Bytes(expected.size()), layout.offset);
  GuardedBuffer& destination = layout.place == Place::kSeparate ? separate : sources[in_place];

  reduceInto(destination.data(), addresses.data(), static_cast<int>(num_sources), inputs.count, dtype, op, divisor,
             layout.placement);

  EXPECT_EQ(difference(expected, destination.content(), elementBytes(dtype)), "");
  EXPECT_TRUE(destination.areGuardsIntact());
  for (size_t s = 0; s < num_sources; ++s) {
    EXPECT_TRUE(&sources[s] == &destination || sources[s].content() == inputs.sources[s]) << "source " << s;
  }
}

void expectReduction(const Inputs& inputs, Dtype dtype, ReduceOp op, const Layout& layout) {
  const int divisor = isFloating(dtype) ? layout.divisor : 1;
  expectReduction(inputs, expectedResult(inputs, dtype, op, divisor), dtype, op, layout);
}

// Tests that run on every set.

class KernelsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!useInstructionSet(GetParam())) {
      GTEST_SKIP() << "this processor lacks " << GetParam();
    }
  }
  void TearDown() override { useInstructionSet(chosen_.c_str()); }

 private:
  std::string chosen_ = instructionSet();
};

INSTANTIATE_TEST_SUITE_P(EverySet, KernelsTest, testing::ValuesIn(kSets),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(KernelsTest, EveryReductionGivesTheBitsOfTheOracle) {
  std::mt19937_64 random(20240611);
  for (const Dtype dtype : kDtypes) {
    for (const size_t num_sources : {1, 2, 3, 4, 7}) {
      for (const size_t count : {0, 1, 3, 17, 1000, 4099}) {
        Inputs inputs{{}, count};
        for (size_t s = 0; s < num_sources; ++s) {
          inputs.sources.push_back(randomElements(&random, dtype, count));
        }
        for (const ReduceOp op : kOps) {
          for (const Layout& layout : kLayouts) {
            if (isDefined(op, dtype)) {
              expectReduction(inputs, dtype, op, layout);
            }
            ASSERT_FALSE(HasFailure());
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, EveryNumberOf16BitsIsWidenedAndRoundedRight) {
  constexpr size_t kPatterns = 1 << 16;
  Bytes all(2 * kPatterns);
  for (size_t i = 0; i < kPatterns; ++i) {
    setElement<uint16_t>(&all, i, static_cast<uint16_t>(i));
  }
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
    const Format16& format = dtype == Dtype::kFloat16 ? kHalf : kBrain;
    // 1 gives numbers back; the others make ties, subnormal results and overflow.
    for (const float factor : {1.0f, 0.5f, 0.75f, 1.0f / 1024, 1.5f, -257.0f, 3.0f}) {
      Bytes factors(2 * kPatterns);
      for (size_t i = 0; i < kPatterns; ++i) {
        setElement<uint16_t>(&factors, i, encode(format, factor));
      }
      const Inputs inputs{{all, factors}, kPatterns};
      for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kSum}) {
        expectReduction(inputs, dtype, op, kLayouts[0]);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

TEST_P(KernelsTest, ResultsWrittenPastTheCacheAreTheSameAtEveryAlignment) {
  constexpr size_t kBytes = 8192;  // enough to go past the cache
  constexpr size_t kLargestVectorBytes = 64;
  std::mt19937_64 random(7);
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kInt64, Dtype::kBool}) {
    const size_t count = kBytes / elementBytes(dtype) + 37;
    const Inputs inputs{{randomElements(&random, dtype, count), randomElements(&random, dtype, count)}, count};
    const Bytes expected = expectedResult(inputs, dtype, ReduceOp::kSum, 1);
    for (size_t offset = 0; offset <= kLargestVectorBytes; ++offset) {
      for (const Place place : {Place::kSeparate, Place::kFirstSource}) {
        expectReduction(inputs, expected, dtype, ReduceOp::kSum, {place, Placement::kPastCache, offset, 1, 1});
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

TEST_P(KernelsTest, CopiesAreExactWhateverTheirSizeAndPlacement) {
  std::mt19937_64 random(11);
  // 2048 and 4096 are where another way of copying takes over.
  for (const size_t bytes : {0, 1, 1000, 2047, 2048, 4095, 4096, 4097, 100013}) {
    const Bytes content = randomElements(&random, Dtype::kUint8, bytes);
    for (const size_t offset : {0, 1, 32}) {
      for (const auto copy : {copyBytes, copyPastCache}) {
        GuardedBuffer source(content, 3 * offset);
        GuardedBuffer destination(Bytes(bytes), offset);
        copy(destination.data(), source.data(), bytes);
        EXPECT_TRUE(destination.content() == content) << bytes << " bytes at offset " << offset;
        EXPECT_TRUE(destination.areGuardsIntact()) << bytes << " bytes at offset " << offset;
      }
    }
  }
}

TEST_P(KernelsTest, MinimumAndMaximumOfZerosDoNotDependOnTheirOrder) {
  const float zeros[2] = {0.0f, -0.0f};
  for (const int first : {0, 1}) {
    const void* sources[] = {&zeros[first], &zeros[1 - first]};
    float least = 1;
    float greatest = 1;
    reduceInto(&least, sources, 2, 1, Dtype::kFloat32, ReduceOp::kMin);
    reduceInto(&greatest, sources, 2, 1, Dtype::kFloat32, ReduceOp::kMax);
    EXPECT_EQ(std::bit_cast<uint32_t>(least), 0x80000000u);
    EXPECT_EQ(std::bit_cast<uint32_t>(greatest), 0u);
  }
}

TEST_P(KernelsTest, NanOfEitherSourceIsTheResultOfEveryFloatingOperation) {
  const uint32_t values[2] = {0xffc12345, std::bit_cast<uint32_t>(2.0f)};
  for (const int first : {0, 1}) {
    const void* sources[] = {&values[first], &values[1 - first]};
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      uint32_t result = 0;
      reduceInto(&result, sources, 2, 1, Dtype::kFloat32, op);
      EXPECT_EQ(result, 0x7fc00000u) << reduceOpName(op);
    }
  }
}

#if defined(__x86_64__)
TEST_P(KernelsTest, SubnormalsAreKeptInAThreadThatFlushesThem) {
  constexpr unsigned kFlushing = 0x8040;  // of MXCSR: results and operands
  const unsigned before = _mm_getcsr();
  const float subnormal = std::numeric_limits<float>::denorm_min();
  const void* sources[] = {&subnormal, &subnormal};
  float sum = 0;
  _mm_setcsr(before | kFlushing);
  reduceInto(&sum, sources, 2, 1, Dtype::kFloat32, ReduceOp::kSum);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(std::bit_cast<uint32_t>(sum), 2u);
  EXPECT_EQ(after, before | kFlushing) << "the thread's own modes were not put back";
}
#endif

// Tests of what surrounds the sets.

TEST(KernelChoiceTest, AnUnknownSetIsRefusedAndChangesNothing) {
  const std::string before = instructionSet();
  EXPECT_FALSE(useInstructionSet("avx1024"));
  EXPECT_EQ(instructionSet(), before);
}

TEST(KernelChoiceTest, TheBestSetThatCanRunIsChosen) {
  std::string best;
  const std::string chosen = instructionSet();
  for (const char* set : kSets) {
    best = useInstructionSet(set) ? set : best;
  }
  useInstructionSet(chosen.c_str());
  EXPECT_EQ(chosen, best);
}

std::string messageOf(int num_sources, Dtype dtype, ReduceOp op, int divisor) {
  uint64_t memory[2] = {};
  const void* sources[] = {&memory[0], &memory[1]};
  try {
    reduceInto(memory, sources, num_sources, 1, dtype, op, divisor);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code, Code::kInvalid);
    EXPECT_EQ(failure.culprit, -1);
    return failure.what();
  }
  return "";
}

TEST(ReduceIntoTest, ArgumentsThatMakeNoSenseAreRefusedWithAReason) {
  EXPECT_NE(messageOf(2, Dtype::kFloat32, ReduceOp::kBand, 1).find("band is not defined for float32"),
            std::string::npos);
  EXPECT_NE(messageOf(2, Dtype::kInt8, ReduceOp::kAvg, 1).find("avg is not defined for int8"), std::string::npos);
  EXPECT_NE(messageOf(0, Dtype::kInt8, ReduceOp::kSum, 1).find("1 source or more, got 0"), std::string::npos);
  EXPECT_NE(messageOf(2, Dtype::kInt8, ReduceOp::kSum, 2).find("divisor 1 for int8, got 2"), std::string::npos);
  EXPECT_NE(messageOf(2, Dtype::kFloat16, ReduceOp::kAvg, 0).find("divisor 1 or more for float16, got 0"),
            std::string::npos);
  EXPECT_EQ(messageOf(2, Dtype::kFloat16, ReduceOp::kAvg, 2), "");
}

TEST(TypesTest, OperationsAreDefinedWhereTheInterfaceSays) {
  for (const Dtype dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      const bool is_bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
      const bool is_float = std::string(dtypeName(dtype)).find("float") != std::string::npos;
      const bool expected = op == ReduceOp::kAvg ? is_float : !(is_bitwise && is_float);
      EXPECT_EQ(isDefined(op, dtype), expected) << reduceOpName(op) << " of " << dtypeName(dtype);
    }
  }
  EXPECT_FALSE(isDefined(ReduceOp::kSum, static_cast<Dtype>(CLARY_BOOL + 1)));
  EXPECT_FALSE(isDefined(static_cast<ReduceOp>(CLARY_BXOR + 1), Dtype::kInt32));
}

TEST(TypesTest, NamesAndSizesFitTheTypes) {
  EXPECT_EQ(elementBytes(Dtype::kFloat64), 8u);
  EXPECT_EQ(elementBytes(Dtype::kBfloat16), 2u);
  EXPECT_EQ(elementBytes(Dtype::kBool), 1u);
  EXPECT_STREQ(dtypeName(Dtype::kBfloat16), "bfloat16");
  EXPECT_STREQ(reduceOpName(ReduceOp::kBxor), "bxor");
  EXPECT_STREQ(collectiveName(Collective::kReduceScatter), "reduce_scatter");
  EXPECT_STREQ(collectiveName(static_cast<Collective>(CLARY_RECEIVE + 1)), "unknown collective");
}

}  // namespace
}  // namespace clary
