// What the dispatch (kernels.cc) and the sets of kernels compiled for one set of instructions (kernels_<set>.cc) share.
//
// [Note: no shared inline code] A file compiled for AVX must not emit an inline function or template that other files
// may emit too: the linker keeps one copy, and if it keeps the AVX one, a processor without AVX meets it. So this
// header, and all that the sets include, declares plain data only and uses nothing of the C++ library.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "clary/collectives.h"

namespace clary {

// The arguments of reduceInto without type and operation. `destination` and the sources may be unaligned.
struct Reduction {
  void* destination;
  const void* const* sources;
  int num_sources;
  size_t count;
  int divisor;
  bool is_past_cache;  // write past the cache, where alignment allows
};

using Kernel = void (*)(const Reduction&);

inline constexpr int kNumDtypes = CLARY_BOOL + 1;
inline constexpr int kNumReduceOps = CLARY_BXOR + 1;

struct KernelSet {
  const char* name;
  Kernel kernels[kNumDtypes][kNumReduceOps];  // nullptr where the operation is not defined for the type
};

extern const KernelSet kBaselineKernels;
#if defined(__x86_64__)
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;
#endif

}  // namespace clary
