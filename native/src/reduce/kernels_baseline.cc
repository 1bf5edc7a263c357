// The kernels for what every processor of this architecture has (SSE2 on x86-64, NEON on 64-bit Arm).
#include "reduce/kernels_impl.hpp"

namespace clary {

constinit const KernelSet kBaselineKernels = kernelSet("baseline");

}  // namespace clary
