// clary_switch: the network between the hosts of a laboratory, where links have a delay or lose frames.
//
//   clary_switch SEED NAME,TAP,MAC,BYTES_PER_S,DELAY_NS,LOSS...
//
// One argument a host; TAP is the number of an inherited descriptor, BYTES_PER_S 0 means no limit, LOSS is a
// probability. `down NAME` and `up NAME` on standard input cut a link and connect it again; each is answered by the
// same line on standard output. When standard input ends, one JSON object with the counts of every port is printed.
// Where: src/clary/testing/lab_network.py makes the hosts and starts this.
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ethernet_switch.hpp"

namespace clary::lab {

namespace {

constexpr unsigned long kTimerSlackNs = 1000;  // the default of 50 us would show up in every round trip

double parseNumber(const std::string& text, const std::string& what, double lowest, double highest) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lowest || value > highest) {
    throw std::invalid_argument(what + ": expected a number from " + std::to_string(lowest) + " to " +
                                std::to_string(highest) + ", got '" + text + "'");
  }
  return value;
}

MacAddress parseMac(const std::string& text) {
  unsigned parts[6];
  char end = 0;
  if (std::sscanf(text.c_str(), "%2x:%2x:%2x:%2x:%2x:%2x%c", &parts[0], &parts[1], &parts[2], &parts[3], &parts[4],
                  &parts[5], &end) != 6) {
    throw std::invalid_argument("hardware address: expected six hexadecimal bytes with colons, got '" + text + "'");
  }
  MacAddress mac;
  for (size_t i = 0; i < mac.size(); ++i) mac[i] = static_cast<uint8_t>(parts[i]);
  return mac;
}

Link parseLink(const std::string& argument) {
  std::vector<std::string> fields;
  std::istringstream stream(argument);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  if (fields.size() != 6) {
    throw std::invalid_argument("a link is NAME,TAP,MAC,BYTES_PER_S,DELAY_NS,LOSS, got '" + argument + "'");
  }
  const auto field = [&](size_t index, const char* what, double highest) {
    return parseNumber(fields[index], fields[0] + ": " + what, 0, highest);
  };
  Link link;
  link.name = fields[0];
  link.tap = static_cast<int>(field(1, "descriptor", 1e6));
  link.mac = parseMac(fields[2]);
  link.bytesPerSecond = field(3, "bytes per second", 1e12);
  link.delay = std::chrono::nanoseconds(static_cast<int64_t>(field(4, "delay in nanoseconds", 1e12)));
  link.loss = field(5, "probability of loss", 1);
  return link;
}

// Lines of standard input. False once it has ended.
bool obey(EthernetSwitch& ethernet, std::string& pending) {
  char bytes[4096];
  const ssize_t size = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (size < 0) return errno == EINTR || errno == EAGAIN;
  if (size == 0) return false;
  pending.append(bytes, static_cast<size_t>(size));
  for (size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
    const std::string line = pending.substr(0, end);
    const size_t space = line.find(' ');
    const std::string verb = line.substr(0, space);
    const std::string name = space == std::string::npos ? "" : line.substr(space + 1);
    if ((verb != "up" && verb != "down") || !ethernet.setLink(name, verb == "up")) {
      throw std::invalid_argument("expected 'up NAME' or 'down NAME' of a host that was given, got '" + line + "'");
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
  return true;
}

void run(EthernetSwitch& ethernet) {
  std::vector<pollfd> watched;
  for (const Link& link : ethernet.links()) watched.push_back({link.tap, POLLIN, 0});
  watched.push_back({STDIN_FILENO, POLLIN, 0});
  std::string pending;
  for (;;) {
    for (size_t port = 0; port + 1 < watched.size(); ++port) {
      watched[port].events = static_cast<short>(ethernet.hasRoom() ? POLLIN : 0);
    }
    timespec wait{};
    const TimePoint due = ethernet.nextDue();
    const TimePoint before = Clock::now();
    if (due > before && due != TimePoint::max()) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(due - before).count();
      wait = {static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
    }
    if (::ppoll(watched.data(), watched.size(), due == TimePoint::max() ? nullptr : &wait, nullptr) < 0 &&
        errno != EINTR) {
      throw std::runtime_error("ppoll failed with errno " + std::to_string(errno));
    }
    const TimePoint now = Clock::now();
    for (size_t port = 0; port + 1 < watched.size(); ++port) {
      if (watched[port].revents & POLLIN) ethernet.receive(port, now);
    }
    ethernet.deliver(Clock::now());
    if ((watched.back().revents & (POLLIN | POLLHUP)) && !obey(ethernet, pending)) return;
  }
}

void printCounts(const EthernetSwitch& ethernet) {
  std::printf("{");
  for (size_t port = 0; port < ethernet.links().size(); ++port) {
    const PortCounts& counts = ethernet.counts()[port];
    const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    std::printf(
        "%s\"%s\": {\"received_frames\": %llu, \"received_bytes\": %llu, \"delivered_frames\": %llu, "
        "\"delivered_bytes\": %llu, \"lost_frames\": %llu, \"cut_frames\": %llu, \"dropped_frames\": %llu, "
        "\"worst_lateness_us\": %lld}",
        port ? ", " : "", ethernet.links()[port].name.c_str(), number(counts.receivedFrames),
        number(counts.receivedBytes), number(counts.deliveredFrames), number(counts.deliveredBytes),
        number(counts.lostFrames), number(counts.cutFrames), number(counts.droppedFrames),
        static_cast<long long>(std::chrono::duration_cast<std::chrono::microseconds>(counts.worstLateness).count()));
  }
  std::printf("}\n");
}

}  // namespace

}  // namespace clary::lab

int main(int argumentCount, char** arguments) {
  using namespace clary::lab;
  try {
    if (argumentCount < 3) throw std::invalid_argument("usage: clary_switch SEED LINK...");
    const double seed = parseNumber(arguments[1], "seed", 0, 9e15);  // what a double holds exactly
    std::vector<Link> links;
    for (int i = 2; i < argumentCount; ++i) links.push_back(parseLink(arguments[i]));
    ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
    // A network does not wait until the hosts have nothing to compute. Where this is forbidden, frames are late at
    // times.
    const sched_param priority{1};
    ::sched_setscheduler(0, SCHED_RR, &priority);
    EthernetSwitch ethernet(std::move(links), static_cast<uint64_t>(seed));
    run(ethernet);
    printCounts(ethernet);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "clary_switch: %s\n", error.what());
    return 1;
  }
  return 0;
}
