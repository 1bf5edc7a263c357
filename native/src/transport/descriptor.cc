#include "transport/descriptor.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "common/types.hpp"

namespace clary {

void Descriptor::close() {
  // On Linux the descriptor is gone even where close reports EINTR or EIO: never a second try.
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Descriptor::endAndClose() {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
  close();
}

std::vector<Descriptor> takeOver(const std::vector<int>& fds) {
  std::vector<Descriptor> owned(fds.size());
  for (size_t i = 0; i < fds.size(); ++i) owned[i] = Descriptor(fds[i]);
  return owned;
}

bool prepareStream(int fd, const std::string& whose) {
  int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    throw Failure(Code::kSystem, -1,
                  "descriptor " + std::to_string(fd) + " given as " + whose +
                      " cannot be made non-blocking: " + errorWords(errno) + "; pass a connected stream socket");
  }
  int on = 1;
  return ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0;
}

bool isAcknowledged(int fd) {
  int waiting = 0;
  return ::ioctl(fd, SIOCOUTQ, &waiting) != 0 || waiting == 0;
}

std::string errorWords(int error_number) {
  return std::generic_category().message(error_number) + " (errno " + std::to_string(error_number) + ")";
}

}  // namespace clary
