// The steps of the ranks of one host, where their numbers wrap around.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include "transport/host_team.hpp"

namespace clary {
namespace {

constexpr uint64_t kSlotBytes = 4096;
constexpr Step kStride = Step{1} << 29;
constexpr int kStrides = 17;  // more than twice around

// Two members in one process.
class HostTeams : public testing::Test {
 protected:
  HostTeams() {
    const uint64_t bytes = HostTeam::segmentBytes(2, kSlotBytes);
    fd_ = memfd_create("clary-test", MFD_CLOEXEC);
    EXPECT_EQ(0, ftruncate(fd_, static_cast<off_t>(bytes)));
    for (int member = 0; member < 2; ++member) {
      teams[member] = std::make_unique<HostTeam>(member, 2, fd_, bytes, kSlotBytes);
    }
  }
  ~HostTeams() override { close(fd_); }
  void startAllAt(Step step) {
    for (auto& team : teams) team->startAt(step);
  }
  Step publishAll() {
    for (auto& team : teams) team->publish();
    return teams[0]->step();
  }

  std::array<std::unique_ptr<HostTeam>, 2> teams;

 private:
  int fd_ = -1;
};

TEST_F(HostTeams, ABufferThatIsNotUsedForHalfOfAllStepsAndMoreStaysFree) {
  for (int stride = 1; stride <= kStrides; ++stride) {
    // The steps between are as these, and take an hour.
    startAllAt(static_cast<Step>(stride) * kStride - 1);
    publishAll();
    for (auto& team : teams) {
      for (const auto which : {HostTeam::kSlot0, HostTeam::kSlot1, HostTeam::kOutbox0, HostTeam::kOutbox1}) {
        EXPECT_TRUE(team->allReached(team->freeAt(which))) << "buffer " << which << " after " << stride << " strides";
      }
      EXPECT_TRUE(team->isNextSlotFree());
    }
    // And late between two looks.
    startAllAt(static_cast<Step>(stride + 1) * kStride - 2);
    for (auto& team : teams) EXPECT_TRUE(team->allReached(team->freeAt(HostTeam::kOutbox1))) << stride;
  }
}

TEST_F(HostTeams, ABufferInUseStaysTakenWhereStepsWrapAround) {
  for (const Step first : {Step{0} - 2, (Step{1} << 31) - 2, kStride - 2}) {
    startAllAt(first);
    teams[0]->setFreeAt(HostTeam::kOutbox0, first + 2);
    teams[0]->publish();
    teams[0]->publish();
    teams[1]->publish();
    EXPECT_FALSE(teams[0]->allReached(teams[0]->freeAt(HostTeam::kOutbox0))) << first;
    EXPECT_EQ(teams[0]->slowest(), 1);
    teams[1]->publish();
    EXPECT_TRUE(teams[0]->allReached(teams[0]->freeAt(HostTeam::kOutbox0))) << first;
  }
}

}  // namespace
}  // namespace clary
