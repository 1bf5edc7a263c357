"""Faults that an engine can inject on this machine, and agents that need their own mounts for them."""

from dataclasses import replace

import pytest

from clary.contract.launch_plan import Isolation
from clary.control.engines.interface import Capacity
from clary.control.engines.local import agent_processes, rehearsal_faults
from clary.control.engines.local.rehearsal_faults import LocalFaults
from clary.control.scheduling.machine import Machine
from clary.testing.launch_plans import make_hosts, make_plan


class FakeEngine:
    """Reports only its isolation."""

    def __init__(self, isolation):
        self._isolation = isolation

    def capacity(self):
        return Capacity(machine=Machine(num_cpus=2, memory_bytes=1), isolation=self._isolation)


@pytest.mark.parametrize(
    ("isolation", "is_admin", "refused"),
    [
        (Isolation.NAMESPACES, True, set()),
        (Isolation.NAMESPACES, False, {"disk-full"}),
        (Isolation.PROCESSES, True, {"disk-full", "partition", "slow"}),
    ],
)
def test_disks_can_be_filled_if_root_may_mount_and_links_cut_if_there_are_any(
    tmp_path, monkeypatch, isolation, is_admin, refused
):
    monkeypatch.setattr(rehearsal_faults, "is_network_admin", lambda: is_admin)
    refusals = LocalFaults(FakeEngine(isolation), tmp_path).refusals()
    assert set(refusals) == refused
    assert all(refusals.values())


def test_disks_may_take_half_of_the_memory_that_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal_faults, "free_memory_bytes", lambda: 1000)
    assert LocalFaults(FakeEngine(Isolation.NAMESPACES), tmp_path).largest_disk_bytes() == 500


def test_disks_that_cannot_be_made_are_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal_faults, "free_memory_bytes", lambda: 2 << 30)
    monkeypatch.setattr(rehearsal_faults, "is_network_admin", lambda: True)
    faults = LocalFaults(FakeEngine(Isolation.NAMESPACES), tmp_path)
    assert faults.why_no_disks(1 << 30) == ""
    assert "2048 MiB, more than half of the machine's free memory" in faults.why_no_disks(2 << 30)
    monkeypatch.setattr(rehearsal_faults, "is_network_admin", lambda: False)
    assert "runs as root" in faults.why_no_disks(1)
    assert "runs as root" in LocalFaults(FakeEngine(Isolation.PROCESSES), tmp_path).why_no_disks(1)


def test_only_agents_of_hosts_with_their_own_disk_get_their_own_mounts():
    first, second = make_hosts(2)
    plan = make_plan(hosts=(first, replace(second, disk_bytes=1 << 30)))
    assert "--own-mounts" not in agent_processes.agent_command(plan, "algo-1")
    command = agent_processes.agent_command(plan, "algo-2")
    assert "--own-mounts" in command
    assert command[-2:] == ["--host", "algo-2"], "by which a service finds agents that it did not live to record"
