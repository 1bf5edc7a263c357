// The kernels for AVX-512 F, BW, VL and DQ: x86-64 server processors since 2017 (Skylake-SP) and 2022 (Zen 4).
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "compile this file with -mavx512f -mavx512bw -mavx512vl -mavx512dq"
#endif
#include "reduce/kernels_impl.hpp"

namespace clary {

constinit const KernelSet kAvx512Kernels = kernelSet("avx512");

}  // namespace clary
#endif
