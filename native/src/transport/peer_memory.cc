#include "transport/peer_memory.hpp"

#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace clary {
namespace {

constexpr size_t kTriedBytes = 64;
// The ways of a member; 0 is that of one that has not looked yet.
constexpr uint32_t kReadsOthers = 1;
constexpr uint32_t kSharedMemory = 2;

uint64_t addressOf(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

}  // namespace

PeerMemory::PeerMemory(HostTeam& team) : team_(team), isUsable_(team.members() > 1), pid_(getpid()) {
  // Without random numbers nothing tells the peer from another process.
  if (getrandom(&cookie_, sizeof(cookie_), GRND_NONBLOCK) != sizeof(cookie_)) cookie_ = 0;
}

void PeerMemory::show(uint64_t sequence, const void* input) {
  Window& own = team_.window(team_.index(), sequence);
  own.pid = pid_;
  own.cookie = cookie_;
  own.cookieAt = addressOf(&cookie_);
  own.input = addressOf(input);
  own.isBlind = cookie_ == 0;
  own.way = 0;
}

void PeerMemory::tryAll(uint64_t sequence, uint64_t bytes) {
  std::array<std::byte, kTriedBytes> tried;
  const size_t most = std::min<uint64_t>(bytes, tried.size());
  for (int member = 0; member < team_.members(); ++member) {
    if (member == team_.index()) continue;
    if (read(member, sequence, tried.data(), input(member, sequence), most) != 0) {
      team_.window(team_.index(), sequence).isBlind = 1;
    }
  }
}

bool PeerMemory::agree(uint64_t sequence) {
  for (int member = 0; member < team_.members(); ++member) {
    if (team_.window(member, sequence).isBlind != 0) isUsable_ = false;
  }
  team_.window(team_.index(), sequence).way = isUsable_ ? kReadsOthers : kSharedMemory;
  return isUsable_;
}

int PeerMemory::dissenter(uint64_t sequence) const {
  for (int member = 0; member < team_.members(); ++member) {
    if (team_.window(member, sequence).way != (isUsable_ ? kReadsOthers : kSharedMemory)) return member;
  }
  return -1;
}

const std::byte* PeerMemory::input(int member, uint64_t sequence) const {
  return reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(team_.window(member, sequence).input));
}

int PeerMemory::read(int member, uint64_t sequence, void* destination, const std::byte* source, size_t bytes) {
  const Window& peer = team_.window(member, sequence);
  auto* to = static_cast<std::byte*>(destination);
  if (bytes > kTriedBytes) bytesRead_.fetch_add(bytes, std::memory_order_relaxed);
  while (bytes > 0) {
    uint64_t cookie = 0;
    const iovec here[] = {{&cookie, sizeof(cookie)}, {to, bytes}};
    const iovec there[] = {{reinterpret_cast<void*>(static_cast<uintptr_t>(peer.cookieAt)), sizeof(cookie)},
                           {const_cast<std::byte*>(source), bytes}};
    const ssize_t taken = process_vm_readv(static_cast<pid_t>(peer.pid), here, 2, there, 2, 0);
    if (taken < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (taken < static_cast<ssize_t>(sizeof(cookie)) || cookie != peer.cookie) return ESRCH;
    const size_t copied = static_cast<size_t>(taken) - sizeof(cookie);
    if (copied == 0) return EFAULT;
    to += copied;
    source += copied;
    bytes -= copied;
  }
  return 0;
}

}  // namespace clary
