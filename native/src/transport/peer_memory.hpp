// The memory of the other ranks of a host, read with one copy by cross-memory attach (process_vm_readv(2)).
//
// The kernel lets a process read another one of the same user unless the machine or the container withholds it. Nobody
// can know that before trying, and all ranks must take the same way. So each rank shows where its memory lies, reads a
// few bytes of every other rank, and tells by a flag if that failed; one flag sends all ranks another way, for good.
//
// [Note: cookie] Process numbers mean something in their own namespace only, and are given away again. Each read
// therefore fetches a random number of the peer's, which it has shown in shared memory, in the same system call; a
// process that is not the peer does not have it at that address.
//
// [Note: lies] All of that lies in memory that every rank of the host may write, and a broken or hostile one may. No
// address of another rank is ever used but by the system call, which fails for memory that is not there. A rank that
// says another number for its own data passes, as one that sends other data would; so does one that writes over what
// others lay into shared memory.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/host_team.hpp"

namespace clary {

class PeerMemory {
 public:
  explicit PeerMemory(HostTeam& team);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // False from the first operation on in which a rank could not read another; the same on all ranks.
  bool isUsable() const { return isUsable_; }

  // Show where this rank's input of an operation lies; others look after the next phase.
  void show(uint64_t sequence, const void* input);
  // Read a few bytes of every other rank's memory, of `bytes` each, and tell the others if one cannot be read.
  void tryAll(uint64_t sequence, uint64_t bytes);
  // After the phase of `tryAll`: whether all can read all. If not, `isUsable` is false from here on.
  bool agree(uint64_t sequence);
  // A phase after `agree`: a member that goes another way than this one, because it saw another flag; -1 if all go one.
  int dissenter(uint64_t sequence) const;

  const std::byte* input(int member, uint64_t sequence) const;

  // Copy from a peer's memory. Returns 0, or the error's number; ESRCH for a process that is not the peer.
  int read(int member, uint64_t sequence, void* destination, const std::byte* source, size_t bytes);
  // Read so far, without what `tryAll` reads.
  uint64_t bytesRead() const { return bytesRead_.load(std::memory_order_relaxed); }

 private:
  HostTeam& team_;
  bool isUsable_;
  int64_t pid_;
  uint64_t cookie_ = 0;
  std::atomic<uint64_t> bytesRead_{0};
};

}  // namespace clary
