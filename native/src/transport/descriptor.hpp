// An owned file descriptor, and what both transports ask of the stream sockets that they are given.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace clary {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { close(); }

  int fd() const { return fd_; }
  bool isOpen() const { return fd_ >= 0; }
  void close();

  // For sockets: end the connection too, so that the peer learns of it although a forked child still holds a copy of
  // the descriptor. What was written before is still delivered.
  void endAndClose();

 private:
  int fd_ = -1;
};

std::vector<Descriptor> takeOver(const std::vector<int>& fds);

// Non-blocking, and TCP_NODELAY where it is TCP. Returns whether it is. Throws Failure(SYSTEM) naming `whose` it is.
bool prepareStream(int fd, const std::string& whose);

// Whether the peer's kernel has acknowledged all that was written to a TCP socket; true where nobody can tell.
bool isAcknowledged(int fd);

// "Connection reset by peer (errno 104)".
std::string errorWords(int error_number);

}  // namespace clary
