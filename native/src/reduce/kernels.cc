// The front of the kernels: checks arguments, chooses the set of instructions, and copies.
#include "reduce/kernels.hpp"

#include <atomic>
#include <cstring>

#include "reduce/kernel_set.hpp"

namespace clary {
namespace {

// Results and copies of this size and more are written past the cache. Measured on Zen 3 with 32 MiB of L3: from here
// on it wins (at 32 MiB copies 12 GB/s against 8, sums of two 7.0 against 6.1) and costs nothing if the result is read
// right after; at 4 MiB the reader loses more than the writer gains.
constexpr size_t kBypassBytes = 8 << 20;

// Copies from here on are left to our own loop: memcpy of glibc takes `rep movsb` for some kilobytes to the size of the
// second-level cache, which on Zen 3 reads what another core has written at 2.6 GB/s, where vectors reach 16.
constexpr size_t kVectorCopyBytes = 2048;

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

bool isOneOf(const void* memory, const void* const* others, int num_others) {
  for (int i = 0; i < num_others; ++i) {
    if (others[i] == memory) {
      return true;
    }
  }
  return false;
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

void run(const Reduction& reduction, Dtype dtype, ReduceOp op) {
  [[maybe_unused]] const DefaultArithmetic arithmetic;
  activeSet().kernels[static_cast<int>(dtype)][static_cast<int>(op)](reduction);
}

// A copy is a reduction of one source by an operation that leaves bytes alone.
void copyWithKernel(void* destination, void* mirror, const void* source, size_t bytes) {
  const bool bypasses_cache = false;
  run({destination, mirror, &source, 1, bytes, 1, bypasses_cache}, Dtype::kUint8, ReduceOp::kBor);
}

}  // namespace

void reduceInto(void* destination, void* mirror, const void* const* sources, int num_sources, size_t count, Dtype dtype,
                ReduceOp op, int divisor) {
  check(num_sources, dtype, op, divisor);
  const size_t bytes = count * elementBytes(dtype);
  if (num_sources == 1 && divisor == 1 && dtype != Dtype::kBool) {
    // Not as elements: arithmetic does not keep the bits of NaN.
    copyWithKernel(destination, mirror, sources[0], bytes);
    return;
  }
  // A destination that is also a source is in the cache already; writing past it would only throw its lines out.
  const bool bypasses_cache = bytes >= kBypassBytes && !isOneOf(destination, sources, num_sources);
  run({destination, mirror, sources, num_sources, count, divisor, bypasses_cache}, dtype, op);
}

void copyBytes(void* destination, const void* source, size_t bytes) {
  if (bytes >= kVectorCopyBytes) {
    copyWithKernel(destination, nullptr, source, bytes);
  } else if (bytes > 0) {
    std::memcpy(destination, source, bytes);
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
