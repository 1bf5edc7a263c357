// Element-wise reduction of several sources, and plain copies.
//
// One pass over memory whatever the number of sources. The order is fixed, ((s0 op s1) op s2) ..., so equal inputs give
// equal bits. float16 and bfloat16 are widened to float32 once, accumulated there, and rounded once, to nearest even,
// at the end. Integers wrap. A bool is true if its byte is not 0, and is written as 0 or 1. On floating types NaN wins
// every operation and is written as one quiet NaN whatever its payload was, and MIN and MAX take -0 for less than +0,
// so they do not depend on the order of sources. The instruction set is chosen when the process first reduces; all give
// the same bits, whatever the calling thread has set for its own arithmetic (say, to flush subnormals).
#pragma once

#include "common/types.hpp"

namespace clary {

// How a destination is written: through the caches of this processor or past them, without being read into them first.
// Past them is slow to be read again by this processor and fast to be read by another; who reads next, the caller
// knows. Pieces that are too small to gain by it are written through the caches all the same.
enum class Placement { kCached, kPastCache };

// destination[i] = (sources[0][i] op sources[1][i] op ...) / divisor. Buffers may be unaligned.
//   destination  may equal one of the sources, and is in the cache then; no other overlap.
//   num_sources  1 or more; one source with divisor 1 is copied, bit for bit unless it is bool.
//   divisor      1 leaves the result alone; only floating types may have another. AVG reduces as SUM does; its division
//                is asked for by this argument in the last reduction alone.
//   op           defined for dtype (`isDefined`).
// Throws Failure (INVALID), with nothing written, if num_sources, divisor or op is none of these.
void reduceInto(void* destination, const void* const* sources, int num_sources, size_t count, Dtype dtype, ReduceOp op,
                int divisor = 1, Placement placement = Placement::kCached);

// As memcpy. Both are fast also where another processor wrote the source or read the destination last, which memcpy of
// glibc is not.
void copyBytes(void* destination, const void* source, size_t bytes);
void copyPastCache(void* destination, const void* source, size_t bytes);

const char* instructionSet();  // "avx512", "avx2" or "baseline"

// For tests and benchmarks: use this set from now on. False if this processor lacks it.
bool useInstructionSet(const char* name);

}  // namespace clary
