"""Processes of a lease are ended, also beside processes that show a huge environment."""

import os
import subprocess

from clary.agent.node import lease_processes
from clary.base.processes import ProcessId
from clary.contract.box_protocol import MARK
from helpers.huge_areas import huge, small_and_fast

LEASE = "lease-of-test-lease-processes"


def test_a_lease_is_ended_beside_a_stranger_with_a_huge_environment():
    with (
        huge("environ") as stranger,
        subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: LEASE}) as ours,
    ):
        with small_and_fast():
            assert lease_processes.marked(LEASE) == [ProcessId.of(ours.pid)]
        assert lease_processes.end_marked(LEASE) == 0
        assert ours.wait() == -9
        assert stranger.poll() is None
