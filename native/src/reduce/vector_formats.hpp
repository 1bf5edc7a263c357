// How elements of each type lie in vector registers: the lower half of the kernels (the upper is kernels_impl.hpp).
//
// Included once by each kernels_<set>.cc; the width of a vector follows from that file's compiler flags. All here has
// internal linkage, so every set has its own copy (see [Note: no shared inline code] in kernel_set.hpp).
//
// Nomenclature. A vector is kVectorBytes of memory or one register. A format says what a vector of memory becomes when
// loaded: kParts registers of lanes, on which the operations of kernels_impl.hpp work, and how they are packed into one
// vector again. 16 bit floats become two registers of float32; everything else is one register, as it lies in memory.
#pragma once

#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace clary {
namespace {

#if defined(__AVX512F__)
constexpr size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kVectorBytes = 32;
#else
constexpr size_t kVectorBytes = 16;
#endif

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::Type;

using Floats = Vector<float>;
using Words = Vector<uint32_t>;
using SignedWords = Vector<int32_t>;
using Packed = Vector<uint8_t>;

// Memory may be unaligned and of any type, so it is touched through memcpy alone, which compiles to one instruction.
template <class T>
inline T loadAs(const char* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
inline void storeAs(char* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// Write an aligned vector without reading its line into the cache first. Such writes become visible to other processors
// in no order until `fenceStreams`.
#if defined(__AVX512F__)
inline void stream(char* to, Packed value) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(value));
}
#elif defined(__AVX2__)
inline void stream(char* to, Packed value) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(value));
}
#elif defined(__x86_64__)
inline void stream(char* to, Packed value) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(value));
}
#endif

#if defined(__x86_64__)
constexpr bool kCanStream = true;
inline void fenceStreams() { _mm_sfence(); }
#else
constexpr bool kCanStream = false;
inline void stream(char* to, Packed value) { storeAs(to, value); }
inline void fenceStreams() {}
#endif

// Integers. SUM and PRODUCT take unsigned types, so that they wrap.
template <class T>
struct IntegerFormat {
  using Lanes = Vector<T>;
  static constexpr bool kIsFloating = false;
  static constexpr int kParts = 1;
  static constexpr size_t kElementBytes = sizeof(T);
  static void load(const char* from, Lanes* parts) { parts[0] = loadAs<Lanes>(from); }
  static Packed pack(const Lanes* parts) { return reinterpret_cast<Packed>(parts[0]); }
};

// Truth values: any byte but 0 is true and is loaded as 1.
struct BoolFormat {
  using Lanes = Vector<uint8_t>;
  static constexpr bool kIsFloating = false;
  static constexpr int kParts = 1;
  static constexpr size_t kElementBytes = 1;
  static void load(const char* from, Lanes* parts) { parts[0] = reinterpret_cast<Lanes>(loadAs<Lanes>(from) != 0) & 1; }
  static Packed pack(const Lanes* parts) { return reinterpret_cast<Packed>(parts[0]); }
};

// Formats of floating types: Scalar is the type of a lane, Bits the unsigned lanes of the same width, kNan the one NaN
// that reductions write.
struct Float32Format {
  using Scalar = float;
  using Lanes = Floats;
  using Bits = Words;
  static constexpr bool kIsFloating = true;
  static constexpr int kParts = 1;
  static constexpr size_t kElementBytes = 4;
  static constexpr uint32_t kNan = 0x7fc00000;
  static void load(const char* from, Lanes* parts) { parts[0] = loadAs<Lanes>(from); }
  static Packed pack(const Lanes* parts) { return reinterpret_cast<Packed>(parts[0]); }
};

struct Float64Format {
  using Scalar = double;
  using Lanes = Vector<double>;
  using Bits = Vector<uint64_t>;
  static constexpr bool kIsFloating = true;
  static constexpr int kParts = 1;
  static constexpr size_t kElementBytes = 8;
  static constexpr uint64_t kNan = 0x7ff8000000000000;
  static void load(const char* from, Lanes* parts) { parts[0] = loadAs<Lanes>(from); }
  static Packed pack(const Lanes* parts) { return reinterpret_cast<Packed>(parts[0]); }
};

// What the 16 bit floats share. Where no instruction converts them, part 0 holds the elements in the lower halves of
// the 32 bit words of memory and part 1 those in the upper halves: nothing has to move across lanes.
struct WidenedFormat {
  using Scalar = float;
  using Lanes = Floats;
  using Bits = Words;
  static constexpr bool kIsFloating = true;
  static constexpr int kParts = 2;
  static constexpr size_t kElementBytes = 2;
  static constexpr uint32_t kNan = Float32Format::kNan;
};

// A bfloat16 is the upper half of a float32. Storing rounds to nearest even by carrying into that half; kNan, the only
// NaN that is ever stored, does not carry.
struct Bfloat16Format : WidenedFormat {
  static constexpr uint32_t kUpper = 0xffff0000;
  static void load(const char* from, Lanes* parts) {
    const Words pairs = loadAs<Words>(from);
    parts[0] = reinterpret_cast<Lanes>(pairs << 16);
    parts[1] = reinterpret_cast<Lanes>(pairs & kUpper);
  }
  static Packed pack(const Lanes* parts) {
    return reinterpret_cast<Packed>((rounded(parts[0]) >> 16) | (rounded(parts[1]) & kUpper));
  }
  static Words rounded(Lanes lanes) {
    const Words bits = reinterpret_cast<Words>(lanes);
    return bits + 0x7fff + ((bits >> 16) & 1);
  }
};

#if defined(__AVX512F__)
// The masks name all lanes and change nothing: GCC before 13 warns of the unmasked forms (PR 105593).
struct Float16Format : WidenedFormat {
  static constexpr __mmask16 kAll = 0xffff;
  static constexpr __mmask8 kAllQuads = 0xff;
  static void load(const char* from, Lanes* parts) {
    parts[0] = _mm512_maskz_cvtph_ps(kAll, loadAs<__m256i>(from));
    parts[1] = _mm512_maskz_cvtph_ps(kAll, loadAs<__m256i>(from + kVectorBytes / 2));
  }
  static Packed pack(const Lanes* parts) {
    const __m256i lower = _mm512_maskz_cvtps_ph(kAll, parts[0], _MM_FROUND_TO_NEAREST_INT);
    const __m256i upper = _mm512_maskz_cvtps_ph(kAll, parts[1], _MM_FROUND_TO_NEAREST_INT);
    return reinterpret_cast<Packed>(_mm512_maskz_inserti64x4(kAllQuads, _mm512_castsi256_si512(lower), upper, 1));
  }
};
#elif defined(__AVX2__) && defined(__F16C__)
struct Float16Format : WidenedFormat {
  static void load(const char* from, Lanes* parts) {
    parts[0] = _mm256_cvtph_ps(loadAs<__m128i>(from));
    parts[1] = _mm256_cvtph_ps(loadAs<__m128i>(from + kVectorBytes / 2));
  }
  static Packed pack(const Lanes* parts) {
    const __m128i lower = _mm256_cvtps_ph(parts[0], _MM_FROUND_TO_NEAREST_INT);
    const __m128i upper = _mm256_cvtps_ph(parts[1], _MM_FROUND_TO_NEAREST_INT);
    return reinterpret_cast<Packed>(_mm256_set_m128i(upper, lower));
  }
};
#else
// Conversion by arithmetic on the bits. float16 has 5 bits of exponent (bias 15) and 10 of mantissa, float32 has 8
// (bias 127) and 23: mantissas differ by a shift of 13, exponents of normal numbers by 112.
struct Float16Format : WidenedFormat {
  static constexpr uint32_t kRebias = 112u << 23;
  static constexpr int32_t kHalfInfinity = 0x7c00;
  static constexpr int32_t kHalfSmallestNormal = 0x0400;
  static constexpr int32_t kHalfNan = 0x7e00;
  static constexpr int32_t kSmallestNormal = 113 << 23;  // 2^-14 as float32
  static constexpr int32_t kBeyondHalf = 143 << 23;      // 2^16 as float32: infinite as float16
  static constexpr int32_t kOneHalf = 126 << 23;         // 0.5 as float32; its unit in the last place is 2^-24

  static void load(const char* from, Lanes* parts) {
    const Words pairs = loadAs<Words>(from);
    parts[0] = widened(pairs & 0xffff);
    parts[1] = widened(pairs >> 16);
  }
  static Packed pack(const Lanes* parts) {
    return reinterpret_cast<Packed>(narrowed(parts[0]) | (narrowed(parts[1]) << 16));
  }

  static Lanes widened(Words half) {
    const Words magnitude = half & 0x7fff;
    const Words shifted = magnitude << 13;
    const Words normal = shifted + kRebias;
    const Words special = normal + kRebias;
    // A subnormal is its mantissa times 2^-24: as the mantissa of a float32 from 2^-14 on, with that 2^-14 taken away.
    const Lanes subnormal = asLanes(shifted + kSmallestNormal) - asLanes(Words{} + kSmallestNormal);
    Words bits = isBelow(magnitude, kHalfInfinity) ? normal : special;
    bits = isBelow(magnitude, kHalfSmallestNormal) ? reinterpret_cast<Words>(subnormal) : bits;
    return asLanes(bits | ((half & 0x8000) << 16));
  }

  static Words narrowed(Lanes lanes) {
    const Words bits = reinterpret_cast<Words>(lanes);
    const Words magnitude = bits & 0x7fffffff;
    // A carry out of the mantissa ends in the next exponent, at last in that of infinity, as it should.
    const Words normal = (magnitude - kRebias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Adding 0.5 makes the processor round to multiples of 2^-24, which subnormals count.
    const Words subnormal = reinterpret_cast<Words>(asLanes(magnitude) + asLanes(Words{} + kOneHalf)) - kOneHalf;
    Words half = isBelow(magnitude, kSmallestNormal) ? subnormal : normal;
    half = isBelow(magnitude, kBeyondHalf) ? half : Words{} + kHalfInfinity;
    half = lanes == lanes ? half : Words{} + kHalfNan;
    return half | ((bits >> 16) & 0x8000);
  }

  static Lanes asLanes(Words bits) { return reinterpret_cast<Lanes>(bits); }

  // For magnitudes below 2^31, which compare as signed numbers: SSE2 has no unsigned comparison.
  static SignedWords isBelow(Words magnitude, int32_t limit) {
    return reinterpret_cast<SignedWords>(magnitude) < limit;
  }
};
#endif

}  // namespace
}  // namespace clary
