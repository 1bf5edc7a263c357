// The kernels for AVX2 and F16C: x86-64 processors since 2013 (Haswell) and 2015 (Excavator).
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mf16c"
#endif
#include "reduce/kernels_impl.hpp"

namespace clary {

constinit const KernelSet kAvx2Kernels = kernelSet("avx2");

}  // namespace clary
#endif
