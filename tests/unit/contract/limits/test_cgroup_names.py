"""The name by which agent and engine find the same cgroup."""

from clary.agent.host.limits.cgroups import CgroupTree, HostCgroup
from clary.contract.launch_plan import Resources
from clary.contract.limits.cgroup_names import host_cgroup_name


def test_services_with_different_folders_give_the_same_host_different_cgroups():
    names = {
        host_cgroup_name("job", 1, host="algo-1", work_folder=f"/home/{user}/.clary/jobs/job/1")
        for user in ("ann", "bob", "zo\udcff")
    }
    assert len(names) == 3
    assert all(name.startswith("job-1-algo-1-") for name in names)


def test_a_name_is_deterministic():
    assert host_cgroup_name("job", 2, host="algo-10", work_folder="/var/clary/jobs/job/2") == "job-2-algo-10-d905c1"


def test_longest_name_is_one_that_a_cgroup_can_have():
    class FakeMachineWithoutCgroups(CgroupTree):
        def mountinfo(self):
            return ""

        def membership(self):
            return ""

    name = host_cgroup_name("a" * 63, 999, host="algo-1000", work_folder="/x")
    assert (
        HostCgroup.create(name, Resources(num_cpus=1, memory_bytes=1), tree=FakeMachineWithoutCgroups()).folders == ()
    )
