// The front of the kernels: checks arguments, chooses the set of instructions, and copies.
#include "reduce/kernels.hpp"

#include <atomic>
#include <cstring>

#include "reduce/kernel_set.hpp"

namespace clary {
namespace {

// Copies from here on are left to our own loop: memcpy of glibc takes `rep movsb` for some kilobytes to the size of the
// second-level cache, which on Zen 3 reads what another core has written at 2.6 GB/s, where vectors reach 16.
constexpr size_t kVectorCopyBytes = 2048;

// Below this the wait for writes past the cache to drain costs more than they save. Measured between two cores of a
// Zen 3 (32 MiB of L3): 64 KiB are written past the cache at 22 GB/s against 3.4, and read afterwards at 18 against 11.
constexpr size_t kPastCacheBytes = 4096;

// The set of this name if this processor, and its operating system, can run it; else nullptr.
const KernelSet* supportedSet(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (std::strcmp(name, kAvx512Kernels.name) == 0) {
    const bool is_supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return is_supported ? &kAvx512Kernels : nullptr;
  }
  if (std::strcmp(name, kAvx2Kernels.name) == 0) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? &kAvx2Kernels : nullptr;
  }
#endif
  return std::strcmp(name, kBaselineKernels.name) == 0 ? &kBaselineKernels : nullptr;
}

const KernelSet* bestSet() {
  for (const char* name : {"avx512", "avx2"}) {
    if (const KernelSet* set = supportedSet(name)) {
      return set;
    }
  }
  return &kBaselineKernels;
}

// Null until first needed. Threads that race choose the same set.
std::atomic<const KernelSet*> active_set{nullptr};

const KernelSet& activeSet() {
  const KernelSet* set = active_set.load(std::memory_order_acquire);
  if (set == nullptr) {
    const KernelSet* best = bestSet();
    set = active_set.compare_exchange_strong(set, best) ? best : set;
  }
  return *set;
}

bool isFloating(Dtype dtype) { return isDefined(ReduceOp::kAvg, dtype); }

void check(int num_sources, Dtype dtype, ReduceOp op, int divisor) {
  std::string wrong;
  if (!isDefined(op, dtype)) {
    wrong = std::string(reduceOpName(op)) + " is not defined for " + dtypeName(dtype);
  } else if (num_sources < 1) {
    wrong = "expected 1 source or more, got " + std::to_string(num_sources);
  } else if (divisor < 1 || (divisor != 1 && !isFloating(dtype))) {
    wrong = "expected divisor " + std::string(isFloating(dtype) ? "1 or more" : "1") + " for " + dtypeName(dtype) +
            ", got " + std::to_string(divisor);
  } else {
    return;
  }
  throw Failure(Code::kInvalid, -1, "reduceInto: " + wrong + "; check arguments before the operation starts");
}

// Arithmetic as a thread starts with it: to nearest, subnormals kept, no traps. Reductions run in threads of the core
// and in threads of users, who may have set other modes, and must give the same bits in all.
class DefaultArithmetic {
#if defined(__x86_64__)
 public:
  DefaultArithmetic() : before_(__builtin_ia32_stmxcsr()), has_changed_((before_ & ~kRaised) != kDefault) {
    if (has_changed_) {
      __builtin_ia32_ldmxcsr(kDefault);
    }
  }
  ~DefaultArithmetic() {
    if (has_changed_) {
      __builtin_ia32_ldmxcsr(before_);
    }
  }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1f80;  // MXCSR after reset, as the System V ABI wants it
  static constexpr unsigned kRaised = 0x003f;   // exceptions that have occurred
  const unsigned before_;
  const bool has_changed_;
#endif
};

Kernel kernelOf(Dtype dtype, ReduceOp op) { return activeSet().kernels[static_cast<int>(dtype)][static_cast<int>(op)]; }

// A copy is a reduction of one source by an operation that leaves bytes alone.
void copyByKernel(void* destination, const void* source, size_t bytes, bool is_past_cache) {
  kernelOf(Dtype::kUint8, ReduceOp::kBor)({destination, &source, 1, bytes, 1, is_past_cache});
}

void copyByLibrary(void* destination, const void* source, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(destination, source, bytes);
  }
}

}  // namespace

void reduceInto(void* destination, const void* const* sources, int num_sources, size_t count, Dtype dtype, ReduceOp op,
                int divisor, Placement placement) {
  check(num_sources, dtype, op, divisor);
  const bool is_past_cache = placement == Placement::kPastCache;
  const size_t bytes = count * elementBytes(dtype);
  if (num_sources == 1 && divisor == 1 && dtype != Dtype::kBool) {
    // Not as elements: arithmetic does not keep the bits of NaN.
    (is_past_cache ? copyPastCache : copyBytes)(destination, sources[0], bytes);
    return;
  }
  [[maybe_unused]] const DefaultArithmetic arithmetic;
  kernelOf(dtype, op)({destination, sources, num_sources, count, divisor, is_past_cache && bytes >= kPastCacheBytes});
}

void copyBytes(void* destination, const void* source, size_t bytes) {
  if (bytes >= kVectorCopyBytes) {
    copyByKernel(destination, source, bytes, false);
  } else {
    copyByLibrary(destination, source, bytes);
  }
}

// What is too small to go past the cache is memcpy's, not the loop's above: `rep movsb` is slow to read what others
// wrote, but quick to write where others have read.
void copyPastCache(void* destination, const void* source, size_t bytes) {
  if (bytes >= kPastCacheBytes) {
    copyByKernel(destination, source, bytes, true);
  } else {
    copyByLibrary(destination, source, bytes);
  }
}

const char* instructionSet() { return activeSet().name; }

bool useInstructionSet(const char* name) {
  const KernelSet* set = supportedSet(name);
  if (set != nullptr) {
    active_set.store(set, std::memory_order_release);
  }
  return set != nullptr;
}

}  // namespace clary
