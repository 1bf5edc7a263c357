"""The cgroup of a host as seen from outside the host, in both versions, on trees of plain files."""

from __future__ import annotations

from pathlib import Path

import pytest

from clary.agent.host.limits.cgroups import CgroupTree
from clary.agent.metrics.cgroup_texts import Throttling
from clary.agent.metrics.host_cgroup import CgroupReading, find_host_cgroup

HOST_PID = 4242
FOLDER = "agent/clary/job-1-1-algo-1-abc"


class FakeCgroupTree(CgroupTree):
    """Plain files in place of the cgroup file system."""

    def __init__(self, mounts: str, *, own: str, hosts: str) -> None:
        self._mounts, self._own, self._hosts = mounts, own, hosts

    def mountinfo(self) -> str:
        return self._mounts

    def membership(self) -> str:
        return self._own

    def read(self, path: str) -> str:
        assert path == f"/proc/{HOST_PID}/cgroup"
        return self._hosts


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def version_2(tmp_path: Path):
    """Return a host in a cgroup of version 2."""
    write(
        tmp_path / FOLDER,
        cpu__stat="usage_usec 2500000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 1000000\n",
        memory__current="1000\n",
        memory__stat="inactive_file 300\n",
        memory__max="4096\n",
        memory__events="oom 1\noom_kill 1\n",
        cgroup__procs="11\n12\n",
    )
    mounts = f"30 24 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    return tmp_path, FakeCgroupTree(mounts, own="0::/agent\n", hosts=f"0::/{FOLDER}\n")


@pytest.fixture
def version_1(tmp_path: Path):
    """Return a host in cgroups of version 1, whose processor time is counted in the agent's own cgroup."""
    write(tmp_path / "cpu" / FOLDER, cpu__stat="nr_periods 10\nnr_throttled 4\nthrottled_time 1000000000\n")
    write(tmp_path / "cpuacct" / "agent", cpuacct__usage="99000000000\n")
    write(
        tmp_path / "memory" / FOLDER,
        memory__usage_in_bytes="1000\n",
        memory__stat="inactive_file 7\ntotal_inactive_file 300\n",
        memory__limit_in_bytes="4096\n",
        memory__oom_control="oom_kill_disable 0\noom_kill 1\n",
    )
    write(tmp_path / "pids" / FOLDER, cgroup__procs="11\n12\n")
    names = ("cpu", "cpuacct", "memory", "pids")
    mounts = "".join(f"3{n} 1 0:3 / {tmp_path}/{name} rw - cgroup cgroup rw,{name}\n" for n, name in enumerate(names))
    own = "".join(f"{n}:{name}:/agent\n" for n, name in enumerate(names))
    hosts = own.replace("agent", FOLDER).replace(f"cpuacct:/{FOLDER}", "cpuacct:/agent")
    return tmp_path, FakeCgroupTree(mounts, own=own, hosts=hosts)


def expected(cpu_s: float | None) -> CgroupReading:
    return CgroupReading(
        cpu_s=cpu_s,
        throttling=Throttling(num_periods=10, num_throttled=4, throttled_s=1.0),
        memory_bytes=700,
        memory_limit_bytes=4096,
        oom_kills=1,
    )


def test_a_cgroup_of_version_2_has_all_numbers(version_2):
    counters = find_host_cgroup(HOST_PID, version_2[1])
    assert counters is not None
    assert counters.read(looks_closely=True) == expected(2.5)
    assert list(counters.pids() or ()) == [11, 12]
    counters.close()


def test_version_1_processor_time_of_the_agents_cgroup_is_not_the_hosts(version_1):
    counters = find_host_cgroup(HOST_PID, version_1[1])
    assert counters is not None
    assert counters.read(looks_closely=True) == expected(None)
    assert list(counters.pids() or ()) == [11, 12]
    counters.close()


def test_processor_time_of_version_1_is_read_where_it_is_counted_for_the_host(version_1):
    folder, tree = version_1
    write(folder / "cpuacct" / FOLDER, cpuacct__usage="2500000000\n")
    tree._hosts = tree._hosts.replace("cpuacct:/agent", f"cpuacct:/{FOLDER}")
    counters = find_host_cgroup(HOST_PID, tree)
    assert counters is not None
    assert counters.read(looks_closely=True) == expected(2.5)
    counters.close()


def test_numbers_follow_the_files_and_idle_pages_are_read_only_on_request(version_2):
    folder, tree = version_2
    counters = find_host_cgroup(HOST_PID, tree)
    assert counters is not None
    counters.read(looks_closely=True)
    write(folder / FOLDER, memory__current="2000\n", memory__stat="inactive_file 0\n")
    assert counters.read(looks_closely=False).memory_bytes == 1700
    assert counters.read(looks_closely=True).memory_bytes == 2000
    counters.close()


def test_a_host_that_shares_the_agents_cgroup_has_none(version_2):
    _, tree = version_2
    tree._hosts = tree._own
    assert find_host_cgroup(HOST_PID, tree) is None


def test_an_ended_process_has_no_cgroup():
    assert find_host_cgroup(2**22 + 1) is None


def test_a_removed_cgroup_has_no_numbers_and_raises_nothing(tmp_path):
    mounts = f"30 24 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    counters = find_host_cgroup(HOST_PID, FakeCgroupTree(mounts, own="0::/agent\n", hosts=f"0::/{FOLDER}\n"))
    assert counters is not None
    nothing = CgroupReading(cpu_s=None, throttling=None, memory_bytes=None, memory_limit_bytes=None, oom_kills=None)
    assert counters.read(looks_closely=True) == nothing
    assert counters.pids() is None
    counters.close()
